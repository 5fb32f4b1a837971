"""Rows that are not trained on, as weights of 0: the same on every grid."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm.grid import Grid
from hpcsgd.data.folds import Split

Array = NDArray[Any]


def keep_apart(
    grid: Grid, weights: Array | None, split: Split, kept: Array, total_rows: int
) -> tuple[Array, Array]:
    """Weights of rows that are trained on, with mean 1 each, and of those held out.

    `kept` says which are, (rows, columns).
    """
    each = np.ones((len(kept), 1)) if weights is None else weights[:, None]
    trained, held = each * ~kept, each * kept
    counted = np.zeros((2, split.columns))
    if not grid.member:  # each replica's count once
        counted[...] = trained.sum(axis=0), held.sum(axis=0)
    totals = sum(grid.world.exchange_objects(counted))
    grid.world.together(lambda: split.check(*totals))
    return trained * (total_rows / totals[0]), held
