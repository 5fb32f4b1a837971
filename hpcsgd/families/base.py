"""The protocol of a family: one GLM in its score t.

Scores t and residuals are (m, K), targets y and losses (m, 1); K = 1 but for softmax.
Everything keeps the dtype it is given.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

Array = NDArray[Any]


class Family(Protocol):
    """What learning needs to know of a GLM."""

    name: str
    targets: str  # real, binary, signed, counts, positive or classes
    curvature: float  # bound on ∂r/∂t; inf where there is none

    def loss(self, t: Array, y: Array) -> Array:
        """ℓ(t, y), one for each row."""

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """∂ℓ/∂t; `out` may be t itself."""

    def mean(self, t: Array) -> Array:
        """μ(t), what the model predicts."""

    def clipped(self, t: Array) -> int:
        """How many scores lie where exp had to be clipped."""


# family -> min over t of ℓ(t, y); the losses of all others come down to 0.
LEAST_LOSSES: dict[str, Callable[[Array], Array]] = {
    "poisson": lambda y: y - xlogy(y, y),
    "gamma": lambda y: 1.0 + np.log(y),
}


def least_losses(family: Family, targets: Array) -> Array:
    """Return min over t of ℓ(t, y) for every target, in the shape of `targets`."""
    return LEAST_LOSSES.get(family.name, np.zeros_like)(targets)


def no_clips(self: Any, t: Array) -> int:
    """Families without an exponential link never clip."""
    return 0


@lru_cache(maxsize=8)
def exp_bound(dtype: Any) -> float:
    """The largest score whose exponential is used as it is: half the exponent range.

    About 44.4 in float32 and 354.9 in float64. exp(t)·y, and a sum of such terms,
    then stay finite in the same dtype. Beyond it the residual stays at its value
    there, which is no longer the derivative of the loss.
    """
    return float(np.log(np.finfo(dtype).max) / 2)
