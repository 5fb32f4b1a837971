"""The squared-hinge machine by its dual, row by row; ranks hold columns.

    F(w) = (1/n) Σ c_i max(0, 1 − y_i (a_i·w + o_i))² / 2 + (λ/2)‖w‖²
    D(α) = (1/n) Σ (e_i α_i − α_i² / (2 c_i)) − (λ/2)‖w‖²,   α ≥ 0,   e_i = 1 − y_i o_i
    w = (1/(λ n)) Σ α_i y_i a_i

An item is y_i a_i, and v is w itself: up to date on every rank, for its columns. There
is no intercept: F leaves it unpenalised, which would tie all α together, Σ α y = 0.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.form import Form, Look
from hpcsgd.coordinate.items import Array, Items
from hpcsgd.coordinate.separable import SquaredHinge
from hpcsgd.csr import Csr
from hpcsgd.objective import Objective
from hpcsgd.penalties import Penalty


class Dual(Form):
    """Every rank holds α whole, and its columns of w."""

    name = "dual"

    def __init__(self, objective: Objective) -> None:
        shard, grid = objective.shard, objective.grid
        self.objective = objective
        self.members = grid.members
        self.rows = shard.total_rows
        signs = shard.targets[:, 0].astype(np.float64)
        c, e = np.ones(self.rows), np.ones(self.rows)
        if shard.weights is not None:
            c = shard.weights[:, 0].astype(np.float64)
        if shard.offsets is not None:
            e -= signs * shard.offsets[:, 0]
        self.separable: SquaredHinge = SquaredHinge(c, e)
        self.items = Items(_signed(shard.matrix, signs))
        self.scale = 1.0 / (objective.penalty.l2 * self.rows)
        self.worst = float(c @ np.square(np.maximum(e, 0.0))) / (2 * self.rows)

    def begin(self, weights: Array | None = None) -> Point:
        """α = 0, and so is w; or the α that the scores of these weights call for."""
        x, v = np.zeros(self.items.count), np.zeros(self.items.width)
        if weights is None:
            return Point(x, v)
        scores = self.items.products(weights[:, 0])
        self.members.sum(scores, "control")
        hinge = self.separable
        x = hinge.weights * np.maximum(hinge.margins - scores, 0.0)
        return Point(x, self.scale * self.items.combined(x))

    def become(self, penalty: Penalty, point: Point) -> None:
        """α stays, and w goes with λ."""
        point.v *= self.objective.penalty.l2 / penalty.l2
        self.objective = replace(self.objective, penalty=penalty)
        self.scale = 1.0 / (penalty.l2 * self.rows)

    def model(self, point: Point) -> tuple[Array, Array | None]:
        """w, and no intercept."""
        return point.v[:, None], None

    def look(self, point: Point) -> Look:
        """By one pass over the rows, in float64, on exact values.

        The gap is F(w) − D(α) at the α that the scores of w call for, α_i = c_i max(0,
        1 − y_i t_i): it is ‖∇F‖² / (2λ), and holds for exact values where α was found
        on rounded ones.
        """
        slope = self.objective.slope(point.v[:, None], None)
        gradient = self.objective.norm(slope)
        return Look(slope.loss, gradient, gradient**2 / (2 * self.objective.penalty.l2))


def _signed(matrix: Any, signs: Array) -> Array:
    """The rows y_i a_i, in the dtype that they have."""
    if isinstance(matrix, Csr):
        data = matrix.data * np.repeat(signs, matrix.lengths).astype(matrix.data.dtype)
        signed: Array = matrix.with_data(data).to_scipy()
        return signed
    turned: Array = matrix * signs.astype(matrix.dtype)[:, None]
    return turned
