"""Sums over members of arrays on devices: the bits, the ledger, who copies what."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcsgd.backends.cuda.sequences import DeviceSums
from hpcsgd.comm.gpu_mpi import StagedCommunicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.messages import open_message
from hpcsgd.comm.nccl import NcclCommunicator
from hpcsgd.comm.threads import run_ranks
from tests.helpers.fake_cuda import Node
from tests.helpers.kernels.fake_device import FakeDevice

FORMS = ("fp32", "bf16", "fp16", "fp8-e4m3", "tf32")
TRANSPORTS = (NcclCommunicator, StagedCommunicator)


def on_devices(ranks, transport, function, reproducible=False):
    """function(sums, device, host) on ranks whose members are on devices."""
    node = Node()

    def on_rank(host):
        device = FakeDevice(node)
        members = transport(host, device.layer, device.stream)
        device.settle = members.settle
        task = SimpleNamespace(members=members, clock=Clock())
        return function(DeviceSums(task, device), device, host)

    return run_ranks(ranks, on_rank, reproducible=reproducible)


def put(device, values):
    array = device.empty(values.shape, np.float32)
    device.fill(array, values)
    return array


def entry(host, purpose="products"):
    return {**vars(host.ledger.entries[purpose]), "seconds": 0}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("how", ["sum", "start"])
def test_bits_and_ledger_are_those_of_the_host(ranks, transport, form, how):
    """Of a message that is summed again, and of one without words."""

    def on_rank(sums, device, host):
        rng = np.random.default_rng(host.rank)
        for words in (533, 0):
            here, there = open_message(host, words, form), None
            there = put(device, np.zeros(words, np.float32))
            for _ in range(2):
                values = rng.normal(size=words).astype(np.float32)
                here.array[...] = values
                device.fill(there, values)
                expected = here.sum("evaluate").copy()
                if how == "sum":
                    sums.sum("gram", there, form)
                else:
                    assert sums.start("gram", there, form).wait() is there
                found = device.fetch(there)
                np.testing.assert_array_equal(found, expected)
        assert entry(host) == entry(host, "evaluate")

    on_devices(ranks, transport, on_rank)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("reproducible", [False, True])
def test_the_host_sees_nothing_of_bf16(transport, reproducible):
    """The device fetches what other narrow formats are sent in, and only that."""

    def on_rank(sums, device, host):
        array = put(device, np.ones(70, np.float32))
        for form in ("fp32", "bf16"):
            sums.sum("gram", array, form)
        empty, made = device.layer.empty, []
        device.layer.empty = lambda *given: made.append(given) or empty(*given)
        sums.sum("gram", array, "bf16")
        sums.start("gram", array, "bf16").wait()
        assert not made  # what it needs is there
        fetched = device.fetched
        sums.sum("gram", array, "fp16")
        assert (device.fetch(array) == 2.0**5).all()
        return fetched, device.fetched

    assert on_devices(2, transport, on_rank, reproducible) == [(0, 2)] * 2


def test_two_sums_travel_at_once():
    """Of equally long arrays with one name, as where two grams take turns."""

    def on_rank(sums, device, host):
        one, two = (put(device, np.full(9, value, np.float32)) for value in (1, 2))
        first, second = (sums.start("gram", array, "bf16") for array in (one, two))
        second.wait(), first.wait()
        assert (device.fetch(one) == 2).all() and (device.fetch(two) == 4).all()

    for transport in TRANSPORTS:
        on_devices(2, transport, on_rank)


def test_a_graph_holds_what_is_added_as_it_is():
    """Of NCCL, in wide formats; alone, every exchange is a graph."""

    def alone(sums, device, host):
        assert sums.captures("bf16")
        assert launched(sums, device) == 1.0
        assert entry(host)["calls"] == 0

    def two(sums, device, host):
        assert sums.captures("fp32", "fp32")
        assert not sums.captures("fp32", "bf16")
        assert launched(sums, device) == 2.0
        assert entry(host)["calls"] == 1

    on_devices(1, NcclCommunicator, alone)
    on_devices(2, NcclCommunicator, two)
    on_devices(2, StagedCommunicator, lambda sums, *_: is_false(sums.captures("fp32")))


def is_false(said):
    assert said is False


def launched(sums, device):
    """What a graph makes of ones."""
    array = put(device, np.ones(5, np.float32))
    graph = sums.capture(lambda: sums.queue(array))
    sums.replay(graph, [array])
    return device.fetch(array)[0]


def test_a_graph_that_was_never_launched_ends_in_time():
    """NCCL waits for what was recorded, not for what was launched."""

    def on_rank(sums, device, host):
        array = put(device, np.ones(5, np.float32))
        graph = sums.capture(lambda: sums.queue(array))
        sums.members.close()
        with pytest.raises(AssertionError, match="after its release"):
            graph()

    on_devices(2, NcclCommunicator, on_rank)
    on_devices(1, NcclCommunicator, on_rank)
