"""Least squares: ℓ = (t − y)² / 2."""

import numpy as np

from hpcsgd.families.base import Array, no_clips


class Gaussian:
    """Real targets, identity link."""

    name = "gaussian"
    targets = "real"
    curvature = 1.0
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """(t − y)² / 2."""
        return (t - y) ** 2 / 2

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """t − y."""
        return np.subtract(t, y, out=out)

    def mean(self, t: Array) -> Array:
        """t."""
        return t
