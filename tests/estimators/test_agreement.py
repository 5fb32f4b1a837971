"""The minimisers of scikit-learn's own estimators, at the parameters that match."""

from contextlib import suppress

import numpy as np
import pytest
from scipy.special import log_ndtr
from sklearn import linear_model, svm
from sklearn.base import clone

import hpcsgd
from tests.helpers.zoo import problem_for

TIGHT = 1e-10
CLOSE = {"rtol": 0, "atol": 1e-6}


def weights_for(n, seed=3):
    return np.random.default_rng(seed).integers(0, 4, size=n).astype(float)


def same_model(ours, theirs):
    """Coefficients and intercepts, in the same shapes."""
    assert np.shape(ours.coef_) == np.shape(theirs.coef_)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, **CLOSE)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, **CLOSE)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("intercept", [True, False])
def test_logistic_regression(classes, intercept):
    """C = 1/(alpha Σc)."""
    ours = hpcsgd.LogisticRegression(alpha=0.01, fit_intercept=intercept)
    X, y = problem_for(ours, classes=classes)
    c = weights_for(len(X))
    theirs = linear_model.LogisticRegression(
        C=1 / (0.01 * c.sum()), fit_intercept=intercept, tol=TIGHT, max_iter=10_000
    )
    theirs.fit(X, y, c)
    ours.fit(X, y, c)
    if classes == 3:
        # One intercept for all classes changes nothing; ours add up to zero.
        theirs.intercept_ = theirs.intercept_ - theirs.intercept_.mean()
        ours.intercept_ = ours.intercept_ - ours.intercept_.mean()
    same_model(ours, theirs)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), **CLOSE)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    assert np.shape(ours.n_iter_) == np.shape(theirs.n_iter_)
    assert ours.score(X, y, c) == theirs.score(X, y, c)


def test_linear_regression():
    ours = hpcsgd.LinearRegression()
    X, y = problem_for(ours)
    c = weights_for(len(X))
    theirs = linear_model.LinearRegression().fit(X, y, c)
    same_model(ours.fit(X, y, c), theirs)
    np.testing.assert_allclose(ours.score(X, y, c), theirs.score(X, y, c), **CLOSE)


def test_ridge():
    """Their alpha is ours times Σc."""
    ours = hpcsgd.Ridge(alpha=0.3)
    X, y = problem_for(ours)
    c = weights_for(len(X))
    same_model(ours.fit(X, y, c), linear_model.Ridge(alpha=0.3 * c.sum()).fit(X, y, c))


