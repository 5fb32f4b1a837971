"""Losses, residuals and curvatures of all rows by the compiled kernels, beside
longdouble, and the Hessian of sparse rows.
"""

import numpy as np
import pytest
from scipy import sparse

from hpcsgd import fit
from hpcsgd.backends import compiled_calls
from hpcsgd.glm import get_family
from tests.helpers.cpu import kernels  # noqa: F401
from tests.helpers.harness import make_problem

EPS = float(np.finfo(float).eps)
EDGES = (0.0, -0.0, 1e-300, -1e-10, 30.0, -36.5, 44.0, -100.0, 300.0, -340.0)
COUNTS = (0, 1, 7, 8, 9, 511, 512, 5003)


def drawn(family, count, seed=0):
    """Scores, targets, shares and a direction of `count` rows."""
    rng = np.random.default_rng(seed + count)
    scores = 3.0 * rng.standard_normal((count, 1))
    scores[: min(count, len(EDGES)), 0] = EDGES[:count]
    targets = {
        "gaussian": lambda: rng.standard_normal((count, 1)),
        "poisson": lambda: rng.poisson(2.0, (count, 1)).astype(float),
        "gamma": lambda: rng.gamma(2.0, size=(count, 1)),
        "binomial": lambda: rng.uniform(size=(count, 1)),
        "logistic": lambda: rng.integers(0, 2, (count, 1)).astype(float),
    }[family]()
    shares = rng.uniform(size=(count, 1))
    return scores, targets, shares, rng.standard_normal((count, 1))


def textbook(family, t, y):
    """ℓ, ∂ℓ/∂t and ∂²ℓ/∂t² in longdouble."""
    t, y = t.astype(np.longdouble), y.astype(np.longdouble)
    if family == "gaussian":
        return (t - y) ** 2 / 2, t - y, np.ones_like(t)
    if family == "poisson":
        return np.exp(t) - y * t, np.exp(t) - y, np.exp(t)
    if family == "gamma":
        ratio = y * np.exp(-t)
        return ratio + t, 1 - ratio, ratio
    small = np.exp(-np.abs(t))
    mean = np.where(t > 0, 1, small) / (1 + small)
    loss = np.maximum(t, 0) + np.log1p(small) - y * t
    return loss, mean - y, small / (1 + small) ** 2


@pytest.mark.cases("all")
@pytest.mark.parametrize("family", sorted(compiled_calls.LOSSES))
def test_terms_are_those_of_longdouble(kernels, family):  # noqa: F811
    for count in COUNTS:
        t, y, p, q = drawn(family, count)
        if family == "gamma":
            t = np.maximum(t, -300.0)
        sums, r, h = compiled_calls.loss_terms(get_family(family), t, y, p, q)
        loss, slope, bend = textbook(family, t, y)
        size = np.abs(slope) + np.abs(y) + 1
        assert (np.abs(r - slope) <= 8 * EPS * size).all()
        assert (np.abs(h - bend) <= 16 * EPS * bend).all()
        for found, terms in zip(
            sums, (p * loss, p * slope * q, np.abs(p * loss)), strict=True
        ):
            assert abs(found - terms.sum()) <= 8 * EPS * np.abs(terms).sum()


@pytest.mark.parametrize("classes", (2, 3, 8, 9, 64))
def test_softmax_is_that_of_longdouble(kernels, classes):  # noqa: F811
    rng = np.random.default_rng(classes)
    family = get_family("softmax")
    for count in COUNTS:
        t = 8.0 * rng.standard_normal((count, classes))
        y = rng.integers(0, classes, (count, 1)).astype(float)
        p, q = rng.uniform(size=(count, 1)), rng.standard_normal((count, classes))
        sums, r, h = compiled_calls.loss_terms(family, t, y, p, q)
        assert h is None
        wide = t.astype(np.longdouble)
        top = wide.max(axis=1, keepdims=True, initial=-np.inf)
        parts = np.exp(wide - top)
        total = parts.sum(axis=1, keepdims=True)
        own = np.take_along_axis(wide, y.astype(int), axis=1)
        loss = np.log(total) + top - own
        slope = parts / total - (y == np.arange(classes))
        assert (np.abs(r - slope) <= 16 * EPS).all()
        for found, terms in zip(
            sums, (p * loss, p * slope * q, np.abs(p * loss)), strict=True
        ):
            size = np.abs(terms).sum() + p.sum()  # log(1 + ...) loses what 1 hides
            assert abs(found - terms.sum()) <= 16 * EPS * size


