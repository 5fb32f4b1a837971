"""Logistic regression: ℓ = softplus(t) − y t, y in {0, 1}."""

import numpy as np
from scipy.special import expit

from hpcsgd.families.base import Array, no_clips


class Logistic:
    """Two classes, logit link."""

    name = "logistic"
    targets = "binary"
    curvature = 0.25
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """log(1 + eᵗ) − y t, with the larger of 0 and t taken out of the logarithm."""
        small = np.log1p(np.exp(-np.abs(t)))
        losses: Array = np.maximum(t, 0) + small - y * t
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """sigmoid(t) − y."""
        mean: Array = expit(t, out=out)
        return np.subtract(mean, y, out=mean)

    def mean(self, t: Array) -> Array:
        """sigmoid(t)."""
        probability: Array = expit(t)
        return probability
