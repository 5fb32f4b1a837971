"""What every communicator must do, whoever carries it; each check takes a world."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from hpcsgd.comm.grid import Grid
from hpcsgd.comm.narrow import open_message
from hpcsgd.errors import ConfigError, DataError, TransportError
from hpcsgd.formats import get_format


def sums_in_place(world):
    buffer = np.arange(5, dtype=np.float64) + world.rank
    got = world.sum(buffer, "products")
    assert got is buffer
    p = world.size
    np.testing.assert_array_equal(buffer, p * np.arange(5) + p * (p - 1) / 2)


def reduces_to_rank_0(world):
    """The others' stay as they are; half of the bytes of a sum."""
    before = world.ledger.as_dict()["agreement"]
    buffer = np.full(5, 1.0 + world.rank)
    assert world.reduce(buffer, "agreement") is buffer
    p = world.size
    assert (buffer == (p * (p + 1) / 2 if world.rank == 0 else 1 + world.rank)).all()
    after = world.ledger.as_dict()["agreement"]
    grown = [after[k] - before[k] for k in ("calls", "words", "bytes", "wire_bytes")]
    assert grown == pytest.approx([1, 5, 40, 40 * (p - 1) / p] if p > 1 else [0] * 4)


def starts_sums(world):
    """Two under way at once, waited for in the other order, and twice."""
    first = np.full(3, 1.0 + world.rank, dtype=np.float32)
    second = np.full((2, 2), 10.0, dtype=np.float32)
    one, two = (world.start_sum(b, "products") for b in (first, second))
    assert two.wait() is second
    one.wait()
    one.wait()
    p = world.size
    assert (first == p * (p + 1) / 2).all() and (second == 10 * p).all()


def gathers_unequal_parts(world):
    counts = [r + 1 for r in range(world.size)]
    expected = np.concatenate([np.full(c, r) for r, c in enumerate(counts)])
    for dtype in (np.float32, np.float64, np.uint16, np.float16, bfloat16):
        part = np.full(world.rank + 1, world.rank, dtype=dtype)
        out = np.empty(sum(counts), dtype=dtype)
        world.gather(part, counts, out, "products")
        np.testing.assert_array_equal(out.astype(float), expected)


def starts_gathers(world):
    """Two under way, of equal and unequal parts, waited for in the other order."""
    p, own = world.size, world.rank
    before = world.ledger.as_dict()["products"]
    rooms, pendings = [], []
    for counts in ([3] * p, [2 * r for r in range(p)]):
        part = np.full(counts[own], own, dtype=np.uint8)
        rooms.append(np.full(sum(counts), 99, dtype=np.uint8))
        pendings.append(world.start_gather(part, counts, rooms[-1], "products"))
    for pending, room in zip(pendings[::-1], rooms[::-1], strict=True):
        assert pending.wait() is room and pending.wait() is room
    np.testing.assert_array_equal(rooms[0], np.repeat(np.arange(p), 3))
    np.testing.assert_array_equal(rooms[1], np.repeat(np.arange(p), 2 * np.arange(p)))
    after = world.ledger.as_dict()["products"]
    assert after["calls"] - before["calls"] == 2 * (p > 1)
    assert after["bytes"] - before["bytes"] == (3 + 2 * own) * (p > 1)
    if p > 1:
        with pytest.raises(TransportError, match="pass the same counts"):
            world.start_gather(np.ones(3), [2] * p, np.ones(2 * p), "products")


