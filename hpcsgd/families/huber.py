"""Robust regression: quadratic near the target, linear beyond δ."""

import numpy as np

from hpcsgd.families.base import Array, no_clips


class Huber:
    """Real targets; ℓ = e²/2 for |e| ≤ δ, else δ(|e| − δ/2), e = t − y."""

    name = "huber"
    targets = "real"
    curvature = 1.0
    clipped = no_clips

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = delta

    def loss(self, t: Array, y: Array) -> Array:
        """The Huber loss, written through the clipped error."""
        error = t - y
        bent = np.clip(error, -self.delta, self.delta)
        return bent * (error - bent / 2)

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """t − y, clipped to ±δ."""
        error = np.subtract(t, y, out=out)
        return np.clip(error, -self.delta, self.delta, out=error)

    def mean(self, t: Array) -> Array:
        """t."""
        return t
