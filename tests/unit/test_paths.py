"""Paths of penalties: each model is its separate solve, found with fewer messages."""

import numpy as np
import pytest

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from tests.helpers.problems import make_problem


def path_on(ranks, problem, /, **settings):
    """The path on thread ranks, the same on all of them."""
    known = {
        "family": problem.family,
        "sample_weight": problem.weights,
        "offset": problem.offset,
        **settings,
    }
    found = run_ranks(
        ranks, lambda world: hpcsgd.path(problem.X, problem.y, comm=world, **known)
    )
    for other in found[1:]:
        np.testing.assert_array_equal(other.coefs, found[0].coefs)
        np.testing.assert_array_equal(other.alphas, found[0].alphas)
    return found[0]


def alone(problem, alpha, l1_ratio, tol, intercept=True):
    """One model, from nothing, on one rank."""
    parts = {"l1": float(alpha * l1_ratio), "l2": float(alpha * (1 - l1_ratio))}
    tables = {
        "problem": {"family": problem.family, "intercept": intercept, **parts},
        "schedule": {"batch": 1, "steps": 1, "epochs": 2000},
        "update": {"kind": "coordinate"},
        "coordinate": {"tol": tol},
        "precision": {"recipe": "fp64"},
    }
    columns = {"sample_weight": problem.weights, "offset": problem.offset}
    return hpcsgd.train(tables, X=problem.X, y=problem.y, **columns)


def test_the_lasso_path_is_that_of_scikit_learn():
    from sklearn.linear_model import lasso_path

    problem = make_problem("gaussian", n=40, d=12)
    found = hpcsgd.path(problem.X, problem.y, n_alphas=8, eps=1e-2, tol=1e-13)
    X, y = problem.X - problem.X.mean(axis=0), problem.y - problem.y.mean()
    largest = np.abs(X.T @ y).max() / 40
    alphas = largest * np.geomspace(1, 1e-2, 8)
    np.testing.assert_allclose(found.alphas, alphas, rtol=1e-10)
    _, coefs, _ = lasso_path(X, y, alphas=alphas, tol=1e-12)
    np.testing.assert_allclose(found.coefs, coefs.T, atol=1e-7)
    assert not found.coefs[0].any() and found.coefs[-1].any()


@pytest.mark.parametrize(
    "family, l1_ratio, intercept, tol",
    [
        ("gaussian", 0.7, True, 1e-16),
        ("squared-hinge", 0.0, False, 1e-16),
        ("logistic", 0.6, True, 1e-16),
        ("poisson", 1.0, True, 1e-10),
    ],
)
def test_each_model_is_its_separate_solve(family, l1_ratio, intercept, tol):
    problem = make_problem(family, n=40, d=8)
    settings = {"l1_ratio": l1_ratio, "fit_intercept": intercept, "tol": tol}
    found = path_on(2, problem, n_alphas=5, eps=0.02, **settings)
    assert (np.diff(found.alphas) < 0).all() and len(found.results) == 5
    for alpha, result in zip(found.alphas, found.results, strict=True):
        other = alone(problem, alpha, l1_ratio, tol, intercept)
        assert result.status.value == "converged"
        np.testing.assert_allclose(result.weights, other.weights, atol=2e-6)
        assert result.loss == pytest.approx(other.loss, rel=1e-9)
    if l1_ratio:
        assert not found.coefs[0].any() and found.coefs[1].any()


def test_warm_starts_need_fewer_messages():
    problem = make_problem("gaussian", n=40, d=16)
    warm, cold = (
        path_on(2, problem, n_alphas=10, tol=1e-10, steps=4, warm_start=start)
        for start in (True, False)
    )
    assert warm.messages.sum() < cold.messages.sum()
    assert (warm.messages == 4 * warm.n_iter).all()
    np.testing.assert_allclose(warm.coefs, cold.coefs, atol=1e-5)
    later = [one.ledger["products"]["words"] for one in warm.results[2:]]
    # The Gram of the first of them is the Gram of all: z alone travels.
    assert later == [16 * epochs for epochs in warm.n_iter[2:]]
    assert np.nanmax(warm.gaps) <= 1e-10 * warm.losses[0] * 1.01


