"""The full objective on all rows, in float64, on the values of the data itself.

F(w) = (1/Σc_i) Σ_i c_i ℓ(t_i, y_i) + (λ/2)‖w‖²

A matrix stored low is not asked: the rows are read again, so that a loss says the
same of every precision.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.exact import exact_scores
from hpcsgd.comm.grid import Grid
from hpcsgd.data.shard import Shard
from hpcsgd.families.base import Family
from hpcsgd.penalties import Ridge

Array = NDArray[Any]
BLOCK_ROWS = 4096  # rows of scores summed over members in one message, at most
BLOCK_VALUES = 2**20  # of the whole width: wide rows are read fewer at a time


def block_rows(total_columns: int) -> int:
    """Rows looked at together; the same for all members, whose widths may differ."""
    return max(min(BLOCK_ROWS, BLOCK_VALUES // total_columns), 64)


@dataclass(frozen=True)
class Objective:
    """What is needed to say how good weights are."""

    grid: Grid
    family: Family
    shard: Shard
    penalty: Ridge
    read: Callable[[slice], Any]  # local rows -> this member's columns, exact

    def loss(self, weights: Array, intercept: Array | None) -> tuple[float, int]:
        """F at this member's slice of w (d_c, K) and the intercept (K,); clips.

        The clips are the scores whose exponential had to be cut off: with any of
        them the loss is a lower bound.
        """
        sums = np.zeros(3)
        step = block_rows(self.shard.total_columns)
        for start in range(0, self.shard.height, step):
            rows = slice(start, min(start + step, self.shard.height))
            sums += self._block(rows, weights.astype(np.float64), intercept)
        self.grid.replicas.sum(sums, "evaluate")
        return float(sums[0] / sums[1]) + self._penalty(weights), int(sums[2])

    def _block(self, rows: slice, weights: Array, intercept: Array | None) -> Array:
        shard = self.shard
        scores = exact_scores(self.read(rows), weights)
        self.grid.members.sum(scores, "evaluate")
        if intercept is not None:
            scores += intercept
        if shard.offsets is not None:
            scores += shard.offsets[rows]
        targets = shard.targets[rows].astype(np.float64)
        losses, clips = self.family.loss(scores, targets), self.family.clipped(scores)
        if shard.weights is None:
            return np.array([losses.sum(), len(losses), clips])
        c = shard.weights[rows].astype(np.float64)
        return np.array([(c * losses).sum(), c.sum(), clips])

    def _penalty(self, weights: Array) -> float:
        if self.penalty.l2 == 0.0:
            return 0.0
        value = np.array([self.penalty.value(weights)])
        self.grid.members.sum(value, "evaluate")
        return float(value[0])
