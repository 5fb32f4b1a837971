"""The objective at weights that are on disk: one pass over their tiles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.agreement.on_disk import OnDisk
from hpcsgd.backends.exact import exact_scores
from hpcsgd.objective import Array, Losses, Objective

VALUES = 2**16  # of the rows of a tile, in float64, together


@dataclass(frozen=True)
class TiledObjective(Objective):
    """Scores of all rows held here are kept meanwhile; never more than a tile of w."""

    read_some: Callable[[slice, slice], Any] = lambda rows, columns: None

    def measure(self, weights: Any, intercept: Array | None) -> Losses:
        """F, and what it is on the rows that are held out."""
        assert isinstance(weights, OnDisk)
        scores = np.zeros((self.shard.height, weights.columns))
        value, penalty = np.zeros(1), self.penalty
        for columns, tile in weights.tiles("evaluate"):
            wide = tile.astype(np.float64)
            value += penalty.of(columns).value(wide)
            for rows in self._pieces(len(wide)):
                scores[rows] += exact_scores(self.read_some(rows, columns), wide)
        weights.check_reads()
        if not penalty.is_nothing:
            self.grid.members.sum(value, "evaluate")
        return self._measured(scores, intercept, lambda: value)

    def _pieces(self, width: int) -> list[slice]:
        """Rows that are read together of a tile."""
        if self.shard.is_sparse:
            return [slice(0, self.shard.height)] if self.shard.height else []
        step = max(VALUES // width, 1)
        starts = range(0, self.shard.height, step)
        return [slice(first, min(first + step, self.shard.height)) for first in starts]

    def _own_scores(self, rows: slice, weights: Array) -> Array:
        """From the pass over all tiles."""
        return weights[rows].copy()
