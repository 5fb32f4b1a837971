"""ψ = ½ Σ (√h + ε) x², h = Σ g² so far: Adagrad, with an h of every replica's own."""

from collections.abc import Callable

import numpy as np

from hpcsgd.mirror.base import Array, Mirror, Point

SQUARES = "mirror_h"


class Diagonal(Mirror):
    """h ← h + g²;  y = x − η g / (√h + ε). Weights are mixed, h is not."""

    kept = (SQUARES,)

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], epsilon: float
    ) -> None:
        super().__init__(columns, gather)
        self.epsilon = epsilon

    def step(self, point: Point, gradient: Array, rate: float) -> None:
        """Word by word: nothing of other members."""
        squares = point.kept[SQUARES]
        squares += np.square(gradient)
        below = np.sqrt(squares)
        below += below.dtype.type(self.epsilon)
        gradient *= gradient.dtype.type(rate)
        gradient /= below
        point.weights[...] -= gradient