def starts_sums_of_parts(world):
    """Two under way, some parts empty; each rank finds its own at the beginning."""
    p, own = world.size, world.rank
    for counts in ([3] * p, [2 * r for r in range(p)]):
        first = sum(counts[:own])
        for dtype in (np.float32, np.float64):
            before = world.ledger.as_dict()["products"]
            total = int(sum(counts))
            said = [np.arange(total, dtype=dtype) + k * own for k in (1, 10)]
            pendings = [world.start_sum_parts(b, counts, "products") for b in said]
            for number, k in ((1, 10), (0, 1)):
                pending, buffer = pendings[number], said[number]
                got = pending.wait()
                assert pending.wait() is got and got.size == counts[own]
                assert np.shares_memory(got, buffer) or not got.size
                expected = p * (first + np.arange(counts[own])) + k * p * (p - 1) / 2
                np.testing.assert_array_equal(got, expected)
                np.testing.assert_array_equal(buffer[: counts[own]], expected)
            after = world.ledger.as_dict()["products"]
            grown = {k: after[k] - before[k] for k in after if k != "seconds"}
            calls, size = 2 * (p > 1), total * np.dtype(dtype).itemsize
            assert grown["calls"] == calls and grown["words"] == calls * total
            assert grown["bytes"] == calls * size
            assert grown["wire_bytes"] == pytest.approx(calls * size * (p - 1) / p)
    with pytest.raises(TransportError, match="pass the same counts"):
        world.start_sum_parts(np.zeros(3 * p + 1), [3] * p, "products")
    with pytest.raises(TransportError, match="sum float32 or float64"):
        world.start_sum_parts(np.zeros(p, np.int64), [1] * p, "products")


def exchanges_pieces(world):
    """Piece r of every rank on rank r, some of them empty; at once, and begun early."""
    p, own = world.size, world.rank
    for counts in ([3] * p, [2 * r for r in range(p)]):
        ends = np.cumsum(counts)
        for dtype in (np.uint8, np.uint16, np.float32):
            pieces = np.concatenate(
                [np.full(count, 10 * own + r) for r, count in enumerate(counts)]
            ).astype(dtype)
            expected = np.repeat([10 * r + own for r in range(p)], counts[own])
            out = np.zeros(p * counts[own], dtype=dtype)
            before = world.ledger.as_dict()["products"]
            assert world.exchange_pieces(pieces, counts, out, "products") is out
            np.testing.assert_array_equal(out, expected)
            first, second = np.zeros_like(out), np.zeros_like(out)
            one, two = (
                world.start_exchange(pieces, counts, room, "products")
                for room in (first, second)
            )
            assert two.wait() is second and one.wait() is first
            np.testing.assert_array_equal([first, second], [expected] * 2)
            after = world.ledger.as_dict()["products"]
            grown = {k: after[k] - before[k] for k in after if k != "seconds"}
            calls = 3 * (p > 1)
            size = int(ends[-1]) * np.dtype(dtype).itemsize
            assert grown["calls"] == calls and grown["words"] == calls * ends[-1]
            assert grown["bytes"] == calls * size
            assert grown["wire_bytes"] == pytest.approx(calls * size * (p - 1) / p)
    if p > 1:
        for pieces, room in ((3 * p + 1, 3 * p), (3 * p, 3 * p - 1)):
            with pytest.raises(TransportError, match="pass the same counts"):
                world.exchange_pieces(
                    np.zeros(pieces), [3] * p, np.zeros(room), "products"
                )


def swaps_in_pairs(world):
    """With every peer, of any length and type; two under way; alone with oneself."""
    p, own = world.size, world.rank
    for peer in range(p):
        # All pairs at once: what is done one by one must be in one order everywhere.
        partner = (peer - own) % p
        for dtype in (np.float16, np.float64):
            before = world.ledger.as_dict()["agreement"]
            given = np.full((2, 3 + own), 10 * own + partner).astype(dtype)
            room = np.zeros((2, 3 + partner), dtype=dtype)
            assert world.swap(given, room, partner, "agreement") is room
            assert (room == 10 * partner + own).all()
            rooms = [np.zeros(2, dtype=dtype) for _ in range(3)]
            parts = [np.full(2, own + turn).astype(dtype) for turn in range(3)]
            pending = [
                world.start_swap(part, out, partner, "agreement")
                for part, out in zip(parts, rooms, strict=True)
            ]
            for started, out in zip(pending, rooms, strict=True):
                assert started.wait() is out and started.wait() is out
            assert [int(out[0]) for out in rooms] == [partner, partner + 1, partner + 2]
            after = world.ledger.as_dict()["agreement"]
            grown = {k: after[k] - before[k] for k in after if k != "seconds"}
            calls, words = (0, 0) if partner == own else (4, given.size + 6)
            size = words * given.itemsize
            expected = {"calls": calls, "words": words, "bytes": size}
            assert grown == {**expected, "wire_bytes": size}


