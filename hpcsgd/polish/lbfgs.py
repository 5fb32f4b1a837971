"""L-BFGS on the grid of ranks: from wherever the steps ended to the optimum.

An iteration takes two passes over the rows, A p for the scores of its direction and
Aᵀr for the gradient where it arrives, and these messages ("evaluate"):

    over members     nK + K + 3 words    scores of the direction
    over all ranks   3 words a trial     the value and slope of the line search
    over replicas    (d_c + 1) K words   the direction, and again for the gradient
    over all ranks   3(2M + 1) + 6 words inner products, and who wants to stop
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hpcsgd.polish.line import Trial, search
from hpcsgd.polish.memory import Array, Memory
from hpcsgd.polish.point import Landscape, Point
from hpcsgd.polish.scaling import Scaling, curvatures, make_scaling
from hpcsgd.polish.settings import PolishConfig

DEPTH = 20  # pairs that are kept; larger = fewer passes, more memory
LEAST_DEPTH = 5
KEPT_WORDS = 2**25  # of all pairs together, over all columns: fewer of wide ones
STALE = 40  # iterations without a gain that a float64 can show
STUCK = 1e-6  # of the residuals: a gradient above it is no matter of rounding
EPS = float(np.finfo(np.float64).eps)


class Ending(Enum):
    """Why it went no further."""

    CONVERGED = "converged"
    ROUNDING = "at rounding"
    STUCK = "stuck"
    PASSES = "passes used up"
    ASKED = "asked to stop"

    @property
    def is_good(self) -> bool:
        """Whether this is the optimum, as far as float64 can tell."""
        return self in (Ending.CONVERGED, Ending.ROUNDING)


@dataclass(frozen=True)
class Stand:
    """What is known after an iteration, the same on all ranks."""

    passes: int
    trials: int
    loss: float
    gradient: float  # ‖∇F‖
    relative: float  # ‖g‖ of the scaled variables, over the size of the residuals
    floor: float  # of the latter: below it there are no digits
    wishes: tuple[int, ...]  # how many ranks have each of them


# What a rank wishes after an iteration, one word for each wish; all ranks are asked.
Ask = Callable[[Stand, Point], tuple[int, ...]]


def depth_for(columns: int) -> int:
    """How many pairs are kept of so many variables; the same on all ranks."""
    return max(LEAST_DEPTH, min(DEPTH, KEPT_WORDS // (2 * columns)))


class Lbfgs:
    """One run of it; `ask` says what this rank wishes, after every iteration."""

    def __init__(
        self,
        land: Landscape,
        settings: PolishConfig,
        ask: Ask,
    ) -> None:
        self.land = land
        self.settings = settings
        self.ask = ask
        self.wishes: tuple[int, ...] = (0, 0, 0)
        self.passes = self.trials = 0

    def run(self, weights: Array, intercept: Array | None) -> tuple[Point, Ending]:
        """To the optimum from these weights (d_c, K) and intercept (K,)."""
        point = self._begin(weights, intercept)
        stand = self.first = self._hear(point)
        best = _Best(stand, self.here.noise)
        while True:
            ending = self._ending(stand, best)
            if ending is not None:
                self.last = stand
                return point, ending
            if not self._step(point):
                self.last = stand
                return point, _given_up(stand)
            stand = self._hear(point)
            best.look(stand, self.here.noise)

    def _begin(self, weights: Array, intercept: Array | None) -> Point:
        land, rows = self.land, self.land.rows
        point = land.stand(weights, intercept)
        h = curvatures(land.family, point.scores, rows.targets) * rows.share
        self.scaling = make_scaling(rows.moments(h), land.l2, land.has_intercept)
        gradient = self._scaled(point)
        total = rows.objective.shard.total_columns * rows.columns
        self.memory = Memory(depth_for(total), len(gradient))
        self.memory.begin(gradient)
        self.here = land.look(point, land.nowhere(point), 0.0)
        return point

    def _scaled(self, point: Point) -> Array:
        """The gradient in the scaled variables, flat: this member's part, then ν's."""
        parts = self.scaling.gradient(point.slope, point.drift)
        return np.concatenate([part.reshape(-1) for part in parts])

    def _step(self, point: Point) -> bool:
        """One iteration; False where no step leads down that float64 can show."""
        self.passes += 1
        for move, slope in self._directions(point):
            found = self._walk(point, move, slope) if slope < 0.0 else None
            if found is not None:
                self.memory.put(found.step * move, self._scaled(point))
                return True
        return False

    def _directions(self, point: Point) -> Iterator[tuple[Array, float]]:
        """What to try, one after the other: p, this rank's part of it, and g·p."""
        yield self._combined()
        if self.memory.order:
            self.memory.forget()
            yield self._combined()

    def _combined(self) -> tuple[Array, float]:
        """That of the memory, the same bits for all replicas.

        Where columns are nearly alike, steps are long: what differs by rounding at
        first would be another model soon.
        """
        move, slope = self.memory.direction()
        return self.land.rows.grid.replicas.broadcast(move, 0, "evaluate"), slope

    def _walk(self, point: Point, move: Array, slope: float) -> Trial | None:
        """Go along the move as far as is good; None: nowhere."""
        land, width = self.land, point.weights.size
        weights = self.scaling.weights(move[:width].reshape(point.weights.shape))
        intercept = move[width:] / self.scaling.level
        way = land.along(point, weights, intercept, self.scaling.pull(weights))
        begin = Trial(0.0, self.here.value, slope, self.here.noise)
        found, trials = search(lambda step: land.look(point, way, step), begin)
        self.trials += trials
        if found is not None:
            land.go(point, way, found.step)
            self.here = found
        return found

    def _hear(self, point: Point) -> Stand:
        """Inner products, sizes and wishes, in one message to all ranks."""
        words = self.memory.words
        message = np.zeros(words + 3 + len(self.wishes))
        message[words : words + 3] = self._sizes(point)
        message[words + 3 :] = self.wishes
        if self.land.rows.grid.replica == 0:
            message[:words] = self.memory.parts(self._own(point))
        self.land.world.sum(message, "evaluate")
        self.memory.hear(message[:words])
        stand = self._judged(message[words:])
        self.wishes = self.ask(stand, point)
        return stand

    def _own(self, point: Point) -> slice:
        """This rank's part of the vectors: the intercept counts once."""
        return slice(None) if self.land.is_first else slice(point.weights.size)

    def _sizes(self, point: Point) -> tuple[float, float, float]:
        """‖∇F‖², and in the units of scaled gradients residuals² and scores²."""
        square = residuals = scores = 0.0
        if self.land.rows.grid.replica == 0:
            square = float(np.vdot(point.slope, point.slope))
        if self.land.is_first:
            square += float(np.vdot(point.drift, point.drift))
        if self.land.speaks:
            share, level = self.land.rows.share, np.square(self.scaling.level)
            residuals = float((share * np.square(point.residuals) / level).sum())
            scores = float((share * np.square(point.scores) * level).sum())
        return square, residuals, scores

    def _judged(self, heard: Array) -> Stand:
        square, residuals, scores = (float(np.sqrt(max(v, 0.0))) for v in heard[:3])
        size = max(residuals, np.finfo(float).tiny)
        return Stand(
            passes=self.passes,
            trials=self.trials,
            loss=self.here.value,
            gradient=square,
            relative=float(np.sqrt(max(self.memory.square, 0.0))) / size,
            floor=4.0 * EPS * (1.0 + scores / size),
            wishes=tuple(int(count) for count in heard[3:]),
        )

    def _ending(self, stand: Stand, best: "_Best") -> Ending | None:
        if stand.relative <= self.settings.tol:
            return Ending.CONVERGED
        if stand.relative <= stand.floor:
            return Ending.ROUNDING
        if best.age >= STALE:
            return _given_up(stand)
        if any(stand.wishes):
            return Ending.ASKED
        return Ending.PASSES if self.passes >= self.settings.passes else None


def _given_up(stand: Stand) -> Ending:
    return Ending.ROUNDING if stand.relative <= STUCK else Ending.STUCK


class _Best:
    """How long ago there was a gain."""

    def __init__(self, stand: Stand, noise: float) -> None:
        self.loss, self.relative, self.age = stand.loss, stand.relative, 0

    def look(self, stand: Stand, noise: float) -> None:
        """After an iteration."""
        self.age += 1
        if stand.loss < self.loss - noise:
            self.loss, self.age = stand.loss, 0
        if stand.relative < 0.9 * self.relative:
            self.relative, self.age = stand.relative, 0


__all__ = ["DEPTH", "Ending", "Lbfgs", "Scaling", "Stand", "depth_for"]
