"""Converged means a certified gap: data that hide how far from the optimum a fit is.

The oracle is Newton's method with longdouble sums on columns that the test has centred
and scaled itself.
"""

import logging
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import hpcsgd
from hpcsgd.errors import ConvergenceWarning, DataError
from hpcsgd.runs.advice import advise
from hpcsgd.solvers.evaluation import StopConfig
from hpcsgd.solvers.full_passes import gap_limit
from tests.helpers.harness import config_for, make_problem, run_ranks, train_on
from tests.helpers.problems import FAMILIES

ALPHA = 1e-4
TOL = 1e-5
LOSSES = {
    "gaussian": (
        lambda t, y: (t - y) ** 2 / 2,
        lambda t, y: t - y,
        lambda t: np.ones_like(t),
    ),
    "logistic": (
        lambda t, y: np.logaddexp(0, t) - y * t,
        lambda t, y: 1 / (1 + np.exp(-t)) - y,
        lambda t: np.exp(-np.abs(t)) / (1 + np.exp(-np.abs(t))) ** 2,
    ),
    "poisson": (
        lambda t, y: np.exp(t) - y * t,
        lambda t, y: np.exp(t) - y,
        lambda t: np.exp(t),
    ),
}


def draw(family, n=400, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    t = X @ rng.normal(size=d) / 2 + 0.3
    targets = {
        "gaussian": t + rng.normal(size=n),
        "logistic": rng.random(n) < 1 / (1 + np.exp(-t)),
        "poisson": rng.poisson(np.exp(np.clip(t, -5, 2))),
    }
    return X, targets[family].astype(float)


def objective(family, X, y, w, intercept):
    """Return F in longdouble."""
    t = X.astype(np.longdouble) @ w + intercept
    with np.errstate(over="ignore"):
        loss = LOSSES[family][0](t, y).mean()
    return loss + ALPHA / 2 * np.sum(np.square(w.astype(np.longdouble)))


def optimum(family, X, y):
    """Return F* by Newton's method with halved steps."""
    _, residual, curvature = LOSSES[family]
    n, d = X.shape
    ridge = np.r_[np.full(d, ALPHA), 0.0]
    A = np.c_[X, np.ones(n)]
    v = np.zeros(d + 1)
    if family == "poisson":
        v[-1] = np.log(y.mean())
    value = objective(family, X, y, v[:d], v[d])
    for _ in range(300):
        t = (A.astype(np.longdouble) @ v).astype(float)
        gradient = A.T @ residual(t, y) / n + ridge * v
        hessian = (A * curvature(t)[:, None]).T @ A / n + np.diag(ridge)
        root = np.sqrt(np.diag(hessian))
        step = -np.linalg.solve(hessian / np.outer(root, root), gradient / root) / root
        length = 1.0
        while length > 1e-12:
            trial = v + length * step
            ahead = objective(family, X, y, trial[:d], trial[d])
            if ahead < value:
                break
            length /= 2
        else:
            break
        v, value = trial, ahead
    return float(value)


def fit_silently(X, family, y, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return hpcsgd.fit(X, family, y, **settings)


def assert_certified(result, value, best):
    """A silent, certified optimum, whose gap is a bound of what is left."""
    report, above = result.report, float(value - best)
    assert report["converged"] is True and report["certified"] is True
    assert above <= TOL * abs(best)
    assert above <= report["gap"] + 1e-9 * abs(best)


@pytest.mark.parametrize("factor", [1e3, 1e7])
@pytest.mark.parametrize("family", ["gaussian", "logistic", "poisson"])
def test_one_huge_row_does_not_hide_the_others(family, factor):
    X, y = draw(family)
    X[7] *= factor
    result = fit_silently(X, family, y, alpha=ALPHA)
    value = objective(family, X, y, result.weights, result.intercept)
    assert_certified(result, value, optimum(family, X, y))


def labelled(family):
    """Rows of which one is 1e7 times as long as the others, and their targets."""
    drawn = {"huber": "gaussian", "softmax": "poisson"}.get(family, family)
    X, y = draw(drawn)
    X[7] *= 1e7
    return X, np.minimum(y, 2.0) if family == "softmax" else y


@pytest.mark.parametrize(
    "family", ["gaussian", "huber", "logistic", "poisson", "softmax"]
)
def test_one_huge_row_does_not_hide_the_others_without_a_penalty(family):
    """No gap is known there; a ridge of 1e-12 has one, and about the same optimum."""
    X, y = labelled(family)
    best = fit_silently(X, family, y, alpha=1e-12)
    assert best.report["certified"] is True
    report = (result := fit_silently(X, family, y, alpha=0.0)).report
    assert report["converged"] is True and report["certified"] is None
    assert abs(result.loss - best.loss) <= TOL * abs(best.loss)
    assert report["polish"]["expected_fall"] <= report["polish"]["fall_limit"]


def test_estimators_without_a_penalty_see_past_a_huge_row():
    X, y = labelled("gaussian")
    model = hpcsgd.LinearRegression().fit(X, y)
    root = X.std(axis=0)
    A = np.c_[X / root, np.ones(len(X))].astype(np.longdouble)
    q, r = np.linalg.qr(A.astype(float))
    best = np.linalg.solve(r, q.T @ y)[:-1] / root
    np.testing.assert_allclose(model.coef_, best, atol=2e-3)


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)])
def test_grids_see_past_a_huge_row_without_a_penalty(grid):
    problem = make_problem("gaussian")
    problem.X[3] *= 1e7
    asked = {
        "problem": {"l2": 0.0, "intercept": True},
        "polish": {"kind": "auto", "tol": 1e-6},
        "precision": {"recipe": "fp64"},
        "rate": {"value": 1e-16},
    }
    sizes = {"replicas": grid[0], "members": grid[1]}
    config = config_for(problem, grid=sizes, **asked)
    result = train_on(grid[0] * grid[1], config, problem)
    A = np.c_[problem.X, np.ones(len(problem.X))].astype(float)
    best = np.linalg.lstsq(A, problem.y.ravel(), rcond=None)[0]
    best = np.mean((A @ best - problem.y.ravel()) ** 2) / 2
    assert result.report["polish"]["ended"] == "converged"
    assert result.loss == pytest.approx(best, rel=1e-5)


