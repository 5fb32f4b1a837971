"""Any-batch rounds: against a plain restatement, and their laws."""

from itertools import pairwise

import numpy as np
import pytest

from hpcsgd.errors import HpcsgdError
from tests.helpers.anybatch import (
    MAPS,
    any_batch,
    check,
    on_all,
    restated,
    script,
    scripted,
)
from tests.helpers.anybatch_laws import DECAYING, alike_shards, gaps, sorted_problem
from tests.helpers.harness import make_problem, relative_error, train_on, union_oracle
from tests.helpers.sparse import make_sparse

# ------------------------------------------------------------------- restatements


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", MAPS)
def test_every_map_is_its_formula(name, weighted, tmp_path):
    """Random budgets, two iterations, an intercept; members who share columns."""
    problem = make_problem("softmax")
    for replicas, members, graph in ((3, 1, "ring"), (2, 2, "full"), (4, 1, "ring")):
        result, _ = check(
            tmp_path,
            problem,
            replicas,
            members,
            mirror=MAPS[name],
            problem={"intercept": True},
            agreement={"graph": graph, "mixing": 2, "weighted": weighted},
            rate={"kind": "inverse-sqrt", "decay": 0.5},
        )
        assert result.report["agreement"]["graph"] == graph


@pytest.mark.parametrize("graph", ["full", "ring", "rings", "matching", "edges"])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_every_graph(graph, replicas, tmp_path):
    problem = make_problem("logistic")
    if graph == "edges":
        graph = ",".join(f"0-{r}" for r in range(1, replicas)) or "0-0"
    check(tmp_path, problem, replicas, agreement={"graph": graph, "mixing": 2})


@pytest.mark.parametrize("kind", ["gather", "gather-once"])
def test_members_that_hold_all_columns(kind, tmp_path):
    problem = make_problem("softmax")
    for name in ("entropy", "p-norm"):
        check(tmp_path, problem, 2, 2, mirror=MAPS[name], products={"kind": kind})


@pytest.mark.parametrize("sampling", ["reshuffle", "replacement"])
def test_streams_go_on_in_every_order_of_rows(sampling, tmp_path):
    problem = make_problem("logistic")
    check(tmp_path, problem, 3, sampling={"mode": sampling})


def test_a_ball_holds_the_weights(tmp_path):
    problem = make_problem("softmax")
    ball = {"radius": 0.05}
    result, _ = check(tmp_path, problem, 2, 2, mirror=ball, rate={"value": 2.0})
    assert np.linalg.norm(result.weights, axis=0).max() <= 0.05 * (1 + 1e-12)


def test_sparse_rows_learn_what_dense_ones_learn(tmp_path):
    stored, dense = make_sparse("logistic")
    for name in ("euclidean", "eg"):
        config, _ = scripted(tmp_path, dense, 2, 2, mirror=MAPS[name])
        found = [on_all(4, config, p)[0].weights for p in (stored, dense)]
        np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-14)


def test_one_column_and_float32(tmp_path):
    narrow = make_problem("gaussian", d=1)
    for name in MAPS:
        check(tmp_path, narrow, 2, mirror=MAPS[name])
        config, chunks = scripted(
            tmp_path,
            make_problem("softmax"),
            3,
            mirror=MAPS[name],
            precision={"recipe": "fp32"},
            agreement={"graph": "ring"},
        )
        problem = make_problem("softmax")
        result = train_on(3, config, problem)
        expected = restated(config, problem, chunks[:, : result.exchanges])[1:]
        assert relative_error(result, expected) < 1e-5


def test_a_replica_that_never_gets_to_a_row(tmp_path):
    """It mixes along; one row a replica is the least there is."""
    problem = make_problem("logistic", n=7)
    chunks = np.tile(np.array([[2], [0], [1], [0], [0], [2], [1]]), (1, 8))
    for graph in ("ring", "matching", "full"):
        config = any_batch(
            problem,
            7,
            schedule={"epochs": 8},
            agreement={
                "replay": script(tmp_path, chunks),
                "accumulate": 2,
                "graph": graph,
            },
        )
        result = train_on(7, config, problem)
        _, mean, bias = restated(config, problem, chunks[:, : result.exchanges])
        assert relative_error(result, (mean, bias)) <= 1e-12
        assert result.report["agreement"]["rows_by_replica"] == [16, 0, 8, 0, 0, 16, 8]
    with pytest.raises(HpcsgdError, match="replicas"):
        train_on(
            7,
            any_batch(make_problem("logistic", n=3), 7),
            make_problem("gaussian", n=3),
        )


# -------------------------------------------------------------------------- laws


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2)])
def test_equal_batches_on_a_full_graph_are_synchronous_sgd(ranks):
    """54 rows, of which all replicas have as many in every round."""
    replicas, members = ranks
    problem = make_problem("softmax", n=48)
    config = any_batch(problem, *ranks, problem={"intercept": True})
    for weighted in (True, False):
        tables = config.tables()
        tables["agreement"]["weighted"] = weighted
        result = train_on(replicas * members, type(config).parse(tables), problem)
        assert relative_error(result, union_oracle(config, problem)) <= 1e-12


