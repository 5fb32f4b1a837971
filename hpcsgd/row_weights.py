"""Sample weights with mean 1, and rows that are not trained on as weights of 0."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm.grid import Grid
from hpcsgd.data.folds import Split
from hpcsgd.errors import DataError

Array = NDArray[Any]


def keep_apart(
    grid: Grid,
    weights: Array | None,
    split: Split,
    rows: slice,
    total_rows: int,
    known: Array | None = None,
) -> tuple[Array, Array]:
    """Weights of rows that are trained on, with mean 1 each, and of those held out.

    `known` are folds of all rows that somebody has drawn.
    """
    kept = split.kept_apart(rows, known)
    each = np.ones((len(kept), 1)) if weights is None else weights[:, None]
    trained, held = each * ~kept, each * kept
    counted = np.zeros((2, split.columns))
    if not grid.member:  # each replica's count once
        counted[...] = trained.sum(axis=0), held.sum(axis=0)
    totals = sum(grid.world.exchange_objects(counted))
    grid.world.together(lambda: split.check(*totals))
    return trained * (total_rows / totals[0]), held


def sum_over_replicas(grid: Grid, weights: Array | None) -> float:
    """Σc over all rows: each replica's count once, however many members hold them."""
    with np.errstate(over="ignore"):  # is refused on all ranks together
        own = 0.0 if weights is None or grid.member else float(weights.sum())
    return float(sum(grid.world.exchange_objects(own)))


def scale_to_mean_one(weights: Array | None, rows: int, total: float) -> Any:
    """c_i with mean 1 over all rows: else F and the steps have other minimisers."""
    if weights is None:
        return None
    if total <= 0.0:
        raise DataError(
            "sample_weight sums to zero; give at least one row a weight above 0"
        )
    if not np.isfinite(total):
        raise DataError(
            "sample_weight adds up to more than a float64 can hold; divide all of them"
            " by the largest"
        )
    return weights * (rows / total)