def test_a_small_gradient_that_newton_does_not_confirm_is_warned_of():
    X, y = draw("gaussian")
    X[7] *= 1e11
    with pytest.warns(
        ConvergenceWarning, match="Newton would lower F by an unknown.*scale them"
    ):
        result = hpcsgd.fit(X, "gaussian", y, alpha=0.0)
    report = result.report
    assert report["converged"] is False and report["certified"] is None
    assert report["polish"]["ended"] == "small gradient, but F would fall"
    assert report["polish"]["expected_fall"] is None


@pytest.mark.parametrize("offset", [1e4, 1e10])
@pytest.mark.parametrize("family", ["gaussian", "logistic", "poisson"])
def test_columns_far_from_zero_are_learnt_from(family, offset):
    X, y = draw(family)
    far = X + offset
    centred = far - offset  # exact: what is left of the columns after rounding
    result = fit_silently(far, family, y, alpha=ALPHA)
    moved = result.weights.astype(np.longdouble).sum() * np.longdouble(offset)
    intercept = np.longdouble(result.intercept) + moved
    value = objective(family, centred, y, result.weights, intercept)
    assert_certified(result, value, optimum(family, centred, y))
    assert np.abs(result.weights).max() > 0.1


@pytest.mark.parametrize("family", ["gaussian", "logistic", "softmax"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_far_columns_are_learnt_from_with_l1(family, ranks):
    X, y = draw("logistic" if family == "softmax" else family)
    y = y + (X[:, 0] > 0) if family == "softmax" else y
    y[:5] = 2.0 if family == "softmax" else y[:5]
    settings = {"alpha": 1e-2, "l1_ratio": 0.5}

    def on_rank(world):
        return fit_silently(X + 1e10, family, y, comm=world, **settings)

    near = fit_silently((X + 1e10) - 1e10, family, y, **settings)
    for result in run_ranks(ranks, on_rank):
        assert result.report["certified"] is True
        assert result.loss == pytest.approx(near.loss, rel=TOL)
        np.testing.assert_allclose(result.weights, near.weights, rtol=0.02, atol=1e-3)


def test_constant_columns_beside_far_ones_get_no_weight():
    X, y = draw("logistic")
    far = np.c_[X + 1e8, np.full(len(X), 1e8), np.full(len(X), 0.1)]
    result = fit_silently(far, "logistic", y, alpha=ALPHA)
    plain = fit_silently(X, "logistic", y, alpha=ALPHA)
    assert np.abs(result.weights[-2:]).max() < 1e-6
    assert result.loss == pytest.approx(plain.loss, rel=TOL)


@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (2, 2)])
def test_far_columns_are_centred_on_every_grid(grid):
    problem = make_problem("logistic")
    problem.X[:, ::2] += 2.0**20
    asked = {
        "problem": {"l2": 1e-2, "intercept": True},
        "polish": {"kind": "lbfgs", "tol": 1e-9},
        "rate": {"value": "auto"},
        "precision": {"recipe": "fp64"},
    }
    alone = train_on(1, config_for(problem, **asked), problem)
    sizes = {"replicas": grid[0], "members": grid[1]}
    config = config_for(problem, grid=sizes, **asked)
    result = train_on(grid[0] * grid[1], config, problem)
    assert result.report["polish"]["ended"] == "converged"
    assert result.loss == pytest.approx(alone.loss, rel=1e-9)
    np.testing.assert_allclose(result.weights, alone.weights, rtol=1e-4, atol=1e-6)


