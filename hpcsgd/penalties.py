"""What is added to the mean loss to keep weights small, few, or within bounds.

    p(w) = l1 ‖w‖₁ + (l2/2) ‖w‖²   where lower ≤ w ≤ upper

The ridge is smooth and affine in w: it belongs to the steps. What bends F, l1 and the
bounds, has a proximal map instead, which is applied behind a step:

    prox_η(w) = argmin_u ‖u − w‖²/(2η) + l1‖u‖₁, lower ≤ u ≤ upper
              = clip(sign(w) max(|w| − η l1, 0), lower, upper)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Penalty:
    """Of weights (d,) or (d, K); the intercept is never penalised, nor bounded.

    Bounds are a number for all columns or one for each, (d,).
    """

    l2: float = 0.0
    l1: float = 0.0
    lower: Any = -np.inf
    upper: Any = np.inf

    @property
    def is_nothing(self) -> bool:
        """True where it adds nothing to the mean loss."""
        return self.l1 == 0.0 and self.l2 == 0.0

    @property
    def is_bounded(self) -> bool:
        """True where some column has a bound."""
        free = np.all(np.equal(self.lower, -np.inf)) and np.all(self.upper == np.inf)
        return not free

    @property
    def is_smooth(self) -> bool:
        """True where the ridge is all there is: exact under s steps."""
        return self.l1 == 0.0 and not self.is_bounded

    def of(self, columns: Any) -> "Penalty":
        """The same for some of the columns."""
        lower, upper = (
            bound if np.ndim(bound) == 0 else np.asarray(bound)[columns]
            for bound in (self.lower, self.upper)
        )
        return Penalty(self.l2, self.l1, lower, upper)

    def value(self, weights: Array) -> float:
        """l1‖w‖₁ + (l2/2)‖w‖², in float64."""
        value = 0.0
        if self.l2:
            value += 0.5 * self.l2 * float(np.sum(np.square(weights, dtype=np.float64)))
        if self.l1:
            value += self.l1 * float(np.sum(np.abs(weights), dtype=np.float64))
        return value

    def prox(self, weights: Array, step: float) -> Array:
        """weights ← prox_η(weights), in place, in their own dtype; zeros are exact."""
        if self.l1:
            small = weights.dtype.type(step * self.l1)
            weights -= np.clip(weights, -small, small)
        if self.is_bounded:
            lower, upper = self.bounds(weights)
            np.minimum(np.maximum(weights, lower, out=weights), upper, out=weights)
        return weights

    def least(self, weights: Array, slope: Array) -> Array:
        """The smallest subgradient of F at w, where `slope` is that of the smooth part.

        It is zero at the minimum and only there: at w_j = 0 what l1 cannot hold, at a
        bound only what points back inside. Without l1 and bounds it is the slope.
        """
        if self.is_smooth:
            return slope
        pull = np.where(
            weights == 0.0,
            slope - np.clip(slope, -self.l1, self.l1),
            slope + self.l1 * np.sign(weights),
        )
        # Weights may have been float32, and so what was a bound for them.
        lower, upper = self.bounds(weights, np.float32)
        rounded = weights.astype(np.float32)
        held = ((rounded <= lower) & (pull > 0.0)) | ((rounded >= upper) & (pull < 0.0))
        return np.where(held, 0.0, pull)

    def minimum(self, weights: Array, slope: Array) -> Array:
        """argmin_u of slope·u + p(u), shaped as the weights; ±inf where there is none.

        What a linear function and the penalty have for a minimum, column by column.
        """
        pull = -(slope - np.clip(slope, -self.l1, self.l1))
        with np.errstate(divide="ignore", invalid="ignore"):
            free = pull / self.l2 if self.l2 else np.where(pull, pull * np.inf, weights)
        if self.l2 == 0.0 and self.l1:
            # Where l1 holds the slope, 0 is a minimum, and so may be more.
            free = np.where(pull, free, np.where(np.abs(slope) < self.l1, 0.0, weights))
        lower, upper = self.bounds(weights)
        return np.asarray(np.minimum(np.maximum(free, lower), upper))

    def bounds(self, weights: Array, dtype: Any = None) -> tuple[Array, Array]:
        """Return both bounds, shaped so that they meet these weights."""
        lower, upper = (
            np.asarray(bound, dtype=dtype or weights.dtype)
            for bound in (self.lower, self.upper)
        )
        if weights.ndim == 2:
            return _upright(lower), _upright(upper)
        return lower, upper


def _upright(bound: Array) -> Array:
    """(d,) as (d, 1)."""
    return bound[:, None] if bound.ndim else bound
