"""Coordinate forms on wide sparse rows: columns without values, and working sets."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from tests.helpers.coordinate import descend
from tests.helpers.problems import make_problem


def scattered(dense, width, seed=0):
    """The same columns among so many, in sparse rows; and where they are."""
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.choice(width, dense.shape[1], replace=False))
    row, column = np.nonzero(dense)
    values = dense[row, column]
    shape = (len(dense), width)
    return csr_matrix((values, (row, columns[column])), shape=shape), columns


def thinned(family, n=60, d=12, seed=0):
    """A problem of which two values in three are 0."""
    problem = make_problem(family, n=n, d=d)
    keep = np.random.default_rng(seed).random(problem.X.shape) < 1 / 3
    return problem, problem.X * keep


@pytest.mark.cases(1)
@pytest.mark.parametrize("family", ["gaussian", "logistic", "softmax"])
def test_ten_million_columns_without_values_are_never_visited(family):
    """No array of a fit is as wide as the data, but the weights and their copy."""
    width = 10**7
    problem, dense = thinned(family)
    X, columns = scattered(dense, width)
    asked = {"alpha": 0.02, "l1_ratio": 1.0, "tol": 1e-6}
    few = hpcsgd.fit(csr_matrix(dense), family, problem.y, **asked)
    tracemalloc.start()
    result = hpcsgd.fit(X, family, problem.y, **asked)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.5 * result.weights.nbytes
    assert result.report["coordinate"]["columns"] == dense.shape[1]
    assert result.iterations == few.iterations and result.loss == few.loss
    np.testing.assert_array_equal(result.weights[columns], few.weights)
    assert np.count_nonzero(result.weights) == np.count_nonzero(few.weights)


@pytest.mark.parametrize("form", ["primal", "newton", "dual"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_leave_out_what_none_of_them_has(form, ranks):
    """Rows of ranks, or their columns, have values in different columns."""
    family = {"primal": "gaussian", "newton": "poisson", "dual": "squared-hinge"}[form]
    penalty = {"l2": 0.05} if form == "dual" else {"l1": 0.02, "intercept": True}
    problem, dense = thinned(family)
    X, columns = scattered(dense, 500)
    few, wide = (
        descend(
            problem,
            ranks,
            X=matrix,
            problem={"family": family, **penalty},
            schedule={"batch": 1, "steps": 4, "epochs": 300},
            sampling={"mode": "reshuffle"},
            coordinate={"tol": 1e-13, "form": form},
        )
        for matrix in (csr_matrix(dense), X)
    )
    assert wide.report["coordinate"]["columns"] == dense.shape[1]
    assert wide.iterations == few.iterations
    np.testing.assert_allclose(wide.weights[columns], few.weights, atol=1e-12)
    assert np.count_nonzero(wide.weights) == np.count_nonzero(few.weights)


def test_bounds_that_do_not_allow_0_keep_their_columns():
    problem, dense = thinned("logistic")
    X, columns = scattered(dense, 40)
    empty = np.setdiff1d(np.arange(40), columns)
    lower, upper = np.full(40, -np.inf), np.full(40, np.inf)
    lower[empty[0]] = 0.25
    upper[empty[1]] = -0.5
    result = hpcsgd.fit(
        X, "logistic", problem.y, alpha=0.02, l1_ratio=1.0, bounds=(lower, upper)
    )
    assert result.report["coordinate"]["columns"] == len(columns) + 2
    assert (result.weights[empty[0]], result.weights[empty[1]]) == (0.25, -0.5)
    t = X @ result.weights + float(result.intercept)
    F = np.mean(np.logaddexp(0, t) - problem.y * t) + 0.02 * abs(result.weights).sum()
    assert result.loss == pytest.approx(F, rel=1e-12)


def test_rows_without_any_value_have_an_intercept():
    y = np.arange(12.0) > 7
    result = hpcsgd.fit(csr_matrix((12, 30)), "logistic", y, alpha=0.1, l1_ratio=1.0)
    assert not result.weights.any() and result.report["converged"]
    assert float(result.intercept) == pytest.approx(np.log(4 / 8), rel=1e-9)


def text_like(n=120, d=1000, seed=3):
    """Rows of few values in columns of very different sizes; labels of some columns."""
    rng = np.random.default_rng(seed)
    X = random_array((n, d), density=0.04, rng=rng, format="csr")
    X = X @ np.diag(rng.lognormal(0.0, 1.0, d))
    t = X @ (rng.normal(size=d) * (rng.random(d) < 0.05)) + 0.3
    return csr_matrix(X), (rng.random(n) < 1 / (1 + np.exp(-4 * t))).astype(float)


@pytest.mark.parametrize("l1, l2", [(2e-3, 0.0), (2e-3, 1e-3)])
def test_a_working_set_ends_where_all_columns_do(l1, l2):
    """The conditions of a minimum hold for every column, those never chosen too."""
    X, y = text_like()

    def fitted(world):
        return hpcsgd.fit(
            X, "logistic", y, alpha=l1 + l2, l1_ratio=l1 / (l1 + l2), tol=1e-8,
            comm=world, steps=64,
        )  # fmt: skip

    alone, (shared, other) = fitted(None), run_ranks(2, fitted)
    assert shared.weights_sha256 == other.weights_sha256
    for result in (alone, shared):
        assert result.report["converged"]
        w = result.weights
        p = 1 / (1 + np.exp(-(X @ w + float(result.intercept))))
        slope = X.T @ (p - y) / len(y) + l2 * w
        at_zero = w == 0.0
        assert abs(slope[at_zero]).max() <= l1 * (1 + 1e-3)
        held = -l1 * np.sign(w[~at_zero])
        np.testing.assert_allclose(slope[~at_zero], held, rtol=1e-3)
        assert 10 < np.count_nonzero(w) < 150 and abs(np.mean(p - y)) < 1e-6
    np.testing.assert_allclose(shared.weights, alone.weights, atol=1e-3)
    visited = alone.iterations / alone.exchanges
    assert visited < X.shape[1] / 2  # items of a sweep, on the mean


WITHOUT = """
import numpy as np, hpcsgd
from scipy.sparse import csr_matrix
from hpcsgd.solvers import coordinate_forms
assert not coordinate_forms.available()
for family in ("logistic", "softmax"):
    held = np.load(f"{family}.npz")
    X = csr_matrix(held["X"])
    found = hpcsgd.fit(X, family, held["y"], alpha=0.02, l1_ratio=1.0, tol=1e-8)
    assert found.report["converged"]
    np.testing.assert_allclose(found.weights, held["w"], atol=1e-5)
