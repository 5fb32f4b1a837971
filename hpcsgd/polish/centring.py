"""Columns far from zero, which lose their digits unless a constant is subtracted.

Scores of a column with mean m and standard deviation σ lose log10(|m|/σ) digits to
m·w, which the intercept only takes back. Where |m| > 1000 σ for a dense column, and
there is an intercept, the finisher works on

    a' = a − m,   β' = β + m·w        the same F, the same w

Columns that are constant up to rounding become zeros, as they are for the best
intercept. Sparse rows are left as they are: subtracting would fill them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.objective import Objective
from hpcsgd.polish.rows import AllRows, Moments

Array = NDArray[Any]
FAR = 1e3  # standard deviations from zero: three digits of every score are lost
CONSTANT = 16 * float(np.finfo(np.float64).eps)  # of |m|: a deviation of rounding


@dataclass(frozen=True)
class Centers:
    """What is subtracted from this member's columns."""

    means: Array  # (d_c,), 0 where nothing is subtracted
    is_constant: Array  # (d_c,), columns that become zeros

    def centred(self, block: Array) -> Array:
        """Return a' of some rows, in float64."""
        found = block.astype(np.float64)
        found -= self.means
        found[:, self.is_constant] = 0.0
        return found

    def moved(self, objective: Objective, weights: Array) -> Array:
        """Return m·w over the columns of all members, (K,). Collective."""
        words = np.zeros(weights.shape[1])
        words += self.means @ weights.astype(np.longdouble)
        objective.grid.members.sum(words, "evaluate")
        return words


def find_centers(rows: AllRows, moments: Moments) -> Centers | None:
    """Return what to subtract, by the moments of the columns; None: nothing.

    Collective: a flag, and where it is set a pass over the rows and a second flag.
    """
    world = rows.grid.world
    total = np.maximum(moments.total, np.finfo(float).tiny)
    means = (moments.first / total)[:, 0]
    far = _are_far(means, (moments.second / total)[:, 0] - np.square(means))
    if not world.max_flag(int(far.any() and not rows.objective.shard.is_sparse)):
        return None
    found = Centers(np.where(far, means, 0.0), np.zeros(len(means), dtype=bool))
    centred = replace(rows, objective=centre(rows.objective, found))
    exact = centred.moments(np.broadcast_to(rows.share, (rows.height, rows.columns)))
    spread = np.maximum(exact.second[:, 0] - np.square(exact.first[:, 0]), 0.0)
    is_constant = far & (np.sqrt(spread) <= CONSTANT * np.abs(means))
    if not world.max_flag(int((far & ~is_constant).any())):
        return None
    # The means of the centred columns are what cancellation left of the first ones.
    return Centers(np.where(far, means + exact.first[:, 0], 0.0), is_constant)


def _are_far(means: Array, variances: Array) -> Array:
    squares = FAR * FAR * np.maximum(variances, 0.0)
    far: Array = (np.square(means) > squares) & (means != 0.0)
    return far


def centre(objective: Objective, centers: Centers) -> Objective:
    """Return the objective of the centred rows."""
    read: Callable[[slice], Any] = objective.read
    return replace(objective, read=lambda rows: centers.centred(read(rows)))