def test_uneven_batches_are_that_too_where_replicas_count_by_rows(tmp_path):
    """Weighted, full: Σ b y / Σ b is the step on the union of all rows."""
    problem = make_problem("logistic")
    config, chunks = scripted(tmp_path, problem, 3, problem={"l2": 0.0})
    result = train_on(3, config, problem)
    weights = np.zeros((7, 1))
    from tests.helpers.anybatch import residuals, stream

    streams = [stream(config, 53, 3, r) for r in range(3)]
    for counts in chunks[:, : result.exchanges].T:
        rows = [
            row
            for taken, own in zip(counts, streams, strict=True)
            for _ in range(taken)
            for row in next(own)
        ]
        if rows:
            r = residuals(problem, problem.X[rows], np.array(rows), weights, 0.0)
            weights -= 0.2 * problem.X[rows].T @ r / len(rows)
    np.testing.assert_allclose(result.weights, weights[:, 0], rtol=1e-12)


def test_unweighted_is_a_mean_of_means_and_another_method(tmp_path):
    """The broken twin of the law above: one row counts as much as twelve."""
    problem = make_problem("logistic")
    found = []
    for weighted in (True, False):
        config, _ = scripted(tmp_path, problem, 3, agreement={"weighted": weighted})
        found.append(train_on(3, config, problem).weights)
    assert np.linalg.norm(found[0] - found[1]) > 1e-3 * np.linalg.norm(found[0])


def test_simplex_iterates_stay_on_it(tmp_path):
    problem = make_problem("softmax")
    config, _ = scripted(
        tmp_path, problem, 3, mirror=MAPS["entropy"], rate={"value": 50.0}
    )
    result = train_on(3, config, problem)
    assert result.weights.min() >= 0.0
    np.testing.assert_allclose(result.weights.sum(axis=0), 2.0, rtol=1e-12)
    config, _ = scripted(tmp_path, problem, 3, mirror=MAPS["eg"], rate={"value": 50.0})
    result = train_on(3, config, problem)
    assert np.abs(result.weights).sum(axis=0).max() <= 3.0 * (1 + 1e-12)


@pytest.mark.full
def test_random_batches_converge_and_mixing_brings_replicas_together(tmp_path):
    """Rows sorted by margin, 0 to 30 rows a round."""
    chunks = np.random.default_rng(7).integers(0, 4, size=(4, 400))
    apart = {}
    for weighted, bound in ((True, 2e-3), (False, 2e-4)):
        for mixing in (1, 4):
            gap, apart[weighted, mixing] = gaps(
                tmp_path,
                sorted_problem(),
                chunks,
                10,
                DECAYING,
                weighted=weighted,
                mixing=mixing,
            )
            assert 0 <= gap[-1] < bound, (weighted, mixing)
    assert apart[False, 4] < apart[False, 1] / 4
    assert apart[True, 4] < apart[True, 1] / 2


@pytest.mark.full
def test_average_regret_falls_on_a_fixed_target(tmp_path):
    """Of the consensus: the mean of F − F* over rounds, at twice as many each time."""
    chunks = np.random.default_rng(7).integers(0, 4, size=(4, 320))
    gap, _ = gaps(tmp_path, sorted_problem(), chunks, 10, DECAYING, every=1)
    average = np.cumsum(gap[1:]) / np.arange(1, len(gap))
    seen = [average[rounds - 1] for rounds in (40, 80, 160, 320)]
    assert all(later < 0.71 * earlier for earlier, later in pairwise(seen)), seen


@pytest.mark.full
def test_unweighted_gives_noise_equal_weight(tmp_path):
    """One replica has fifteen times the rows of a round: counting by rows pays."""
    chunks = np.tile(np.array([[1], [1], [1], [15]]), (1, 200))
    drawn = {"sampling": {"mode": "replacement"}, "rate": {"value": 1.0}}
    floor = {
        weighted: np.mean(
            gaps(tmp_path, alike_shards(), chunks, 2, drawn, 4, weighted=weighted)[0][
                -25:
            ]
        )
        for weighted in (True, False)
    }
    assert floor[False] > 1.5 * floor[True]


@pytest.mark.full
def test_rows_of_a_slow_replica_count_for_less_where_replicas_count_by_rows(tmp_path):
    """One at a third of the speed, on shards that differ: another optimum, said so."""
    chunks = np.tile(np.array([[1], [3], [3], [3]]), (1, 300))
    by_rows, alike = (
        gaps(tmp_path, sorted_problem(), chunks, 10, DECAYING, weighted=w)[0][-1]
        for w in (True, False)
    )
    assert alike < 1e-4 < 1e-3 < by_rows
