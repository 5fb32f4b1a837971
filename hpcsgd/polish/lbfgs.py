"""L-BFGS on the grid of ranks: from wherever the steps ended to the optimum.

An iteration takes two passes over the rows, A p for the scores of its direction and
Aᵀr for the gradient where it arrives, and these messages ("evaluate"):

    over members     nK + K + 3 words    scores of the direction
    over all ranks   3 words a trial     the value and slope of the line search
    over replicas    (d_c + 1) K words   the direction, and again for the gradient
    over all ranks   3(2M + 1) + 6 words inner products, and who wants to stop

The scaling of the variables is that of the point where it was taken. It is taken anew
after 50, 100, 200, ... iterations, and where the gradient is small but the certified
gap is not: the pairs of the old variables are forgotten then.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hpcsgd.polish.centring import Centers, find_centers
from hpcsgd.polish.certificate import Certificate
from hpcsgd.polish.line import Trial, search
from hpcsgd.polish.memory import Array, Memory
from hpcsgd.polish.point import Landscape, Point
from hpcsgd.polish.rows import Moments
from hpcsgd.polish.scaling import LEAST, Scaling, curvatures, make_scaling
from hpcsgd.polish.settings import PolishConfig

DEPTH = 20  # pairs that are kept; larger = fewer passes, more memory
LEAST_DEPTH = 5
KEPT_WORDS = 2**25  # of all pairs together, over all columns: fewer of wide ones
STALE = 40  # iterations without a gain that a float64 can show
RESCALED_FIRST = 50  # iterations before the first look at the scaling; then doubled
RESCALED_BY = 4.0  # change of a column's curvature for which the scaling is replaced
REFINEMENTS = 6  # of a point whose certified gap is above its limit
TIGHTER = 0.1  # of a gradient that a refinement begins with
SHRINKS = 0.5  # of the gap: a refinement that leaves more of it was the last
STUCK = 1e-6  # of the residuals: a gradient above it is no matter of rounding
EPS = float(np.finfo(np.float64).eps)


class Ending(Enum):
    """Why it went no further."""

    CONVERGED = "converged"
    ROUNDING = "at rounding"
    STUCK = "stuck"
    PASSES = "passes used up"
    UNCERTIFIED = "gap above its limit"
    HIDDEN = "small gradient, but F would fall"
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

    fall: Certificate | None = None  # what a step of Newton expects, where one is tried

    def __init__(
        self,
        land: Landscape,
        settings: PolishConfig,
        ask: Ask,
        certificate: Certificate | None = None,
    ) -> None:
        self.land = land
        self.settings = settings
        self.ask = ask
        self.certificate = certificate  # None: the gradient alone decides
        self.tol = settings.tol  # refinements lower it
        self.refined_at: list[float] = []  # how far above points were that were refined
        self.rescaled_at = RESCALED_FIRST
        self.centers: Centers | None = None  # what the columns of `land` lack
        self.wishes: tuple[int, ...] = (0, 0, 0)
        self.passes = self.trials = 0

    def run(self, weights: Array, intercept: Array | None) -> tuple[Point, Ending]:
        """Return the optimum reached from weights (d_c, K) and intercept (K,)."""
        point = self._begin(weights, intercept)
        stand = self.first = self._hear(point)
        best = _Best(stand, self.here.noise)
        while True:
            ending = self._ending(stand, best)
            if ending is None and not self._step(point):
                ending = _given_up(stand)
            if ending is None:
                if self.passes == self.rescaled_at:
                    self.rescaled_at *= 2
                    self._rescale(point, at_least=RESCALED_BY)
                stand = self._hear(point)
                best.look(stand, self.here.noise)
                continue
            ending = self._certified(point, stand, ending)
            if ending is not None:
                self.last = stand
                return point, ending
            stand = self._hear(point)
            # A point that looked optimal has to move on in the new variables.
            self.tol = min(self.tol, TIGHTER * stand.relative)
            best = _Best(stand, self.here.noise)

    def _begin(self, weights: Array, intercept: Array | None) -> Point:
        point = self.land.stand(weights, intercept)
        moments = self._moments_at(point)
        if intercept is not None:
            self.centers = find_centers(self.land.rows, moments)
        if intercept is not None and self.centers is not None:
            self.land = self.land.centred(self.centers)
            moved = self.centers.moved(self.land.rows.objective, weights)
            point = self.land.stand(weights, intercept + moved)
            moments = self._moments_at(point)
        self.scaling = make_scaling(moments, self.land.l2, self.land.has_intercept)
        self._forget(point)
        self.here = self.land.look(point, self.land.nowhere(point), 0.0)
        return point

    def _moments_at(self, point: Point, floor: float = LEAST) -> Moments:
        """Return the moments of columns under the curvatures at a point: one pass."""
        rows = self.land.rows
        h = curvatures(self.land.family, point.scores, rows.targets, floor)
        return rows.moments(h * rows.share)

    def _forget(self, point: Point) -> None:
        """Begin the memory with the gradient at a point in the variables of now."""
        rows, gradient = self.land.rows, self._scaled(point)
        total = rows.objective.shard.total_columns * rows.columns
        self.memory = Memory(depth_for(total), len(gradient))
        self.memory.begin(gradient)

    def _rescale(self, point: Point, at_least: float = 1.0) -> None:
        """Take variables for the curvatures at a point, where they have changed.

        With a ridge no row's curvature needs a floor: λ keeps every column off zero.
        """
        moments = self._moments_at(point, 0.0 if self.land.l2 else LEAST)
        fresh = make_scaling(moments, self.land.l2, self.land.has_intercept)
        change = np.square(np.log(fresh.roots / self.scaling.roots)).max(initial=0.0)
        change = max(change, np.square(np.log(fresh.level / self.scaling.level)).max())
        is_changed = bool(2.0 * np.sqrt(change) >= np.log(at_least))
        if self.land.world.max_flag(int(is_changed)):
            self.scaling = fresh
            self._forget(point)

    def _certified(self, point: Point, stand: Stand, ending: Ending) -> Ending | None:
        """Return how a run ends by the certified gap of its point; None: it goes on.

        The gap decides wherever there is one. The gradient is relative to residuals,
        which mislead where a few rows are huge, and vanish on separable data.
        """
        if self.certificate is None or ending is Ending.ASKED:
            return ending
        is_met = self.certificate.judge(self.land, point, stand.loss)
        if is_met is None or (is_met and ending.is_good):
            return ending
        if is_met:
            return Ending.CONVERGED
        if ending is Ending.PASSES:
            return ending
        if not self._goes_on(self.certificate.gap):
            return Ending.UNCERTIFIED if ending.is_good else ending
        self._rescale(point)
        return None

    def _goes_on(self, gap: float | None) -> bool:
        """Return whether a point this far above the optimum is refined. Collective."""
        gap, refined = gap or 0.0, self.refined_at
        gains = not refined or gap <= SHRINKS * refined[-1]
        goes_on = gains and len(refined) < REFINEMENTS
        goes_on &= self.passes < self.settings.passes
        if self.land.world.max_flag(int(not goes_on)):
            return False
        refined.append(gap)
        return True

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
        if stand.relative <= self.tol:
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
