"""Small problems whose sizes do not divide anything."""

from dataclasses import dataclass

import numpy as np

FAMILIES = (
    "gaussian",
    "logistic",
    "poisson",
    "softmax",
    "squared-hinge",
    "huber",
    "gamma",
    "probit",
    "tweedie",
    "negative-binomial",
    "binomial",
)


@dataclass(frozen=True)
class Problem:
    """Rows and targets that suit a family, and a rate that suits both."""

    family: str
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    offset: np.ndarray
    classes: int
    rate: float


def make_problem(family, n=53, d=7, seed=0, dtype=np.float64):
    """A problem of n rows and d columns; scores stay within about ±3."""
    rng = np.random.default_rng([seed, n, d])
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    t = X @ rng.normal(size=d)
    y = _targets(family, t, rng)
    return Problem(
        family=family,
        X=X.astype(dtype),
        y=y,
        weights=rng.uniform(0.5, 2.0, size=n),
        offset=rng.uniform(-0.3, 0.3, size=n),
        classes=4 if family == "softmax" else 1,
        rate=0.2,
    )


def _targets(family, t, rng):
    n = len(t)
    if family in ("gaussian", "huber"):
        return t + rng.normal(size=n)
    if family in ("logistic", "probit"):
        return _both(rng.uniform(size=n) < 1 / (1 + np.exp(-t)), 0.0)
    if family == "squared-hinge":
        return _both(t + 0.3 * rng.normal(size=n) > 0, -1.0)
    if family == "poisson":
        return rng.poisson(np.exp(t)).astype(float)
    if family == "gamma":
        return rng.gamma(2.0, np.exp(t) / 2) + 1e-3
    if family == "tweedie":  # sums of a Poisson number of gamma amounts: many are 0
        return np.array([rng.gamma(2.0, 0.3, k).sum() for k in rng.poisson(np.exp(t))])
    if family == "negative-binomial":
        return rng.poisson(rng.exponential(np.exp(t))).astype(float)
    if family == "binomial":
        return rng.binomial(5, 1 / (1 + np.exp(-t - 0.5))) / 5
    classes = np.arange(n) % 4
    return rng.permutation(classes).astype(float)


def _both(up, low):
    """Both labels occur, whatever was drawn."""
    y = np.where(up, 1.0, low)
    y[0], y[1] = 1.0, low
    return y
