"""Newton after the last step: where L-BFGS is slow, its messages, its limits."""

import numpy as np
import pytest

from hpcsgd import fit
from hpcsgd.comm.threads import run_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.solvers import newton as solver
from tests.helpers.harness import make_problem
from tests.helpers.polish import (
    GRIDS,
    checks_of_scaling,
    flat,
    gradient,
    polished,
)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("family", ["softmax", "poisson"])
def test_newton_goes_there_too(family, grid):
    """Seven columns on two or three members, rows that they share unequally."""
    data = {"weights": True, "offset": True}
    problem = make_problem(family)
    newton = {"kind": "newton", "passes": 12}
    found = polished(family, grid, problem, data, polish=newton)
    assert found.report["polish"]["ended"] == "converged"
    one = polished(family, (1, 1), problem, data)
    np.testing.assert_allclose(flat(found), flat(one), atol=1e-10)


def test_newton_without_an_intercept_and_on_sparse_rows():
    import dataclasses

    from scipy.sparse import csr_array

    problem = make_problem("logistic")
    problem.X[np.abs(problem.X) < 0.3] = 0.0
    free = {"problem": {"intercept": False}, "polish": {"kind": "newton"}}
    dense = polished("logistic", (1, 1), problem, problem={"intercept": False})
    sparse = dataclasses.replace(problem, X=csr_array(problem.X))
    found = polished("logistic", (2, 2), sparse, **free)
    np.testing.assert_allclose(found.weights, dense.weights, atol=1e-10)
    assert found.report["polish"]["passes"] <= 8


def test_columns_that_are_nearly_alike_are_left_to_newton():
    """L-BFGS alone would take long; `auto` changes over where that is so."""
    problem = make_problem("logistic", n=200)
    rng = np.random.default_rng(5)
    problem.X[:, 1:] = problem.X[:, :1] + 1e-4 * problem.X[:, 1:]
    problem.y[:] = rng.uniform(size=200) < 0.5
    free = {"problem": {"l2": 0.0}}

    def passes(kind):
        asked = {"kind": kind, "passes": 2000, "tol": 1e-11}
        result = polished("logistic", (1, 2), problem, polish=asked, **free)
        assert result.report["polish"]["ended"] in ("converged", "at rounding")
        return result.report["polish"]["passes"]

    assert passes("newton") < 12
    assert passes("auto") <= 42
    # And the members keep one intercept, whose roundings long steps would carry far.
    assert passes("lbfgs") < 200


def test_columns_that_are_combinations_of_others_do_no_harm():
    problem = make_problem("gaussian")
    problem.X[:, 3] = problem.X[:, 0] + problem.X[:, 1]
    problem.X[:, 5] = 2.0
    free = {"problem": {"l2": 0.0}, "polish": {"kind": "newton"}}
    result = polished("gaussian", (1, 2), problem, **free)
    assert result.report["polish"]["ended"] in ("converged", "at rounding")
    assert np.linalg.norm(gradient(problem, result, l2=0.0)) < 1e-12
    assert np.abs(result.weights).max() < 100


def test_newton_is_refused_where_its_matrix_is_too_large(monkeypatch):
    monkeypatch.setattr(solver, "MOST", 7)
    with pytest.raises(ConfigError, match="kind = 'lbfgs'"):
        polished("logistic", polish={"kind": "newton"})
    auto = polished("logistic", polish={"kind": "auto"})
    assert auto.report["polish"]["ended"] == "converged"


@pytest.mark.parametrize("grid", GRIDS)
def test_messages_of_newton(grid, monkeypatch):
    """A Hessian: pieces of rows and P² words; a step: its gradient and itself."""
    monkeypatch.setattr(solver, "KEPT_WORK", 0)  # as costly ones are
    replicas, members = grid
    problem = make_problem("logistic")
    without = {"kind": "newton", "gap": False}
    newton = polished("logistic", grid, problem, polish=without)
    lbfgs = polished("logistic", grid, problem, polish={"gap": False})
    n, width, P = [27, 53][replicas == 1], [7, 4, 3][members - 1], 8
    d = [7, 4, 3][members - 1]
    over_members, over_all = members > 1, grid != (1, 1)

    def plain(said):
        """Words of what L-BFGS sends, for so many passes and trials."""
        p, t = said["passes"], said["trials"]
        words = over_members * (n + 1 + p * (n + 4)) + over_all * 3 * (1 + t)
        words += (replicas > 1) * (1 + (1 + p) * (d + 1) + 2 * d + 1)
        words += (replicas > 1) * checks_of_scaling(p) * (2 * d + 2)
        return words + over_all * (1 + p) * (3 * 41 + 6)

    directions = (replicas > 1) * lbfgs.report["polish"]["passes"] * (d + 1)
    rest = lbfgs.report["polish"]["words"] - plain(lbfgs.report["polish"]) - directions
    said = newton.report["polish"]
    hessians = said["hessians"] * (over_members * n * width + over_all * P * P)
    steps = said["passes"] * over_all * (P + P + 1)
    assert 0 < said["hessians"] < said["passes"]
    expected = plain(said) + hessians + steps + over_members * 2 * d
    assert said["words"] == expected + rest