def test_softmax_goes_by_fits():
    problem = make_problem("softmax", n=60, d=4)
    found = path_on(1, problem, alphas=[0.01, 1.0], l1_ratio=0.0, offset=None)
    assert found.alphas.tolist() == [1.0, 0.01]
    assert found.coefs.shape == (2, 4, 4) and found.intercepts.shape == (2, 4)
    norms = np.linalg.norm(found.coefs, axis=(1, 2))
    assert norms[0] < norms[1]
    chosen = path_on(1, problem, n_alphas=1, l1_ratio=0.5, epochs=1, offset=None)
    c = problem.weights / problem.weights.sum()
    share = np.array([c[problem.y == k].sum() for k in range(4)])
    residuals = c[:, None] * (share - (problem.y[:, None] == np.arange(4)))
    steepest = np.abs(problem.X.T @ residuals).max()
    assert chosen.alphas[0] == pytest.approx(2 * steepest, rel=1e-9)


def test_what_a_path_holds():
    problem = make_problem("gaussian", n=30, d=5)
    given = [0.1, 0.5, 0.02]
    found = path_on(1, problem, alphas=given, bounds=(0.0, [0.3] * 5))
    assert found.alphas.tolist() == [0.5, 0.1, 0.02]
    assert found.coefs.shape == (3, 5) and found.intercepts.shape == (3,)
    assert (found.coefs >= 0.0).all() and (found.coefs <= 0.3).all()
    assert found.at(0.09) is found.results[1]
    assert found.results[2].config["problem"]["l1"] == 0.02
    assert (found.gradients >= 0.0).all()
    said = hpcsgd.evaluate(
        found.at(0.02), problem.X, problem.y, problem.weights, problem.offset
    )
    assert said["objective"] == pytest.approx(found.losses[2], rel=1e-12)
    without = path_on(1, problem, alphas=given, fit_intercept=False)
    assert without.intercepts is None
    with pytest.raises(ConfigError, match="above 0"):
        found.at(-1.0)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"l1_ratio": 1.5}, "lie in"),
        ({"n_alphas": 0}, "at least 1"),
        ({"eps": 1.0}, "between 0 and 1"),
        ({"alphas": [0.1, -1.0]}, "above 0"),
        ({"alphas": []}, "above 0"),
        ({"solver": "newton"}, "known: auto, coordinate, sgd"),
        ({"bounds": 3.0}, "bounds must be a pair"),
        ({"tol": "small"}, "tol = 'small' must be a number"),
        ({"family": 3}, "family must be a name"),
    ],
)
def test_what_makes_no_path_is_refused(settings, says):
    problem = make_problem("gaussian", n=20, d=3)
    with pytest.raises(ConfigError, match=says):
        path_on(2, problem, **settings)


@pytest.mark.parametrize("solver", ["coordinate", "sgd"])
@pytest.mark.parametrize(
    "settings, says",
    [
        ({"l1_ratio": "half"}, "l1_ratio = 'half' must be a number"),
        ({"fit_intercept": "no"}, "fit_intercept = 'no' must be True or False"),
        ({"bounds": (None, ["a"])}, "bounds = 'a' must be a number"),
    ],
)
def test_every_solver_refuses_arguments_as_fit_does(settings, says, solver):
    problem = make_problem("gaussian", n=20, d=3)
    with pytest.raises(ConfigError, match=says):
        path_on(1, problem, solver=solver, **settings)


def test_steps_that_are_chosen_are_those_of_a_path_without_steps():
    problem = make_problem("gaussian", n=20, d=3)
    given, chosen = (
        path_on(1, problem, n_alphas=3, **more) for more in ({}, {"steps": "auto"})
    )
    np.testing.assert_array_equal(given.coefs, chosen.coefs)


def test_columns_without_a_slope_name_no_alpha():
    with pytest.raises(ConfigError, match="give alphas"):
        hpcsgd.path(np.ones((5, 2)), np.arange(5.0))
