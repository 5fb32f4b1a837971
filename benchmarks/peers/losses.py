"""The objective that everybody minimises, written down apart from the package.

F(w) = (1/n) Σ ℓ(a_i·w, y_i) + (λ/2)‖w‖², no intercept.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

GRADIENT = 1e-10  # largest entry of the gradient at what is called the optimum


def _softplus(t: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, t)


# family -> (ℓ, ∂ℓ/∂t)
LOSSES = {
    "logistic": (lambda t, y: _softplus(t) - y * t, lambda t, y: expit(t) - y),
    "poisson": (lambda t, y: np.exp(t) - y * t, lambda t, y: np.exp(t) - y),
    "gaussian": (lambda t, y: (t - y) ** 2 / 2, lambda t, y: t - y),
}


@dataclass(frozen=True)
class Objective:
    """F of one set."""

    family: str
    X: np.ndarray
    y: np.ndarray
    l2: float

    def value(self, w: np.ndarray) -> float:
        """F(w): scores in the type of X, losses in float64; inf where it is none."""
        w = np.asarray(w).ravel()
        with np.errstate(all="ignore"):
            t = (self.X @ w.astype(self.X.dtype)).astype(np.float64)
            losses = LOSSES[self.family][0](t, self.y)
            value = losses.mean() + self.l2 / 2 * float(w.astype(np.float64) @ w)
        return float(value) if np.isfinite(value) else float("inf")

    def with_gradient(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        """F(w) and ∇F(w)."""
        loss, residual = LOSSES[self.family]
        with np.errstate(over="ignore", invalid="ignore"):
            t = self.X @ w
            value = loss(t, self.y).mean() + self.l2 / 2 * (w @ w)
            slope = self.X.T @ residual(t, self.y) / len(t) + self.l2 * w
        return float(value), slope


def optimum(objective: Objective) -> dict[str, Any]:
    """F* by L-BFGS in float64, and how flat it is there."""
    exact = Objective(
        objective.family,
        objective.X.astype(np.float64),
        objective.y.astype(np.float64),
        objective.l2,
    )
    found = minimize(
        exact.with_gradient,
        np.zeros(exact.X.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={
            "gtol": GRADIENT,
            "ftol": 0.0,
            "maxiter": 5000,
            "maxfun": 20000,
            "maxcor": 30,
        },
    )
    return {
        "loss": float(found.fun),
        "largest_gradient": float(np.abs(found.jac).max()),
        "iterations": int(found.nit),
    }
