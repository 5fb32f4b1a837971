"""Narrow sums: how far they may be from the sum, and what must never be lost."""

import numpy as np
import pytest

from hpcsgd.comm import messages
from hpcsgd.comm.communicator import Workspace
from hpcsgd.comm.messages import NarrowPieces, NarrowSum, bytes_of_word, open_message
from hpcsgd.comm.network_model import EmulatedCommunicator
from hpcsgd.comm.threads import run_ranks
from hpcsgd.formats import FORMATS, decode, encode, exponent_for, formats_of, get_format
from tests.helpers.narrow import FP32, bound_of, drawn

SEVERAL = (1, 2, 3, 5, 8)

SENT = formats_of("gram_wire")


@pytest.fixture(params=["compiled", "numpy"])
def path(request, monkeypatch):
    """Both ways to cast; the compiled one is there wherever kernels are."""
    if request.param == "numpy":
        monkeypatch.setattr(messages, "library", lambda: None)
    elif messages.library() is None:
        pytest.skip("no compiled casts in this installation")
    return request.param


def total_of(parts, name, travels=False):
    """What every rank gets of the sum of these parts; the same bits on all."""

    def on_rank(world):
        message = open_message(world, len(parts[0]), name, travels)
        message.array[...] = parts[world.rank]
        start = message.start if travels else message.sum
        total = start("products")
        return (total.wait() if travels else total).copy()

    totals = run_ranks(len(parts), on_rank)
    for total in totals[1:]:
        np.testing.assert_array_equal(total, totals[0])
    return totals[0]


@pytest.mark.parametrize("name", messages.KINDS)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("kind", ["random", "cancelling", "wide", "unlike"])
def test_two_roundings_whatever_the_ranks(path, name, ranks, kind):
    parts = drawn(kind, ranks)
    exact = parts.astype(np.float64).sum(axis=0)
    total = total_of(parts, name)
    assert total.dtype == np.float32
    error, bound = (
        np.abs(total - exact),
        bound_of(parts.astype(np.float64), FORMATS[name]),
    )
    assert (error <= bound).all(), (error / bound).max()
    assert (error > 1e-6 * np.abs(parts).sum(axis=0)).any(), "nothing was rounded"


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_tf32_is_rounded_once(ranks):
    parts = drawn("cancelling", ranks)
    bound = (2.0**-11 + ranks * FP32) * np.abs(parts.astype(float)).sum(axis=0)
    error = np.abs(total_of(parts, "tf32") - parts.astype(float).sum(axis=0))
    assert (error <= bound).all() and error.max() > 1e-5


@pytest.mark.parametrize("name", [*messages.KINDS, "tf32"])
@pytest.mark.parametrize("ranks", SEVERAL)
def test_a_sum_that_is_begun_early_has_the_same_bits(name, ranks):
    parts = drawn("random", ranks)
    at_once, early = (total_of(parts, name, travels) for travels in (False, True))
    np.testing.assert_array_equal(at_once, early)


@pytest.mark.parametrize("name", messages.KINDS)
def test_one_rank_rounds_nothing(name):
    part = drawn("wide", 1)
    np.testing.assert_array_equal(total_of(part, name), part[0])


@pytest.mark.parametrize("name", messages.KINDS)
@pytest.mark.parametrize("words", [1, 2, 3, 7, 8])
def test_a_sum_is_that_of_rounded_parts(name, words):
    """Against the definition, word for word, also where some rank has no piece."""
    rng = np.random.default_rng(words)
    parts = rng.choice((-1, 1), (3, words)) * rng.uniform(0.5, 2, (3, words))
    parts = parts.astype(np.float32)
    held = [decode(encode(part, name), name, np.float32) for part in parts]
    total = (held[0] + held[1]) + held[2]
    expected = decode(encode(total, name), name, np.float32)
    # Values near 1 are normal numbers whatever the scale: it rounds nothing anew.
    near = np.abs(total) > 2.0**-6
    np.testing.assert_array_equal(total_of(parts, name)[near], expected[near])


@pytest.mark.parametrize("name", ["fp16", "fp8-e4m3", "fp8-e5m2"])
@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_no_size_is_too_large_or_too_small(path, name, size):
    """Scales: without them all but 1.0 would overflow or vanish."""
    parts = (size * np.array([[1, 0.5], [2, -1], [0, 3]])).astype(np.float32)
    total, exact = total_of(parts, name), parts.astype(float).sum(axis=0)
    u = FORMATS[name].unit_roundoff
    np.testing.assert_allclose(total, exact, rtol=3 * u)


@pytest.mark.parametrize("name", ["fp16", "fp8-e4m3", "fp8-e5m2"])
def test_the_scale_uses_the_whole_range(name):
    """The least power of two that overflows nothing: what is held is near the top."""
    form = get_format(name)
    for size in (*10.0 ** np.linspace(-30, 38, 200), form.largest, form.largest * 2):
        scaled = float(np.float32(size)) / 2.0 ** exponent_for(np.float32(size), form)
        assert form.largest / 2 < scaled <= form.largest
    assert exponent_for(0.0, form) == 0
    assert 2.0 ** -exponent_for(1e-45, form) <= np.finfo(np.float32).max


