"""Where rows come from, and how a rank's block is read and checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError

Array = NDArray[Any]
CHUNK_BYTES = 64 * 2**20  # read at once: bounds the memory beside the shard


class RowReader(Protocol):
    """A matrix with targets, read by rows and columns."""

    rows: int
    cols: int

    def read(self, rows: slice, cols: slice) -> Array:
        """A dense block in the dtype it is stored in."""

    def targets(self, rows: slice) -> Array:
        """Targets of these rows, float64."""

    def sample_weight(self, rows: slice) -> Array | None:
        """Weights of these rows, float64, or None."""

    def offset(self, rows: slice) -> Array | None:
        """Offsets of these rows, float64, or None."""

    def describe(self) -> dict[str, Any]:
        """What a result remembers of its data."""

    def close(self) -> None:
        """Let go of the file."""


def open_reader(path: Path) -> RowReader:
    """The reader that suits a file."""
    from hpcsgd.data.hdf5 import Hdf5Reader

    return Hdf5Reader(path)


def load_block(
    reader: RowReader, rows: slice, cols: slice, store: Callable[[Array], Array]
) -> Array:
    """The block as `store` wants it, read in pieces, refused where not finite."""
    width = cols.stop - cols.start
    step = max(CHUNK_BYTES // (8 * max(width, 1)), 1)
    whole: Array | None = None
    for start in range(rows.start, rows.stop, step):
        stop = min(start + step, rows.stop)
        piece = reader.read(slice(start, stop), cols)
        _refuse_non_finite(piece, start, cols.start)
        stored = store(piece)
        if whole is None:
            whole = np.empty((rows.stop - rows.start, width), dtype=stored.dtype)
        whole[start - rows.start : stop - rows.start] = stored
    if whole is None:
        return store(np.empty((0, width), dtype=np.float32))
    return whole


def _refuse_non_finite(piece: Array, first_row: int, first_col: int) -> None:
    # A sum is finite only if all terms are: one pass without a mask in the good case.
    with np.errstate(all="ignore"):
        total = piece.sum(dtype=np.float64)
    if np.isfinite(total):
        return
    bad = np.argwhere(~np.isfinite(piece))
    if len(bad):
        row, col = bad[0]
        raise DataError(
            f"X has {piece[row, col]} at row {first_row + row},"
            f" column {first_col + col}; clean the file or drop that row"
        )
