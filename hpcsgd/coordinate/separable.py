"""ψ: what is added for every unknown by itself, with its proximal step.

`step` gives the x that minimises  g (x − x₀) + (L/2)(x − x₀)² + ψ(x),  and `conjugate`
is ψ*(u) = max over x of u x − ψ(x).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.penalties import Penalty

Array = NDArray[Any]


class Separable(Protocol):
    """Of all unknowns; `numbers` say which of them are meant."""

    def step(self, numbers: Array, x: Array, slope: Array, curvature: float) -> Array:
        """Where the proximal step from x ends."""

    def step_one(self, number: int, x: float, slope: float, curvature: float) -> float:
        """The same for a single unknown, without arrays."""


@dataclass(frozen=True)
class ElasticNet:
    """l1|x| + (l2/2)x² within bounds: the unknowns are weights."""

    penalty: Penalty

    def step(self, numbers: Array, x: Array, slope: Array, curvature: float) -> Array:
        """clip(S(L x − g, l1) / (L + l2)); a column of zeros goes to the least ψ."""
        penalty = self.penalty
        if curvature + penalty.l2 == 0.0:
            end = np.zeros_like(x) if penalty.l1 else x.copy()
        else:
            end = curvature * x - slope
            end -= np.clip(end, -penalty.l1, penalty.l1)
            end /= curvature + penalty.l2
        if self.is_bounded:
            lower, upper = self.bounds(numbers)
            np.minimum(np.maximum(end, lower, out=end), upper, out=end)
        return end

    def step_one(self, number: int, x: float, slope: float, curvature: float) -> float:
        """As `step`."""
        l1, total = self.penalty.l1, curvature + self.penalty.l2
        if total == 0.0:
            end = 0.0 if l1 else x
        else:
            end = curvature * x - slope
            end = (max(end - l1, 0.0) if end > 0.0 else min(end + l1, 0.0)) / total
        if self.is_bounded:
            lower, upper = self.bounds(number)
            end = min(max(end, float(lower)), float(upper))
        return end

    @cached_property
    def is_bounded(self) -> bool:
        """Asked for in every step."""
        return self.penalty.is_bounded

    def bounds(self, numbers: Any) -> tuple[Any, Any]:
        """Of these columns."""
        own = self.penalty.of(numbers)
        return own.lower, own.upper

    def conjugate(self, u: Array) -> Array:
        """ψ*(u), inf where nothing holds x."""
        lower, upper = self.bounds(slice(None))
        over = u - np.clip(u, -self.penalty.l1, self.penalty.l1)
        if self.penalty.l2:
            best = over / self.penalty.l2
        else:
            best = np.where(over > 0.0, np.inf, np.where(over < 0.0, -np.inf, 0.0))
        best = np.clip(best, lower, upper)
        away = np.isinf(best)
        best = np.where(away, 0.0, best)
        l1, l2 = self.penalty.l1, self.penalty.l2
        value = u * best - l1 * np.abs(best) - l2 / 2 * np.square(best)
        return np.where(away, np.inf, value)


@dataclass(frozen=True)
class SquaredHinge:
    """α²/(2c) − e α, α ≥ 0: the unknowns are dual, one for each row."""

    weights: Array  # c, mean 1
    margins: Array  # e = 1 − y · offset

    def step(self, numbers: Array, x: Array, slope: Array, curvature: float) -> Array:
        """max(0, (L α − g + e) / (L + 1/c)); a row without weight has none."""
        c = self.weights[numbers]
        end = (curvature * x - slope + self.margins[numbers]) * c
        end /= curvature * c + 1.0
        return np.maximum(end, 0.0, out=end)

    def step_one(self, number: int, x: float, slope: float, curvature: float) -> float:
        """As `step`."""
        c, e = float(self.weights[number]), float(self.margins[number])
        return max((curvature * x - slope + e) * c / (curvature * c + 1.0), 0.0)
