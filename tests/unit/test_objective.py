"""The loss that a run reports is F, term by term, on every grid."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.readers import MemoryReader
from hpcsgd.glm import get_family
from hpcsgd.runs.build import build
from hpcsgd.solvers.full_passes import gap_of, level, open_rows
from hpcsgd.solvers.lbfgs import GapCertificate, Landscape
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.problems import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_loss_is_the_objective(family, grid):
    """(1/Σc) Σ c_i ℓ(a_i·w + β + o_i, y_i) + (λ/2)‖w‖², β free of the penalty."""
    problem, l2 = make_problem(family, n=53, d=7), 0.3
    config = config_for(
        problem,
        problem={"l2": l2, "intercept": True},
        products={"kind": "direct"},
        rate={"value": 0.05},
        grid={"replicas": grid[0], "members": grid[1]},
    )
    result = train_on(grid[0] * grid[1], config, problem, weights=True, offset=True)
    w = result.weights.reshape(7, -1)
    scores = problem.X @ w + result.intercept + problem.offset[:, None]
    losses = get_family(family).loss(scores, problem.y.reshape(-1, 1))[:, 0]
    mean = np.sum(problem.weights * losses) / problem.weights.sum()
    assert result.loss == pytest.approx(mean + l2 / 2 * np.sum(w**2), rel=1e-12)
    assert np.abs(result.intercept).max() > 1e-3, "an intercept was learnt"


def test_clipped_scores_are_counted_and_said(caplog):
    """A rate far too high for Poisson: the user is told how many scores were cut."""
    problem = make_problem("poisson", n=53, d=7)
    config = config_for(
        problem,
        schedule={"epochs": 4},
        products={"kind": "direct"},
        rate={"value": 3000.0},
        run={"evaluate_every": 1},
    )
    result = train_on(2, config, problem)
    assert result.report["clipped_scores"] > 0
    assert "were clipped; lower the rate" in caplog.text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (2, 2)])
def test_the_slope_is_that_of_the_loss(family, grid):
    """Central differences of F along random directions, intercept included."""
    problem = make_problem(family, n=53, d=7)
    config = config_for(
        problem,
        problem={"l2": 0.3, "intercept": True},
        products={"kind": "direct"},
        grid={"replicas": grid[0], "members": grid[1]},
    )
    rng = np.random.default_rng(5)
    classes = int(problem.y.max()) + 1 if family == "softmax" else 1
    w, way = 0.1 * rng.normal(size=(2, 7, classes))
    b, b_way = 0.1 * rng.normal(size=(2, classes))

    def on_rank(world):
        reader = MemoryReader(problem.X, problem.y, problem.weights, problem.offset)
        live = build(config, world, lambda _: reader, [], Clock())
        objective, own = live.evaluation.objective, live.columns.own
        slope = objective.slope(w[own], b)
        assert slope.loss == objective.loss(w[own], b)[0]
        step = 1e-6
        up = objective.loss((w + step * way)[own], b + step * b_way)[0]
        down = objective.loss((w - step * way)[own], b - step * b_way)[0]
        whole = live.columns.join(slope.weights)
        along = np.sum(whole * way) + np.sum(slope.intercept * b_way)
        assert (up - down) / (2 * step) == pytest.approx(along, rel=1e-6, abs=1e-9)
        square = np.sum(whole**2) + np.sum(slope.intercept**2)
        assert objective.norm(slope) == pytest.approx(np.sqrt(square), rel=1e-12)
        return True

    assert all(run_ranks(grid[0] * grid[1], on_rank))


@pytest.mark.parametrize("family", ["logistic", "softmax", "gamma"])
@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (2, 2)])
def test_a_certificate_reads_rows_for_another_intercept_alone(family, grid):
    """At the best intercept the gradient at hand is that of the tangents."""
    problem, l2 = make_problem(family, n=53, d=7), 0.3
    config = config_for(
        problem,
        problem={"l2": l2, "intercept": True},
        products={"kind": "direct"},
        grid={"replicas": grid[0], "members": grid[1]},
    )

    def reader(world):
        return MemoryReader(problem.X, problem.y)

    def judge(world):
        live = build(config, world, reader, [], Clock())
        objective = live.evaluation.objective
        reads = []

        def read(part):
            reads.append(part)
            return objective.read(part)

        rows = open_rows(replace(objective, read=read))
        land = Landscape(rows, l2, True)
        K = objective.columns
        weights = np.full((rows.width, K), 0.05) * np.arange(1, K + 1)
        point = land.start_at(weights, np.full(K, 0.7))
        shift = level(rows, point.scores).shift
        best = land.start_at(weights, point.intercept + shift)
        figures = []
        for place in (point, best):
            certificate = GapCertificate(1e-8)
            for _ in range(2):  # the tangents are kept: the second time reads nothing
                reads.clear()
                certificate.judge(land, place, 1.0)
                figures.append((len(reads), certificate.gap))
            figures.append(gap_of(objective, weights, place.intercept).gap)
        live.close()
        return figures

    for first, again, bound, *at_best in run_ranks(grid[0] * grid[1], judge):
        assert (first[0], again[0]) == (1, 0) and first[1] == again[1]
        assert first[1] == pytest.approx(bound, rel=1e-12)
        assert (at_best[0][0], at_best[1][0]) == (0, 0)
        assert at_best[0][1] == pytest.approx(at_best[2], rel=1e-12)
        assert at_best[0][1] < first[1]
