"""Compiled sweeps of coordinate descent and what goes with them: beside longdouble."""

import numpy as np
import pytest
from scipy import sparse

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.numpy_rows import add_combined, add_moments, all_finite, weigh
from hpcsgd.glm.penalties import Penalty
from hpcsgd.solvers.coordinate_forms import (
    QuadraticModel,
    Sweeper,
    columns_of_rows,
    values_of,
)
from tests.helpers.cpu import kernels  # noqa: F401

EPS = float(np.finfo(float).eps)
SHAPES = ((1, 1), (7, 3), (8, 5), (33, 4), (301, 40))


def drawn(rows, columns, kind, is_sparse, seed=0):
    """Columns as rows of a matrix, dense and as they are stored."""
    rng = np.random.default_rng(seed + rows)
    dense = rng.standard_normal((columns, rows)).astype(kind)
    if is_sparse:
        dense[rng.uniform(size=dense.shape) < 0.7] = 0.0
        return dense, values_of(sparse.csr_array(dense))
    return dense, values_of(dense)


@pytest.mark.cases("all")
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_moments_and_sums_of_columns(kernels, kind, is_sparse):  # noqa: F811
    rng = np.random.default_rng(3)
    for rows, columns in SHAPES:
        dense, values = drawn(rows, columns, kind, is_sparse)
        exact = dense.astype(np.longdouble)
        some = np.arange(columns)[::2].copy()
        for classes in (1, 3):
            h = rng.uniform(size=(rows, classes))
            first, second = values.moments(some, h)
            sizes = np.abs(exact[some]) @ h + EPS
            assert (abs(first - exact[some] @ h) <= 8 * EPS * rows * sizes).all()
            squares = np.square(exact[some]) @ h
            np.testing.assert_allclose(second, squares, rtol=8 * EPS * rows)
        factors = rng.standard_normal(columns) * (np.arange(columns) % 3 > 0)
        out = rng.standard_normal(rows)
        wanted = out + factors @ exact
        values.add(factors, out)
        np.testing.assert_allclose(out, wanted.astype(float), atol=1e-13 * columns)


@pytest.mark.cases("all")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_columns_are_copied_from_rows_when_they_are_needed(kernels, kind):  # noqa: F811
    rng = np.random.default_rng(10)
    for rows, columns in SHAPES:
        block = rng.standard_normal((rows, 2 * columns)).astype(kind)[:, :columns]
        values = columns_of_rows(block)
        values.values[...] = np.nan
        some = np.arange(columns)[::-2].copy()
        values.need(some)
        np.testing.assert_array_equal(values.values[some], block.T[some])
        others = np.setdiff1d(np.arange(columns), some)
        assert np.isnan(values.values[others]).all()
        factors = np.zeros(columns)
        factors[0] = 2.0
        out = np.zeros(rows)
        values.add(factors, out)
        np.testing.assert_array_equal(out, 2.0 * block[:, 0].astype(float))
        values.values[some] = 0.0  # what is there is not copied again
        first, _ = values.moments(np.arange(columns), np.ones((rows, 1)))
        assert (first[some] == 0.0).all()
        sums = block[:, others].astype(float).sum(axis=0)
        np.testing.assert_allclose(first[others, 0], sums, atol=1e-12)


def test_columns_that_are_contiguous_are_not_copied():
    block = np.asfortranarray(np.random.default_rng(11).standard_normal((40, 3)))
    values = columns_of_rows(block)
    assert np.shares_memory(values.values, block) and values.source is None


@pytest.mark.cases("all")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_moments_of_rows_are_those_of_longdouble(kernels, kind):  # noqa: F811
    rng = np.random.default_rng(4)
    for rows, columns in SHAPES:
        block = rng.standard_normal((rows, 2 * columns)).astype(kind)[:, :columns]
        h = rng.uniform(size=(rows, 1))
        first = np.ones((columns, 1))
        second = np.ones((columns, 1))
        add_moments(block, h, first, second)
        exact = block.astype(np.longdouble)
        np.testing.assert_allclose(first, (1 + exact.T @ h).astype(float), atol=1e-12)
        squares = 1 + np.square(exact).T @ h
        np.testing.assert_allclose(second, squares.astype(float), rtol=1e-13)


@pytest.mark.cases("all")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_values_that_are_not_finite_are_found_wherever_they_are(
    kernels,  # noqa: F811
    kind,
):
    block = np.full((13, 37), np.finfo(kind).max, dtype=kind)
    assert all_finite(block)
    for value in (np.inf, -np.inf, np.nan):
        for place in ((0, 0), (12, 36), (6, 17)):
            damaged = block.copy()
            damaged[place] = value
            assert not all_finite(damaged) and all_finite(damaged[:0])


@pytest.mark.cases("all")
@pytest.mark.parametrize("word", [np.uint32, np.uint64])
def test_the_checksum_is_the_sum_modulo_two_to_the_64(kernels, word):  # noqa: F811
    rng = np.random.default_rng(5)
    bits = rng.integers(0, np.iinfo(word).max, (9, 41), dtype=word, endpoint=True)
    rows, columns = (rng.integers(0, 2**63, n, dtype=np.uint64) for n in bits.shape)
    wanted = sum(
        int(bits[i, j]) * int(rows[i]) * int(columns[j])
        for i in range(9)
        for j in range(41)
    )
    assert int(weigh(bits, rows, columns)) == wanted % 2**64


