"""NCCL without a GPU: what is asked of it, when, and what becomes of its errors."""

import inspect
import os
import threading

import numpy as np
import pytest

from hpcsgd.backends.cuda.driver import DeviceLayer
from hpcsgd.comm import nccl
from hpcsgd.comm.gpu import Layer, open_transport
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.nccl import PINNED, NcclCommunicator, pin
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError, TransportError
from tests.helpers.bits import narrow_bits
from tests.helpers.fake_cuda import FakeLayer, Node
from tests.helpers.limits import HANG
from tests.helpers.nccl import on_nccl, own_environment, read, waits_in, watched

__all__ = ["own_environment"]  # a fixture


def test_every_layer_is_the_same_interface():
    """What the tests run on and what a GPU runs on: the same methods and names."""
    names = [name for name in vars(Layer) if not name.startswith("_")]
    assert len(names) > 15
    for name in names:
        wanted = getattr(Layer, name)
        if isinstance(wanted, property):
            assert isinstance(getattr(DeviceLayer, name), property)
            continue
        for layer in (DeviceLayer, FakeLayer):
            found = inspect.signature(getattr(layer, name)).parameters
            assert list(found) == list(inspect.signature(wanted).parameters), name


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("name, kind", [("bf16", 9), ("fp16", 6)])
def test_16_bit_floats_are_added_by_nccl(name, kind, reproducible):
    """bf16 is held as bits; one collective of two bytes a word, also reproducible."""
    values = np.array([1.0, -3.5, 0.25], dtype=np.float32)

    def held(values):
        if name == "fp16":
            return values.astype(np.float16)
        return narrow_bits(np, values.copy(), np.empty(values.size, np.uint16))

    def on_rank(world, layer):
        first, second = (layer.array(held(values * (world.rank + 1))) for _ in "ab")
        assert world.sum(first, "products") is first
        world.start_sum(second, "products").wait()
        for total in (first, second):
            np.testing.assert_array_equal(read(layer, total), held(values * 6))
        return vars(world.ledger.entries["products"])

    node = Node()
    for entry in on_nccl(3, on_rank, node, reproducible):
        assert (entry["calls"], entry["words"], entry["bytes"]) == (2, 6, 12)
        assert entry["wire_bytes"] == pytest.approx(2 * 12 * 2 / 3)
    assert node.calls == [("sum", 3, kind)] * 6


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_integers_are_not_summed(dtype):
    def on_rank(world, layer):
        for buffer in (layer.array(np.ones(3, dtype)), np.ones(3, np.uint16)):
            with pytest.raises(TransportError, match="cannot be summed"):
                world.sum(buffer, "products")

    on_nccl(2, on_rank)


def test_one_communicator_for_each_direction():
    """The world, two replicas, two column blocks of a 2 x 2 grid; none for one rank."""

    def on_rank(world, layer):
        Grid(world, 2, 2)
        sizes = [comm.size for comm in layer.nccl.comms]
        names = [comm.name for comm in layer.nccl.comms]
        Grid(world, 4, 1)
        return sizes, names, [comm.size for comm in layer.nccl.comms[3:]]

    node, found = Node(), []
    found = on_nccl(4, on_rank, node)
    assert [sizes for sizes, _, _ in found] == [[4, 2, 2]] * 4
    assert len({name for _, names, _ in found for name in names}) == 5
    assert all(alone == [4] for _, _, alone in found)


def test_reproducible_sums_pin_what_nccl_may_choose(monkeypatch):
    """Before its first group; a setting that is right already stays."""
    seen = []
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    original = FakeLayer.__init__

    def spying(self, node, *rest):
        original(self, node, *rest)
        begin = self.nccl.get_unique_id
        self.nccl.get_unique_id = lambda: (
            seen.append({name: os.environ.get(name) for name in PINNED}),
            begin(),
        )[1]

    monkeypatch.setattr(FakeLayer, "__init__", spying)
    on_nccl(2, lambda world, layer: None)
    on_nccl(2, lambda world, layer: None, reproducible=True)
    free, pinned = seen
    assert free == {
        "NCCL_NVLS_ENABLE": None,
        "NCCL_ALGO": "Tree",
        "NCCL_PROTO": None,
    }
    assert pinned == {
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_ALGO": "Tree",
        "NCCL_PROTO": "Simple",
    }


def test_what_is_pinned():
    environment = {"HOME": "/"}
    pin(environment)
    assert environment == {
        "HOME": "/",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
    }
    for name, value in (("NCCL_ALGO", "NVLS"), ("NCCL_PROTO", "LL128")):
        with pytest.raises(
            ConfigError, match=f"{name}={value} is not reproducible; un"
        ):
            pin({name: value})


