"""Data sets on which summaries are compared with the figures of another package."""

from dataclasses import dataclass, field

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine


@dataclass(frozen=True)
class InferenceProblem:
    """Rows of a fit without a penalty; `sides` are sample_weight and offset."""

    family: str
    X: np.ndarray
    y: np.ndarray
    sides: dict = field(default_factory=dict)
    clusters: np.ndarray | None = None

    @property
    def digest(self):
        """A number by which recorded figures know their data."""
        parts = [self.X, self.y, *self.sides.values()]
        return float(sum(np.abs(part).sum() for part in parts))


def diabetes():
    """Least squares on ten columns."""
    X, y = load_diabetes(return_X_y=True)
    return InferenceProblem("gaussian", X, y, clusters=np.arange(len(y)) % 37)


def amounts():
    """Positive targets with a log link, which is not the canonical one."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    return InferenceProblem("gamma", X[:, [0, 2, 3, 8]], y)


def cancer():
    """Two classes by four columns of very different size that do not separate."""
    X, y = load_breast_cancer(return_X_y=True)
    return InferenceProblem("logistic", X[:, [1, 4, 8, 9]], y.astype(float))


def rates():
    """Counts with an exposure, in clusters of unequal size that share an effect."""
    rng = np.random.default_rng(11)
    n = 640
    clusters = rng.integers(0, 40, size=n) ** 2 // 40
    X = rng.normal(size=(n, 3)) + [0.0, 5.0, -2.0]
    exposure = rng.uniform(0.2, 3.0, size=n)
    effect = 0.3 * rng.normal(size=40)[clusters]
    t = X @ [0.4, -0.2, 0.1] + 0.5 + effect + np.log(exposure)
    y = rng.poisson(np.exp(t)).astype(float)
    return InferenceProblem(
        "poisson", X, y, {"offset": np.log(exposure)}, clusters=clusters
    )


def repeated():
    """Two classes in rows that stand for 0 to 6 equal ones."""
    rng = np.random.default_rng(12)
    X = rng.normal(size=(300, 4)) * [1.0, 10.0, 0.01, 1.0]
    t = X @ [0.8, -0.05, 30.0, 0.0] - 0.4
    y = (rng.uniform(size=300) < 1 / (1 + np.exp(-t))).astype(float)
    weights = rng.integers(0, 7, size=300).astype(float)
    return InferenceProblem("logistic", X, y, {"sample_weight": weights})


def years():
    """Least squares with weights on columns that lie far from zero."""
    rng = np.random.default_rng(13)
    X = np.c_[rng.uniform(1990, 2020, 400), rng.normal(500.0, 1.0, 400)]
    y = 0.3 * (X[:, 0] - 2000) - 0.7 * (X[:, 1] - 500) + rng.normal(size=400)
    weights = rng.integers(1, 5, size=400).astype(float)
    return InferenceProblem("gaussian", X, y, {"sample_weight": weights})


def classes():
    """Three classes by two columns."""
    X, y = load_wine(return_X_y=True)
    return InferenceProblem("softmax", X[:, [1, 4]], y.astype(float))


def threshold():
    """Two classes with the probit link."""
    rng = np.random.default_rng(14)
    X = rng.normal(size=(350, 3))
    y = (X @ [0.6, -0.4, 0.0] + 0.2 + rng.normal(size=350) > 0).astype(float)
    return InferenceProblem("probit", X, y)


PROBLEMS = {
    f.__name__: f
    for f in (diabetes, amounts, cancer, rates, repeated, years, classes, threshold)
}
# data set, covariance, dispersion
CASES = (
    ("diabetes", "information", None),
    ("diabetes", "sandwich", None),
    ("diabetes", "clustered", None),
    ("diabetes", "information", "deviance"),
    ("amounts", "information", None),
    ("amounts", "sandwich", None),
    ("cancer", "information", None),
    ("cancer", "sandwich", None),
    ("cancer", "information", "pearson"),
    ("rates", "information", None),
    ("rates", "information", "pearson"),
    ("rates", "sandwich", None),
    ("rates", "clustered", None),
    ("repeated", "information", None),
    ("repeated", "sandwich", None),
    ("years", "information", None),
    ("years", "sandwich", None),
    ("classes", "information", None),
    ("classes", "sandwich", None),
    ("threshold", "information", None),
    ("threshold", "sandwich", None),
)
