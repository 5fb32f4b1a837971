"""Sums of NCCL within a graph: what happens while recording, and at a launch."""

import numpy as np
import pytest

from hpcsgd.comm import nccl
from hpcsgd.comm.gpu_mpi import StagedCommunicator
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import TransportError
from tests.helpers.bits import narrow_bits, widen_bits
from tests.helpers.fake_cuda import FakeLayer, Node, UnderCapture
from tests.helpers.nccl import on_nccl, own_environment, read, waits_in, watched

__all__ = ["own_environment"]  # a fixture


def recorded(world, layer, *buffers):
    """A graph of their sums."""
    return layer.main.capture(lambda: [world.queue_sum(buffer) for buffer in buffers])


def facts(world):
    return {**vars(world.ledger.entries["products"]), "seconds": 0}


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_launches_are_what_sums_are(ranks, reproducible):
    """Totals, calls of NCCL, the ledger, the numbers: to the bit, launch after launch.

    Of a message in fp32, one in float64, and one in the bits of bf16.
    """

    def fill(world, buffers, launch):
        rng = np.random.default_rng([world.rank, launch])
        for buffer in buffers:
            values = rng.normal(size=buffer.size).astype(np.float32)
            if buffer.dtype == np.uint16:
                narrow_bits(np, values, buffer.held)
            else:
                buffer.held[...] = values

    def on_rank(world, layer):
        kinds = (np.float32, np.float64, np.uint16)
        first, second = ([layer.array(np.zeros(7, k)) for k in kinds] for _ in "ab")
        start = world.begun
        for launch in range(3):
            fill(world, first, launch)
            for buffer in first:
                world.sum(buffer, "products")
            world.settle()
        plain, begun = facts(world), world.begun - start
        world.exchange_objects(None)
        calls = list(node.calls)
        world.exchange_objects(None)
        before = world.begun
        graph = recorded(world, layer, *second)
        assert world.begun == before and facts(world) == plain
        for launch in range(3):
            fill(world, second, launch)
            world.replay(graph, second, "products")
            world.settle()
        for buffer, wanted in zip(second, first, strict=True):
            np.testing.assert_array_equal(read(layer, buffer), wanted.held)
        assert world.begun - before == begun
        twice = facts(world)
        assert twice == pytest.approx({name: 2 * n for name, n in plain.items()})
        world.exchange_objects(None)
        return calls

    node = Node()
    found = on_nccl(ranks, on_rank, node, reproducible)
    if ranks > 1:
        each = 5 if reproducible else 3
        assert len(node.calls) == 2 * 3 * each * ranks
        assert sorted(node.calls[: len(node.calls) // 2]) == sorted(found[0])
        assert sorted(node.calls[len(node.calls) // 2 :]) == sorted(found[0])


def test_bits_of_bf16_are_those_of_nccl():
    """What is held in 16 bits is added as 16-bit floats within a graph, too."""

    def on_rank(world, layer):
        held = narrow_bits(np, np.full(4, 1.5, np.float32), np.empty(4, np.uint16))
        buffer = layer.array(held)
        world.replay(recorded(world, layer, buffer), [buffer], "products")
        total = widen_bits(read(layer, buffer), np.empty(4, np.float32))
        np.testing.assert_array_equal(total, 3.0)

    node = Node()
    on_nccl(2, on_rank, node)
    assert node.calls == [("sum", 4, 9)] * 2


@pytest.mark.parametrize("look", ["record", "synchronize", "is_done", "settle", "sum"])
def test_nobody_looks_at_a_stream_that_is_recorded(look):
    """The test would not see it otherwise: this is what it is made of."""

    def on_rank(world, layer):
        buffer = layer.array(np.ones(3))
        event = layer.record(layer.main)
        action = {
            "record": lambda: layer.record(layer.main),
            "synchronize": lambda: layer.synchronize(layer.main),
            "is_done": lambda: layer.is_done(event),
            "settle": world.settle,
            "sum": lambda: world.sum(buffer, "products"),
        }[look]
        with pytest.raises(UnderCapture):
            layer.main.capture(action)
        layer.synchronize(layer.main)  # and that is over

    on_nccl(2, on_rank)


def test_an_error_of_a_launch_names_it():
    def on_rank(world, layer):
        buffers = [layer.array(np.ones(3)) for _ in "ab"]
        one, two = recorded(world, layer, buffers[0]), recorded(world, layer, *buffers)
        world.replay(one, buffers[:1], "products")
        world.replay(two, buffers, "products")
        world.settle()
        world.exchange_objects(None)
        node.faults["async"] = RuntimeError("remote process exited")
        number = world.begun + 1
        said = rf"failed in the sum for agreement \(collective {number}\) \(remote"
        with pytest.raises(TransportError, match=said):
            world.replay(one, buffers[:1], "agreement")
        assert [comm.state for comm in layer.nccl.comms] == ["aborted"]
        with pytest.raises(
            TransportError, match="cannot begin the graph of 2 collectives for products"
        ):
            world.replay(two, buffers, "products")

    node = Node()
    on_nccl(2, on_rank, node)


def test_an_error_while_it_is_recorded_ends_nccl_once_that_is_over():
    """NCCL would wait for the graph that is under capture."""

    def on_rank(world, layer):
        buffers = [layer.array(np.ones(3)) for _ in "ab"]

        def action():
            world.queue_sum(buffers[0])
            world.exchange_objects(None)
            node.faults["call"] = RuntimeError("out of channels")
            world.exchange_objects(None)
            world.queue_sum(buffers[1])

        with pytest.raises(TransportError, match="in the capture of a sum for a graph"):
            layer.main.capture(action)
        assert [comm.state for comm in layer.nccl.comms] == ["open"]
        world.close()
        assert [comm.state for comm in layer.nccl.comms] == ["aborted"]

    node = Node()
    on_nccl(2, on_rank, node)


def test_a_launch_that_hangs_is_named(monkeypatch):
    """The host does not run away, and the watchdog reads which launch it stands in."""
    monkeypatch.setattr(nccl, "AHEAD", 3)

    def on_rank(world, layer):
        buffers = [layer.array(np.ones(2)) for _ in "ab"]
        graph = recorded(world, layer, *buffers)
        places = world.exchange_objects(world.ledger.place)
        first = world.begun + 1
        if world.rank == 1:
            what = "graph of 2 collectives for products"
            spot = waits_in(places[0], what)
            assert (spot.what, spot.number, spot.size) == (what, first, 2)
            said, code = watched(places[0], 0)
            assert code == [1]
            assert f"the {what} (collective {first})" in said[0]
        for _ in range(8):
            world.replay(graph, buffers, "products")
            assert len(world.carrier.under_way) <= 4
        world.settle()
        assert all((read(layer, buffer) == 2**8).all() for buffer in buffers)

    on_nccl(2, on_rank)


def test_graphs_end_before_their_communicator():
    """NCCL waits for them otherwise, and for ever."""

    def on_rank(world, layer):
        buffer = layer.array(np.ones(2))
        graph = recorded(world, layer, buffer)
        world.replay(graph, [buffer], "products")
        world.close()
        with pytest.raises(AssertionError, match="after its release"):
            graph()
        return [comm.state for comm in layer.nccl.comms]

    assert on_nccl(2, on_rank) == [["destroyed"]] * 2


def test_other_transports_say_that_they_have_none():
    def on_rank(host):
        world = StagedCommunicator(host, FakeLayer(Node()))
        buffer = world.layer.array(np.ones(2))
        assert not world.captures
        for action in (
            lambda: world.queue_sum(buffer),
            lambda: world.replay(lambda: None, [buffer], "products"),
        ):
            with pytest.raises(TransportError, match="mpi-host .*use transport = nccl"):
                action()

    run_ranks(2, on_rank)


def test_what_cannot_be_summed_is_not_recorded():
    def on_rank(world, layer):
        with pytest.raises(TransportError, match="cannot be summed"):
            recorded(world, layer, layer.array(np.ones(3, np.int32)))

    on_nccl(2, on_rank)
