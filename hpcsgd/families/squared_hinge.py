"""L2-loss support vector machine: ℓ = max(0, 1 − y t)² / 2, y in {−1, 1}."""

import numpy as np

from hpcsgd.families.base import Array, no_clips


class SquaredHinge:
    """Two classes as signs."""

    name = "squared-hinge"
    targets = "signed"
    curvature = 1.0
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """max(0, 1 − y t)² / 2."""
        missing: Array = np.maximum(1 - y * t, 0)
        return missing**2 / 2

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """y min(0, y t − 1)."""
        excess = np.multiply(t, y, out=out)
        np.subtract(excess, 1, out=excess)
        np.minimum(excess, 0, out=excess)
        return np.multiply(excess, y, out=excess)

    def mean(self, t: Array) -> Array:
        """The sign of the score."""
        return np.where(t >= 0, 1, -1).astype(t.dtype)