def swaps_leave_others_alone(world):
    """Ranks 0 and 1 swap, as often as they like; then all say something together."""
    if world.rank < 2 <= world.size:
        for turn in range(5):
            room = np.zeros(1)
            world.swap(
                np.array([1.0 * turn + world.rank]), room, 1 - world.rank, "control"
            )
            assert room[0] == turn + 1 - world.rank
    assert world.max_flag(world.rank) == world.size - 1


def refuses_swaps_that_do_not_fit(world):
    """A rank that is not there, words of two types, and more words than there are."""
    for peer in (-1, world.size):
        with pytest.raises(TransportError, match="name a rank of the group"):
            world.swap(np.zeros(2), np.zeros(2), peer, "control")
    if world.size > 1:
        peer = world.rank ^ 1
        if peer < world.size:
            with pytest.raises(TransportError, match="words of one type"):
                world.swap(np.zeros(2), np.zeros(2, np.float32), peer, "control")
            with pytest.raises(TransportError, match="16 bytes in a swap, not 24"):
                world.swap(np.zeros(2), np.zeros(3), peer, "control")


def deals_unequal_pieces(world):
    """Rank q has q + 2r words for rank r, and none for itself where q is 0."""
    p, own = world.size, world.rank
    counts = [own + 2 * r for r in range(p)]
    received = [r + 2 * own for r in range(p)]
    for dtype in (np.float32, np.float64, np.int64, np.uint16):
        pieces = np.repeat([10 * own + r for r in range(p)], counts).astype(dtype)
        out = np.empty(sum(received), dtype=dtype)
        before = world.ledger.as_dict()["control"]
        assert world.deal(pieces, counts, out, received, "control") is out
        expected = np.repeat([10 * r + own for r in range(p)], received)
        np.testing.assert_array_equal(out, expected)
        after = world.ledger.as_dict()["control"]
        assert after["calls"] - before["calls"] == (p > 1)
        if p > 1:
            assert after["words"] - before["words"] == pieces.size
            moved = after["wire_bytes"] - before["wire_bytes"]
            assert moved == pieces.nbytes - counts[own] * pieces.itemsize
    with pytest.raises(TransportError, match="plan both once"):
        world.deal(np.zeros(1), [2] * p, np.zeros(2 * p), [2] * p, "control")


NARROW = {"bf16": 2, "fp16": 2, "fp8-e4m3": 1, "fp8-e5m2": 1}  # format -> bytes


def sums_in_narrow_formats(world):
    """Whole numbers that all formats hold; blocking and not, again and again."""
    p = world.size
    for name in (*NARROW, "tf32", "fp32", "fp64"):
        for words in (0, 1, 7, 700):
            part = (world.rank + np.arange(words) % 2 / p) * 2.0**-20
            shown = max(get_format(name).unit_roundoff, 2.0**-24)
            for travels in (False, True):
                message = open_message(world, words, name, travels)
                for _ in range(3):
                    message.array[...] = part
                    if travels:
                        total = message.start("products").wait()
                    else:
                        total = message.sum("products")
                    whole = p * (p - 1) / 2 + np.arange(words) % 2
                    np.testing.assert_allclose(total, whole * 2.0**-20, 3 * shown)
                    said = set(world.exchange_objects(total.tobytes()))
                    assert name not in NARROW or len(said) == 1


