"""The objective of weights that replicas hold in slices: read tile by tile.

All replicas gather one tile after the other, each once a look, and add what its columns
have for the scores of their rows: so much float64 a row, and two tiles, are all that
there is beside the rows that are read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcsgd.backends.exact import exact_scores
from hpcsgd.errors import ConfigError
from hpcsgd.objective import Array, Losses, Objective, Slope

Tiles = Callable[[Array], Iterator[tuple[slice, Array]]]


@dataclass(frozen=True)
class _Scored(Objective):
    """One whose scores are known, of this member's columns."""

    known: Array | None = None
    penalised: float = 0.0

    def _own_scores(self, rows: slice, weights: Array) -> Array:
        assert self.known is not None
        return self.known[rows].copy()

    def _penalty(self, weights: Array) -> float:
        value = np.array([self.penalised])
        self.grid.members.sum(value, "evaluate")
        return float(value[0])


@dataclass(frozen=True)
class SlicedObjective(Objective):
    """`weights` are slices; `tiles` makes columns of them, with all replicas."""

    tiles: Tiles | None = None

    def measure(self, weights: Array, intercept: Array | None) -> Losses:
        """One pass over the local rows for each tile."""
        assert self.tiles is not None
        known = np.zeros((self.shard.height, weights.shape[1]))
        penalised, own = 0.0, vars(self).copy()
        for part, tile in self.tiles(weights):
            wide = tile.astype(np.float64)
            penalised += self.penalty.value(wide)
            for rows in self._blocks():
                known[rows] += exact_scores(_columns(self.read(rows), part), wide)
        del own["tiles"]
        found = _Scored(**own, known=known, penalised=penalised)
        return found.measure(np.empty((0, weights.shape[1])), intercept)

    def slope(self, weights: Array, intercept: Array | None) -> Slope:
        """Would need all columns."""
        raise ConfigError(
            "the gradient of F is as long as the weights, which stage 3 holds in"
            " slices; use --method zero2"
        )


def _columns(rows: Array, part: slice) -> Array:
    """All of them where there is one tile."""
    if part.start == 0 and part.stop == rows.shape[1]:
        return rows
    found: Array = rows[:, part]
    return found
