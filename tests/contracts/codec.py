"""What every codec must do; each check takes a name of CODECS and its `Row`.

A new row of CODECS needs a row of ROWS: settings under which it can be seen at work,
those under which it loses nothing, and the twin that shows that the test can fail.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import pytest

from benchmarks.sorted_rows import sorted_rows
from hpcsgd.agreement.line import ReplicaLine
from hpcsgd.api import train
from hpcsgd.callbacks import Callback
from hpcsgd.codecs import (
    CODECS,
    AccordionConfig,
    Bucket,
    CodecConfig,
    Feedback,
    Moment,
    make_codec,
)
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from tests.harness import config_for, make_problem, train_on


@dataclass(frozen=True)
class Row:
    """How a codec is put to the test."""

    rough: dict = field(default_factory=dict)  # [codec] settings that lose enough
    exact: dict | None = None  # settings that lose nothing; None: there are none
    good: dict = field(default_factory=dict)  # settings that converge best
    rate: float = 1.0  # of that run, times 1/L; what is kept goes with its square
    gap: float = 1e-3  # relative, of the objective it converges to, with those
    broken: dict | None = None  # settings of the twin; None: said elsewhere
    fair: dict = field(default_factory=dict)  # with those it is unbiased, if ever
    worse: float = 2.0  # the twin's gap is at least so many times that


ROWS = {
    "identity": Row(exact={}, gap=1e-10),
    "bf16": Row(good={"feedback": "on"}, gap=1e-7, broken={"feedback": "off"}),
    "fp16": Row(good={"feedback": "on"}, gap=1e-9, broken={"feedback": "off"}),
    "fp8": Row(gap=1e-4, broken={"feedback": "off"}),
    "topk": Row(
        rough={"share": 0.1},
        exact={"share": 1.0, "dense": "never"},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "feedback": "off"},
        worse=100.0,
    ),
    "randomk": Row(
        rough={"share": 0.2},
        fair={"feedback": "off"},
        exact={"share": 1.0},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "feedback": "off"},
    ),
    "dgc": Row(
        rough={"share": 0.1, "feedback": "auto"},
        exact={"share": 1.0, "dense": "never", "momentum": 0.0},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "masking": True},
        worse=100.0,
    ),
    "wangni": Row(
        rough={"budget": 0.5},
        exact={"share": 1.0, "dense": "never"},
        good={"budget": 0.2},
        rate=0.25,
    ),
    "threshold": Row(
        rough={"share": 0.1},
        exact={"share": 1.0, "dense": "never"},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "feedback": "off"},
        worse=100.0,
    ),
    "qsgd": Row(rough={"bits": 4, "chunk": 16}, good={"bits": 4}),
    "sign": Row(broken={"feedback": "off"}, worse=100, rate=0.25),
    "byte": Row(rough={"chunk": 16}, gap=2e-7, broken={"feedback": "off"}),
    "bytegrad": Row(gap=2e-7, broken={"feedback": "off"}),
    "alq": Row(
        rough={"bits": 3, "chunk": 16, "adapt": 1},
        good={"adapt": 1},
        broken={"adapt": 10**6},
    ),
    "amq": Row(
        rough={"bits": 3, "chunk": 16, "adapt": 1},
        good={"adapt": 1},
        broken={"adapt": 10**6},
    ),
    "powersgd": Row(
        rough={"start": 0, "min_rate": 0},
        exact={"start": 0, "min_rate": 0, "rank": 64},
        good={"start": 0, "min_rate": 0},
        gap=1e-3,
        broken={"start": 0, "min_rate": 0, "feedback": "off"},
        worse=10,
        rate=0.25,
    ),
    "nuqsgd": Row(rough={"bits": 3, "chunk": 16}, good={"bits": 4}),
    "accordion": Row(
        rough={"start": 0, "min_rate": 0, "accordion": {"interval": 1}},
        exact={
            "start": 0,
            "min_rate": 0,
            "accordion": {"low": "rank=64", "high": "rank=65"},
        },
        good={
            "dense": "never",
            "accordion": {
                "codec": "topk",
                "low": "share=0.5",
                "high": "share=0.2",
                "interval": 1,
            },
        },
        gap=1e-3,
        broken={
            "dense": "never",
            "feedback": "off",
            "accordion": {
                "codec": "topk",
                "low": "share=0.5",
                "high": "share=0.2",
                "interval": 1,
            },
        },
        worse=10,
        rate=0.25,
    ),
}
NAMES = list(CODECS)
SPREADING = "sign", "powersgd", "accordion"  # zeros among others become something
L2 = 0.05
WORDS = 37, 101  # neither divides by 2, 3, 4, 7 or 8
DRAWS, COORDINATES, COPIES = 20_000, 400, 50


def moments(count, rate=lambda t: 0.1):
    """Exchanges 0 .. count − 1, ten an epoch."""
    return [Moment(t, t // 10, rate(t), rate(t + 1)) for t in range(count)]


def sections_of(settings):
    """[codec] and [accordion], as `settings` of the former may have the latter."""
    own = {key: value for key, value in settings.items() if key != "accordion"}
    return {"codec": own, "accordion": settings.get("accordion", {})}


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
            told = codec.start(part, ReplicaLine(world), moment)()
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


# ---------------------------------------------------------------- laws of one bucket


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
    settings = {**row.rough, "feedback": "on"}
    times = moments(steps, lambda t: 0.1 * (1.0 + np.sin(t)) + 0.01)
    given = [parts_of(37, ranks, t) for t in range(20)]

    def on_rank(world):
        line, mine = ReplicaLine(world), opened(name, settings)
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
            line, codec = ReplicaLine(world), opened(name, row.rough)
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
            if name not in SPREADING:
                assert (others == 0.0).all()


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


# ------------------------------------------------------------------- laws of a run


def coded(drawn, name, replicas, members=1, /, codec=None, **sections):
    """A run of the gradient agreement with this codec, in several buckets."""
    tables = {
        "schedule": {"batch": 4, "steps": 1, "epochs": 2},
        "products": {"kind": "auto"},
        "problem": {"l2": 0.05, "intercept": True},
        "agreement": {"kind": "gradient", "codec": name, "bucket": 8 * 5 * 2.0**-20},
        **sections_of(codec or {}),
        "grid": {"replicas": replicas, "members": members},
    }
    for section, table in sections.items():
        tables[section] = {**tables.get(section, {}), **table}
    return config_for(drawn, **tables)


def on_all(ranks, config, problem, **data):
    """The results of all ranks."""
    return run_ranks(
        ranks, lambda world: train(config, X=problem.X, y=problem.y, world=world)
    )


def is_ddp_where_nothing_is_lost(name, row):
    """And one replica is SGD, whatever the codec."""
    problem = make_problem("softmax")
    for replicas in (1, 3):
        if replicas > 1 and row.exact is None:
            continue
        plain = train_on(replicas, coded(problem, "identity", replicas), problem)
        settings = row.exact if replicas > 1 else row.rough
        config = coded(problem, name, replicas, codec=settings)
        result = train_on(replicas, config, problem)
        np.testing.assert_allclose(result.weights, plain.weights, 0, 1e-12)
        np.testing.assert_allclose(result.intercept, plain.intercept, 0, 1e-12)


def agrees_on_every_grid(name, row):
    """Softmax and one score, members, replicas that run out of rows, both widths."""
    for family, replicas, members, recipe in (
        ("logistic", 2, 1, "fp64"),
        ("softmax", 3, 1, "fp32"),
        ("softmax", 4, 1, "fp64"),
        ("logistic", 7, 1, "fp32"),
        ("softmax", 3, 2, "fp64"),
    ):
        problem = make_problem(family)
        config = coded(
            problem,
            name,
            replicas,
            members,
            codec=row.rough,
            precision={"recipe": recipe},
        )
        results = on_all(replicas * members, config, problem)
        assert {r.status.value for r in results} == {"completed"}
        assert len({r.weights_sha256 for r in results}) == 1
        assert results[0].loss < results[0].history[0]["loss"]


def says_the_bytes_of_a_run(name, row):
    """Every bucket of every exchange, and the tail: counts and Σr in float64."""
    problem, replicas = make_problem("softmax"), 3
    config = coded(problem, name, replicas, codec=row.rough)
    results = on_all(replicas, config, problem)
    for rank, result in enumerate(results):
        sent = result.ledger["agreement"]["bytes"]
        buckets = result.report["agreement"]["buckets"]
        assert buckets == 6
        heights = [split_range(7, buckets, k) for k in range(buckets)]
        sizes = [
            opened(name, row.rough, 4 * (h.stop - h.start), 4).payload_bytes(
                replicas, rank
            )
            for h in heights
        ]
        if None not in sizes:
            assert sent == (sum(sizes) + 8 * (4 + 1)) * result.exchanges


def ends_as_diverged(name, row):
    """A rate that blows up: all ranks leave together, in order."""
    problem = make_problem("gaussian")
    config = coded(
        problem,
        name,
        3,
        codec=row.rough,
        rate={"value": 1e200},
        schedule={"epochs": 6},
        run={"check_every": 1, "fall_back": False, "evaluate_every": 1},
    )
    results = on_all(3, config, problem)
    assert {r.status.value for r in results} == {"diverged"}


def stands_at_the_edges(name, row):
    """No gradient at all; one column; rows that lie column by column."""
    problem = make_problem("gaussian")
    config = coded(problem, name, 3, codec=row.rough, problem={"intercept": False})

    def weights_of(X, y):
        results = run_ranks(3, lambda world: train(config, X=X, y=y, world=world))
        assert {r.status.value for r in results} == {"completed"}
        assert len({r.weights_sha256 for r in results}) == 1
        return np.asarray(results[0].weights)

    assert not weights_of(problem.X, np.zeros_like(problem.y)).any()
    assert weights_of(problem.X[:, :1], problem.y).any()
    rows = weights_of(np.ascontiguousarray(problem.X), problem.y)
    columns = weights_of(np.asfortranarray(problem.X), problem.y)
    assert rows.tobytes() == columns.tobytes()


@lru_cache(maxsize=1)
def heterogeneous():
    """Logistic rows sorted by margin, the worst of shards; the least objective; L."""
    return sorted_rows(120, 11, 2, L2)


def gap_of(name, settings, rate=1.0, steps=300):
    """How far above the least objective it ends, relative to it."""
    X, y, least, slope = heterogeneous()
    config = RunConfig.parse(
        {
            "problem": {"l2": L2},
            "schedule": {"batch": 30, "steps": 1, "epochs": steps},
            "agreement": {"kind": "gradient", "codec": name},
            **sections_of(settings),
            "grid": {"replicas": 4},
            "precision": {"recipe": "fp64"},
            "rate": {"value": float(rate / slope)},
            "run": {"evaluate_every": 0, "fall_back": False},
        }
    )
    result = run_ranks(4, lambda world: train(config, X=X, y=y, world=world))[0]
    return (result.loss - least) / least


def converges_and_its_twin_does_worse(name, row):
    """Full shards sorted by margin: the gap is below the row's, the twin's is not."""
    gap = gap_of(name, row.good, row.rate)
    assert gap < row.gap, f"{name}: {gap:.2e}"
    if row.broken is not None:
        twin = gap_of(name, row.broken, row.rate)
        assert not twin <= row.worse * max(gap, 1e-12), f"{name}: {gap:.2e}, {twin:.2e}"


def leaves_nobody_waiting(name, row):
    """One replica fails amid an exchange: the others hear of it, and end."""
    problem = make_problem("logistic")

    class Failed(Exception):
        pass

    def on_rank(world):
        def at(view):
            if world.rank == 1 and view.exchanges == 3:
                raise Failed

        callback = Callback()
        callback.on_exchange = at
        config = coded(problem, name, 3, codec=row.rough)
        return train(
            config, X=problem.X, y=problem.y, world=world, callbacks=[callback]
        )

    with pytest.raises(Failed):
        run_ranks(3, on_rank)


RUN_LAWS = [
    leaves_nobody_waiting,
    converges_and_its_twin_does_worse,
    is_ddp_where_nothing_is_lost,
    agrees_on_every_grid,
    says_the_bytes_of_a_run,
    ends_as_diverged,
    stands_at_the_edges,
]
