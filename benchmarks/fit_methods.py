"""Who fits in bench_fit: hpcsgd and its peers, each with the same objective.

A method is a function (problem, X, y, tol) -> (weights, intercept). What a package
calls its penalty is worked out here, once: scikit-learn's C = 1 / (n λ), alpha = λ for
Ridge times n, and so on.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from scipy import sparse

TOLS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)  # the first that serves
DEFAULT = "hpcsgd, default"  # without a tolerance
Fit = Callable[..., tuple]


def methods(problem) -> Iterator[tuple[str, Fit]]:
    """Yield name and function of every method that can minimise this objective."""
    yield "hpcsgd", _hpcsgd
    yield DEFAULT, _hpcsgd
    if not problem.l1:
        yield "hpcsgd, SGD first", partial(_hpcsgd, solver="sgd")
    has = {
        name: importlib.util.find_spec(name) for name in ("sklearn", "glum", "skglm")
    }
    if has["sklearn"]:
        yield from _of_sklearn(problem)
    if has["glum"] and problem.family != "softmax":
        for solver in ("irls-cd", "irls-ls", "lbfgs"):
            if not problem.fits_hessian and solver != "lbfgs":
                continue
            if not problem.l1 or solver == "irls-cd":
                yield f"glum {solver}", _glum(solver)
    if has["skglm"] and problem.l1:
        yield "skglm", _skglm


def _hpcsgd(problem, X, y, tol, **more):
    import hpcsgd

    alpha = problem.l1 + problem.l2
    result = hpcsgd.fit(
        X,
        problem.family,
        y,
        alpha=alpha,
        l1_ratio=problem.l1 / alpha,
        **({} if tol is None else {"tol": tol}),
        **more,
    )
    weights = result.weights
    if problem.family != "softmax":
        weights = np.asarray(weights).reshape(-1)
    return weights, result.intercept


def _of_sklearn(problem):
    family = problem.family
    if family in ("logistic", "softmax") and not problem.l1:
        for solver in ("lbfgs", "newton-cholesky", "newton-cg"):
            if solver == "newton-cholesky" and not problem.fits_hessian:
                continue
            yield f"sklearn {solver}", _logistic(solver)
    elif family == "logistic":
        yield "liblinear", _logistic("liblinear")
        yield "sklearn saga", _logistic("saga")
    elif family == "gaussian" and not problem.l1:
        for solver in ("cholesky", "lsqr"):
            yield f"sklearn {solver}", _ridge(solver)
    elif family == "gaussian":
        yield "sklearn", _elastic_net
    elif not problem.l1:
        for solver in ("lbfgs", "newton-cholesky"):
            yield f"sklearn {solver}", _tweedie(solver)


def _logistic(solver):
    def fit(problem, X, y, tol):
        from sklearn.linear_model import LogisticRegression

        n = X.shape[0]
        more = {}
        if problem.l1:
            more = {"l1_ratio": 1.0}
        strength = problem.l1 or problem.l2
        scale = {"intercept_scaling": 100.0} if solver == "liblinear" else {}
        model = LogisticRegression(
            C=1 / (strength * n),
            solver=solver,
            tol=tol,
            max_iter=20_000,
            **more,
            **scale,
        ).fit(X, y)
        if problem.family == "softmax":
            return model.coef_.T, model.intercept_
        return model.coef_[0], model.intercept_[0]

    return fit


def _ridge(solver):
    def fit(problem, X, y, tol):
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=problem.l2 * X.shape[0], solver=solver, tol=tol).fit(X, y)
        return model.coef_, model.intercept_

    return fit


def _elastic_net(problem, X, y, tol):
    from sklearn.linear_model import ElasticNet

    alpha = problem.l1 + problem.l2
    model = ElasticNet(
        alpha=alpha, l1_ratio=problem.l1 / alpha, tol=tol, max_iter=100_000
    ).fit(X, y)
    return model.coef_, model.intercept_


def _tweedie(solver):
    def fit(problem, X, y, tol):
        from sklearn.linear_model import GammaRegressor, PoissonRegressor

        kind = {"poisson": PoissonRegressor, "gamma": GammaRegressor}[problem.family]
        # scikit-learn halves the deviance and adds alpha/2 ‖w‖².
        model = kind(alpha=problem.l2, solver=solver, tol=tol, max_iter=20_000)
        model.fit(X, y)
        return model.coef_, model.intercept_

    return fit


def _glum(solver):
    def fit(problem, X, y, tol):
        from glum import GeneralizedLinearRegressor

        family = {
            "logistic": ("binomial", "logit"),
            "gaussian": ("normal", "identity"),
            "poisson": ("poisson", "log"),
            "gamma": ("gamma", "log"),
        }[problem.family]
        alpha = problem.l1 + problem.l2
        model = GeneralizedLinearRegressor(
            family=family[0],
            link=family[1],
            alpha=alpha,
            l1_ratio=problem.l1 / alpha,
            solver=solver,
            gradient_tol=tol,
            max_iter=1000,
            scale_predictors=False,
        )
        model.fit(sparse.csc_matrix(X) if sparse.issparse(X) else X, y)
        return model.coef_, model.intercept_

    return fit


def _skglm(problem, X, y, tol):
    import skglm

    columns = sparse.csc_matrix(X) if sparse.issparse(X) else np.asfortranarray(X)
    alpha = problem.l1 + problem.l2
    if problem.family == "logistic":
        model = skglm.SparseLogisticRegression(alpha=problem.l1, tol=tol)
        signs = np.where(y > 0, 1.0, -1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(columns, signs)
        return np.ravel(model.coef_), np.ravel(model.intercept_)[0]
    model = skglm.ElasticNet(alpha=alpha, l1_ratio=problem.l1 / alpha, tol=tol)
    model.fit(columns, y)
    return model.coef_, model.intercept_
