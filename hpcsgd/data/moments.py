"""Mean and spread of columns, from blocks that anybody measured, added up in order.

Blocks are merged as Chan, Golub and LeVeque do, so that no large mean cancels. What a
block does not hold, zeros of sparse rows and values that are missing, is counted at the
end: a merge costs what the block holds, however many columns there are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from hpcsgd.data.packing import Parts
from hpcsgd.data.preparation import Scales
from hpcsgd.errors import DataError

Array = NDArray[Any]
WASTE = 4  # columns a stored value for which a table of all columns still pays


@dataclass(frozen=True)
class Measured:
    """The columns of one block."""

    columns: Any  # a slice or numbers
    count: Array  # values there are
    mean: Array  # of them
    squares: Array  # Σ (x − mean)² over them

    def parts(self) -> Parts:
        """As it travels."""
        is_range = isinstance(self.columns, slice)
        columns = self.columns.stop if is_range else self.columns
        return {
            "columns": columns,
            "count": self.count,
            "mean": self.mean,
            "squares": self.squares,
        }

    @classmethod
    def of(cls, parts: Parts) -> "Measured":
        """As it was."""
        columns = parts["columns"]
        at = slice(0, columns) if isinstance(columns, int) else columns
        return cls(at, parts["count"], parts["mean"], parts["squares"])


def measure(X: Any) -> Measured:
    """Of a dense block, where NaN is no value, or of what a sparse one stores."""
    with np.errstate(over="ignore", invalid="ignore"):  # `scales` refuses what is lost
        return _sparse(X) if issparse(X) else _dense(X)


def _dense(X: Array) -> Measured:
    whole = slice(0, X.shape[1])
    mean = X.mean(axis=0, dtype=np.float64)
    if not np.isnan(mean).any():
        count = np.full(X.shape[1], len(X), dtype=np.int64)
        return Measured(whole, count, mean, np.square(X - mean).sum(axis=0))
    there = ~np.isnan(X)
    count = there.sum(axis=0)
    mean = np.where(there, X, 0).sum(axis=0, dtype=np.float64) / np.maximum(count, 1)
    return Measured(whole, count, mean, np.square(np.where(there, X - mean, 0)).sum(0))


def _sparse(X: Any) -> Measured:
    values = X.data.astype(np.float64)
    columns, places, width = _columns_held(X.indices)
    count = np.bincount(places, minlength=width)
    sums = np.bincount(places, weights=values, minlength=width)
    mean = sums / np.maximum(count, 1)
    apart = np.square(values - mean[places])
    return Measured(columns, count, mean, np.bincount(places, apart, width))


def _columns_held(indices: Array) -> tuple[Any, Array, int]:
    """(columns, place of each value among them, how many they are)."""
    width = int(indices.max()) + 1 if len(indices) else 0
    if width <= WASTE * len(indices):
        return slice(0, width), indices, width
    columns, places = np.unique(indices, return_inverse=True)
    return columns, places, len(columns)


class Moments:
    """Of all blocks so far."""

    def __init__(self, cols: int = 0) -> None:
        self.rows = 0
        self.count = np.zeros(cols, dtype=np.int64)
        self.mean, self.squares = np.zeros(cols), np.zeros(cols)

    def add(self, rows: int, block: Measured) -> None:
        """The next block, of `rows` rows."""
        self.rows += rows
        at = block.columns
        width = at.stop if isinstance(at, slice) else int(at[-1]) + 1
        if width > len(self.count):
            self._widen(width)
        before = self.count[at]
        total = np.maximum(before + block.count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            apart = block.mean - self.mean[at]
            between = apart**2 * (before * block.count / total)
            self.squares[at] += block.squares + between
            self.mean[at] += apart * (block.count / total)
        self.count[at] += block.count

    def add_block(self, X: Any) -> None:
        """The next block, measured here."""
        if X.shape[0]:
            self.add(X.shape[0], measure(X))

    def of_columns(self, first: int, cols: int) -> "Moments":
        """Those from `first` on, however many were seen."""
        if first + cols > len(self.count):
            self._widen(first + cols)
        chosen, part = Moments(cols), slice(first, first + cols)
        chosen.rows, chosen.count = self.rows, self.count[part]
        chosen.mean, chosen.squares = self.mean[part], self.squares[part]
        return chosen

    def with_zeros(self) -> "Moments":
        """What is not there counts as zeros."""
        full, rows = Moments(len(self.count)), max(self.rows, 1)
        full.rows, full.count = self.rows, np.full_like(self.count, self.rows)
        full.mean = self.mean * (self.count / rows)
        left = self.count * ((rows - self.count) / rows)
        with np.errstate(over="ignore", invalid="ignore"):
            full.squares = self.squares + self.mean**2 * left
        return full

    def with_means(self) -> "Moments":
        """What is not there counts as the mean of its column."""
        full = self.of_columns(0, len(self.count))
        full.count = np.full_like(self.count, self.rows)
        return full

    def scales(self, centred: bool) -> Scales:
        """Unit spread about the mean, or else about 0; constant columns keep 1."""
        count = np.maximum(self.count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean_square = self.squares / count + (0 if centred else self.mean**2)
        spread = np.sqrt(mean_square)
        if not np.isfinite(spread).all():
            raise DataError(
                f"column {int(np.argmin(np.isfinite(spread)))} has no finite spread: it"
                " holds infinity, or values whose squares overflow; clean it, or leave"
                " out --standardize"
            )
        # What rounding leaves of a constant column is no spread.
        flat = spread <= 1e-12 * np.maximum(np.abs(self.mean), np.finfo(float).tiny)
        return Scales(self.mean if centred else None, np.where(flat, 1.0, spread))

    def _widen(self, width: int) -> None:
        """Room for more columns; twice as many, so that growing stays cheap."""
        more = max(width, 2 * len(self.count)) - len(self.count)
        self.count, self.mean, self.squares = (
            np.concatenate([old, np.zeros(more, old.dtype)])
            for old in (self.count, self.mean, self.squares)
        )
