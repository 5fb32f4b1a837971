"""EG±: weights of either sign with |w|₁ ≤ radius, as entropy on 2d + 1 coordinates.

    w = radius (u⁺ − u⁻),   u⁺ ∝ u⁺ exp(−η g),  u⁻ ∝ u⁻ exp(η g),  u⁰ as it is

u⁰ is the slack: what neither sign has. All 2d + 1 begin alike, which is w = 0.
"""

from collections.abc import Callable

import numpy as np

from hpcsgd.mirror.base import Array, Mirror, Point, log_sum

PLUS, MINUS, SLACK = "mirror_plus", "mirror_minus", "mirror_slack"


class Signed(Mirror):
    """Logarithms of all three are kept, and mixed."""

    kept = (PLUS, MINUS)
    shared = (SLACK,)
    logarithms = True
    totals = 1

    def __init__(
        self, columns: int, gather: Callable[[Array], Array], radius: float
    ) -> None:
        super().__init__(columns, gather)
        self.radius = radius

    def begin(self, point: Point) -> None:
        """All coordinates alike."""
        for array in self.travels(point):
            array[...] = -np.log(2 * self.columns + 1)
        self.arrive(point)

    def step(self, point: Point, gradient: Array, rate: float) -> None:
        """Needs the largest logarithm and the sum of all members."""
        gradient *= gradient.dtype.type(rate)
        point.kept[PLUS][...] -= gradient
        point.kept[MINUS][...] += gradient
        self.repair(point)

    def travels(self, point: Point) -> list[Array]:
        """2d + 1 coordinates of every column."""
        return [point.kept[PLUS], point.kept[MINUS], point.shared[SLACK]]

    def arrive(self, point: Point) -> None:
        """radius (u⁺ − u⁻)."""
        weights = point.weights
        np.exp(point.kept[PLUS], out=weights)
        weights -= np.exp(point.kept[MINUS])
        weights *= weights.dtype.type(self.radius)

    def repair(self, point: Point) -> None:
        """Divide by the sum, in which the slack is once and not once a member."""
        plus, minus, slack = self.travels(point)
        pair = np.concatenate([plus, minus]).astype(np.float64)
        found = np.concatenate([self.gather(log_sum(pair)), slack.astype(np.float64)])
        whole = log_sum(found)
        for array in (plus, minus, slack):
            array -= whole.astype(array.dtype)
        self.arrive(point)
