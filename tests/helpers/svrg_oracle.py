"""SVRG, one step after the other, in longdouble: what s steps at once must equal.

Nothing of the package is used here, so that an error there cannot hide itself.
"""

import numpy as np

from tests.helpers.oracle import L, residual


def svrg(
    X,
    y,
    epochs,
    rate,
    *,
    family,
    every=1,
    l2=0.0,
    weights=None,
    offset=None,
    intercept=False,
    classes=1,
):
    """Over `epochs`, each a list of batches (row numbers): w (d, K), intercept (K,)."""
    X, y = np.asarray(X, dtype=L), np.asarray(y, dtype=L).reshape(-1, 1)
    n, rate = len(X), L(rate)
    w, b = np.zeros((X.shape[1], classes), dtype=L), np.zeros(classes, dtype=L)
    c = np.ones(n) if weights is None else weights
    c = np.asarray(c, dtype=L).reshape(-1, 1)
    c = c / c.mean()
    o = np.zeros(n) if offset is None else offset
    o = np.asarray(o, dtype=L).reshape(-1, 1)

    def residuals(rows, w, b):
        return residual(family, X[rows] @ w + b + o[rows], y[rows]) * c[rows]

    for epoch, batches in enumerate(epochs):
        if epoch % every == 0:
            snap, base = w, b
            r = residuals(slice(None), snap, base)
            full, level = X.T @ r / n, r.sum(axis=0) / n
        for rows in batches:
            r = residuals(rows, w, b) - residuals(rows, snap, base)
            g = X[rows].T @ r / len(rows) + full + L(l2) * w
            step = r.sum(axis=0) / len(rows) + level
            w = w - rate * g
            b = b - rate * step if intercept else b
    return w, b
