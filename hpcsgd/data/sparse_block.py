"""A rank's sparse block, read in pieces and checked as a dense one is."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.csr import Csr, from_scipy, stack
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    NARROW_MAX,
    RowReader,
    non_finite,
    too_large,
)
from hpcsgd.errors import DataError

Array = NDArray[Any]
FIRST_ROWS = 256  # read to see how long rows are
VALUE_BYTES = 16  # a value, its column and its place while it is looked at


def load_csr(
    reader: RowReader,
    rows: slice,
    cols: slice,
    store: Callable[[Array], Array],
    budget: int | None = None,
    seen: Callable[[Csr, int, int], None] | None = None,
) -> Csr:
    """The block with values as `store` wants them, refused where not finite.

    `seen` is shown every piece as it was read, with its first row and column. About
    `budget` bytes (CHUNK_BYTES if None) are held beside the block.
    """
    stored = []
    for start, piece in pieces(reader, rows, cols, budget or CHUNK_BYTES):
        _refuse(piece, start, cols.start, ~np.isfinite(piece.data), non_finite)
        if seen is not None:
            seen(piece, start, cols.start)
        with np.errstate(over="ignore"):  # said below, with the place
            data = store(piece.data)
        if data.dtype.itemsize < piece.dtype.itemsize:
            large = np.abs(piece.data) > NARROW_MAX
            _refuse(piece, start, cols.start, large, too_large)
        stored.append(piece.with_data(data))
    return stored[0] if len(stored) == 1 else stack(stored)


def pieces(
    reader: RowReader, rows: slice, cols: slice, budget: int
) -> Iterator[tuple[int, Csr]]:
    """(first row, block): as many rows at once as the ones before say will fit."""
    start, step = rows.start, FIRST_ROWS
    values = done = 0
    while True:
        stop = min(start + step, rows.stop)
        block = from_scipy(reader.read_csr(slice(start, stop), cols))
        if not block.is_sound:  # the products follow any number in it
            raise DataError(
                f"the sparse rows {start} to {stop} have columns or ends outside of the"
                " matrix; repair the file, or the reader that read them"
            )
        yield start, block
        values, done, start = values + block.nnz, done + len(block), stop
        if start >= rows.stop:
            return
        # No more than tenfold at once: the first rows need not be like the others.
        row_bytes = VALUE_BYTES * (values / done + 1)
        step = max(min(int(budget / row_bytes), 10 * step), 1)


def _refuse(
    piece: Csr,
    first_row: int,
    first_col: int,
    bad: Array,
    say: Callable[[Any, int, int], str],
) -> None:
    if bad.any():
        number = int(np.argmax(bad))
        row, col = piece.place(number)
        raise DataError(say(piece.data[number], first_row + row, first_col + col))
