"""Device arrays over MPI: through the host's memory, and by their own addresses."""

import numpy as np
import pytest

from hpcsgd.comm import gpu_mpi, mpi
from hpcsgd.comm.communicator import DONE
from hpcsgd.comm.gpu import (
    TRANSPORTS,
    check_transport,
    fetched,
    open_transport,
    transport_of,
)
from hpcsgd.comm.gpu_mpi import (
    CudaAware,
    CudaAwareCommunicator,
    DeviceNarrowSum,
    StagedCommunicator,
    check_support,
    chunks_of,
)
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.messages import NarrowSum, open_message
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError, TransportError
from hpcsgd.formats import decode, encode, get_format
from tests.helpers.bits import add_bits, narrow_bits, widen_bits
from tests.helpers.contracts.communicator import CHECKS
from tests.helpers.fake_cuda import FakeLayer, Node, Unsynchronized

RANKS = (1, 2, 3, 4)


def on_devices(n, function, kind, reproducible=False):
    """function(world) on n thread ranks with a fake GPU each; their results."""
    node = Node()

    def on_rank(host):
        layer = FakeLayer(node, f"node {host.rank}")
        return function(open_transport(kind, host, layer))

    return run_ranks(n, on_rank, reproducible=reproducible)


class Noted:
    """A host's communicator that notes its sums among the events of a device."""

    def __init__(self, host, events):
        self.host, self.events = host, events

    def begin(self, collective, blocking):
        self.events.append(collective.kind)
        return self.host.begin(collective, blocking)

    def __getattr__(self, name):
        return getattr(self.host, name)


def part_of(world, words, dtype=np.float32):
    rng = np.random.default_rng((words, world.rank))
    return rng.normal(size=words).astype(dtype)


class Plain:
    """Arrays of the host, used as the tests below use those of a device."""

    def __init__(self, world):
        self.world = world

    def put(self, values):
        return np.array(values)

    def get(self, array):
        return array


class Device:
    """A value is written by a kernel that runs late, and read with patience."""

    def __init__(self, world):
        self.layer = world.layer

    def put(self, values):
        array = self.layer.empty(np.size(values), np.asarray(values).dtype)
        array = array.reshape(*np.shape(values))
        self.layer.later(array, values)
        return array

    def get(self, array):
        return fetched(self.layer, array, self.layer.main).reshape(array.shape)


def conversation(world, arrays):
    """Every call of a grid with arrays of all sizes, and what came of it."""
    said = []
    for replicas in range(1, world.size + 1):
        if world.size % replicas:
            continue
        grid = Grid(world, replicas, world.size // replicas)
        for group, purpose in (
            *((grid.members, "products"), (grid.replicas, "agreement")),
            (world, "evaluate"),
        ):
            said += [arrays.get(a) for a in calls(group, purpose, arrays)]
    return said


def calls(group, purpose, arrays):
    for dtype in (np.float32, np.float64):
        yield group.sum(arrays.put(part_of(group, 1001, dtype)), purpose)
    yield group.sum(arrays.put(part_of(group, 12).reshape(3, 4)), purpose)
    first, second = (arrays.put(part_of(group, words)) for words in (7, 90))
    one, two = (group.start_sum(buffer, purpose) for buffer in (first, second))
    yield two.wait()
    yield one.wait()
    yield group.broadcast(arrays.put(part_of(group, 30)), 0, purpose)
    for counts in ([3] * group.size, [2 * rank for rank in range(group.size)]):
        part = arrays.put(part_of(group, counts[group.rank]))
        out = arrays.put(np.zeros(sum(counts), np.float32))
        yield group.gather(part, counts, out, purpose) if group.size > 1 else part
        pieces = arrays.put(np.arange(sum(counts)).astype(np.uint16) + group.rank)
        out = arrays.put(np.zeros(group.size * counts[group.rank], np.uint16))
        if group.size > 1:
            yield group.exchange_pieces(pieces, counts, out, purpose)
            again = arrays.put(np.zeros(group.size * counts[group.rank], np.uint16))
            yield group.start_exchange(pieces, counts, again, purpose).wait()
        yield from parts_under_way(group, counts, purpose, arrays)


def parts_under_way(group, counts, purpose, arrays):
    """Sums of which each rank gets a part, and parts gathered: two of each at once."""
    said = [arrays.put(part_of(group, sum(counts), kind)) for kind in ("f4", "f8")]
    own = [group.start_sum_parts(words, counts, purpose) for words in said]
    parts = [one.wait() for one in own[::-1]]
    yield from parts
    if group.size == 1:
        return
    rooms = [arrays.put(np.zeros(sum(counts), part.dtype)) for part in parts]
    whole = [
        group.start_gather(part, counts, room, purpose)
        for part, room in zip(parts, rooms, strict=True)
    ]
    yield from (one.wait() for one in whole[::-1])


def without_seconds(ledger):
    said = ledger.as_dict()
    said.pop("control")  # the proof at the start
    for entry in said.values():
        entry.pop("seconds")
    return said


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_same_bits_and_ledger_as_arrays_of_the_host(
    ranks, reproducible, kind, monkeypatch
):
    """Both directions of every grid, blocking and begun early, gaps in the counts."""
    monkeypatch.setattr(gpu_mpi, "CHUNK", 512)  # bytes: several chunks of some
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)

    def on_host(world):
        return conversation(world, Plain(world)), without_seconds(world.ledger)

    def on_device(world):
        return conversation(world, Device(world)), without_seconds(world.ledger)

    expected = run_ranks(ranks, on_host, reproducible=reproducible)
    found = on_devices(ranks, on_device, kind, reproducible)
    for (one, counted), (other, booked) in zip(expected, found, strict=True):
        assert len(one) == len(other) > 3
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)
        assert booked == counted


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("ranks", RANKS[:3])
def test_the_contract_for_arrays_of_the_host(ranks, kind):
    for check in CHECKS:
        # The ledgers of these checks begin at nothing: no proof before them.
        node = Node()

        def on_rank(host, check=check, node=node):
            check(transport_of(kind)(host, FakeLayer(node)))

        run_ranks(ranks, on_rank)


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("words", [0, 1, 7, 701])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bf16_sums_have_the_bits_of_the_host(ranks, words, kind):
    def on_host(world):
        message = NarrowSum(world, words, get_format("bf16"))
        message.array[...] = part_of(world, words)
        return message.sum("products").copy(), without_seconds(world.ledger)

    def on_device(world):
        message, arrays = DeviceNarrowSum(world, words), Device(world)
        totals = []
        for start in (message.sum, lambda purpose: message.start(purpose).wait()):
            world.layer.later(message.array, part_of(world, words))
            totals.append(arrays.get(start("products")).copy())
            if len(totals) == 1:
                booked = without_seconds(world.ledger)
        np.testing.assert_array_equal(*totals)
        return totals[0], booked

    expected, found = run_ranks(ranks, on_host), on_devices(ranks, on_device, kind)
    for (one, counted), (other, booked) in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
        assert booked == counted


