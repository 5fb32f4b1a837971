"""Newton's steps for few columns: where L-BFGS would take long, ten passes do.

Columns that are nearly combinations of others make L-BFGS slow, whatever their scale.
The Hessian of P variables costs n P² operations and P² words; the system is solved by
one rank, by eigenvalues, so that what is flat stays where it is.

Without a ridge no gap bounds F − F*, and a small gradient may hide a large one: a row
1e7 times as long as the others scales their part of the gradient away. The fall that
a step of Newton expects, g·H⁺g/2, does not depend on any scale, and is held to the
limit of a gap there. It is an estimate, exact for least squares, and certifies nothing.
"""

from collections.abc import Iterator

import numpy as np

from hpcsgd.polish.certificate import Certificate
from hpcsgd.polish.hessian import Hessian
from hpcsgd.polish.lbfgs import EPS, Ending, Lbfgs, Stand
from hpcsgd.polish.memory import Array
from hpcsgd.polish.point import Point

MOST = 1024  # variables of which a Hessian is taken
DOUBT = 16.0  # times the curvature that is rounding: what sums over rows add to it
NOISE = 100.0  # roundings of a gradient's size that its sums may leave
TINY = float(np.finfo(float).tiny)
PATIENCE = 30  # passes of L-BFGS before: most problems are done by then


def is_small(columns: int, scores: int) -> bool:
    """Whether a Hessian is taken of so many columns with K scores a row."""
    return (columns + 1) * scores <= MOST


class Newton(Lbfgs):
    """L-BFGS whose directions are Newton's, from pass `after` on."""

    after = 0
    hessian: Hessian | None = None

    def _rescale(self, point: Point, at_least: float = 1.0) -> None:
        """Change the variables, which those of the Hessian have to follow."""
        super()._rescale(point, at_least)
        self.hessian = None
        if self.refined_at:
            self.after = self.passes

    def _certified(self, point: Point, stand: Stand, ending: Ending) -> Ending | None:
        """Return how a run ends by its gap, else by the fall that Newton expects."""
        ended = super()._certified(point, stand, ending)
        has_rule = self.land.l2 == 0.0 and self.settings.gap
        if ended is None or not (ended.is_good and has_rule):
            return ended
        self.fall = Certificate(self.settings.tol)
        fall = self._expected_fall(point, stand)
        is_met = self.fall.meets(self.land, fall, stand.loss)
        if is_met is not False:
            return ended
        if not self._goes_on(self.fall.gap):
            return Ending.HIDDEN
        self.after = self.passes
        return None

    def _expected_fall(self, point: Point, stand: Stand) -> float | None:
        """Return g·H⁺g/2, the same on all ranks; None: H is not finite. Collective."""
        whole, gradient = self._whole(point)
        word = np.zeros(1)
        if self.land.world.rank == 0:
            size = float(np.linalg.norm(gradient)) / max(stand.relative, TINY)
            word[0] = expected_fall(whole, gradient, NOISE * EPS * size)
        self.land.world.broadcast(word, 0, "evaluate")
        return None if np.isnan(word[0]) else float(word[0])

    def _whole(self, point: Point) -> tuple[Array, Array]:
        """Return Hessian and gradient of all variables at a point. Collective."""
        if self.hessian is None:
            self.hessian = Hessian(self.land, self.scaling)
        return self.hessian.take(point, self._scaled(point))

    def _directions(self, point: Point) -> Iterator[tuple[Array, float]]:
        """Newton's, then those of L-BFGS where it leads nowhere."""
        if self.passes > self.after:
            yield self._newton(point)
        yield from super()._directions(point)

    def _newton(self, point: Point) -> tuple[Array, float]:
        world = self.land.world
        whole, gradient = self._whole(point)
        words = np.zeros(len(gradient) + 1)
        if world.rank == 0:
            words[:-1] = downhill(whole, gradient)
            words[-1] = words[:-1] @ gradient
        world.broadcast(words, 0, "evaluate")
        columns = self.land.rows.columns
        own = self.land.rows.objective.shard.columns
        parts = [words[own.start * columns : own.stop * columns]]
        if self.land.has_intercept:
            parts.append(words[-1 - columns : -1])
        else:
            parts.append(np.zeros(columns))
        return np.concatenate(parts), float(words[-1])


def downhill(whole: Array, gradient: Array) -> Array:
    """−H⁺ g, without the directions in which H is nothing but rounding."""
    if not np.isfinite(whole).all():
        return np.zeros_like(gradient)
    values, vectors = np.linalg.eigh(whole)
    floor = least_curvature(values)
    inverse = np.where(values > floor, 1.0 / np.maximum(values, floor), 0.0)
    step: Array = -vectors @ (inverse * (vectors.T @ gradient))
    return step


def expected_fall(whole: Array, gradient: Array, noise: float) -> float:
    """Return g·H⁺g/2, how much lower F is at the end of Newton's step.

    A direction in which H is nothing but rounding counts by the least curvature that
    is more. Where the gradient along such directions is more than `noise`, nothing is
    known of the fall: inf. NaN: H is not finite.
    """
    if not np.isfinite(whole).all():
        return float("nan")
    values, vectors = np.linalg.eigh(whole)
    along = np.square(vectors.T @ gradient)
    least = max(DOUBT * least_curvature(values), TINY)
    if along[values <= least].sum() > noise**2:
        return float("inf")
    return float(np.sum(along / np.maximum(values, least))) / 2.0


def least_curvature(values: Array) -> float:
    """Return the curvature below which eigenvalues of H are rounding."""
    return len(values) * EPS * abs(float(values[-1]))
