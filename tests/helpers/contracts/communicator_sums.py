"""What every communicator must do with words that it adds; each takes a world."""

import numpy as np
import pytest

from hpcsgd.comm.messages import open_message
from hpcsgd.errors import TransportError
from hpcsgd.formats import get_format

NARROW = {"bf16": 2, "fp16": 2, "fp8-e4m3": 1, "fp8-e5m2": 1}  # format -> bytes


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


def holds_the_same_bits_when_reproducible(world):
    rng = np.random.default_rng(world.rank)
    buffer = rng.normal(size=1001).astype(np.float32)
    world.sum(buffer, "products")
    assert len(set(world.exchange_objects(buffer.tobytes()))) == 1
    assert world.ledger.calls("products") == (2 if world.size > 1 else 0)
