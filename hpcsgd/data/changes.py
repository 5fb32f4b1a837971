"""What becomes of a block of rows between its source and its store."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from hpcsgd.data.numbered import choose
from hpcsgd.data.recipe import Recipe
from hpcsgd.data.source import Rows, block_rows
from hpcsgd.data.survey import Survey
from hpcsgd.data.transform import unit_rows
from hpcsgd.errors import DataError

Array = NDArray[Any]


def prepared(block: Rows, first: int, survey: Survey, recipe: Recipe) -> Rows:
    """What is best done where the block was read; too wide a block stays sparse."""
    y = relabelled(block.y, first, recipe)
    block = replace(block, y=y)
    if is_too_wide(block, survey, recipe):
        return block
    return replace(block, X=transformed(block.X, survey))


def is_too_wide(block: Rows, survey: Survey, recipe: Recipe) -> bool:
    """True where its zeros would take too much memory if they were written out."""
    rows, cols = block.X.shape
    widens = issparse(block.X) and not survey.is_sparse
    return widens and rows > block_rows(recipe.block, 8 * cols)


def slices(block: Rows, survey: Survey, recipe: Recipe) -> Iterator[Rows]:
    """Yield a block as it is, or one that is too wide in several transformed slices."""
    rows, cols = block.X.shape
    if not is_too_wide(block, survey, recipe):
        yield block
        return
    step = block_rows(recipe.block, 8 * cols)
    for start in range(0, rows, step):
        part = choose(block, slice(start, start + step))
        yield replace(part, X=transformed(part.X, survey))


def transformed(X: Any, survey: Survey) -> Any:
    """X as it is stored, but for its element type."""
    if survey.order is not None:
        X = X[:, survey.order]
    if issparse(X) and not survey.is_sparse:
        X = X.toarray()
    elif survey.is_sparse and not issparse(X):
        X = csr_array(X)
    if survey.scales is not None:
        X = survey.scales.apply(X)
    return unit_rows(X) if survey.unit_rows else X


def relabelled(y: Array | None, first: int, recipe: Recipe) -> Array | None:
    """Labels as they shall be; every one of them has to be known."""
    if y is None or not recipe.labels:
        return y
    new, found = np.empty_like(y), np.zeros(len(y), dtype=bool)
    for old, label in recipe.labels:
        here = y == old
        new[here], found = label, found | here
    if not found.all():
        row = int(np.argmin(found))
        known = ", ".join(f"{old:g}" for old, _ in recipe.labels)
        raise DataError(
            f"row {first + row} has the label {y[row]:g} and --map-labels knows"
            f" {known}; map all labels, or leave it out"
        )
    return new