def books_narrow_sums_as_two_calls(world):
    """All words once, then the own piece; an exponent before each piece of some."""
    p = world.size
    for name, size in NARROW.items():
        for words in (0, 5, 701):
            before = world.ledger.as_dict()["products"]
            message = open_message(world, words, name)
            message.array[...] = 1
            message.sum("products")
            after = world.ledger.as_dict()["products"]
            grown = {k: after[k] - before[k] for k in after if k != "seconds"}
            if p == 1:
                assert not any(grown.values())
                continue
            head = name != "bf16"
            own = words * (world.rank + 1) // p - words * world.rank // p
            assert grown["calls"] == 2
            assert grown["words"] == words + head * p + own + head
            assert grown["bytes"] == size * grown["words"]
            both = 2 * size * (words + head * p)
            assert grown["wire_bytes"] == pytest.approx(both * (p - 1) / p)


def collects_on_rank_0(world):
    """Unequal parts, none at all from some; the others get nothing."""
    counts = [3 * r for r in range(world.size)]
    expected = np.concatenate([np.full(c, r) for r, c in enumerate(counts)])
    for dtype in (np.uint8, np.float64):
        part = np.full(counts[world.rank], world.rank, dtype=dtype)
        out = world.collect(part, counts)
        if world.rank:
            assert out is None
        else:
            np.testing.assert_array_equal(out, expected)
    if world.size > 1:
        entry = world.ledger.entries["control"]
        assert entry.calls == 2 and entry.bytes == 9 * counts[world.rank]
        with pytest.raises(TransportError, match="pass the same counts"):
            world.collect(np.ones(3), [2] * world.size)


def refuses_counts_that_do_not_fit(world):
    """Before anything is sent, on every rank alike."""
    if world.size > 1:
        wrong = [2] * world.size
        out = np.empty(2 * world.size)
        with pytest.raises(TransportError, match="pass the same counts"):
            world.gather(np.ones(3), wrong, out, "products")


def takes_the_largest_flag(world):
    assert world.max_flag(world.rank) == world.size - 1
    assert world.max_flag(-3 - world.rank) == -3


def broadcasts(world):
    for root in range(world.size):
        buffer = np.full(4, float(world.rank))
        assert (world.broadcast(buffer, root) == root).all()


def exchanges_objects(world):
    items = world.exchange_objects({"rank": world.rank})
    assert [item["rank"] for item in items] == list(range(world.size))


def refuses_to_sum_integers(world):
    """16-bit floats travel as integers; their sum would be nonsense."""
    if world.size > 1:
        for dtype in (np.uint16, np.float16, np.int64):
            with pytest.raises(TransportError, match="cannot be summed"):
                world.sum(np.ones(2, dtype=dtype), "products")
            with pytest.raises(TransportError, match="cannot be summed"):
                world.workspace(2, dtype)


def sums_workspaces_again_and_again(world):
    """Of every size, on every setting, in turns; totals are good until the next sum."""
    p = world.size
    for how in ("auto", "on", "off"):
        world.share_nodes(how)
        for dtype in (np.float32, np.float64):
            spaces = [world.workspace(words, dtype) for words in (0, 1, 7, 700, 50_000)]
            for turn in range(5):
                totals = []
                for space in spaces:
                    space.array[...] = np.arange(space.array.size) % 97 + turn
                    space.array[...] += world.rank
                    totals.append(space.sum("products"))
                for total in totals:
                    expected = p * (np.arange(total.size) % 97 + turn)
                    assert total.dtype == dtype
                    np.testing.assert_array_equal(total, expected + p * (p - 1) / 2)


def books_workspaces_as_sums(world):
    """The same calls, words and bytes, whatever carries them."""
    grown = []
    for how in ("off", "auto", "on"):
        world.share_nodes(how)
        before = world.ledger.as_dict()["products"]
        for words in (5, 5000):
            space = world.workspace(words, np.float32)
            space.array[...] = 1
            space.sum("products")
        after = world.ledger.as_dict()["products"]
        grown.append({k: after[k] - before[k] for k in after if k != "seconds"})
    before = world.ledger.as_dict()["products"]
    for words in (5, 5000):
        world.sum(np.zeros(words, np.float32), "products")
    after = world.ledger.as_dict()["products"]
    plain = {k: after[k] - before[k] for k in after if k != "seconds"}
    for one in grown:
        assert one == pytest.approx(plain)
    assert plain["calls"] == (2 if world.size > 1 else 0)