# Where it begins: at a sample's optimum, with many rows.

SIZES = {"logistic": 0.0, "softmax": 1e-3, "gaussian": 1e-3}


def many_rows(family):
    """Rows in the order of their targets, of which a sample must not see one end."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(18_000, 6)) * 10.0 ** np.arange(-3, 3)
    t = X @ (rng.normal(size=6) / 10.0 ** np.arange(-3, 3))
    if family == "softmax":
        y = np.digitize(t + rng.normal(size=len(t)), (-1.0, 1.0)).astype(float)
    elif family == "logistic":
        y = (rng.uniform(size=len(t)) < 1 / (1 + np.exp(-t))).astype(float)
    else:
        y = t + rng.normal(size=len(t))
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("grid", [(1, 1), (2, 2)])
def test_a_sample_of_the_rows_saves_passes_over_all(family, grid, monkeypatch):
    X, y = many_rows(family)

    def fitted():
        result = run_ranks(
            grid[0] * grid[1],
            lambda world: fit(
                X, family, y, alpha=SIZES[family], comm=world, grid=grid, tol=1e-9
            ),
        )[0]
        assert result.iterations == 0 and result.report["converged"]
        return result

    sampled = fitted()
    monkeypatch.setattr(solver, "WORTH", 10**6)
    whole = fitted()
    saved = whole.report["polish"]["passes"] - sampled.report["polish"]["passes"]
    assert saved >= (0 if family == "gaussian" else 1)
    assert sampled.loss == pytest.approx(whole.loss, rel=1e-12)
    np.testing.assert_allclose(
        flat(sampled) * scale_of(X, sampled),
        flat(whole) * scale_of(X, whole),
        atol=1e-7,
    )


def scale_of(X, result):
    """The size of each weight's column, and 1 for intercepts."""
    classes = np.size(result.intercept)
    return np.append(np.repeat(X.std(axis=0), classes), np.ones(classes))


def test_a_sample_that_leads_astray_is_not_the_start(monkeypatch):
    """Rows of huge weight are seldom in a sample, and F is all theirs."""
    X, y = many_rows("gaussian")
    weight = np.ones(len(y))
    weight[::1500] = 1e9
    result = fit(X, "gaussian", y, sample_weight=weight, alpha=0.0, tol=1e-9)
    best = fit(X[::1500], "gaussian", y[::1500], alpha=0.0, tol=1e-9)
    assert result.report["converged"]
    scale = scale_of(X, best)
    np.testing.assert_allclose(flat(result) * scale, flat(best) * scale, atol=1e-5)


def test_a_sample_is_neither_a_large_part_of_the_rows_nor_of_the_memory():
    assert solver.piece_rows(17_000, 20, 19, replicas=1) * solver.PIECES >= 2000
    assert solver.piece_rows(15_000, 20, 19, replicas=1) == 0
    assert solver.piece_rows(10**9, 50_001, 50_000, replicas=1) == 0
    assert solver.bytes_of_sample(10**9, 50_000, 50_000, replicas=1) == 0
    assert solver.bytes_of_sample(10**6, 100, 100, 1) <= 8 * solver.MOST_VALUES


def test_a_step_beyond_the_tolerance_is_not_owed_to_the_limit_of_passes():
    """Whatever the limit: a warning only where the tolerance was not reached."""
    problem = make_problem("logistic", n=300)
    whole = fit(problem.X, "logistic", problem.y, alpha=0.0, solver="newton")
    for passes in range(1, whole.report["polish"]["passes"] + 1):
        found = fit(
            problem.X,
            "logistic",
            problem.y,
            alpha=0.0,
            solver="newton",
            max_passes=passes,
            config={"polish": {"gap": False}},
        )
        polish = found.report["polish"]
        is_met = polish["relative_after"] <= polish["tol"]
        assert (polish["ended"] == "converged") == is_met
