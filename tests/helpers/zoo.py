"""All estimators, and data that suits each of them."""

import numpy as np

import hpcsgd
from hpcsgd.glm import FAMILIES

NAMED = [
    hpcsgd.LogisticRegression(),
    hpcsgd.LinearSVC(),
    hpcsgd.LinearRegression(),
    hpcsgd.Ridge(),
    hpcsgd.HuberRegressor(),
    hpcsgd.PoissonRegressor(),
    hpcsgd.GammaRegressor(),
    hpcsgd.TweedieRegressor(),
    hpcsgd.NegativeBinomialRegressor(),
]
# scikit-learn checks regressors with targets of any size, and these are shares.
CHECKED = [name for name in FAMILIES if name != "binomial"]
GENERIC = [hpcsgd.GLM(family=name) for name in FAMILIES]
ALL = NAMED + GENERIC
CHOOSING = [hpcsgd.GLM_CV(family=f, alphas=(1e-3, 1e-1), cv=2) for f in FAMILIES]


def name_of(estimator):
    """Short enough for the name of a test."""
    kind = type(estimator).__name__
    return f"{kind}-{estimator.family}" if kind.startswith("GLM") else kind


def targets_for(estimator, X, rng, classes=2):
    """Targets that its family takes; of labels, strings."""
    t = X @ np.linspace(1.0, -1.0, X.shape[1]) / np.sqrt(X.shape[1])
    t = t + rng.normal(size=len(X))
    family = estimator.family
    if estimator._labelled:
        edges = np.quantile(t, np.linspace(0, 1, classes + 1)[1:-1])
        return np.array(["low", "mid", "top"])[np.searchsorted(edges, t)]
    if family in ("poisson", "negative-binomial"):
        return rng.poisson(np.exp(0.5 * t)).astype(float)
    if family == "tweedie":
        return np.exp(0.5 * t) * rng.integers(0, 2, size=len(t))
    if family == "binomial":
        return rng.binomial(5, 1 / (1 + np.exp(-t))) / 5
    return np.exp(0.5 * t) if family == "gamma" else t


def problem_for(estimator, n=83, d=5, seed=0, classes=2):
    """(X, y) of odd sizes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, targets_for(estimator, X, rng, classes)
