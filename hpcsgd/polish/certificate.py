"""Whether weights are at the optimum, by a certified gap.

A point is converged where a bound of F(w) − F* from duality (`hpcsgd.optimality`) is

    gap ≤ tol · max(|F|, 1e-3 · F₀),    F₀ = F(null model) − mean of min_t ℓ(t, y_i)

The null model has no weights, but the best intercept. F₀ takes no pass over the rows,
and is taken only where |F| alone does not show that the gap is small enough.
"""

import numpy as np

from hpcsgd.families.base import least_losses
from hpcsgd.optimality import gap_at, gap_limit
from hpcsgd.polish.level import level
from hpcsgd.polish.point import Landscape, Point
from hpcsgd.polish.rows import AllRows, Array


class Certificate:
    """Certified gaps of points, and the limit that they have to meet."""

    def __init__(self, tol: float) -> None:
        self.tol = tol
        self.gap: float | None = None  # at the point that was judged last
        self.limit: float | None = None  # that a gap there has to meet
        self._null_excess: float | None = None

    def judge(self, land: Landscape, point: Point, loss: float) -> bool | None:
        """Return whether the gap at a point meets its limit; None: there is no bound.

        Collective. One pass over the rows, since the scores are known; the answer is
        the same on all ranks.
        """
        intercept = point.intercept if land.has_intercept else None
        gap = gap_at(land.rows, point.weights, intercept, point.scores).gap
        return self.meets(land, gap, loss)

    def meets(self, land: Landscape, gap: float | None, loss: float) -> bool | None:
        """Return whether this gap meets its limit on every rank; None: there is none.

        Collective, for flags and perhaps for F₀.
        """
        self.gap = gap
        self.limit = None if gap is None else gap_limit(self.tol, loss, 0.0)
        if gap is None or self.limit is None:
            return None
        if land.world.max_flag(int(not gap <= self.limit)):
            if self._null_excess is None:
                self._null_excess = null_excess(land.rows, land.has_intercept)
            self.limit = gap_limit(self.tol, loss, self._null_excess)
            return not land.world.max_flag(int(not gap <= self.limit))
        return True


def null_excess(rows: AllRows, has_intercept: bool) -> float:
    """Return F of the null model less the mean of the least losses there can be.

    Collective: two words over all ranks, and the looks of `level` for the intercept.
    """
    scores = np.zeros((rows.height, rows.columns))
    if rows.objective.shard.offsets is not None:
        scores += rows.objective.shard.offsets
    if has_intercept:
        scores += level(rows, scores).shift
    sums = np.zeros(2)
    if rows.grid.member == 0:
        least: Array = least_losses(rows.objective.family, rows.targets)
        sums[:] = rows.loss(scores), float((rows.share * least).sum())
    rows.grid.world.sum(sums, "evaluate")
    return float(sums[0] - sums[1])
