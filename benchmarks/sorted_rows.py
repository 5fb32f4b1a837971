"""Logistic rows in the order of their margins: the worst of shards, its optimum."""

import numpy as np
from scipy.optimize import minimize


def sorted_rows(n, d, slack, l2):
    """(X, y, F*, L): rows whose margins are `slack` times less than those drawn."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, d)) * np.exp(0.4 * rng.normal(size=d))
    margin = X @ rng.normal(size=d) / slack + rng.normal(size=n)
    order = np.argsort(margin)
    X, y = X[order], (margin[order] > 0).astype(float)

    def objective(w):
        t = X @ w
        slope = X.T @ (1 / (1 + np.exp(-t)) - y) / n + l2 * w
        return (np.logaddexp(0, t) - y * t).mean() + l2 / 2 * w @ w, slope

    found = minimize(
        objective, np.zeros(d), jac=True, method="BFGS", options={"gtol": 1e-12}
    )
    return X, y, found.fun, np.linalg.norm(X, 2) ** 2 / (4 * n) + l2
