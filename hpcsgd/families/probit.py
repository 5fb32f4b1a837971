"""Probit regression: ℓ = −log Φ(±t), y in {0, 1}."""

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from hpcsgd.families.base import Array, no_clips

HALF_ROOT_2 = float(np.sqrt(0.5))
TWO_OVER_ROOT_PI = float(2.0 / np.sqrt(np.pi))


class Probit:
    """Two classes, normal link; the hazard φ/Φ by erfcx is safe in both tails."""

    name = "probit"
    targets = "binary"
    curvature = 1.0
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """−log Φ(t) for y = 1, −log Φ(−t) for y = 0."""
        losses: Array = -log_ndtr(t * (2 * y - 1))
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """−φ(t)/Φ(t) for y = 1, φ(t)/Φ(−t) for y = 0."""
        # With c = (1 − 2y)/√2 both are (2/√π) c / erfcx(c t): no quotient of tiny
        # numbers. erfcx overflows to inf where the residual is 0, as it should be.
        c = np.multiply(y, -2 * HALF_ROOT_2)
        c += HALF_ROOT_2
        step = np.multiply(t, c, out=out)
        with np.errstate(over="ignore"):
            erfcx(step, out=step)
        np.divide(c, step, out=step)
        return np.multiply(step, TWO_OVER_ROOT_PI, out=step)

    def mean(self, t: Array) -> Array:
        """Φ(t)."""
        probability: Array = ndtr(t)
        return probability
