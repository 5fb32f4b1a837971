"""Probit regression: ℓ = −log Φ(±t), y in {0, 1}."""

import numpy as np
from scipy.special import erfcx, log_ndtr

from hpcsgd.families.base import Array, no_clips

ROOT_2 = float(np.sqrt(2.0))
ROOT_2_OVER_PI = float(np.sqrt(2.0 / np.pi))


class Probit:
    """Two classes, normal link; the hazard φ/Φ by erfcx is safe in both tails."""

    name = "probit"
    targets = "binary"
    curvature = 1.0
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """−log Φ(t) for y = 1, −log Φ(−t) for y = 0."""
        losses: Array = -log_ndtr(_towards(t, y))
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """−φ(t)/Φ(t) for y = 1, φ(t)/Φ(−t) for y = 0."""
        sign = 2 * y - 1
        # φ(a)/Φ(a) = √(2/π) / erfcx(−a/√2), without a quotient of tiny numbers;
        # erfcx overflows to inf where the hazard is 0, which is what is meant.
        with np.errstate(over="ignore"):
            hazard = ROOT_2_OVER_PI / erfcx(_towards(t, y) / -ROOT_2)
        return np.multiply(hazard, -sign, out=out)

    def mean(self, t: Array) -> Array:
        """Φ(t)."""
        probability: Array = np.exp(log_ndtr(t))
        return probability


def _towards(t: Array, y: Array) -> Array:
    """The score, with the sign that makes larger mean better."""
    return t * (2 * y - 1)