class LeastSquares:
    """σ Σ h (a·x − y)² / 2 + l1‖x‖₁ + (l2/2)‖x‖², with an intercept."""

    def __init__(self, kind, is_sparse, penalty, least_weight=0.1):
        rng = np.random.default_rng(6)
        self.dense, self.values = drawn(90, 30, kind, is_sparse)
        self.dense = self.dense.astype(float)
        self.dense[1] += self.dense[0]  # columns that sweeps have to weigh up
        self.values = values_of(
            sparse.csr_array(self.dense.astype(kind))
            if is_sparse
            else self.dense.astype(kind)
        )
        self.dense = self.dense.astype(kind).astype(float)
        self.h = rng.uniform(least_weight, 1.0, (90, 1))
        self.y = rng.standard_normal(90)
        self.penalty = penalty
        self.x = np.zeros(30)

    def sweeper(self, still):
        numbers = np.arange(30)
        residuals = -self.h * self.y[:, None]
        first, squares = self.values.moments(numbers, self.h)
        total = self.h.sum()
        pull = residuals.sum(axis=0) / total
        model = QuadraticModel(
            columns=numbers,
            residuals=residuals,
            h=self.h,
            shares=None,
            bends=first,
            means=first / total,
            pull=pull,
            squares=squares,
        )
        return Sweeper(self.values, model, self.x, self.penalty, 1 / 90, still)

    def slopes(self):
        """The slope of the smooth part at x with its best intercept."""
        h = self.h[:, 0] / 90
        away = self.x @ self.dense - self.y
        away -= (h @ away) / h.sum()
        return self.dense @ (h * away) + self.penalty.l2 * self.x


PENALTIES = {
    "lasso": Penalty(0.0, 0.02),
    "elastic": Penalty(0.01, 0.02),
    "ridge": Penalty(0.05, 0.0),
    "bounded": Penalty(0.0, 0.01, np.full(30, -0.05), np.full(30, 0.2)),
}


@pytest.mark.cases("all")
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("least_weight", [0.1, 1.0])
@pytest.mark.parametrize("name", PENALTIES)
def test_sweeps_end_at_the_minimum(
    kernels,  # noqa: F811
    kind,
    is_sparse,
    least_weight,
    name,
):
    penalty = PENALTIES[name]
    problem = LeastSquares(kind, is_sparse, penalty, least_weight)
    order = np.random.default_rng(7).permutation(30)
    done = problem.sweeper(1e-13).descend(order, 5000)
    assert done.is_still and 2 < done.sweeps < 1000
    least = penalty.least(problem.x[:, None], problem.slopes()[:, None])
    assert np.abs(least).max() < 1e-12
    if penalty.l1:
        assert 0 < np.count_nonzero(problem.x == 0.0) < 30


def test_most_sweeps_are_taken_and_no_more():
    problem = LeastSquares(np.float64, False, PENALTIES["lasso"])
    sweeper = problem.sweeper(1e-13)
    order = np.arange(30)
    done = sweeper.descend(order, 3)
    assert done.sweeps == 3 and not done.is_still and done.steps <= 90
    while not done.is_still:  # it goes on from where it was
        done = sweeper.descend(order, 3)
    assert (
        np.abs(
            PENALTIES["lasso"].least(problem.x[:, None], problem.slopes()[:, None])
        ).max()
        < 1e-12
    )


def test_extrapolated_sweeps_are_fewer():
    """Of columns that are alike, plain sweeps take many times as many."""
    wide = np.full(30, 1e9)
    # Points within bounds are not extrapolated; these bounds are out of reach.
    penalties = {True: Penalty(1e-4, 0.0), False: Penalty(1e-4, 0.0, -wide, wide)}
    problem = LeastSquares(np.float64, False, penalties[True])
    rng = np.random.default_rng(8)
    problem.dense = rng.standard_normal((1, 90)) + 0.2 * rng.standard_normal((30, 90))
    problem.values = values_of(problem.dense)
    sweeps = {}
    for combines in (True, False):
        problem.x[:] = 0.0
        problem.penalty = penalties[combines]
        done = problem.sweeper(1e-9).descend(np.arange(30), 100_000)
        assert done.is_still
        sweeps[combines] = done.sweeps
    assert sweeps[True] < sweeps[False] / 3


@pytest.mark.cases("all")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_combinations_of_rows_are_those_of_longdouble(kernels, kind):  # noqa: F811
    rng = np.random.default_rng(9)
    for rows, columns in SHAPES:
        block = rng.standard_normal((rows, 2 * columns)).astype(kind)[:, :columns]
        for width in (1, 2, 5):
            factors = rng.standard_normal((rows, width))
            out = np.ones((columns, width))
            add_combined(block, factors, out)
            exact = 1 + block.astype(np.longdouble).T @ factors
            np.testing.assert_allclose(out, exact.astype(float), atol=1e-12)


@pytest.mark.cases("all")
@pytest.mark.parametrize("has_intercept", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_squares_of_rows_are_those_of_longdouble(kernels, kind, has_intercept):  # noqa: F811
    rng = np.random.default_rng(6)
    for rows, columns in (*SHAPES, (40, 23), (700, 24), (90, 71)):
        block = rng.standard_normal((rows, 2 * columns)).astype(kind)[:, :columns]
        roots = np.sqrt(rng.uniform(size=rows))
        centers = rng.standard_normal(columns)
        scales = rng.uniform(0.5, 2.0, columns)
        side = (block.astype(np.longdouble) - centers) * scales
        if has_intercept:
            side = np.hstack([side, np.full((rows, 1), 0.5, np.longdouble)])
        side *= roots[:, None]
        out = np.ones((side.shape[1], side.shape[1]))
        compiled_calls.add_squares(block, roots, centers, scales, 0.5, out)
        sizes = np.abs(side).T @ np.abs(side) + 1
        assert (np.abs(out - 1 - side.T @ side) <= 8 * EPS * rows * sizes).all()
        assert (out == out.T).all()
