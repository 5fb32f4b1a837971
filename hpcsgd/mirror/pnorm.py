"""ψ = ½|x|_p²: p near 1 for weights of which few are not zero, p = 2 for SGD.

    θ = ∇ψ(x) = sign(x) |x|^(p−1) / |x|_p^(p−2),  θ ← θ − η g,  y = the same of q and θ

with 1/p + 1/q = 1. What is raised to a power is first divided by its Euclidean norm:
the power of q, which is large where d is, underflows otherwise.
"""

from collections.abc import Callable
from math import log

import numpy as np

from hpcsgd.mirror.base import Array, Mirror, Point


def usual_power(columns: int) -> float:
    """2 ln d / (2 ln d − 1), and 2 where that would be more."""
    twice = 2.0 * log(columns)
    return twice / (twice - 1.0) if twice > 2.0 else 2.0


class PNorm(Mirror):
    """The weights are all that is kept; their dual is found anew in every step."""

    totals = 4

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], power: float
    ) -> None:
        super().__init__(columns, gather)
        self.power = power or usual_power(columns)

    def step(self, point: Point, gradient: Array, rate: float) -> None:
        """Needs |x|₂, |x|_p, |θ|₂ and |θ|_q of all columns."""
        dual = self._link(point.weights.astype(np.float64), self.power)
        dual -= rate * gradient.astype(np.float64)
        back = self.power / (self.power - 1.0)
        point.weights[...] = self._link(dual, back)

    def _link(self, x: Array, power: float) -> Array:
        """∇ ½|x|_power², which has the norm of x in the dual of this one."""
        size = np.sqrt(self.total(np.square(x).sum(axis=0)))
        unit = np.abs(x) / np.where(size == 0.0, 1.0, size)
        norm = self.total((unit**power).sum(axis=0)) ** (1.0 / power)
        norm = np.where(norm == 0.0, 1.0, norm)
        found: Array = np.sign(x) * (unit / norm) ** (power - 1.0) * (norm * size)
        return found