def test_a_gap_that_cannot_be_made_small_is_warned_of():
    """With columns of 1e100 rounding alone leaves the ridge's bound without meaning."""
    X, y = draw("logistic")
    with pytest.warns(ConvergenceWarning, match="above its optimum.*scale them"):
        result = hpcsgd.fit(X * 1e100, "logistic", y, alpha=ALPHA)
    report = result.report
    assert report["converged"] is False and report["certified"] is False
    assert report["polish"]["ended"] == "gap above its limit"
    assert report["gap"] > report["polish"]["gap_limit"]


@pytest.mark.parametrize("store", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("solver", ["auto", "coordinate", "svrg"])
def test_columns_whose_squares_underflow_are_refused(store, solver):
    X, y = draw("logistic")
    X[:, 2] *= 1e-200
    with pytest.raises(DataError, match="column 2: its squares underflow.*power of"):
        hpcsgd.fit(store(X), "logistic", y, alpha=ALPHA, solver=solver)


def test_values_that_less_than_float64_cannot_hold_are_refused():
    X, y = draw("logistic")
    X[:, 1:3] *= 1e-60
    with pytest.raises(DataError, match="column 1 .and 1 more.*becomes 0 below"):
        hpcsgd.fit(X, "logistic", y, precision="fp32")
    assert hpcsgd.fit(X, "logistic", y).report["converged"]


def test_a_column_counts_by_its_largest_value_on_any_rank():
    """Replica 0 has only tiny values of a column that is large elsewhere, or zero."""
    X, y = draw("logistic", n=40)
    X[:20, 1] *= 1e-200
    X[:, 4] = 0.0
    X[::3, 5] = 0.0

    def on_rank(world):
        return hpcsgd.fit(X, "logistic", y, comm=world, grid=(2, 1), epochs=1).loss

    assert np.isfinite(run_ranks(2, on_rank)).all()
    X[:, 1] *= 1e-200
    X[20:, 1] *= 1e-20

    def refused(world):
        with pytest.raises(DataError, match="column 1: its squares underflow"):
            hpcsgd.fit(X, "logistic", y, comm=world, grid=(2, 1))
        return True

    assert all(run_ranks(2, refused))


def wide_and_separable(n=100, d=3000):
    rng = np.random.default_rng(3)
    scale = rng.lognormal(0, 2, size=d)
    return rng.normal(size=(n, d)) * scale, (rng.random(n) < 0.5).astype(float)


@pytest.mark.parametrize("is_scaled", [True, False])
def test_separable_rows_converge_in_silence(is_scaled):
    """Residuals vanish there, and a gradient relative to them says nothing."""
    X, y = wide_and_separable()
    X = X / X.std(axis=0) if is_scaled else X
    result = fit_silently(X, "logistic", y, alpha=1e-6)
    report = result.report
    assert report["converged"] is True and report["certified"] is True
    assert report["gap"] <= TOL * max(result.loss, 1e-3 * np.log(2))
    # An independent bound: F ≥ F(w) − ‖∇F‖²/(2λ) where the intercept is at its best.
    t = X @ result.weights + result.intercept
    r = (1 / (1 + np.exp(-t)) - y) / len(y)
    slope = X.T @ r + 1e-6 * result.weights
    assert slope @ slope / 2e-6 <= 2 * TOL * max(result.loss, 1e-3 * np.log(2))


@pytest.mark.parametrize(
    ("settings", "certified"),
    [
        ({"alpha": 0.0}, None),
        ({"alpha": 1e-3}, True),
        ({"l1_ratio": 0.5}, True),
        ({"l1_ratio": 1.0}, True),
    ],
)
def test_a_report_says_whether_there_is_a_certificate(settings, certified):
    X, y = draw("logistic")
    report = fit_silently(X, "logistic", y, **settings).report
    assert report["converged"] is True and report["certified"] is certified
    assert (report["gap"] is None) is (certified is None)


# Penalty -> settings, and what `certified` is: the table of docs/learn/optimum.md.
PENALTIES = {
    "none": ({"alpha": 0.0}, None),
    "bounds": ({"alpha": 0.0, "bounds": (-0.3, 0.3)}, None),
    "ridge": ({"alpha": 1e-2}, True),
    "ridge and bounds": ({"alpha": 1e-2, "bounds": (-0.3, 0.3)}, True),
    "elastic net": ({"alpha": 1e-2, "l1_ratio": 0.5}, True),
    "l1": ({"alpha": 1e-2, "l1_ratio": 1.0}, True),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", PENALTIES)
def test_what_has_a_certificate(family, name):
    settings, certified = PENALTIES[name]
    if (family, name) == ("gaussian", "bounds"):
        certified = True
    problem = make_problem(family, n=80, d=5)
    report = fit_silently(problem.X, family, problem.y, **settings).report
    assert report["converged"] is True and report["certified"] is certified


@pytest.mark.parametrize("goal", ["loss", "gradient", "gap"])
def test_a_gap_of_steps_alone_is_certified_if_it_has_a_limit(goal):
    """A goal of the loss is reached far from the optimum, without a look at the gap."""
    X, y = draw("logistic")
    more = {"stop": {"on": goal, "tol": 0.5}, "run": {"evaluate": "gap"}}
    report = fit_silently(X, "logistic", y, polish=False, config=more).report
    assert report["converged"] is True and report["gap"] > 0.0
    assert report["certified"] is (True if goal == "gap" else None)


def test_too_few_passes_with_a_small_gap_are_enough():
    X, y = draw("logistic")
    few = {"polish": {"passes": 12, "tol": 1e-5, "kind": "lbfgs"}}
    result = fit_silently(X, "logistic", y, alpha=0.1, config=few)
    assert result.report["certified"] is True
    one = {"polish": {"passes": 1, "kind": "lbfgs"}}
    with pytest.warns(ConvergenceWarning, match="1 passes of polishing"):
        result = hpcsgd.fit(X, "logistic", y, epochs=1, rate=1e-6, config=one)
    assert result.report["certified"] is False


@pytest.mark.parametrize("family", ["logistic", "probit", "softmax"])
@pytest.mark.parametrize("grid", [(1, 1), (2, 2)])
def test_separable_data_without_a_penalty_are_said(family, grid, caplog):
    problem = make_problem(family, n=40, d=3)
    labels = np.digitize(problem.X[:, 0], [-0.5, 0.5] if family == "softmax" else [0])
    problem.y[...] = labels
    sizes = {"replicas": grid[0], "members": grid[1]}
    asked = {"problem": {"l2": 0.0, "intercept": True}, "grid": sizes}
    config = config_for(problem, polish={"kind": "lbfgs"}, **asked)
    with caplog.at_level(logging.WARNING, logger="hpcsgd"):
        result = train_on(grid[0] * grid[1], config, problem)
    assert "F has no minimum" in caplog.text and "penalty (--l2)" in caplog.text
    assert advise(result) == "F has no minimum: give a penalty (--l2)"
    caplog.clear()
    problem.y[0] = problem.y[0] == 0  # one error, for which there is no model
    problem.X[1] = problem.X[0]
    problem.y[1] = problem.y[0] == 0
    with caplog.at_level(logging.WARNING, logger="hpcsgd"):
        result = train_on(grid[0] * grid[1], config, problem)
    assert "no minimum" not in caplog.text + advise(result)


def test_a_goal_of_steps_alone_is_judged_for_a_minimum(caplog):
    problem = make_problem("logistic", n=40, d=3)
    problem.y[...] = problem.X[:, 0] > 0
    config = config_for(
        problem,
        problem={"l2": 0.0},
        schedule={"epochs": 300},
        rate={"value": 2.0},
        stop={"on": "loss", "tol": 1e-9},
        run={"evaluate_every": 1},
    )
    with caplog.at_level(logging.WARNING, logger="hpcsgd"):
        train_on(1, config, problem)
    assert "F has no minimum" in caplog.text


def test_the_limit_of_a_gap_does_not_vanish_with_f():
    assert gap_limit(1e-2, loss=-2.0, null_excess=0.5) == 1e-2 * 2.0
    assert gap_limit(1e-2, loss=1e-9, null_excess=0.5) == 1e-2 * 1e-3 * 0.5
    assert gap_limit(0.0, loss=1.0, null_excess=0.0) == 1e-13
    goal = StopConfig("gap", tol=1e-2)
    history = [{"loss": 1e-9, "gap": 4e-6}]
    assert goal.is_reached(history, null_excess=0.5)
    assert not goal.is_reached(history, null_excess=0.0)


def test_steps_end_by_a_gap_that_is_small_for_the_null_model():
    """Targets without noise: tol · F* is a millionth of tol · F₀ there."""
    problem = make_problem("gaussian", n=40, d=3)
    problem.y[...] = problem.X @ [1.0, -2.0, 0.5]
    config = config_for(
        problem,
        problem={"l2": 1e-6, "intercept": True},
        update={"kind": "svrg"},
        schedule={"epochs": 200},
        stop={"on": "gap", "tol": 1e-2},
        run={"evaluate_every": 1},
        rate={"value": "auto", "norm": "batches"},
    )
    result = train_on(1, config, problem)
    last, null = result.history[-1], problem.y.var() / 2
    assert result.status.value == "converged"
    assert 1e-2 * last["loss"] < last["gap"] <= 1e-2 * max(last["loss"], 1e-3 * null)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", ["gaussian", "logistic"])
def test_coordinates_end_at_the_first_gap_within_tol(family, ranks):
    X, y = draw(family)

    def on_rank(world):
        how = {"alpha": 0.01, "l1_ratio": 1.0, "tol": 1e-4}
        return hpcsgd.fit(X, family, y, comm=world, **how)

    result = run_ranks(ranks, on_rank)[0]
    null = result.history[0]["loss"]
    excess = [
        record["gap"] / max(abs(record["loss"]), 1e-3 * null)
        for record in result.history
    ]
    assert excess[-1] <= 1e-4 < excess[-2]
    assert result.report["certified"] and result.report["converged"]


@pytest.mark.parametrize("family", ["gaussian", "squared-hinge"])
def test_a_small_l1_is_certified_in_a_few_passes(family):
    """Rounding of a gradient over a small l1 is squared in the gap of squares."""
    rng = np.random.default_rng(4)
    length = rng.normal(size=(300, 1))
    X = 1.0 + 0.3 * length + 0.02 * rng.normal(size=(300, 6))
    t = X @ [9.0, -4.0, -3.0, 1.0, 0.5, -3.0] + 0.5 * rng.normal(size=300)
    y = t if family == "gaussian" else np.where(t > t.mean(), 1.0, -1.0)
    settings = {"alpha": 1e-7, "l1_ratio": 1.0, "tol": 1e-9, "epochs": 100}
    result = fit_silently(X, family, y, **settings)
    assert result.report["certified"] and result.history[-1]["epoch"] < 30
    best = fit_silently(X, family, y, **{**settings, "tol": 1e-12})
    for record in result.history:
        assert record["gap"] >= record["loss"] - best.loss


@pytest.mark.parametrize("l1_ratio", [0.0, 0.3])
@pytest.mark.parametrize("family", ["logistic", "poisson", "gaussian", "softmax"])
def test_a_fit_without_a_tol_ends_at_a_gap_of_1e_8(family, l1_ratio):
    problem = make_problem(family, n=300)
    found = hpcsgd.fit(problem.X, family, problem.y, alpha=1e-3, l1_ratio=l1_ratio)
    assert found.report["certified"] is True
    assert found.report["gap"] <= 1e-8 * abs(found.loss)
    named = hpcsgd.fit(
        problem.X, family, problem.y, alpha=1e-3, l1_ratio=l1_ratio, tol=1e-2
    )
    assert named.report["certified"] is True and named.loss >= found.loss


def test_a_loose_tol_takes_no_more_passes_than_a_tight_one():
    """The first gap is above its limit: the gradient that would do is forecast."""
    rng = np.random.default_rng(11)
    X = rng.standard_normal((12_000, 54))
    X[:, 1:] += 0.5 * X[:, :-1]
    X *= np.exp(rng.uniform(-0.7, 0.7, 54))
    scores = X @ rng.standard_normal((54, 7)) / 7 + rng.gumbel(size=(12_000, 7))
    y = scores.argmax(axis=1)
    reports = [
        hpcsgd.fit(X, "softmax", y, alpha=1e-4, tol=tol).report["polish"]
        for tol in (1e-3, 1e-5, 1e-8)
    ]
    passes = [report["passes"] for report in reports]
    assert passes == sorted(passes) and passes[0] < passes[-1]
    assert not any(report["hessians"] for report in reports)
    for report in reports:
        assert report["gap"] <= report["gap_limit"]
