"""What replicas average: the kernels bit for bit, then states, then whole runs."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcsgd.agreements import Average
from hpcsgd.backends.cuda.weights import DeviceCopies
from hpcsgd.backends.task import State
from hpcsgd.comm.gpu_mpi import StagedCommunicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.nccl import NcclCommunicator
from hpcsgd.comm.threads import run_ranks
from tests.helpers.fake_cuda import Node
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.checks.average import SIZES, agrees
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.runs import on_gpu


@pytest.mark.cases(2)
@pytest.mark.parametrize("held, more", SIZES)
def test_portions_have_the_bits_of_the_host(held, more):
    agrees(held, more)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("transport", [NcclCommunicator, StagedCommunicator])
@pytest.mark.parametrize("replicas, members", [(2, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("reproducible", [False, True])
def test_averages_and_the_ledger_are_those_of_the_host(
    replicas, members, transport, intercept, reproducible
):
    """To the bit, as both add in rank order here; two of them, one after the other."""
    node = Node()

    def state_of(rank):
        rng = np.random.default_rng(rank)
        weights = rng.normal(size=(41, 2)).astype(np.float32)
        beta = rng.normal(size=(2, 1)) if intercept else None
        return State(weights, beta)

    def averaged(world, state):
        grid = Grid(world, replicas, members)
        agreement = Average(grid, (grid.replica + 1) / 6, 1)
        agreement.agree(state, "agreement")
        agreement.agree(state, "agreement")

    def on_rank(host):
        here = state_of(host.rank)
        averaged(host, here)
        plain = vars(host.ledger.entries["agreement"]).copy()
        device = FakeDevice(node)
        world = transport(host, device.layer, device.stream)
        device.settle = world.settle
        there = state_of(host.rank)
        scale = 2.0 ** (grid_row(host, members) + 1)
        there.place(DeviceCopies(device, there.weights, there.intercept, scale))
        averaged(world, there)
        device.synchronize()
        assert device.fetched == 0
        np.testing.assert_array_equal(there.weights, here.weights)
        if intercept:
            np.testing.assert_array_equal(there.intercept, here.intercept)
        shared = intercept and replicas > 2 and members > 1
        assert plain["calls"] == 2 * (1 + reproducible + shared)
        twice = vars(host.ledger.entries["agreement"])
        for name in ("calls", "words", "bytes", "wire_bytes"):
            assert twice[name] == pytest.approx(2 * plain[name])

    run_ranks(replicas * members, on_rank, reproducible=reproducible)


def grid_row(host, members):
    """Replicas may have stored their rows times different powers of two."""
    return host.rank // members


def test_a_group_of_hosts_sums_what_the_host_holds():
    """Behind an emulated network, say, which knows nothing of devices."""

    def on_rank(host):
        state = State(np.full((3, 1), host.rank + 1, np.float32), None)
        state.place(DeviceCopies(FakeDevice(), state.weights, None))
        grid = SimpleNamespace(replicas=host, members=None)
        Average(grid, 0.5, 1).agree(state, "agreement")
        assert (state.weights == 1.5).all()
        return isinstance(state.portion(1.0, host), np.ndarray)

    assert run_ranks(2, on_rank) == [True, True]


@pytest.mark.cases(1)
@pytest.mark.parametrize("replicas, members", [(2, 1), (3, 2)])
def test_runs_agree_without_copies_of_weights(devices, monkeypatch, replicas, members):
    agree, agreed = Average.agree, []

    def counted(self, state, purpose):
        on_device = state.copies is not None and purpose == "agreement"
        device = state.copies.device if on_device else None
        before = device and device.fetched
        agree(self, state, purpose)
        if device:
            agreed.append(device.fetched - before)

    monkeypatch.setattr(Average, "agree", counted)
    problem, ranks = make_problem("logistic", n=48 * replicas, d=13), replicas * members
    sections = {
        "problem": {"intercept": True},
        "grid": {"replicas": replicas, "members": members},
        "schedule": {"batch": 4, "steps": 2, "epochs": 1, "period": 2},
        "products": {"kind": "gram"},
    }
    here = train_on(ranks, on_gpu(problem, **sections, run={"device": "cpu"}), problem)
    there = train_on(ranks, on_gpu(problem, **sections), problem)
    assert agreed == [0] * (6 // 2) * ranks
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 1e-5 * size
    for name in ("calls", "words", "bytes"):
        entries = [run.ledger["agreement"][name] for run in (here, there)]
        assert entries[0] == entries[1] > 0
