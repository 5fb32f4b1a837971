"""What a run with any codec must do; each law takes a name and its `Row`."""

from functools import lru_cache

import numpy as np
import pytest

from benchmarks.sorted_rows import sorted_rows
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.shard import split_range
from hpcsgd.runs.progress import Callback
from tests.helpers.contracts.codec_bucket import opened
from tests.helpers.contracts.codec_rows import sections_of
from tests.helpers.harness import config_for, make_problem, train_on

L2 = 0.05


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
            rate={"value": problem.rate if row.value is None else row.value},
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
