"""What every communicator must do with words that it moves; each takes a world."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from hpcsgd.errors import DataError, TransportError


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
            with pytest.raises(TransportError, match="arrays of the same dtype"):
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
    with pytest.raises(TransportError, match="compute both counts"):
        world.deal(np.zeros(1), [2] * p, np.zeros(2 * p), [2] * p, "control")


def collects_on_rank_0(world):
    """Unequal parts, none at all from some; the others get nothing."""
    counts = [3 * r for r in range(world.size)]
    expected = np.concatenate([np.full(c, r) for r, c in enumerate(counts)])
    before = world.ledger.as_dict()["control"]
    for dtype in (np.uint8, np.float64):
        part = np.full(counts[world.rank], world.rank, dtype=dtype)
        out = world.collect(part, counts)
        if world.rank:
            assert out is None
        else:
            np.testing.assert_array_equal(out, expected)
    if world.size > 1:
        after = world.ledger.as_dict()["control"]
        assert after["calls"] - before["calls"] == 2
        assert after["bytes"] - before["bytes"] == 9 * counts[world.rank]
        with pytest.raises(TransportError, match="pass the same counts"):
            world.collect(np.ones(3), [2] * world.size)


def refuses_counts_that_do_not_fit(world):
    """Before anything is sent, on every rank alike."""
    if world.size > 1:
        wrong = [2] * world.size
        out = np.empty(2 * world.size)
        with pytest.raises(TransportError, match="pass the same counts"):
            world.gather(np.ones(3), wrong, out, "products")


def broadcasts(world):
    for root in range(world.size):
        buffer = np.full(4, float(world.rank))
        assert (world.broadcast(buffer, root) == root).all()


def exchanges_objects(world):
    items = world.exchange_objects({"rank": world.rank})
    assert [item["rank"] for item in items] == list(range(world.size))


def shares_objects(world):
    """From any rank, short and long ones; what other ranks pass is ignored."""
    for root in range(world.size):
        for size in (0, 200, 5000):  # of one message and of two
            item = {"rank": world.rank, "words": np.full(size, world.rank)}
            shared = world.share_object(item, root)
            assert shared["rank"] == root
            assert shared["words"].tolist() == [root] * size
    assert world.share_object(None if world.rank else "first") == "first"


def shares_the_result_or_the_error_of_rank_0(world):
    calls = []

    def action():
        calls.append(world.rank)
        return "done"

    assert world.of_root(action) == "done"
    assert calls == [0] * (world.rank == 0)

    def fail():
        raise DataError("rank 0 cannot read it")

    with pytest.raises(DataError, match="rank 0 cannot read it"):
        world.of_root(fail)
    assert world.max_flag(world.rank) == world.size - 1  # in step


def finds_the_largest_number(world):
    """The same bits on all ranks, NaN wherever it is."""
    for values in ((-2.5, -1e300), (-0.0, 0.0), (1e-320, -np.inf), (np.inf, 3.0)):
        own = values[world.rank % 2]
        largest = world.max_number(own)
        assert largest == max(values[: world.size])
        assert world.has_equal(hash(largest) % 2**32)
    own = np.nan if world.rank == world.size - 1 else np.inf
    assert np.isnan(world.max_number(own))


def compares_integers(world):
    assert world.has_equal(7)
    assert world.has_equal(-(2**62))
    assert world.has_equal(world.rank) == (world.size == 1)
