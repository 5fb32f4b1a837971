"""Columns whose values are too small to train on: they would look like zeros.

A column is refused where it has values, and the largest of them is below

    √(smallest normal float64) ≈ 1.5e-154    whose squares underflow
    smallest normal float32 ≈ 1.2e-38        where they are stored below float64

Without the refusal the null model would be returned, and called the optimum. Columns
with such values are noted while the data are read; only where there are any, the rows
are read again for the largest value of each.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.csr import Csr
from hpcsgd.data import sparse_block
from hpcsgd.data.fingerprint import Fingerprint, Weigh
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse, pieces
from hpcsgd.errors import DataError

Array = NDArray[Any]
SQUARES = float(np.sqrt(np.finfo(np.float64).tiny))
NARROW = float(np.finfo(np.float32).tiny)


class SmallValues(Fingerprint):
    """The fingerprint of what one rank reads, and the columns that have small values.

    Parameters
    ----------
    columns : slice, those of X that the rank reads
    limit : float, size below which a value counts as small; zeros do not
    """

    def __init__(self, columns: slice, limit: float, weigh: Weigh | None) -> None:
        super().__init__(weigh)
        self.columns = columns
        self.limit = limit
        self.found: set[int] = set()

    def add(self, block: Array, first_row: int, first_col: int) -> None:
        """Take in a dense block of X, in the dtype it was read in."""
        super().add(block, first_row, first_col)
        is_of_rows = first_col + block.shape[1] <= self.columns.stop  # and no side
        if block.dtype == np.float64 and is_of_rows and len(block):
            # A large first value settles most columns: only others are looked through.
            rest = np.flatnonzero(np.abs(block[0]) < self.limit)
            peaks = np.abs(block[:, rest]).max(axis=0, initial=0.0)
            small = rest[(peaks > 0.0) & (peaks < self.limit)]
            self.found.update((first_col + small).tolist())

    def add_sparse(self, block: Csr, first_row: int, first_col: int) -> None:
        """Take in a sparse block of X."""
        super().add_sparse(block, first_row, first_col)
        if block.data.dtype == np.float64:
            sizes = np.abs(block.data)
            small = (sizes > 0.0) & (sizes < self.limit)
            if small.any():
                self.found.update((first_col + block.indices[small]).tolist())

    def check(
        self,
        reader: RowReader,
        rows: slice,
        exchange: Callable[[Any], list[Any]],
        max_flag: Callable[[int], int],
        is_stored_narrow: bool,
    ) -> None:
        """Raise on all ranks where a column has values, and all of them are small.

        Collective, by the functions of a communicator of all ranks: one flag, and where
        there are such values the columns and the largest of each.
        """
        if not max_flag(int(bool(self.found))):
            return
        numbers = np.array(sorted(set().union(*exchange(self.found))))
        peaks = np.max(exchange(self._peaks(reader, rows, numbers)), axis=0)
        refused = np.flatnonzero((peaks > 0.0) & (peaks < self.limit))
        if len(refused):
            column, size = int(numbers[refused[0]]), float(peaks[refused[0]])
            more = len(refused) - 1
            error = DataError(_sentence(column, more, size, is_stored_narrow))
            error.on_all_ranks = True
            raise error

    def _peaks(self, reader: RowReader, rows: slice, numbers: Array) -> Array:
        """Return max |a| of these columns over local rows; 0 for those of others."""
        found, cols = np.zeros(len(numbers)), self.columns
        own = np.flatnonzero((numbers >= cols.start) & (numbers < cols.stop))
        local = numbers[own] - cols.start
        if not len(own):
            return found
        if is_sparse(reader):
            for _, part in sparse_block.pieces(reader, rows, cols, CHUNK_BYTES):
                place = np.searchsorted(local, part.indices)
                place[place == len(local)] = 0
                mine = local[place] == part.indices
                np.maximum.at(found, own[place[mine]], np.abs(part.data[mine]))
            return found
        for _, block in pieces(reader, rows, cols, lambda piece: piece):
            found[own] = np.maximum(found[own], np.abs(block[:, local]).max(axis=0))
        return found


def _sentence(column: int, more: int, size: float, is_narrow: bool) -> str:
    """Return why a column, and so many more, are refused, and the remedy."""
    others = f" (and {more} more)" if more else ""
    what = "its squares underflow" if size < SQUARES else "it is lost below float64"
    wider = " or use --precision fp64" if is_narrow and size >= SQUARES else ""
    return (
        f"X has no value above {size:.2g} in column {column}{others}: {what};"
        f" multiply the column by a power of ten{wider}"
    )
