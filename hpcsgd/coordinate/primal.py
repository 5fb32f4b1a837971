"""Least squares with l1, l2 and bounds, column by column; ranks hold rows.

With C = diag(c), mean 1, the intercept is minimised over exactly and for good: columns
and targets are centred by their weighted means ā and ȳ,

    F(w) = ‖ρ‖² / (2n) + l1‖w‖₁ + (l2/2)‖w‖²,    ρ = C^½ [(A − 1āᵀ) w − (y − o − ȳ)]
    β = ȳ − āᵀw

so an item is a column of C^½(A − 1āᵀ), and v = ρ/n. The means take one sum of d + 1
words before the first exchange. Without an intercept ā = 0 and ȳ = 0.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.form import Form, Look
from hpcsgd.coordinate.items import Array, Items
from hpcsgd.coordinate.separable import ElasticNet
from hpcsgd.csr import Csr
from hpcsgd.data.shard import Shard
from hpcsgd.objective import BLOCK_ROWS, Objective, Slope
from hpcsgd.penalties import Penalty

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Means:
    """Over all rows, weighted: what an intercept takes off."""

    columns: Array  # ā, (d,)
    target: float  # ȳ, offsets taken off


class Primal(Form):
    """Every rank holds w whole, and the residuals of its rows."""

    name = "primal"

    def __init__(self, objective: Objective, intercept: bool) -> None:
        shard, grid = objective.shard, objective.grid
        self.objective = objective
        self.members = grid.replicas
        self.rows = shard.total_rows
        self.scale = 1.0 / shard.total_rows
        self.separable: ElasticNet = ElasticNet(objective.penalty)
        self.intercept = intercept
        self.means = self._means(shard)
        roots = np.sqrt(weights_of(shard))
        self.items = _items(
            shard,
            None if shard.weights is None else roots,
            self.means.columns if intercept else None,
        )
        self.target = roots * (_plain_targets(shard) - self.means.target)
        word = np.array([self.target @ self.target])
        self.members.sum(word, "control")
        self.worst = float(word[0]) / (2 * self.rows)

    def begin(self, weights: Array | None = None) -> Point:
        """w = 0, or these weights, or as near to them as the bounds let it."""
        x = np.zeros(self.items.count) if weights is None else weights[:, 0].copy()
        self.objective.penalty.prox(x, 0.0)
        v = -self.scale * self.target
        if x.any():
            v += self.scale * self.items.combined(x)
        return Point(x, v)

    def become(self, penalty: Penalty, point: Point) -> None:
        """w and its residuals do not depend on the penalty."""
        self.objective = replace(self.objective, penalty=penalty)
        self.separable = ElasticNet(penalty)

    def model(self, point: Point) -> tuple[Array, Array | None]:
        """w, and the β that goes with it."""
        if not self.intercept:
            return point.x[:, None], None
        shift = self.means.target - self.means.columns @ point.x
        return point.x[:, None], np.array([shift])

    def look(self, point: Point) -> Look:
        """By one pass over the rows, in float64, on exact values."""
        weights, intercept = self.model(point)
        slope = self.objective.slope(weights, intercept)
        gradient = self.objective.norm(slope)
        gap = self._gap(point.x, slope)
        return Look(slope.loss, gradient, gap)

    def _gap(self, w: Array, slope: Slope) -> float | None:
        """F(w) − D(θ) at θ = τ · residuals, with the τ that makes D finite and large.

        P = R/2 + Σψ(w) and D(τ) = −τ²R/2 + τ(R − g·w) − Σψ*(−τg), where R = ‖ρ‖²/n
        and g is the slope of the squares.
        """
        penalty = self.objective.penalty
        drift = 0.0 if slope.intercept is None else float(slope.intercept[0])
        added = penalty.value(w)
        squares = 2 * (slope.loss - added) - drift**2  # R of the best intercept
        g = slope.weights[:, 0] - penalty.l2 * w
        if slope.intercept is not None:
            g = g - self.means.columns * drift
        tau = self._largest_scale(g)
        if tau == 0.0:
            return None  # without l1, l2 and bounds no θ is known to be feasible
        free = squares - float(g @ w)
        if penalty.l2 == 0.0 and squares > 0.0:  # D is a parabola where ψ* is 0
            tau = min(tau, max(free / squares, 0.0)) if not penalty.is_bounded else tau
        conjugate = float(np.sum(self.separable.conjugate(-tau * g)))
        dual = -(tau**2) * squares / 2 + tau * free - conjugate
        gap = max(slope.loss - dual, EPS * slope.loss)  # no fewer digits than F has
        if not penalty.l2:
            return gap
        # F is convex by l2 at least, and there no digits cancel.
        least = penalty.least(w, g + penalty.l2 * w)
        return min(gap, float(least @ least) / (2 * penalty.l2) + drift**2 / 2)

    def _largest_scale(self, g: Array) -> float:
        """τ ≤ 1 for which ψ*(−τg) is finite in every column."""
        penalty = self.objective.penalty
        if penalty.l2:
            return 1.0
        lower, upper = self.separable.bounds(slice(None))
        endless = ((g < 0.0) & np.isinf(upper)) | ((g > 0.0) & np.isinf(lower))
        largest = float(np.abs(g[endless]).max(initial=0.0))
        # One digit inside: what is scaled to the edge may be rounded over it.
        return 1.0 if largest <= penalty.l1 else penalty.l1 / largest * (1 - 1e-15)

    def _means(self, shard: Shard) -> Means:
        sums = np.zeros(shard.width + 1)
        if not self.intercept:
            return Means(sums[:-1], 0.0)
        c, matrix = weights_of(shard), _as_matrix(shard.matrix)
        for first in range(0, shard.height, BLOCK_ROWS):
            rows = slice(first, first + BLOCK_ROWS)
            sums[:-1] += matrix[rows].T.astype(np.float64) @ c[rows]
        sums[-1] = c @ _plain_targets(shard)
        self.members.sum(sums, "control")
        sums /= shard.total_rows
        return Means(sums[:-1], float(sums[-1]))


def _as_matrix(matrix: Any) -> Any:
    return matrix.to_scipy() if isinstance(matrix, Csr) else matrix


def _plain_targets(shard: Shard) -> Array:
    """y − o of this rank's rows, in float64."""
    targets: Array = shard.targets[:, 0].astype(np.float64)
    return targets if shard.offsets is None else targets - shard.offsets[:, 0]


def weights_of(shard: Shard) -> Array:
    """c of this rank's rows, in float64."""
    if shard.weights is None:
        return np.ones(shard.height)
    weights: Array = shard.weights[:, 0].astype(np.float64)
    return weights


def columns_of(shard: Shard) -> Any:
    """The columns as rows, in the dtype that they have; sparse ones stay sparse."""
    matrix = _as_matrix(shard.matrix)
    if isinstance(shard.matrix, Csr):
        return matrix.T.tocsr()
    return np.array(matrix.T, order="C")  # a copy, whatever the shape


def _items(shard: Shard, roots: Array | None, means: Array | None) -> Items:
    """The columns as items: dense ones are centred and weighted once and for all."""
    turned = columns_of(shard)
    if isinstance(shard.matrix, Csr):
        return Items(turned, means, roots)
    if means is not None:
        np.subtract(turned, means[:, None], out=turned, casting="same_kind")
    if roots is not None:
        np.multiply(turned, roots.astype(turned.dtype), out=turned)
    return Items(turned)