@pytest.mark.parametrize("name", [*messages.KINDS, "tf32"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_not_finite_arrives_and_spoils_nothing_else(path, name, value, ranks):
    parts = np.full((ranks, 8), 1e-3, dtype=np.float32)
    parts[-1, 5] = value
    total = total_of(parts, name)
    lost = ~np.isfinite(total)
    np.testing.assert_array_equal(np.flatnonzero(lost), [5])
    u = max(FORMATS[name].unit_roundoff, FP32)
    np.testing.assert_allclose(total[~lost], 1e-3 * ranks, rtol=3 * u)
    if name != "fp8-e4m3" and not np.isnan(value):
        assert total[5] == value


@pytest.mark.parametrize("name", messages.KINDS)
def test_infinities_of_both_signs_are_no_number(path, name):
    parts = np.array([[np.inf, 1], [-np.inf, 1]], dtype=np.float32)
    total = total_of(parts, name)
    assert np.isnan(total[0]) and total[1] == 2


@pytest.mark.parametrize("name", messages.KINDS)
def test_all_zero_and_all_lost(path, name):
    assert not total_of(np.zeros((3, 5), np.float32), name).any()
    assert not np.isfinite(total_of(np.full((3, 5), np.nan, np.float32), name)).any()


def test_a_sum_beyond_float32_is_infinite(path):
    for name in messages.KINDS:
        parts = np.full((3, 4), 3e38, dtype=np.float32)
        assert not np.isfinite(total_of(parts, name)).any()


@pytest.mark.parametrize("name", messages.KINDS)
def test_compiled_casts_are_those_of_the_definition(name):
    """Every upper half of a float32 with lower halves around the ties; every code."""
    if messages.library() is None:
        pytest.skip("no compiled casts in this installation")
    upper = np.arange(2**16, dtype=np.uint32) << 16
    lower = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x3000)
    values = np.concatenate([upper | np.uint32(low) for low in lower]).view(np.float32)
    held = np.empty(values.size, messages.message_dtype(name))
    messages.narrow(values, name, 1.0, held)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = encode(values, name).view(held.dtype)
    back = decode(expected.view(FORMATS[name].dtype), name, np.float32)
    none = np.isnan(back)
    np.testing.assert_array_equal(held[~none], expected[~none])
    codes = np.arange(2 ** (8 * held.itemsize)).astype(held.dtype)
    codes = np.concatenate([codes, held[none]])
    wide = np.empty(codes.size, np.float32)
    messages.widen(codes, name, wide)
    known = decode(codes.view(FORMATS[name].dtype), name, np.float32)
    np.testing.assert_array_equal(wide, known)
    np.testing.assert_array_equal(
        np.signbit(wide[known == 0]), np.signbit(known[known == 0])
    )
    assert np.isnan(wide[-none.sum() :]).all()


def test_the_largest_that_is_finite(path):
    values = np.array([1, -3, np.inf, np.nan, 2], dtype=np.float32)
    assert messages.largest_finite(values) == 3
    assert (
        messages.largest_finite(values[2:4]) == messages.largest_finite(values[:0]) == 0
    )


def test_pieces_that_hold_nothing_still_carry_their_exponent():
    pieces = NarrowPieces(get_format("fp8-e5m2"), [0, 2, 0])
    assert pieces.counts == [1, 3, 1] and pieces.held.nbytes == 5
    pieces.write(np.array([1e-9, -2e-9], dtype=np.float32))
    out = np.empty(2, dtype=np.float32)
    pieces.read(out)
    np.testing.assert_allclose(out, [1e-9, -2e-9], rtol=0.125)


def test_the_right_kind_is_opened():
    def on_rank(world):
        return {name: type(open_message(world, 3, name)).__name__ for name in SENT}

    kinds = run_ranks(2, on_rank)[0]
    narrow = {name for name, kind in kinds.items() if kind == "NarrowSum"}
    assert narrow == set(messages.KINDS)
    assert kinds["tf32"] == "RoundedSum"
    assert kinds["fp32"] == kinds["fp64"] == Workspace.__name__
    alone = run_ranks(1, on_rank)[0]
    assert set(alone.values()) == {Workspace.__name__}


def test_one_rank_as_one_of_many():
    """Its own piece is what all others are taken to say, and the total of each."""
    world = EmulatedCommunicator(5, ())
    message = NarrowSum(world, 100, get_format("fp16"))
    message.array[...] = 2.0
    np.testing.assert_array_equal(message.sum("products"), np.full(100, 10.0))
    entry = world.ledger.entries["products"]
    assert (entry.calls, entry.words) == (2, 105 + 21)


@pytest.mark.parametrize("name", SENT)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_room_that_is_predicted_is_enough(name, ranks):
    """And not twice what is taken."""
    words = 100_000

    def on_rank(world):
        message = open_message(world, words, name)
        message.array[...] = 1
        message.sum("products")
        return message  # held until all have summed

    def held(message):
        arrays = list(vars(message).values())
        for pieces in [p for p in arrays if isinstance(p, NarrowPieces)]:
            arrays += vars(pieces).values()
        return sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))

    for message in run_ranks(ranks, on_rank):
        message = getattr(message, "wide", message)
        taken = held(message) / words
        assert taken <= bytes_of_word(name, ranks) <= 1.5 * taken
