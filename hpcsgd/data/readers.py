"""Where rows come from, and how a rank's block is read and checked."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.errors import DataError

Array = NDArray[Any]
CHUNK_BYTES = 64 * 2**20  # read at once: bounds the memory beside the shard
# What narrow storages hold before they round to inf: bf16, just below float32.
NARROW_MAX = 3.38e38
LOOKED = 1024  # rows that say how long the others are

# ending -> reader; other names are tried as the first row, whose own check speaks
READERS = {
    ".h5": "hpcsgd.data.hdf5:Hdf5Reader",
    ".hdf5": "hpcsgd.data.hdf5:Hdf5Reader",
}


class RowReader(Protocol):
    """A matrix with targets, read by rows and columns.

    Sparse ones have two attributes more, `is_sparse = True` and the number `nnz` of
    their stored values, and are read by `read_csr`. A reader may know the `preparation`
    of its rows and its `column_names`.
    """

    rows: int
    cols: int

    def read(self, rows: slice, cols: slice) -> Array:
        """A dense block in the dtype it is stored in."""

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """A scipy.sparse.csr_array with its own column numbers, sorted in each row."""

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


def open_reader(path: Path, *shared: Any) -> RowReader:
    """The reader that suits a file's ending; `shared` is what its readers share."""
    row = READERS.get(path.suffix.lower(), READERS[".h5"])
    module, attribute = row.split(":")
    reader: RowReader = getattr(import_module(module), attribute)(path, *shared)
    return reader


def is_sparse(reader: RowReader) -> bool:
    """True where a reader holds stored values alone."""
    return bool(getattr(reader, "is_sparse", False))


def preparation_of(reader: RowReader) -> Preparation:
    """Return what was done to the rows of a reader; those that do not say are raw."""
    found: Preparation = getattr(reader, "preparation", RAW)
    return found


def names_of(reader: RowReader) -> list[str] | None:
    """Return the names of the columns of a reader, where they have any."""
    names: list[str] | None = getattr(reader, "column_names", None)
    return names


def stored_in(reader: RowReader) -> int:
    """How many values a reader holds; from its first rows where it cannot say."""
    if not is_sparse(reader):
        return reader.rows * reader.cols
    known = getattr(reader, "nnz", None)
    if known is not None:
        return int(known)
    looked = min(reader.rows, LOOKED)
    sample = reader.read_csr(slice(0, looked), slice(0, reader.cols))
    return int(sample.nnz * reader.rows / looked)


def element_of(reader: RowReader) -> np.dtype[Any]:
    """Return the dtype of the values of a reader as they are read."""
    read = reader.read_csr if is_sparse(reader) else reader.read
    dtype: np.dtype[Any] = read(slice(0, 0), slice(0, 0)).dtype
    return dtype


def row_words(reader: RowReader) -> int:
    """About how many words of 8 bytes one row takes while it is read."""
    if not is_sparse(reader):
        return max(reader.cols, 1)
    return 2 * (stored_in(reader) // reader.rows + 1)  # values with their columns


def load_block(
    reader: RowReader,
    rows: slice,
    cols: slice,
    store: Callable[[Array], Array],
    budget: int | None = None,
    seen: Callable[[Array, int, int], None] | None = None,
    finite: Callable[[Array], bool] | None = None,
) -> Array:
    """The block as `store` wants it, read in pieces, refused where not finite.

    Arrays that are in memory as `store` wants them are not copied.

    `seen` is shown every piece as it was read, with its first row and column. About
    `budget` bytes of float64 (CHUNK_BYTES if None) are held beside the block.
    """
    width = cols.stop - cols.start
    whole: Array | None = None
    for first, stored in pieces(reader, rows, cols, store, budget, seen, finite):
        if whole is None and _is_own(reader, stored):
            whole = reader.read(rows, cols)
        if whole is None:
            whole = np.empty((rows.stop - rows.start, width), dtype=stored.dtype)
        if not _is_own(reader, stored):
            whole[first - rows.start : first - rows.start + len(stored)] = stored
        del stored  # else it would stay while the next piece is read
    if whole is None:
        return store(np.empty((0, width), dtype=np.float32))
    return whole


def pieces(
    reader: RowReader,
    rows: slice,
    cols: slice,
    store: Callable[[Array], Array],
    budget: int | None = None,
    seen: Callable[[Array, int, int], None] | None = None,
    finite: Callable[[Array], bool] | None = None,
) -> Iterator[tuple[int, Array]]:
    """(first row, rows as `store` wants them), checked, one piece after the other."""
    width = cols.stop - cols.start
    budget = budget or min(getattr(reader, "best_piece", CHUNK_BYTES), CHUNK_BYTES)
    step = max(budget // (8 * max(width, 1)), 1)
    blocks = getattr(reader, "block_rows", 1)  # read whole, they can be checked
    step = step // blocks * blocks or step
    for start in range(rows.start, rows.stop, step):
        stop = min(start + step, rows.stop)
        piece = reader.read(slice(start, stop), cols)
        if not (finite or _all_finite)(piece):
            _refuse_non_finite(piece, start, cols.start)
        if seen is not None:
            seen(piece, start, cols.start)
        with np.errstate(over="ignore"):  # said below, with the place
            stored = store(piece)
        if stored.dtype.itemsize < piece.dtype.itemsize:
            _refuse_too_large(piece, start, cols.start)
        del piece  # each is let go before the next one is read
        yield start, stored
        del stored


def _is_own(reader: RowReader, stored: Array) -> bool:
    """Whether these rows lie in the arrays of the reader itself."""
    own = getattr(reader, "is_in_memory", False) and not is_sparse(reader)
    return own and np.may_share_memory(stored, reader.X)  # type: ignore[attr-defined]


def _all_finite(piece: Array) -> bool:
    # A sum is finite only if all terms are: one pass without a mask in the good case.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(piece.sum(dtype=np.float64)))


def _refuse_non_finite(piece: Array, first_row: int, first_col: int) -> None:
    place = _first(~np.isfinite(piece), first_row, first_col)
    if place:
        row, col = place
        raise DataError(non_finite(piece[row - first_row, col - first_col], row, col))


def _refuse_too_large(piece: Array, first_row: int, first_col: int) -> None:
    """Finite as it is, infinite as it would be stored."""
    # Extremes first: no mask as large as the piece in the good case.
    if max(float(piece.max()), -float(piece.min())) <= NARROW_MAX:
        return
    place = _first(np.abs(piece) > NARROW_MAX, first_row, first_col)
    if place:
        row, col = place
        raise DataError(too_large(piece[row - first_row, col - first_col], row, col))


def non_finite(value: Any, row: int, col: int) -> str:
    """Why this value of X is refused."""
    return f"X has {value} at row {row}, column {col}; clean the file or drop that row"


def too_large(value: Any, row: int, col: int) -> str:
    """Why this value of X is refused."""
    return (
        f"X has {value:g} at row {row}, column {col}, too large for less than float64;"
        " clean the file, rescale the column or use --precision fp64"
    )


def _first(bad: Array, first_row: int, first_col: int) -> tuple[int, int] | None:
    """Global row and column of the first true entry."""
    if not bad.any():
        return None
    row, col = np.argwhere(bad)[0]
    return first_row + int(row), first_col + int(col)
