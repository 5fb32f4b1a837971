"""ψ = Σ x ln x on the simplex: weights of at least zero, whose sum is the radius.

    y = radius · x exp(−η g) / Σ x exp(−η g)

Logarithms are kept, and mixed: a weight that is too small for a number comes back when
gradients want it, where a zero would be one for ever.
"""

from collections.abc import Callable

import numpy as np

from hpcsgd.mirror.base import Array, Mirror, Point, log_sum

LOG = "mirror_log"  # ln(x / radius)


class Entropy(Mirror):
    """Exponentiated gradients."""

    kept = (LOG,)
    logarithms = True
    totals = 1

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], radius: float
    ) -> None:
        super().__init__(columns, gather)
        self.radius = radius

    def begin(self, point: Point) -> None:
        """All weights alike."""
        point.kept[LOG][...] = -np.log(self.columns)
        self.arrive(point)

    def step(self, point: Point, gradient: Array, rate: float) -> None:
        """Needs the largest logarithm and the sum of all members."""
        gradient *= gradient.dtype.type(rate)
        point.kept[LOG][...] -= gradient
        self.repair(point)

    def travels(self, point: Point) -> list[Array]:
        """The logarithms."""
        return [point.kept[LOG]]

    def arrive(self, point: Point) -> None:
        """A mean of points of the simplex is one."""
        point.weights[...] = self.radius * np.exp(point.kept[LOG])

    def repair(self, point: Point) -> None:
        """Divide by the sum."""
        logs = point.kept[LOG]
        own = log_sum(logs.astype(np.float64))
        logs -= log_sum(self.gather(own)).astype(logs.dtype)
        self.arrive(point)