@pytest.mark.parametrize(
    "value, found", [("^LL128", "Simple"), ("^LL,LL128", "Simple")]
)
def test_an_exclusion_of_other_protocols_is_narrowed(value, found):
    """As the site file of Alps sets it, whatever --reproducible needs."""
    environment = {"NCCL_PROTO": value}
    pin(environment)
    assert environment["NCCL_PROTO"] == found
    with pytest.raises(ConfigError, match="is not reproducible"):
        pin({"NCCL_PROTO": "^Simple,LL"})


@pytest.mark.parametrize(
    "error", [RuntimeError("NCCL_ERROR_SYSTEM_ERROR"), KeyError(6)]
)
@pytest.mark.parametrize("moment", ["call", "async"])
def test_an_error_names_the_collective_and_ends_nccl(moment, error):
    """CuPy raises KeyError where NCCL's number is newer than its table."""

    def on_rank(world, layer):
        world.sum(layer.array(np.ones(3)), "products")
        world.settle()
        world.exchange_objects(None)
        node.faults[moment] = error
        with pytest.raises(
            TransportError, match=r"failed in the sum for agreement \(c"
        ):
            world.sum(layer.array(np.ones(3)), "agreement")
        assert [comm.state for comm in layer.nccl.comms] == ["aborted"]
        with pytest.raises(TransportError, match="cannot begin the sum for products"):
            world.sum(layer.array(np.ones(3)), "products")
        world.close()

    node = Node()
    on_nccl(1 + 1, on_rank, node)


def test_an_error_that_comes_while_a_sum_is_waited_for():
    """The other rank never joins it; NCCL says so to whoever looks."""

    def on_rank(world, layer):
        if world.rank == 0:
            world.sum(layer.array(np.ones(3)), "products")
            node.faults["async"] = RuntimeError("remote process exited")
            with pytest.raises(
                TransportError, match="sum for products .*exited.*NCCL_D"
            ):
                world.settle()
            assert world.ledger.place.before().what == "sum for products"

    node = Node()
    on_nccl(2, on_rank, node)


def test_a_start_that_fails_is_one_sentence():
    def on_rank(host):
        node.faults["init"] = RuntimeError("no interface found")
        open_transport("nccl", host, FakeLayer(node, f"node {host.rank}"))

    node = Node()
    with pytest.raises(
        TransportError, match="failed in the start for control .*no int"
    ):
        run_ranks(2, on_rank)


def test_a_sum_that_is_begun_early_leaves_the_stream_free():
    """The other rank begins only after this one's later work is done."""
    worked = threading.Event()

    def on_rank(world, layer):
        buffer, other = layer.array(np.zeros(3)), layer.array(np.zeros(3))
        layer.later(buffer, 5.0)
        if world.rank == 1:
            assert worked.wait(HANG)
        pending = world.start_sum(buffer, "products")
        world.carrier._side.run()  # a GPU may turn to this one first
        if world.rank == 0:
            layer.later(other, 7.0)
            layer.synchronize(layer.main)
            assert (other.held == 7).all() and (buffer.held == 5).all()
            worked.set()
        assert pending.wait() is buffer and pending.wait() is buffer
        np.testing.assert_array_equal(read(layer, buffer), [10] * 3)

    on_nccl(2, on_rank)


def test_the_host_does_not_run_away_and_stands_where_it_waits(monkeypatch):
    """Of eight sums it is in the oldest that is not done; the watchdog reads that."""
    monkeypatch.setattr(nccl, "AHEAD", 3)

    def on_rank(world, layer):
        buffers = [layer.array(np.ones(2)) for _ in range(8)]
        places = world.exchange_objects(world.ledger.place)
        first = world.begun + 1
        if world.rank == 1:
            spot = waits_in(places[0], "sum for products")
            assert (spot.what, spot.number, spot.size) == (
                "sum for products",
                first,
                2,
            )
            said, code = watched(places[0], 0)
            assert code == [1]
            assert f"the sum for products (collective {first})" in said[0]
        for number, buffer in enumerate(buffers):
            world.sum(buffer, "products")
            assert len(world.carrier.under_way) <= min(number + 1, 4)
        world.settle()
        assert not world.carrier.under_way
        assert all((read(layer, buffer) == 2).all() for buffer in buffers)

    on_nccl(2, on_rank)


@pytest.mark.parametrize("reproducible", [False, True])
def test_parts_of_one_size_are_one_collective(reproducible):
    """Others are one group of reductions, each to the rank that its part is of."""

    def on_rank(world, layer):
        found = []
        for counts in ([3, 3], [1, 4], [0, 5]):
            buffer = layer.array(np.arange(sum(counts), dtype=np.float32))
            own = world.start_sum_parts(buffer, counts, "agreement").wait()
            found.append(read(layer, own).tolist())
        return found, [name for name, *_ in world.layer.node.calls]

    expected = ([0, 2, 4], [0], []), ([6, 8, 10], [2, 4, 6, 8], [0, 2, 4, 6, 8])
    node = Node()
    for (found, _), own in zip(
        on_nccl(2, on_rank, node, reproducible), expected, strict=True
    ):
        assert found == [list(part) for part in own]
    calls = sorted(name for name, *_ in node.calls)
    assert calls == ["reduce"] * 6 + ["reduceScatter"] * 2


