"""ψ = ½|x|²: SGD, projected onto a ball where there is a radius."""

from collections.abc import Callable

import numpy as np

from hpcsgd.mirror.base import Array, Mirror, Point


class Euclidean(Mirror):
    """y = x − η g, and y · min(1, radius / |y|₂)."""

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], radius: float
    ) -> None:
        super().__init__(columns, gather)
        self.radius = radius
        self.totals = 1 if radius else 0

    def step(self, point: Point, gradient: Array, rate: float) -> None:
        """Needs |y|² of all columns where there is a radius, nothing else."""
        gradient *= gradient.dtype.type(rate)
        point.weights[...] -= gradient
        if not self.radius:
            return
        square = self.total(np.square(point.weights.astype(np.float64)).sum(axis=0))
        with np.errstate(divide="ignore"):
            shrink = np.minimum(self.radius / np.sqrt(square), 1.0)
        point.weights[...] *= shrink.astype(point.weights.dtype)
