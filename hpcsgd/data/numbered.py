"""Blocks of rows with the number of their first row, and parts of them."""

from collections.abc import Iterator
from typing import Any

from hpcsgd.data.recipe import Recipe
from hpcsgd.data.source import Rows


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