def keeps_copies(world):
    """A lasting copy of what all ranks hold, of any shape and size."""
    for how in ("auto", "on", "off"):
        world.share_nodes(how)
        for shape in ((3,), (1000, 2), (0,), (5000, 1)):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            kept = world.keep(array)
            expected = array.copy()
            array[...] = -1
            assert kept.dtype == array.dtype
            np.testing.assert_array_equal(kept, expected)
            world.max_flag(0)  # nobody overwrites before all have looked
            np.testing.assert_array_equal(kept, expected)


def splits_into_grids(world):
    for replicas in range(1, world.size + 1):
        if world.size % replicas:
            continue
        grid = Grid(world, replicas, world.size // replicas)
        assert (grid.members.rank, grid.replicas.rank) == (grid.member, grid.replica)
        buffer = np.array([float(world.rank)])
        own = [r for r in range(world.size) if r // grid.members.size == grid.replica]
        assert grid.members.sum(buffer, "products")[0] == sum(own)
        buffer = np.array([float(world.rank)])
        own = [r for r in range(world.size) if r % grid.members.size == grid.member]
        assert grid.replicas.sum(buffer, "agreement")[0] == sum(own)
    with pytest.raises(ConfigError, match=f"this run has {world.size}"):
        Grid(world, 1, world.size + 1)


def raises_together(world):
    """An error of ours on one rank is raised on all, and only the first one."""

    def fail():
        if world.rank >= world.size - 2:
            raise DataError(f"rank {world.rank} saw it")
        return 7

    with pytest.raises(
        DataError, match=f"rank {max(world.size - 2, 0)} saw it"
    ) as info:
        world.together(fail)
    assert info.value.on_all_ranks
    assert world.together(lambda: world.rank) == world.rank


def holds_the_same_bits_when_reproducible(world):
    rng = np.random.default_rng(world.rank)
    buffer = rng.normal(size=1001).astype(np.float32)
    world.sum(buffer, "products")
    assert len(set(world.exchange_objects(buffer.tobytes()))) == 1
    assert world.ledger.calls("products") == (2 if world.size > 1 else 0)


def counts_what_is_said(world):
    """Calls, words and bytes, to the word; nothing where a group is one rank."""
    p, ledger = world.size, world.ledger
    before = ledger.as_dict()["products"]
    world.sum(np.ones(10, dtype=np.float32), "products")
    world.start_sum(np.ones(6), "products").wait()
    out = np.empty(3 * p, dtype=np.uint16)
    world.gather(np.ones(3, dtype=np.uint16), [3] * p, out, "products")
    after = ledger.as_dict()["products"]
    grown = {k: after[k] - before[k] for k in ("calls", "words", "bytes", "wire_bytes")}
    if p == 1:
        assert set(grown.values()) == {0}
        return
    assert grown["calls"] == 3
    assert grown["words"] == 19
    assert grown["bytes"] == 40 + 48 + 6
    wire = 2 * (p - 1) / p * 88 + (p - 1) * 6
    assert grown["wire_bytes"] == pytest.approx(wire)


CHECKS = [
    sums_in_place,
    reduces_to_rank_0,
    starts_sums,
    gathers_unequal_parts,
    collects_on_rank_0,
    refuses_counts_that_do_not_fit,
    takes_the_largest_flag,
    broadcasts,
    exchanges_objects,
    refuses_to_sum_integers,
    splits_into_grids,
    raises_together,
    counts_what_is_said,
    sums_workspaces_again_and_again,
    books_workspaces_as_sums,
    keeps_copies,
    starts_gathers,
    starts_sums_of_parts,
    exchanges_pieces,
    deals_unequal_pieces,
    swaps_in_pairs,
    swaps_leave_others_alone,
    refuses_swaps_that_do_not_fit,
    sums_in_narrow_formats,
    books_narrow_sums_as_two_calls,
]
