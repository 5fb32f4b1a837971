"""Mini-batch SGD, one step after the other, in longdouble: what everything must equal.

Nothing of the package is used here, so that an error there cannot hide itself.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

L = np.longdouble


def residual(family, t, y):
    """∂ℓ/∂t by the textbook formula, or by a function; t (b, K), y (b, 1)."""
    return (family if callable(family) else _RESIDUALS[family])(t, y)


def _softmax(t, y):
    e = np.exp(t - t.max(axis=1, keepdims=True))
    mean = e / e.sum(axis=1, keepdims=True)
    return mean - (np.arange(t.shape[1]) == y)


def _probit(t, y):
    # φ/Φ at both tails; SciPy has no longdouble Φ, double is enough for 1e-11
    double = t.astype(float)
    log_density = -(double**2) / 2 - np.log(2 * np.pi) / 2
    up = np.exp(log_density - log_ndtr(double)).astype(L)
    down = np.exp(log_density - log_ndtr(-double)).astype(L)
    return np.where(y == 1, -up, down)


_RESIDUALS = {
    "gaussian": lambda t, y: t - y,
    "logistic": lambda t, y: 1 / (1 + np.exp(-t)) - y,
    "poisson": lambda t, y: np.exp(t) - y,
    "softmax": _softmax,
    "squared-hinge": lambda t, y: -y * np.maximum(0, 1 - y * t),
    "huber": lambda t, y: np.clip(t - y, -1, 1),
    "gamma": lambda t, y: 1 - y * np.exp(-t),
    "probit": _probit,
    "tweedie": lambda t, y: (np.exp(t) - y) / np.exp(t / 2),
    "negative-binomial": lambda t, y: 1 - (1 + y) / (1 + np.exp(t)),
    "binomial": lambda t, y: (1 - y) - 1 / (1 + np.exp(t)),
}


@dataclass
class Update:
    """v and w after one gradient g (penalty included)."""

    kind: str = "sgd"
    mu: float = 0.0

    def point(self, w, v):
        """Where the gradient is taken."""
        return w + L(self.mu) * v if self.kind == "nesterov-classic" else w

    def step(self, w, v, g, rate):
        """The textbook update, one line each."""
        mu = L(self.mu)
        if self.kind == "sgd":
            return w - rate * g, v
        if self.kind == "momentum":
            v = mu * v + g
            return w - rate * v, v
        if self.kind == "nesterov":
            v = mu * v + g
            return w - rate * (g + mu * v), v
        v = mu * v - rate * g
        return w + v, v


@dataclass
class Bent:
    """l1 and bounds: the proximal map behind a step, with its share of v."""

    l1: float = 0.0
    lower: float = -np.inf
    upper: float = np.inf

    def step(self, w, v, rate, update):
        """w ← prox(w); v gains the same gradient that l1 and the bounds gave to w."""
        far = rate * (1 + L(update.mu)) if update.kind == "nesterov" else rate
        small = np.sign(w) * np.maximum(np.abs(w) - far * L(self.l1), 0)
        end = np.clip(small, L(self.lower), L(self.upper))
        gained = (w - end) / far  # ξ, of which w went `far`
        if update.kind == "nesterov-classic":
            v = v - rate * gained
        elif update.kind != "sgd":
            v = v + gained
        return end, v


def sgd(
    X,
    y,
    batches,
    rates,
    *,
    family,
    l2=0.0,
    update=None,
    weights=None,
    offset=None,
    intercept=False,
    classes=1,
    penalty=None,
):
    """SGD over `batches` (lists of row numbers): w (d, K) and intercept (K,)."""
    update = update or Update()
    X, y = np.asarray(X, dtype=L), np.asarray(y, dtype=L).reshape(-1, 1)
    w = np.zeros((X.shape[1], classes), dtype=L)
    v, b, bv = np.zeros_like(w), np.zeros(classes, dtype=L), np.zeros(classes, dtype=L)
    c = None if weights is None else np.asarray(weights, dtype=L)
    c = None if c is None else (c / c.mean()).reshape(-1, 1)
    for rows, rate in zip(batches, rates, strict=True):
        rate = L(rate)
        t = X[rows] @ update.point(w, v) + (update.point(b, bv) if intercept else 0)
        if offset is not None:
            t = t + np.asarray(offset, dtype=L)[rows].reshape(-1, 1)
        r = residual(family, t, y[rows])
        r = r if c is None else r * c[rows]
        g = X[rows].T @ r / len(rows) + L(l2) * update.point(w, v)
        w, v = update.step(w, v, g, rate)
        if penalty is not None:
            w, v = penalty.step(w, v, rate, update)
        if intercept:
            b, bv = update.step(b, bv, r.sum(axis=0) / len(rows), rate)
    return w, b