"""


def test_without_a_compiler_exchanges_end_there_too(tmp_path):
    for family in ("logistic", "softmax"):
        problem, dense = thinned(family, d=11)
        y = problem.y % 3
        found = hpcsgd.fit(
            csr_matrix(dense), family, y, alpha=0.02, l1_ratio=1.0, tol=1e-8
        )
        np.savez(tmp_path / f"{family}.npz", X=dense, y=y, w=found.weights)
    subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        env={**os.environ, "HPCSGD_NATIVE": "off"},
        check=True,
    )


@pytest.mark.parametrize("family", ["logistic", "softmax", "poisson"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("recipe", ["fp32", "fp64"])
def test_compiled_sweeps_end_where_exchanges_do(family, sparse, recipe):
    """Blocks of one on one process are swept without a Gram; two ranks sum one."""
    problem, dense = thinned(family, n=70, d=9)
    bounds = {"lower": -0.1, "upper": (0.2,) * 4 + (0.5,) * 5}
    alone, ranks = (
        descend(
            problem,
            count,
            X=csr_matrix(dense) if sparse else dense,
            problem={"family": family, "l1": 0.01, "l2": 0.02, **bounds},
            schedule={"batch": 1, "steps": 5, "epochs": 200},
            coordinate={"tol": 1e-12},
            precision={"recipe": recipe},
        )
        for count in (1, 2)
    )
    assert alone.report["coordinate"]["ended"] == "converged"
    np.testing.assert_allclose(alone.weights, ranks.weights, atol=1e-5)
    assert alone.loss == pytest.approx(ranks.loss, rel=1e-10)
    assert (alone.weights == -0.1).any() and (alone.weights == 0.0).any()


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_empty_working_set_leaves_the_null_model(ranks):
    """Nothing may leave 0, and all epochs are asked for."""
    X, y = text_like()
    problem = make_problem("logistic", n=len(y), d=2)
    kept = type(problem)(**{**vars(problem), "X": X, "y": y})
    result = descend(
        kept,
        ranks,
        X=X,
        problem={"family": "logistic", "l1": 10.0, "intercept": True},
        schedule={"batch": 1, "steps": 4, "epochs": 2},
    )
    assert not result.weights.any() and result.history[-1]["epoch"] == 2
    assert result.history[-1]["gradient"] < 1e-8 and result.iterations == 0
