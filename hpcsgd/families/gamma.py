"""Gamma regression with log link: ℓ = y e⁻ᵗ + t."""

import numpy as np

from hpcsgd.families.base import Array, exp_bound


class Gamma:
    """Positive targets; scores below −`exp_bound` are clipped in the exponential."""

    name = "gamma"
    targets = "positive"
    curvature = float("inf")

    def loss(self, t: Array, y: Array) -> Array:
        """y e⁻ᵗ + t."""
        return y * np.exp(-np.maximum(t, -exp_bound(t.dtype))) + t

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """1 − y e⁻ᵗ."""
        step = np.maximum(t, -exp_bound(t.dtype), out=out)
        np.negative(step, out=step)
        np.exp(step, out=step)
        np.multiply(step, y, out=step)
        return np.subtract(1, step, out=step)

    def mean(self, t: Array) -> Array:
        """eᵗ, clipped."""
        return np.exp(np.minimum(t, exp_bound(t.dtype)))

    def clipped(self, t: Array) -> int:
        """Scores below minus the bound."""
        return int(np.count_nonzero(t < -exp_bound(t.dtype)))
