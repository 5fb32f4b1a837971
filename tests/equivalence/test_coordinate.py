"""Coordinate forms: textbook block descent for every s and grid, and the optimum."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from hpcsgd.api import train
from hpcsgd.data.sampling import Sampler
from hpcsgd.glm.penalties import Penalty
from tests.helpers.coordinate import ELASTIC, MACHINE, descend
from tests.helpers.oracle import L, residual
from tests.helpers.problems import FAMILIES, make_problem

ONE_SCORE = [family for family in FAMILIES if family != "softmax"]


def orders(count, batch, epochs, mode):
    """The blocks of all epochs, one after the other."""
    sampler = Sampler(mode, 0, count, 0)
    for epoch in range(epochs):
        order = sampler.order(epoch)
        yield from np.split(order, range(batch, count, batch))


def textbook_elastic_net(problem, batch, epochs, bounds, mode="shuffle-once"):
    """One block after the other, the intercept at its best, residuals made anew."""
    X, c = problem.X, problem.weights / problem.weights.mean()
    y, n = problem.y - problem.offset, len(problem.X)
    w = np.clip(np.zeros(X.shape[1]), *bounds)
    centred = X - c @ X / n
    for block in orders(len(w), batch, epochs, mode):
        A = centred[:, block]
        shift = c @ (y - X @ w) / n
        slope = A.T @ (c * (X @ w + shift - y)) / n
        curvature = np.linalg.eigvalsh((A.T * c) @ A / n)[-1]
        u = curvature * w[block] - slope
        u = np.sign(u) * np.maximum(np.abs(u) - 0.04, 0)
        w[block] = np.clip(u / (curvature + 0.02), *bounds)
    return w, c @ (y - X @ w) / n


def textbook_machine(problem, batch, epochs):
    """Dual ascent, w made anew from all dual variables."""
    n, c = len(problem.X), problem.weights / problem.weights.mean()
    signed, e = problem.X * problem.y[:, None], 1 - problem.y * problem.offset
    alpha, l2 = np.zeros(n), 0.05
    for block in orders(n, batch, epochs, "shuffle-once"):
        w = signed.T @ alpha / (l2 * n)
        Y = signed[block]
        curvature = np.linalg.eigvalsh(Y @ Y.T)[-1] / (l2 * n)
        up = curvature * alpha[block] + e[block] - Y @ w
        alpha[block] = np.maximum(up / (curvature + 1 / c[block]), 0)
    return signed.T @ alpha / (l2 * n)


COLUMNS = [(1, 1, 1), (1, 3, 1), (2, 1, 4), (3, 2, 3), (2, 3, 8)]
ROWS = [(1, 1, 1), (1, 4, 1), (2, 1, 6), (3, 4, 3)]


@pytest.mark.parametrize("ranks, batch, steps", COLUMNS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", ["shuffle-once", "reshuffle"])
def test_columns_one_block_after_the_other(ranks, batch, steps, sparse, mode):
    problem = make_problem("gaussian", n=31, d=11)
    bounds = {"lower": -0.15, "upper": 0.4}
    result = descend(
        problem,
        ranks,
        X=csr_matrix(problem.X) if sparse else None,
        problem={**ELASTIC, **bounds},
        schedule={"batch": batch, "steps": steps, "epochs": 3},
        sampling={"mode": mode},
    )
    w, shift = textbook_elastic_net(problem, batch, 3, (-0.15, 0.4), mode)
    np.testing.assert_allclose(result.weights, w, rtol=1e-11, atol=1e-13)
    assert float(result.intercept) == pytest.approx(shift, rel=1e-11)
    assert (w == -0.15).any() and (w == 0.0).any()


@pytest.mark.parametrize("ranks, batch, steps", ROWS)
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_one_block_after_the_other(ranks, batch, steps, sparse):
    problem = make_problem("squared-hinge", n=30, d=7)
    result = descend(
        problem,
        ranks,
        X=csr_matrix(problem.X) if sparse else None,
        problem=MACHINE,
        schedule={"batch": batch, "steps": steps, "epochs": 3},
    )
    w = textbook_machine(problem, batch, 3)
    np.testing.assert_allclose(result.weights, w, rtol=1e-11, atol=1e-14)
    assert result.intercept is None


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l1, l2", [(0.05, 0.0), (0.03, 0.1)])
def test_the_optimum_is_that_of_scikit_learn(intercept, l1, l2):
    from sklearn.linear_model import ElasticNet

    problem = make_problem("gaussian", n=60, d=20)
    table = {"family": "gaussian", "l1": l1, "l2": l2, "intercept": intercept}
    result = descend(
        problem,
        2,
        problem=table,
        schedule={"batch": 1, "steps": 6, "epochs": 300},
        coordinate={"tol": 1e-18 if l2 else 1e-15},
    )
    other = ElasticNet(
        alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), tol=1e-15, max_iter=10**5
    )
    other.set_params(fit_intercept=intercept)
    other.fit(problem.X, problem.y - problem.offset, sample_weight=problem.weights)
    np.testing.assert_allclose(result.weights, other.coef_, atol=1e-8)
    shift = 0.0 if result.intercept is None else result.intercept
    assert float(shift) == pytest.approx(float(other.intercept_), abs=1e-8)
    found = result.report["coordinate"]
    assert found["ended"] == "converged" and found["form"] == "primal"
    assert result.history[-1]["epoch"] < 300


def test_a_machine_at_its_optimum():
    """∇F = 0 there; and F is no larger than where L-BFGS of SciPy ends."""
    from scipy.optimize import minimize

    problem = make_problem("squared-hinge", n=40, d=6)
    c, n = problem.weights / problem.weights.mean(), 40

    def slope(w):
        missing = np.maximum(1 - problem.y * (problem.X @ w + problem.offset), 0)
        value = c @ missing**2 / (2 * n) + 0.025 * w @ w
        return value, 0.05 * w - problem.X.T @ (c * missing * problem.y) / n

    result = descend(
        problem,
        2,
        problem=MACHINE,
        schedule={"batch": 1, "steps": 8, "epochs": 500},
        coordinate={"tol": 1e-16},
    )
    best = minimize(slope, np.zeros(6), jac=True, tol=1e-14)
    loss, gradient = slope(result.weights)
    assert np.linalg.norm(gradient) < 1e-8
    assert loss <= best.fun * (1 + 1e-14)
    assert result.loss == pytest.approx(loss, rel=1e-14)
    np.testing.assert_allclose(result.weights, best.x, atol=1e-6)


@pytest.mark.parametrize(
    "l1, l2, lower",
    [(0.04, 0.02, None), (0.04, 0.0, None), (0.02, 0.0, 0.0), (0.0, 0.1, -0.1)],
)
def test_gaps_are_no_less_than_what_is_left(l1, l2, lower):
    """At every look, and small at the end."""
    problem = make_problem("gaussian", n=40, d=8)
    table = {**ELASTIC, "l1": l1, "l2": l2, "lower": lower}
    result = descend(
        problem,
        problem=table,
        schedule={"batch": 1, "steps": 2, "epochs": 400},
        coordinate={"tol": 1e-15},
    )
    best = result.loss
    for record in result.history:
        assert record["gap"] >= (record["loss"] - best) * (1 - 1e-9) - 1e-15
    assert result.history[-1]["gap"] < 1e-14 and result.history[-1]["gradient"] < 1e-6
    assert result.history[0]["gap"] > 1e-3


@pytest.mark.parametrize("family", ONE_SCORE)
@pytest.mark.parametrize(
    "l2, tol, bounds",
    [(0.02, 1e-18, {}), (0.0, 1e-12, {"lower": -0.1, "upper": 0.3})],
)
def test_every_family_ends_where_no_subgradient_is_left(family, l2, tol, bounds):
    """By longdouble residuals of a textbook, with weights, offsets and an intercept."""
    problem = make_problem(family, n=61, d=9)
    table = {"family": family, "l1": 0.02, "l2": l2, "intercept": True, **bounds}
    result = descend(
        problem,
        2,
        problem=table,
        schedule={"batch": 1, "steps": 4, "epochs": 60},
        coordinate={"tol": tol, "form": "newton"},
    )
    assert result.report["coordinate"]["ended"] == "converged"
    assert result.report["coordinate"]["form"] == "newton"
    w, X = result.weights.astype(L), problem.X.astype(L)
    t = X @ w + L(result.intercept) + problem.offset
    r = residual(family, t[:, None], problem.y.astype(L)[:, None])[:, 0]
    r = r * problem.weights / problem.weights.sum()
    slope = X.T @ r + l2 * w
    penalty = Penalty(l2, 0.02, **bounds)
    least = penalty.least(result.weights, slope.astype(float))
    # A gap of 1e-12 allows a slope of about its root along the intercept.
    assert np.abs(least).max() < 1e-8 and abs(r.sum()) < 1e-7
    assert (w == 0).any()
    losses = [record["loss"] for record in result.history]
    assert all(b <= a * (1 + 1e-12) for a, b in zip(losses, losses[1:], strict=False))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("ranks, steps", [(1, 5), (3, 2), (2, 8)])
def test_newton_is_the_same_for_every_number_of_steps(ranks, steps, sparse):
    problem = make_problem("poisson", n=40, d=9)
    table = {"family": "poisson", "l1": 0.02, "l2": 0.01, "intercept": True}
    one, other = (
        descend(
            problem,
            count,
            X=csr_matrix(problem.X) if sparse else None,
            problem=table,
            schedule={"batch": 2, "steps": s, "epochs": 3},
        )
        for count, s in ((1, 1), (ranks, steps))
    )
    np.testing.assert_allclose(other.weights, one.weights, rtol=1e-10, atol=1e-13)
    assert float(other.intercept) == pytest.approx(float(one.intercept), rel=1e-10)


def test_newton_shortens_steps_that_go_too_far():
    """A few counts far above the mean: the full step would overflow."""
    rng = np.random.default_rng(4)
    X = np.eye(20)[:, :3] + 0.01 * rng.normal(size=(20, 3))
    y = np.zeros(20)
    y[:3] = 1000.0, 3000.0, 500.0
    tables = {
        "problem": {"family": "poisson", "l1": 0.1, "l2": 0.5, "intercept": True},
        "schedule": {"batch": 1, "steps": 3, "epochs": 200},
        "update": {"kind": "coordinate"},
        "coordinate": {"tol": 1e-9},
        "precision": {"recipe": "fp64"},
    }
    result = train(tables, X=X, y=y)
    losses = [record["loss"] for record in result.history]
    assert result.status.value == "converged"
    assert all(b <= a + 1e-9 * abs(a) for a, b in zip(losses, losses[1:], strict=False))


def test_logistic_lasso_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    problem = make_problem("logistic", n=80, d=10)
    result = descend(
        replace(problem, offset=None),
        problem={"family": "logistic", "l1": 0.02, "intercept": False},
        schedule={"batch": 1, "steps": 5, "epochs": 60},
        coordinate={"tol": 1e-13},
    )
    other = LogisticRegression(
        l1_ratio=1.0, solver="saga", C=1 / 1.6, fit_intercept=False, tol=1e-12,
        max_iter=10**5,
    )  # fmt: skip
    c = problem.weights / problem.weights.mean()
    other.fit(problem.X, problem.y, sample_weight=c)
    np.testing.assert_allclose(result.weights, other.coef_[0], atol=1e-7)