def test_a_gather_of_equal_parts_is_one_collective():
    """Others are one group of broadcasts; both put the parts in rank order."""

    def on_rank(world, layer):
        found = []
        for counts in ([2, 2, 2], [1, 3, 2], [0, 4, 2]):
            part = np.full(counts[world.rank], world.rank + 1, dtype=np.float32)
            out = layer.array(np.zeros(6, dtype=np.float32))
            world.gather(layer.array(part), counts, out, "products")
            found.append(read(layer, out).tolist())
        return found

    node = Node()
    for found in on_nccl(3, on_rank, node):
        assert found == [[1, 1, 2, 2, 3, 3], [1, 2, 2, 2, 3, 3], [2, 2, 2, 2, 3, 3]]
    calls = sorted(name for name, *_ in node.calls)
    assert calls == ["allGather"] * 3 + ["broadcast"] * 3 * (3 + 2)


def test_the_host_reaches_what_was_begun_and_no_more():
    """The last of three stays under way; a wait of the host has its place."""

    def on_rank(world, layer):
        assert world.newest is None
        world.reach(world.newest)
        buffers = [layer.array(np.ones(2 * world.size)) for _ in range(3)]
        begun = []
        for buffer in buffers:
            world.start_sum_parts(buffer, [2] * world.size, "agreement")
            begun.append(world.newest)
        places = world.exchange_objects(world.ledger.place)
        if world.rank == 1:
            world.settle()
            return
        world.reach(begun[1])
        assert list(world.carrier.under_way) == begun[2:]
        world.reach(begun[0])  # it is behind us
        assert list(world.carrier.under_way) == begun[2:]
        assert "sum of parts" in str(places[0].before())
        world.settle()

    on_nccl(2, on_rank)


@pytest.mark.parametrize("asked", [None, "1"])
def test_buffers_of_graphs_are_not_registered_unless_asked(monkeypatch, asked):
    """NCCL has hung there without a word; whoever knows better says so."""
    if asked is not None:
        monkeypatch.setenv("NCCL_GRAPH_REGISTER", asked)
    on_nccl(2, lambda world, layer: world.sum(layer.array(np.ones(2)), "products"))
    assert os.environ["NCCL_GRAPH_REGISTER"] == (asked or "0")


def test_groups_of_one_stream_are_waited_for_in_one_order():
    """Who waits for the last of members stands where replicas do not come."""

    def on_rank(world, layer):
        grid = Grid(world, 2, 2)
        buffer = layer.array(np.ones(2))
        places = world.exchange_objects(world.ledger.place)
        if grid.replica == 1:
            spot = waits_in(places[grid.member], "sum for agreement")
            assert spot.size == 2 and spot.number == grid.replicas.begun + 1
        grid.replicas.sum(buffer, "agreement")
        grid.members.sum(buffer, "products")
        grid.members.settle()
        assert (read(layer, buffer) == 4).all()
        assert not grid.replicas.carrier.under_way

    on_nccl(4, on_rank)


def test_an_error_in_one_group_leaves_those_of_the_others_under_way():
    def on_rank(world, layer):
        grid = Grid(world, 2, 2)
        buffer = layer.array(np.ones(2))
        grid.members.sum(buffer, "products")
        grid.replicas.sum(buffer, "agreement")
        grid.replicas.carrier.abort_pending()
        assert [sent.purpose for sent in world.carrier.under_way] == ["products"]
        grid.members.settle()

    on_nccl(4, on_rank)


def test_close_waits_and_lets_go():
    def on_rank(world, layer):
        buffer = layer.array(np.ones(4))
        world.sum(buffer, "products")
        world.close()
        assert (buffer.held == 2).all()
        return [comm.state for comm in layer.nccl.comms]

    assert on_nccl(2, on_rank) == [["destroyed"]] * 2


def test_those_that_are_left_meet_again():
    def on_rank(world, layer):
        world.sum(layer.array(np.ones(1)), "products")
        left = world.survivors()
        assert isinstance(left, NcclCommunicator) and left.size == 2
        buffer = layer.array(np.full(1, 3.0))
        left.sum(buffer, "products")
        assert read(layer, buffer) == 6
        return [comm.state for comm in layer.nccl.comms]

    assert on_nccl(2, on_rank) == [["aborted", "open"]] * 2
