"""ByteGrad, and the exchange in two phases that it is made of."""

from functools import partial

import numpy as np
import pytest

from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs import bits
from hpcsgd.agreements.codecs.bits import EncodedMean, Ranges, start_two_phase
from hpcsgd.comm.threads import run_ranks
from tests.helpers.contracts.codec import (
    ROWS,
    exchange,
    keeps_what_it_has_not_sent,
    parts_of,
)


class AsTheyAre:
    """Pieces that lose nothing."""

    def encode(self, pieces):
        return np.ascontiguousarray(pieces, dtype=np.float64).view(np.uint8)

    def decode(self, records, words):
        return np.ascontiguousarray(records).view(np.float64).copy()


def two_phases(ranks, parts, form):
    def on_rank(world):
        start = start_two_phase(parts[world.rank], ReplicaChannel(world), form, True)
        return start(), world.ledger.entries["agreement"]

    return run_ranks(ranks, on_rank)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("words", [1, 2, 37, 101])
def test_with_the_identity_it_is_a_sum(ranks, words):
    """C_LP_S with nothing lost is C_FP_S, pads taken off."""
    parts = parts_of(words, ranks)
    for said, _ in two_phases(ranks, parts, AsTheyAre()):
        np.testing.assert_allclose(said.mean, parts.mean(axis=0), 1e-12, 1e-15)
        assert said.mean.shape == said.own.shape == (words,)


@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_the_mean_of_what_is_owned_is_what_came(ranks):
    """Both roundings are somebody's: mean_p own_p is the mean, to rounding."""
    parts = parts_of(101, ranks)
    said = [told for told, _ in two_phases(ranks, parts, Ranges())]
    owned = np.mean([told.own for told in said], axis=0)
    np.testing.assert_allclose(owned, said[0].mean, 0, 1e-12 * np.abs(parts).max())
    assert np.abs(said[0].mean - parts.mean(axis=0)).max() > 1e-6


def test_a_mean_whose_rounding_nobody_keeps_breaks_the_identity(monkeypatch):
    """The broken twin: own words alone, as casts have it."""

    def forgetful(part, line, form, needs_own=False):
        start = start_two_phase(part, line, form, needs_own)

        def finish():
            said, each = start(), -(-part.size // line.size)
            padded = np.full(line.size * each, part[-1])
            padded[: part.size] = part
            pieces = padded.reshape(line.size, each)
            own = form.decode(form.encode(pieces), each).reshape(-1)[: part.size]
            return EncodedMean(said.mean, own)

        return finish

    keeps_what_it_has_not_sent("bytegrad", ROWS["bytegrad"], steps=50)
    monkeypatch.setattr(bits, "start_two_phase", forgetful)
    with pytest.raises(AssertionError):
        keeps_what_it_has_not_sent("bytegrad", ROWS["bytegrad"], steps=50)


@pytest.mark.parametrize("words", [8, 21, 37, 101])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_bytes_of_both_counters(ranks, words):
    """(R + 1)(⌈D/R⌉ + 8) in send buffers; 2 (R − 1)/R (D + 8 R) in a ring, D padded."""
    padded = -(-words // ranks) * ranks
    for told, entry, _ in exchange(ranks, "bytegrad", {}, parts_of(words, ranks)):
        assert entry.bytes == told.payload == (ranks + 1) * (padded // ranks + 8)
        ring = 2 * (ranks - 1) / ranks * (padded + 8 * ranks)
        assert entry.wire_bytes == pytest.approx(ring, rel=1e-12)
        assert entry.calls == 2


PITFALLS = {
    "codes below zero": [0.5, 10.0, 255.5],
    "tiny": [4e-9, -1e-9, 3e-9],
    "constant": [0.7, 0.7, 0.7],
    "huge": [1e30, -1e30, 3.0],
    "one above the least": [1.0, 1.0 + 2.0**-20, 1.0],
    "denormal": [1e-44, 0.0, 3e-44],
}


@pytest.mark.parametrize("values", PITFALLS.values(), ids=PITFALLS)
def test_a_word_is_off_by_half_a_step_at_most(values):
    """(max − min)/510, whatever the scale: no ε, and no code below zero."""
    pieces = np.array([values])
    back = Ranges().decode(Ranges().encode(pieces), 3)
    step = (pieces.max() - pieces.min()) / 255
    ends = np.abs(pieces).max() * 2.0**-22 + 3e-45  # which travel in float32
    assert np.abs(back - pieces).max() <= 0.5 * step * (1 + 1e-12) + ends


@pytest.mark.parametrize("ranks, words", [(3, 37), (4, 9), (7, 8)])
def test_pads_widen_no_range(ranks, words):
    """Every piece is off by half a step of what it holds, in both phases."""
    parts = 5.0 + 1e-3 * parts_of(words, ranks)
    each = -(-words // ranks)
    for said, _ in two_phases(ranks, parts, Ranges()):
        for first in range(0, words, each):
            piece = slice(first, first + each)
            step = np.ptp(parts[:, piece], axis=1).max() / 255
            off = np.abs(said.mean[piece] - parts[:, piece].mean(axis=0)).max()
            assert off <= step + 5.0 * 2.0**-21


def test_zeros_among_others_stay_zero_and_a_row_is_its_own():
    pieces = np.array([[0.0, -3.0, 5.0], [0.0, 0.0, 1e-12]])
    back = Ranges().decode(Ranges().encode(pieces), 3)
    assert (back[pieces == 0.0] == 0.0).all()
    assert abs(back[1, 2] / 1e-12 - 1) < 1e-2


def test_one_bad_word_is_seen_by_all():
    parts = np.ones((3, 10))
    parts[1, 2] = np.nan
    with np.errstate(all="ignore"):
        told = exchange(3, "bytegrad", {}, parts)
    assert all(np.isnan(t.mean).any() for t, _, _ in told)


def test_replicas_that_start_before_any_of_them_ends():
    """Several buckets under way: each has buffers of its own."""
    parts = parts_of(37, 3)

    def on_rank(world):
        line = ReplicaChannel(world)
        start = partial(start_two_phase, line=line, form=AsTheyAre())
        first, second = start(parts[world.rank]), start(2 * parts[world.rank])
        return first().mean, second().mean

    for first, second in run_ranks(3, on_rank):
        np.testing.assert_allclose(first, parts.mean(axis=0), 1e-12, 1e-15)
        np.testing.assert_array_equal(second, 2 * first)
