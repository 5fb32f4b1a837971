"""Blocks of rows with the number of their first row, and parts of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import issparse

from hpcsgd.data.readers import non_finite
from hpcsgd.data.recipe import Recipe
from hpcsgd.data.source import Rows
from hpcsgd.errors import DataError


def numbered(
    blocks: Iterator[Rows], row: int, recipe: Recipe
) -> Iterator[tuple[int, Rows]]:
    """(number of its first row, block), up to the last row that is wanted."""
    for block in blocks:
        count = block.X.shape[0]
        yield row, first_rows(block, recipe.wanted(row, count))
        row += count
        if recipe.rows is not None and row >= recipe.rows:
            return


def first_rows(block: Rows, count: int) -> Rows:
    """The block, or its first rows where fewer are wanted."""
    return block if count == block.X.shape[0] else choose(block, slice(0, count))


def choose(block: Rows, chosen: Any) -> Rows:
    """Some rows of a block."""
    sides = (block.y, block.weights, block.offsets, block.queries)
    y, *rest = (None if s is None else s[chosen] for s in sides)
    return Rows(block.X[chosen], y, block.end, *rest)


def refuse_non_finite(block: Rows, first: int, path: Any) -> None:
    """Raise DataError where a block from row `first` on holds NaN or infinity.

    Training refuses such a file: it is said before it is written.
    """
    sides = {"y": block.y, "sample_weight": block.weights, "offset": block.offsets}
    for name, values in sides.items():
        if values is not None and not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise DataError(
                f"{path}: {name} has {values[row]} at row {first + row}; clean the file"
                " or drop that row"
            )
    values = block.X.data if issparse(block.X) else block.X
    with np.errstate(all="ignore"):  # a sum is finite only if all of its terms are
        if np.isfinite(values.sum(dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(values))
    if len(bad) and issparse(block.X):
        place = int(bad[0, 0])
        row = int(np.searchsorted(block.X.indptr, place, "right")) - 1
        column = int(block.X.indices[place])
        raise DataError(f"{path}: {non_finite(values[place], first + row, column)}")
    if len(bad):
        row, column = (int(number) for number in bad[0])
        raise DataError(
            f"{path}: {non_finite(values[row, column], first + row, column)}"
        )
