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
        return np.maximum(1 - y * t, 0) ** 2 / 2

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """−y max(0, 1 − y t)."""
        margin = np.multiply(t, y, out=out)
        np.subtract(1, margin, out=margin)
        np.maximum(margin, 0, out=margin)
        np.multiply(margin, y, out=margin)
        return np.negative(margin, out=margin)

    def mean(self, t: Array) -> Array:
        """The sign of the score."""
        return np.where(t >= 0, 1, -1).astype(t.dtype)
