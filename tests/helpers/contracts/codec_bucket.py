"""What every codec must do with one bucket; each law takes a name and its `Row`."""

from dataclasses import replace

import numpy as np

from hpcsgd.agreements.buckets import ReplicaChannel
from hpcsgd.agreements.codecs import (
    AccordionConfig,
    Bucket,
    CodecConfig,
    Feedback,
    Moment,
    make_codec,
)
from hpcsgd.comm.threads import run_ranks
from tests.helpers.contracts.codec_rows import sections_of

WORDS = 37, 101  # neither divides by 2, 3, 4, 7 or 8
DRAWS, COORDINATES, COPIES = 20_000, 400, 50


def moments(count, rate=lambda t: 0.1):
    """Exchanges 0 .. count − 1, ten an epoch."""
    return [Moment(t, t // 10, rate(t), rate(t + 1)) for t in range(count)]


def opened(name, settings=None, words=37, width=1, dtype=np.float64, **bucket):
    """The codec of one bucket, as the agreement makes it."""
    tables = sections_of(settings or {})
    shape = {"number": 0, "height": words // width, "width": width}
    made = Bucket(**{**shape, "dtype": np.dtype(dtype), **bucket})
    accordion = AccordionConfig(**tables["accordion"])
    return make_codec(name, made, CodecConfig(**tables["codec"]), accordion)


def parts_of(words, ranks, step=0, dtype=np.float64):
    """What each replica has: heavy-tailed, some words exactly zero."""
    rng = np.random.default_rng((words, ranks, step))
    parts = rng.normal(size=(ranks, words)) * np.exp(rng.normal(size=words))
    parts[:, ::5] = 0.0
    return parts.astype(dtype)


def exchange(ranks, name, settings, parts, at=None, dtype=np.float64):
    """One exchange on thread ranks: (Told, ledger entry, codec) of each replica."""
    moment = at or moments(1)[0]

    def on_rank(world):
        part = parts[world.rank].astype(dtype)
        codec = opened(name, settings, part.size, dtype=dtype)
        with np.errstate(all="ignore"):  # as in a run
            told = codec.start(part, ReplicaChannel(world), moment)()
        own = None if told.own is None else told.own.copy()
        told = replace(told, mean=told.mean.copy(), own=own)
        return told, world.ledger.entries["agreement"], codec

    return run_ranks(ranks, on_rank)


class Alone:
    """A line with one end: what comes back is what was said."""

    rank, size = 0, 1

    def start_sum(self, array, form=""):
        assert not form, "rounded on the wire: the mean is not this codec's own"
        return lambda: array

    def sum(self, array):
        return array

    def start_gather(self, record, lengths=None):
        return lambda: [record]

    def gather_unequal(self, record):
        return [record]

    def start_exchange(self, pieces):
        return lambda: pieces

    def broadcast(self, array, root=0):
        return array


def gives_all_replicas_the_same_bits(name, row):
    for ranks in (2, 3, 4, 7):
        parts = parts_of(37, ranks)
        told = [t.mean for t, _, _ in exchange(ranks, name, row.rough, parts)]
        assert all(m.tobytes() == told[0].tobytes() for m in told), ranks
        assert told[0].shape == (37,) and told[0].dtype == np.float64


def is_the_mean_where_nothing_is_lost(name, row):
    if row.exact is None:
        return
    for ranks in (2, 3, 7):
        for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-6)):
            parts = parts_of(37, ranks, dtype=dtype)
            for told, _, _ in exchange(ranks, name, row.exact, parts, dtype=dtype):
                size = np.abs(parts).max()
                np.testing.assert_allclose(
                    told.mean, parts.mean(axis=0), 0, tolerance * size
                )


def is_unbiased_where_it_says_so(name, row):
    """Worst |z| < 4.5 over 400 coordinates, and the variance of the formula to 5 %.

    A bucket of many copies of a part is as many draws of it: chunks end with a copy,
    and shares and budgets of all copies are those of one.
    """
    words = COORDINATES * COPIES
    codec = opened(name, {**row.rough, **row.fair}, words)
    if not codec.unbiased:
        return
    part = parts_of(COORDINATES, 1)[0]
    parts = np.tile(part, COPIES)
    total, squares = np.zeros((2, COORDINATES))
    for moment in moments(DRAWS // COPIES):
        seen = codec.start(parts.copy(), Alone(), moment)().mean
        seen = seen.reshape(COPIES, COORDINATES)
        total += seen.sum(axis=0)
        squares += np.square(seen - part).sum(axis=0)
    variance = codec.variance(parts)
    assert variance is not None, f"{name} is unbiased and must say its variance"
    each = variance.reshape(COPIES, COORDINATES)
    np.testing.assert_allclose(each, np.broadcast_to(each[0], each.shape), 1e-9)
    error = np.abs(total / DRAWS - part)
    sure = np.sqrt(each[0] / DRAWS)
    assert (error <= 4.5 * sure + 1e-12 * np.abs(part).max()).all()
    if each.sum() > 0:
        ratio = squares.sum() / DRAWS / each[0].sum()
        assert 0.95 <= ratio <= 1.05, f"variance is {ratio:.3f} of the formula's"


def keeps_what_it_has_not_sent(name, row, steps=300, ranks=3):
    """Σ applied + mean e = Σ η mean g, over a rate that varies."""
    codec = opened(name, row.rough)
    if codec.has_own_memory and not isinstance(codec, Feedback):
        return
    if not codec.takes_feedback:
        return
    settings = {**row.rough, "feedback": "on"}
    times = moments(steps, lambda t: 0.1 * (1.0 + np.sin(t)) + 0.01)
    given = [parts_of(37, ranks, t) for t in range(20)]

    def on_rank(world):
        line, mine = ReplicaChannel(world), opened(name, settings)
        applied, asked, moved = np.zeros(37), np.zeros(37), 0.0
        for moment in times:
            parts = given[moment.number % len(given)]
            told = mine.start(moment.rate * parts[world.rank], line, moment)()
            applied += told.mean
            moved += float(np.abs(told.mean).max())
            asked += moment.rate * parts.mean(axis=0)
        return applied, asked, mine.error.copy(), moved

    said = run_ranks(ranks, on_rank)
    applied, asked, _, moved = said[0]
    error = np.mean([e for _, _, e, _ in said], axis=0)
    lost = codec.mean_roundoff * moved  # on the way back, which nobody keeps
    size = np.abs(asked).max()
    np.testing.assert_allclose(applied + error, asked, 0, 1e-11 * size + lost)
    if row.exact is None and not lost:
        assert np.abs(error).max() > 1e-6 * size, "nothing was lost: rough enough?"


def sends_the_bytes_of_its_formula(name, row):
    """The ledger's bytes, for words that divide by nothing, in both widths."""
    for ranks in (2, 3, 7):
        for words in WORDS:
            for dtype in (np.float32, np.float64):
                parts = parts_of(words, ranks, dtype=dtype)
                found = exchange(ranks, name, row.rough, parts, dtype=dtype)
                for rank, (told, entry, codec) in enumerate(found):
                    assert entry.bytes == told.payload, (ranks, words, dtype)
                    planned = codec.payload_bytes(ranks, rank)
                    assert planned is None or planned == told.payload


def takes_any_part(name, row):
    """Zeros are zeros; one word; values that are no numbers end nobody's exchange."""
    settings = row.rough
    for words in (1, 37):
        zero = np.zeros((3, words))
        for told, _, _ in exchange(3, name, settings, zero):
            assert (told.mean == 0.0).all()
        some = np.ones((3, words))
        for told, _, _ in exchange(3, name, settings, some):
            assert np.isfinite(told.mean).all()
        for bad in (np.nan, np.inf):
            wrong = np.ones((3, words))
            wrong[1, 0] = bad
            with np.errstate(all="ignore"):
                for told, _, _ in exchange(3, name, settings, wrong):
                    assert told.mean.shape == (words,)


def passes_on_what_is_no_number(name, row, exchanges=200):
    """One bad word of one replica, once: soon everybody has it, and none waits."""
    for bad in (np.nan, np.inf):

        def on_rank(world, bad=bad):
            line, codec = ReplicaChannel(world), opened(name, row.rough)
            with np.errstate(all="ignore"):
                for moment in moments(exchanges):
                    part = np.ones(37)
                    if world.rank == 1 and moment.number == 0:
                        part[5] = bad
                    told = codec.start(part, line, moment)()
                    if not np.isfinite(told.mean).all():
                        return moment.number
            return None

        seen = run_ranks(3, on_rank)
        assert seen[0] is not None and len(set(seen)) == 1, seen


def says_no_more_than_there_is(name, row):
    """Fewer words than it may send: none of the others becomes anything."""
    for ranks in (2, 3):
        lone = np.zeros((ranks, 37))
        lone[:, 11] = 0.5
        for told, _, _ in exchange(ranks, name, row.rough, lone):
            others = np.delete(told.mean, 11)
            assert np.isfinite(told.mean).all()
            if not row.spreads:
                assert (others == 0.0).all(), f"{name} makes something of zeros"


def draws_by_seed_and_exchange(name, row):
    """Twice the same bits; what has dice throws them anew in every exchange."""
    parts = parts_of(101, 3)
    once, again = (exchange(3, name, row.rough, parts)[0][0].mean for _ in range(2))
    assert once.tobytes() == again.tobytes()


BUCKET_LAWS = [
    gives_all_replicas_the_same_bits,
    is_the_mean_where_nothing_is_lost,
    is_unbiased_where_it_says_so,
    keeps_what_it_has_not_sent,
    sends_the_bytes_of_its_formula,
    takes_any_part,
    passes_on_what_is_no_number,
    says_no_more_than_there_is,
    draws_by_seed_and_exchange,
]