def test_bits_are_those_of_the_definition():
    """Every upper half of a float32 with lower halves around the ties; every code."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    lower = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    values = np.concatenate([upper | np.uint32(low) for low in lower]).view(np.float32)
    bits = narrow_bits(np, values, np.empty(values.size, np.uint16))
    back, known = np.empty_like(values), encode(values, "bf16").view(np.uint16)
    none = np.isnan(values)
    np.testing.assert_array_equal(bits[~none], known[~none])
    assert np.isnan(widen_bits(bits, back)[none]).all()
    np.testing.assert_array_equal(back[~none], decode(bits, "bf16", np.float32)[~none])
    total = add_bits(np, np.repeat(bits[:3], 2), 2, np.empty(3, np.uint16))
    assert total.size == 3


def test_device_memory_is_not_read_by_accident():
    array = FakeLayer(Node()).array(np.ones(3))
    with pytest.raises(TypeError, match="as one of the host"):
        np.asarray(array)


@pytest.mark.parametrize("call", ["sum", "start_sum", "broadcast"])
def test_the_fake_sees_a_missing_synchronise(call, monkeypatch):
    """So the tests above would: MPI must never see memory that is still written."""
    monkeypatch.setattr(FakeLayer, "synchronize", lambda self, stream: None)

    def on_rank(host):
        world = CudaAwareCommunicator(host, FakeLayer(Node()))
        buffer = Device(world).put(np.ones(3))
        getattr(world, call)(buffer, purpose="products")

    with pytest.raises(Unsynchronized, match="before synchronise"):
        run_ranks(2, on_rank)


def test_a_missing_wait_reads_what_was_there_before(monkeypatch):
    """Copies land late in the fake: a stale buffer is sent, and the proof says so."""
    monkeypatch.setattr(FakeLayer, "wait", lambda self, event: None)
    with pytest.raises(TransportError, match="gave 1 instead of 3; check this GPU"):
        on_devices(2, lambda world: None, "mpi-host")


@pytest.mark.parametrize("words", [0, 1, 1024, 1025, 5000])
def test_large_sums_go_through_two_buffers(words, monkeypatch):
    """The GPU copies chunk k + 1 before MPI adds chunk k; one collective is booked."""
    monkeypatch.setattr(gpu_mpi, "CHUNK", 4096)

    def on_rank(world):
        events, layer = [], world.layer
        world.carrier.pinned = gpu_mpi.PinnedBuffers(layer)
        to_host = layer.to_host
        layer.to_host = lambda *a: (events.append("down"), to_host(*a))
        world.carrier.host = Noted(world.carrier.host, events)
        before = world.ledger.as_dict()["products"]["calls"]
        taken = []
        pinned = layer.pinned
        layer.pinned = lambda *a: (taken.append(a), pinned(*a))[1]
        for _ in range(3):
            world.sum(Device(world).put(np.ones(words, np.float32)), "products")
        assert world.ledger.as_dict()["products"]["calls"] == before + 3
        return events[: len(events) // 3], len(taken)

    chunks = max(-(-words // 1024), 1)
    for events, taken in on_devices(2, on_rank, "mpi-host"):
        assert taken == min(chunks, 2)  # pinned once, used again
        expected = ["down", *["down", "sum"] * (chunks - 1), "sum"]
        assert events == expected
    assert [c.stop - c.start for c in chunks_of(words, 4)][:-1] == [1024] * (chunks - 1)


def test_pinned_memory_is_used_again_once_it_was_copied():
    """Several results are on their way up at once; none is overwritten, none leaks."""

    def on_rank(world):
        layer, taken = world.layer, []
        pinned = layer.pinned
        layer.pinned = lambda *a: (taken.append(a), pinned(*a))[1]
        results = []
        for turn in range(5):
            part = layer.array(np.full(3, turn, np.float32))
            out = layer.empty(3 * world.size, np.float32)
            results.append(world.gather(part, [3] * world.size, out, "products"))
        pieces = [layer.array(np.full(4, turn, np.uint16)) for turn in range(5)]
        for turn in range(5):
            out = layer.empty(4, np.uint16)
            counts = [2] * world.size
            world.exchange_pieces(pieces[turn], counts, out, "products")
            results.append(out)
        world.settle()
        for turn in range(5):
            assert (results[turn].held == turn).all()
            assert (results[5 + turn].held == turn).all()
        return len(taken)

    assert on_devices(2, on_rank, "mpi-host") == [2 + 2] * 2


def test_an_array_with_gaps_is_refused():
    def on_rank(host):
        world = StagedCommunicator(host, FakeLayer(Node()))
        world.sum(world.layer.array(np.ones((4, 4)))[:, 1], "products")

    with pytest.raises(TransportError, match="with gaps cannot be sent"):
        run_ranks(2, on_rank)


def test_collected_parts_come_to_the_host():
    def on_rank(world):
        part = Device(world).put(np.full(2, float(world.rank)))
        return world.collect(part, [2] * world.size)

    for kind in TRANSPORTS:
        out, *others = on_devices(3, on_rank, kind)
        np.testing.assert_array_equal(out, [0, 0, 1, 1, 2, 2])
        assert others == [None, None]


class Deaf(CudaAware):
    """An MPI that takes the address and adds nothing."""

    def begin(self, collective, blocking):
        (ready,) = self._ready(collective.send)
        copy = ready.copy()
        return self.host.begin(collective.with_arrays(copy, copy), blocking)


class Raising(CudaAware):
    """And one that complains, on one rank after the other came through."""

    def begin(self, collective, blocking):
        super().begin(collective, blocking).wait()
        if self.host.rank == 1:
            raise RuntimeError("MPI_ERR_BUFFER: invalid buffer pointer")
        return DONE


@pytest.mark.parametrize(
    "carrier, message",
    [
        (Deaf, "a small sum of arrays on the GPUs gave 1 instead of 3;"),
        (Raising, r"failed \(MPI_ERR_BUFFER: invalid buffer pointer\);"),
    ],
)
def test_an_mpi_that_is_not_cuda_aware_is_found_out(carrier, message):
    """One sentence on every rank, with both remedies."""

    def on_rank(host):
        world = CudaAwareCommunicator(host, FakeLayer(Node()))
        world.carrier = carrier(host, world.layer)
        with pytest.raises(TransportError, match=message) as raised:
            check_transport(world)
        assert raised.value.on_all_ranks
        assert "mpi-host" in str(raised.value) and "nccl" in str(raised.value)
        assert str(raised.value).startswith("transport mpi-cuda does not work here")

    run_ranks(2, on_rank)


@pytest.mark.parametrize("said", [True, None, False])
def test_an_mpi_that_says_no_is_not_tried(said, monkeypatch):
    monkeypatch.setattr(mpi, "reads_device_memory", lambda: said)
    if said is not False:
        check_support()
        return
    with pytest.raises(ConfigError, match="mpi-host, or transport = nccl"):
        check_support()


def test_unknown_transports_and_shared_gpus():
    def unknown(host):
        open_transport("pigeon", host, FakeLayer(Node()))

    with pytest.raises(ConfigError, match="known: nccl, mpi-cuda, mpi-host"):
        run_ranks(1, unknown)

    def shared(kind, share):
        def on_rank(host):
            return open_transport(
                kind, host, FakeLayer(node, "here 01"), share_gpus=share
            ).kind

        node = Node()
        return run_ranks(2, on_rank)

    assert shared("mpi-host", True) == ["mpi-host"] * 2
    for kind, share in (("mpi-host", False), ("nccl", True)):
        with pytest.raises(ConfigError, match="2 ranks use one GPU .here 01."):
            shared(kind, share)


def test_a_narrow_message_on_the_host_goes_on_as_before():
    def on_rank(world):
        message = open_message(world, 5, "bf16")
        message.array[...] = world.rank
        return message.sum("products").tolist()

    assert on_devices(2, on_rank, "mpi-host") == [[1.0] * 5] * 2
