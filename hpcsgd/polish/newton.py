"""Newton's steps for few columns: where L-BFGS would take long, ten passes do.

Columns that are nearly combinations of others make L-BFGS slow, whatever their scale.
The Hessian of P variables costs n P² operations and P² words; the system is solved by
one rank, by eigenvalues, so that what is flat stays where it is.
"""

from collections.abc import Iterator

import numpy as np

from hpcsgd.polish.hessian import Hessian
from hpcsgd.polish.lbfgs import EPS, Lbfgs
from hpcsgd.polish.memory import Array
from hpcsgd.polish.point import Point

MOST = 1024  # variables of which a Hessian is taken
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

    def _directions(self, point: Point) -> Iterator[tuple[Array, float]]:
        """Newton's, then those of L-BFGS where it leads nowhere."""
        if self.passes > self.after:
            yield self._newton(point)
        yield from super()._directions(point)

    def _newton(self, point: Point) -> tuple[Array, float]:
        if self.hessian is None:
            self.hessian = Hessian(self.land, self.scaling)
        hessian, world = self.hessian, self.land.world
        whole, gradient = hessian.take(point, self._scaled(point))
        words = np.zeros(hessian.variables + 1)
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
    floor = len(values) * EPS * abs(values[-1])
    inverse = np.where(values > floor, 1.0 / np.maximum(values, floor), 0.0)
    step: Array = -vectors @ (inverse * (vectors.T @ gradient))
    return step