def test_sums_of_many_rows_have_their_last_digits(kernels):  # noqa: F811
    """A plain sum of a million numbers would lose three of them."""
    count = 1_000_003
    ones = np.ones((count, 1))
    t = np.full((count, 1), 0.1)
    family = get_family("gaussian")
    sums, _, _ = compiled_calls.loss_terms(family, t, ones, ones, ones)
    each = np.longdouble(family.loss(t[:1], ones[:1])[0, 0])
    assert abs(sums[0] - count * each) <= 4 * EPS * count * each


@pytest.mark.parametrize("family", (*sorted(compiled_calls.LOSSES), "softmax"))
def test_what_is_no_number_is_not_hidden(kernels, family):  # noqa: F811
    classes = 3 if family == "softmax" else 1
    t, one = np.zeros((9, classes)), np.ones((9, 1))
    t[4, 0] = np.nan
    sums, r, _ = compiled_calls.loss_terms(get_family(family), t, one, one, t)
    assert np.isnan(sums).all() and np.isnan(r[4]).all()
    assert np.isfinite(np.delete(r, 4, axis=0)).all()


@pytest.mark.parametrize("index", (np.int32, np.int64))
def test_products_of_sparse_rows_fill_the_lower_triangle(kernels, index):  # noqa: F811
    rng = np.random.default_rng(3)
    X = sparse.random_array((60, 13), density=0.3, rng=rng, format="csr")
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    h, out = rng.uniform(size=60), np.ones((14, 14))
    compiled_calls.add_outer(X, h, out)
    dense = X.toarray()
    expected = np.tril(dense.T @ (h[:, None] * dense)) + 1.0
    np.testing.assert_allclose(out[:13, :13], expected, rtol=1e-13)
    assert (out[13] == 1.0).all() and (out[:, 13] == 1.0).all()


@pytest.mark.parametrize("family", ("logistic", "poisson", "gamma", "softmax"))
@pytest.mark.parametrize("solver", ("newton", "lbfgs"))
def test_fits_without_kernels_are_those_with_them(monkeypatch, family, solver):
    problem = make_problem(family, n=300, d=6)
    sides = {"alpha": 1e-2, "solver": solver}
    with_kernels = fit(problem.X, family, problem.y, **sides)
    monkeypatch.setattr(compiled_calls, "has_loss_terms", lambda family, columns: False)
    without = fit(problem.X, family, problem.y, **sides)
    np.testing.assert_allclose(with_kernels.weights, without.weights, atol=1e-9)
    assert with_kernels.loss == pytest.approx(without.loss, rel=1e-14)


@pytest.mark.parametrize("shift", (0.0, 3.0, 25.0, 500.0))
@pytest.mark.parametrize("is_sparse", (False, True))
def test_a_hessian_of_rows_as_they_are_leads_to_the_same_optimum(shift, is_sparse):
    """Columns near 0 are scaled in the end; far ones are centred first."""
    problem = make_problem("logistic", n=400, d=5)
    X = problem.X.copy()
    X[:, 2] += shift
    rows = sparse.csr_array(X) if is_sparse else X
    found = fit(rows, "logistic", problem.y, alpha=1e-3, solver="newton")
    assert found.report["polish"]["ended"] == "converged"
    assert found.report["gap"] <= 1e-12
