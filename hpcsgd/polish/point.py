"""Where the finisher stands, and what it may see from there."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.polish.centring import Centers, centre
from hpcsgd.polish.line import Trial
from hpcsgd.polish.rows import AllRows

Array = NDArray[Any]
NOISE = 1e-14  # of the mean size of the losses: what a sum of them is worth


@dataclass
class Point:
    """Weights with their scores and residuals; the gradient that belongs to them."""

    weights: Array  # w, (d_c, K)
    intercept: Array  # β, (K,); zeros where there is none
    scores: Array  # t of the local rows, (n, K)
    residuals: Array  # ∂ℓ/∂t there
    slope: Array  # ∂F/∂w
    drift: Array  # ∂F/∂β; zeros where there is no intercept


@dataclass(frozen=True)
class Direction:
    """A move of the point, what it does to scores, and the ridge along it."""

    weights: Array  # p
    intercept: Array
    scores: Array  # q = A p + that of the intercept
    ridge: tuple[float, float, float]  # λ w·w / 2, λ w·p, λ p·p / 2


class Landscape:
    """F and its gradient around points, with their messages."""

    def __init__(self, rows: AllRows, l2: float, has_intercept: bool) -> None:
        self.rows = rows
        self.family = rows.objective.family
        self.l2 = l2
        self.has_intercept = has_intercept
        grid = rows.grid
        self.world = grid.world
        self.speaks = grid.member == 0  # for the rows of its replica
        self.is_first = self.speaks and grid.replica == 0

    def centred(self, centers: Centers) -> "Landscape":
        """Return the landscape over the rows less `centers`: the same F of w."""
        objective = centre(self.rows.objective, centers)
        return Landscape(replace(self.rows, objective=objective), self.l2, True)

    def stand(self, weights: Array, intercept: Array | None) -> Point:
        """Begin at these weights: two passes."""
        scores = self.rows.start(weights, intercept)
        columns = weights.shape[1]
        own = np.zeros(columns) if intercept is None else intercept
        nothing = np.empty(0)
        point = Point(weights, own, scores, nothing, nothing, nothing)
        self.look_around(point)
        return point

    def look_around(self, point: Point) -> None:
        """Take residuals and the gradient: one pass."""
        point.residuals = self.family.residual(point.scores, self.rows.targets)
        slope, drift = self.rows.gradient(point.residuals * self.rows.share)
        point.slope = slope + self.l2 * point.weights
        point.drift = drift * self.has_intercept

    def along(
        self, point: Point, weights: Array, intercept: Array, pull: Array
    ) -> Direction:
        """The direction of a move; `pull` is this member's part of what β gives up.

        One pass; what the ridge needs travels with the scores, and so does the move
        of β, which one member says for all: no two of them may round it differently.
        """
        own = [np.vdot(point.weights, v) for v in (point.weights, weights)]
        given = intercept * self.speaks - pull
        words = np.array([*own, np.vdot(weights, weights), *given])
        scores, total = self.rows.scores(weights, words)
        moved = total[3:] * self.has_intercept
        scores += moved
        ridge = total[:3] * self.l2 * np.array([0.5, 1.0, 0.5])
        return Direction(weights, moved, scores, (ridge[0], ridge[1], ridge[2]))

    def look(self, point: Point, direction: Direction, step: float) -> Trial:
        """F and its slope at one step: three words over the world, no pass."""
        words = np.zeros(3)
        if self.speaks:
            scores = point.scores + step * direction.scores
            words[:] = self._seen(scores, direction.scores)
        if self.is_first:
            still, first, second = direction.ridge
            words[0] += still + step * first + step * step * second
            words[1] += first + 2.0 * step * second
        # One sum over all ranks: what is decided by it is decided alike.
        self.world.sum(words, "evaluate")
        value, slope, size = (float(word) for word in words)
        return Trial(step, value, slope, NOISE * (size + abs(value)))

    def go(self, point: Point, direction: Direction, step: float) -> None:
        """Move there, and look around."""
        point.weights = point.weights + step * direction.weights
        point.intercept = point.intercept + step * direction.intercept
        point.scores = point.scores + step * direction.scores
        self.look_around(point)

    def nowhere(self, point: Point) -> Direction:
        """The direction in which nothing changes, for F where it stands."""
        still = np.zeros_like(point.weights)
        size = np.array([np.vdot(point.weights, point.weights)])
        self.rows.grid.members.sum(size, "evaluate")
        none = np.zeros_like(point.intercept)
        ridge = (0.5 * self.l2 * float(size[0]), 0.0, 0.0)
        return Direction(still, none, np.zeros_like(point.scores), ridge)

    def _seen(self, scores: Array, along: Array) -> tuple[float, float, float]:
        """Σ c ℓ, Σ c r·q and Σ c |ℓ| of the local rows, c as shares of all."""
        share, targets = self.rows.share, self.rows.targets
        losses = share * self.family.loss(scores, targets)
        residuals = self.family.residual(scores, targets)
        slope = np.vdot(share * residuals, along)
        return float(losses.sum()), float(slope), float(np.abs(losses).sum())