@pytest.mark.parametrize("l1_ratio", [0.4, 1.0])
def test_elastic_net(l1_ratio):
    """The same alpha and l1_ratio."""
    ours = hpcsgd.Ridge(alpha=0.4, l1_ratio=l1_ratio, tol=1e-14, precision="fp64")
    X, y = problem_for(ours)
    theirs = linear_model.ElasticNet(alpha=0.4, l1_ratio=l1_ratio, tol=1e-12)
    same_model(ours.fit(X, y), theirs.fit(X, y))
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert (ours.coef_ == 0).any() or l1_ratio < 1


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (hpcsgd.PoissonRegressor(alpha=0.1), linear_model.PoissonRegressor(alpha=0.1)),
        (hpcsgd.GammaRegressor(alpha=0.1), linear_model.GammaRegressor(alpha=0.1)),
        (
            hpcsgd.TweedieRegressor(power=1.2, alpha=0.1),
            linear_model.TweedieRegressor(power=1.2, alpha=0.1),
        ),
        (
            hpcsgd.TweedieRegressor(power=1.8, alpha=0.01),
            linear_model.TweedieRegressor(power=1.8, alpha=0.01),
        ),
    ],
)
def test_log_links(ours, theirs):
    """The same alpha: half the deviance."""
    X, y = problem_for(ours)
    c = weights_for(len(X))
    theirs.set_params(tol=TIGHT, solver="newton-cholesky").fit(X, y, c)
    same_model(ours.fit(X, y, c), theirs)
    np.testing.assert_allclose(ours.score(X, y, c), theirs.score(X, y, c), **CLOSE)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-5)


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5])
def test_huber(l1_ratio):
    """delta = epsilon·scale_, alpha_sklearn = alpha·Σc/scale_; and l1 in units of y."""
    ours = hpcsgd.HuberRegressor()
    X, y = problem_for(ours)
    y[:5] += 30.0
    theirs = linear_model.HuberRegressor(alpha=0.7, tol=1e-7, warm_start=True)
    with suppress(ValueError):  # ABNORMAL: no digits are left
        for _ in range(20):  # its L-BFGS ends long before that
            theirs.fit(X, y)
    alpha = 0.7 * theirs.scale_ / len(X)
    ours.set_params(delta=1.35 * theirs.scale_, alpha=alpha)
    same_model(ours.fit(X, y), theirs)
    # The same problem in other units: everything scales, the penalty of l1 with them.
    wide = clone(ours).set_params(delta=10 * ours.delta, l1_ratio=l1_ratio)
    l1, l2 = 10 * alpha * l1_ratio, alpha * (1 - l1_ratio)
    wide.set_params(alpha=l1 + l2, l1_ratio=l1 / (l1 + l2)).fit(X, 10 * y)
    unit = clone(ours).set_params(alpha=alpha, l1_ratio=l1_ratio).fit(X, y)
    atol = 1e-5 if l1_ratio == 0.0 else 1e-2
    np.testing.assert_allclose(wide.coef_, 10 * unit.coef_, rtol=0, atol=atol)


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_svc(classes):
    """C = 1/(2 alpha Σc), without the intercept that they penalise."""
    ours = hpcsgd.LinearSVC(alpha=0.01, fit_intercept=False)
    X, y = problem_for(ours, classes=classes)
    c = weights_for(len(X))
    theirs = svm.LinearSVC(
        C=1 / (0.02 * c.sum()), fit_intercept=False, tol=1e-12, max_iter=100_000
    ).fit(X, y, c)
    ours.fit(X, y, c)
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, **CLOSE)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    assert np.ndim(ours.n_iter_) == np.ndim(theirs.n_iter_) == 0


def test_generic_families_are_the_named_ones():
    for named, family in (
        (hpcsgd.LogisticRegression(), "logistic"),
        (hpcsgd.LinearSVC(), "squared-hinge"),
        (hpcsgd.Ridge(), "gaussian"),
        (hpcsgd.HuberRegressor(delta=1.0), "huber"),
        (hpcsgd.PoissonRegressor(), "poisson"),
        (hpcsgd.GammaRegressor(), "gamma"),
        (hpcsgd.TweedieRegressor(), "tweedie"),
        (hpcsgd.NegativeBinomialRegressor(), "negative-binomial"),
    ):
        X, y = problem_for(named)
        generic = hpcsgd.GLM(family=family).fit(X, y)
        np.testing.assert_array_equal(generic.coef_, named.fit(X, y).coef_)
        assert generic.score(X, y) == pytest.approx(named.score(X, y), abs=1e-12)


def test_probit_is_stationary():
    """scikit-learn has none: the gradient of the stated objective is zero."""
    model = hpcsgd.GLM(family="probit", alpha=0.05)
    X, y = problem_for(model)
    model.fit(X, y)
    sign = np.where(y == model.classes_[1], 1.0, -1.0)
    t = sign * model.decision_function(X)
    hazard = sign * np.exp(-0.5 * t * t - 0.5 * np.log(2 * np.pi) - log_ndtr(t))
    slope = -X.T @ hazard / len(X) + 0.05 * model.coef_[0]
    assert np.abs(slope).max() < 1e-8 and abs(hazard.mean()) < 1e-8
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-15)
    np.testing.assert_allclose(
        np.log(probabilities[:, 1]), log_ndtr(model.decision_function(X)), atol=1e-10
    )
