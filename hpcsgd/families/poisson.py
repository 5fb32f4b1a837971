"""Poisson regression with log link: ℓ = eᵗ − y t."""

import numpy as np

from hpcsgd.families.base import Array, exp_bound


class Poisson:
    """Counts; scores above `exp_bound` are clipped inside the exponential."""

    name = "poisson"
    targets = "counts"
    curvature = float("inf")

    def loss(self, t: Array, y: Array) -> Array:
        """eᵗ − y t."""
        losses: Array = self.mean(t) - y * t
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """eᵗ − y."""
        mean = np.minimum(t, exp_bound(t.dtype), out=out)
        np.exp(mean, out=mean)
        return np.subtract(mean, y, out=mean)

    def mean(self, t: Array) -> Array:
        """eᵗ, clipped."""
        return np.exp(np.minimum(t, exp_bound(t.dtype)))

    def clipped(self, t: Array) -> int:
        """Scores above the bound."""
        return int(np.count_nonzero(t > exp_bound(t.dtype)))
