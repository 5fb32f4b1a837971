"""The shard of a rank: its rows and columns, dense or sparse."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.checksums import Fingerprint, Weigh
from hpcsgd.data.matrix import COLUMN, Csr, DenseMatrix, from_scipy, stack
from hpcsgd.data.readers import (
    CHUNK_BYTES,
    NARROW_MAX,
    RowReader,
    element_of,
    is_sparse,
    names_of,
    non_finite,
    pieces,
    read_chunks,
    stored_in,
    too_large,
)
from hpcsgd.data.stream import Unheld
from hpcsgd.errors import DataError
from hpcsgd.formats import Array, Format, get_format
from hpcsgd.precision import Precision

# The block of the data of one rank.

Matrix = DenseMatrix | Csr | Unheld


@dataclass(frozen=True)
class Shard:
    """Rows of one replica × columns of one member, as the backend stores them.

    Every member of a replica has the targets, weights and offsets of all its rows, as
    columns (n, 1) that combine with scores (m, K). With folds, weights have the shape
    (n, folds + 1): one column without each fold, and one of all rows.
    """

    matrix: Matrix  # (n, d_c) in the storage of precision.matrix
    targets: Array  # (n, 1), encoded for the family
    weights: Array | None  # (n, 1), scaled to mean 1 over all rows of the data
    offsets: Array | None  # (n, 1), added to scores after scaling
    rows: slice  # of the whole data
    columns: slice  # of the whole data
    parts: tuple[slice, ...]  # the columns of every member, this one included
    total_rows: int
    held: Array | None = None  # (n, 1), weights of rows that are not trained on

    @property
    def total_columns(self) -> int:
        """Return the number of columns of the whole data."""
        return int(self.parts[-1].stop)

    @property
    def widest(self) -> int:
        """Return the number of columns of the member that has most of them."""
        return int(max(part.stop - part.start for part in self.parts))

    @property
    def is_sparse(self) -> bool:
        """Return whether the matrix is sparse."""
        return self.matrix.is_sparse

    def unrounded(
        self, keep: Callable[[Array], Array], sides: dict[str, Array | None]
    ) -> "Shard":
        """Return the shard with exact columns for those of its sides that were rounded.

        Sides are targets, weights and offsets. `sides` contains the exact ones by field
        name, and `keep` converts a column to the array that is stored. Steps use
        rounded columns; the reported loss is that of the exact data. Weights with a
        column for each fold stay rounded.
        """
        exact: dict[str, Any] = {}
        for name, column in sides.items():
            stored = getattr(self, name)
            # With folds, the rounded columns suffice: a sweep certifies no gap.
            if column is None or stored.shape[1] > 1 or stored.dtype == np.float64:
                continue
            upright = column.reshape(stored.shape)
            if not np.array_equal(upright, stored):
                exact[name] = keep(upright)
        return replace(self, **exact) if exact else self

    @property
    def height(self) -> int:
        """Return the number of local rows, n."""
        return int(self.matrix.shape[0])

    @property
    def width(self) -> int:
        """Return the number of local columns, d_c."""
        return int(self.matrix.shape[1])


def bytes_of_sides(rows: int, item: int) -> int:
    """Return the bytes of targets, weights, offsets and row order of `rows` rows.

    A value has `item` bytes.
    """
    return rows * (3 * item + (4 if rows < 2**31 else 8))


def take(column: Array | None, rows: Array) -> Array | None:
    """Return the entries of a column for these rows; None if the column is None."""
    return None if column is None else np.take(column, rows, axis=0)


# Rows with the exact values of the data, also if a shard stores rounded ones.


def exact(
    reader: RowReader, shard: Shard, precision: Precision
) -> Callable[[slice], Any]:
    """Return a function that returns the exact values of a slice of local rows.

    The values come from the shard if it stores them exactly, else from the reader.
    """
    if _is_exact(reader, shard, precision):
        return shard.matrix.operand
    some = exact_columns(reader, shard, precision)
    return lambda rows: some(rows, slice(0, shard.width))


def exact_columns(
    reader: RowReader, shard: Shard, precision: Precision
) -> Callable[[slice, slice], Any]:
    """Return a function of slices of local rows and columns that returns exact values.

    The values come from the shard if it stores them exactly, else from the reader.
    """
    row = shard.rows.start
    column = shard.columns.start
    if _is_exact(reader, shard, precision):
        return lambda rows, part: shard.matrix.operand(rows)[:, part]
    read = reader.read_csr if shard.is_sparse else reader.read
    return lambda rows, part: read(
        slice(row + rows.start, row + rows.stop),
        slice(column + part.start, column + part.stop),
    )


def _is_exact(reader: RowReader, shard: Shard, precision: Precision) -> bool:
    """Return whether the shard has the exact values of the data in host memory."""
    form = get_format(precision.matrix)
    return shard.matrix.is_in_memory and keeps_values(reader, form)


def keeps_values(reader: RowReader, form: Format) -> bool:
    """Return whether a matrix in this format has the exact values of the data."""
    return form.is_wide and np.can_cast(element_of(reader), form.dtype, casting="safe")


# A rank's sparse block, read in chunks and checked like a dense block.

FIRST_ROWS = 256  # read first, to estimate the stored values per row
VALUE_BYTES = 16  # a value, its column and its place while it is checked


def load_csr(
    reader: RowReader,
    rows: slice,
    cols: slice,
    store: Callable[[Array], Array],
    budget: int | None = None,
    seen: Callable[[Csr, int, int], None] | None = None,
    chunks: Iterator[tuple[int, Csr]] | None = None,
) -> Csr:
    """Read a sparse block in chunks and return it with values as `store` converts them.

    NaN, inf, and values that are too large for a narrower storage raise DataError.
    `seen` is called with every chunk as it was read, its first row and its first
    column. `chunks` are the first row and the rows of each chunk, in order; None: they
    are read, about `budget` bytes (CHUNK_BYTES if None) at a time.
    """
    stored = []
    read = chunks or sparse_pieces(reader, rows, cols, budget or CHUNK_BYTES)
    for start, piece in read:
        infinite = ~np.isfinite(piece.data)
        _refuse(piece, start, cols.start, infinite, non_finite, names_of(reader))
        if seen is not None:
            seen(piece, start, cols.start)
        with np.errstate(over="ignore"):  # reported below, with the place
            data = store(piece.data)
        if data.dtype.itemsize < piece.dtype.itemsize:
            large = np.abs(piece.data) > NARROW_MAX
            _refuse(piece, start, cols.start, large, too_large, names_of(reader))
        stored.append(piece.with_data(data))
    if len(stored) == 1 and chunks is None:
        return stored[0]
    whole = stack(stored)
    stored.clear()
    release_freed_memory()
    return whole


def release_freed_memory() -> None:
    """Return freed memory of this process to the system, if its C library is glibc.

    The arrays of sparse chunks are too small to be mapped one by one, so that glibc
    would keep their memory, about as much as the block itself has.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def bytes_of_csr(rows: int, stored: int, form: Format) -> tuple[int, int]:
    """Return the bytes of a sparse block, and the peak while `load_csr` reads it.

    The peak includes chunks: the C library keeps the memory of such small arrays, and
    does not return it to the system meanwhile.
    """
    size = stored * (form.dtype.itemsize + COLUMN) + 8 * rows
    return size, size + 2 * min(CHUNK_BYTES, VALUE_BYTES * (stored + rows))


def sparse_pieces(
    reader: RowReader, rows: slice, cols: slice, budget: int
) -> Iterator[tuple[int, Csr]]:
    """Yield (first row, block) of consecutive rows, each of about `budget` bytes.

    The number of rows follows from the stored values of the blocks before. A matrix in
    memory that is smaller than `budget` is one block.
    """
    start = rows.start
    step = FIRST_ROWS
    if getattr(reader, "is_in_memory", False):
        size = VALUE_BYTES * (stored_in(reader) + reader.rows)
        step = reader.rows if size <= budget else step
    values = done = 0
    while True:
        stop = min(start + step, rows.stop)
        block = from_scipy(reader.read_csr(slice(start, stop), cols))
        check_sound(block, slice(start, stop))
        yield start, block
        values = values + block.nnz
        done = done + len(block)
        start = stop
        if start >= rows.stop:
            return
        # At most tenfold: the first rows may be shorter than the others.
        row_bytes = VALUE_BYTES * (values / done + 1)
        step = max(min(int(budget / row_bytes), 10 * step), 1)


def check_sound(block: Csr, rows: slice) -> None:
    """Raise DataError if numbers in a sparse block, which has `rows`, are not valid.

    Products do not check them.
    """
    if not block.is_sound:
        raise DataError(
            f"the sparse rows {rows.start} to {rows.stop} have column numbers or row"
            " pointers outside of the matrix; write the file again, or correct its"
            " reader"
        )


def _refuse(
    piece: Csr,
    first_row: int,
    first_col: int,
    bad: Array,
    say: Callable[[Any, int, int, list[str] | None], str],
    names: list[str] | None,
) -> None:
    if bad.any():
        number = int(np.argmax(bad))
        row, col = piece.place(number)
        value = piece.data[number]
        raise DataError(say(value, first_row + row, first_col + col, names))


# The largest magnitude in every column, for formats with few exponents.


def column_peaks(reader: RowReader, rows: slice, cols: slice) -> Array:
    """Return max |value| of each of these columns over these rows; 0 without values."""
    peaks = np.zeros(cols.stop - cols.start)
    if is_sparse(reader):
        for _, block in sparse_pieces(reader, rows, cols, CHUNK_BYTES):
            np.maximum.at(peaks, block.indices, np.abs(block.data))
        return peaks
    chunks = read_chunks(reader, rows, cols)
    for _, piece in pieces(reader, cols, lambda block: block, chunks):
        np.maximum(peaks, np.abs(piece).max(axis=0, initial=0.0), out=peaks)
    return peaks


# The distribution of ranges: pure functions.

PARTITIONS = ("auto", "equal", "stored")  # distributions of columns over members


def split_range(n: int, parts: int, index: int) -> slice:
    """Return part `index` of `parts` consecutive parts of range(n).

    The first n % parts of them have one entry more than the others.
    """
    size, extra = divmod(n, parts)
    start = index * size + min(index, extra)
    return slice(start, start + size + (index < extra))


def lengths(n: int, parts: int) -> tuple[int, ...]:
    """Return the lengths of all `parts` of range(n) that `split_range` returns."""
    if parts == 1:
        return (n,)
    ranges = (split_range(n, parts, index) for index in range(parts))
    return tuple(part.stop - part.start for part in ranges)


def split_by_weight(weights: NDArray[Any], parts: int) -> list[slice]:
    """Return slices that cut the entries of `weights` into parts of about equal weight.

    No part weighs more than total / parts + max(weights). No part is empty if there are
    enough entries. If all weights are 0, parts have equal lengths.
    """
    n = len(weights)
    total = weights.sum()
    if n <= parts or total <= 0:
        return [split_range(n, parts, index) for index in range(parts)]
    reached = np.cumsum(weights)
    cuts = [0]
    for index in range(1, parts):
        target = int(np.searchsorted(reached, total * (index / parts), side="right"))
        cuts.append(min(max(target, cuts[-1] + 1), n - parts + index))
    return [slice(*ends) for ends in zip(cuts, [*cuts[1:], n], strict=True)]


# Columns whose values are too small to train on: they would look like zeros.
#
# A column is refused where it has values, and the largest of them is below
#
#     √(smallest normal float64) ≈ 1.5e-154    whose squares underflow
#     smallest normal float32 ≈ 1.2e-38        where they are stored below float64
#
# Otherwise the null model would be returned as the optimum. Columns with such values
# are collected while the data are read; if there are any, the rows are read again for
# the largest value of each of these columns.

SQUARES = float(np.sqrt(np.finfo(np.float64).tiny))
NARROW = float(np.finfo(np.float32).tiny)


class SmallValues(Fingerprint):
    """The fingerprint of the data of one rank, and its columns with small values.

    Parameters
    ----------
    columns : slice, the columns of X that the rank reads
    limit : float, magnitude below which a value counts as small; zeros do not
    """

    def __init__(self, columns: slice, limit: float, weigh: Weigh | None) -> None:
        super().__init__(weigh)
        self.columns = columns
        self.limit = limit
        self.found: set[int] = set()

    def add(self, block: Array, first_row: int, first_col: int) -> None:
        """Add a dense block to the checksum; note its columns with small values only.

        The block has the dtype in which it was read; such columns are noted in float64
        only.
        """
        super().add(block, first_row, first_col)
        is_of_rows = first_col + block.shape[1] <= self.columns.stop  # and no side
        if block.dtype == np.float64 and is_of_rows and len(block):
            # Most columns have a large first value: only the others are checked.
            is_small = np.abs(block[0]) < self.limit
            if not is_small.any():
                return
            rest = np.flatnonzero(is_small)
            peaks = np.abs(block[:, rest]).max(axis=0, initial=0.0)
            small = rest[(peaks > 0.0) & (peaks < self.limit)]
            self.found.update((first_col + small).tolist())

    def add_sparse(self, block: Csr, first_row: int, first_col: int) -> None:
        """Add a sparse block of X to the checksum; note columns with a small value.

        The block has the dtype in which it was read; such columns are noted in float64
        only.
        """
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
        """Raise DataError on all ranks if all values of a column are small.

        Columns without values pass. Collective: `exchange` and `max_flag` are functions
        of a communicator of all ranks. Ranks send one flag, and if there are small
        values, their columns and the largest magnitude of each of these columns.
        """
        if not max_flag(int(bool(self.found))):
            return
        numbers = np.array(sorted(set().union(*exchange(self.found))))
        peaks = np.max(exchange(self._peaks(reader, rows, numbers)), axis=0)
        refused = np.flatnonzero((peaks > 0.0) & (peaks < self.limit))
        if len(refused):
            column = int(numbers[refused[0]])
            size = float(peaks[refused[0]])
            more = len(refused) - 1
            sentence = _sentence(column, more, size, is_stored_narrow)
            raise DataError(sentence, on_all_ranks=True)

    def _peaks(self, reader: RowReader, rows: slice, numbers: Array) -> Array:
        """Return max |value| of the columns `numbers` over local rows.

        It is 0 for columns that this rank does not have.
        """
        peaks = np.zeros(len(numbers))
        cols = self.columns
        own_places = np.flatnonzero((numbers >= cols.start) & (numbers < cols.stop))
        local = numbers[own_places] - cols.start
        if not len(own_places):
            return peaks
        if is_sparse(reader):
            for _, part in sparse_pieces(reader, rows, cols, CHUNK_BYTES):
                place = np.searchsorted(local, part.indices)
                place[place == len(local)] = 0
                mine = local[place] == part.indices
                np.maximum.at(peaks, own_places[place[mine]], np.abs(part.data[mine]))
            return peaks
        for _, block in read_chunks(reader, rows, cols):
            peaks[own_places] = np.maximum(
                peaks[own_places], np.abs(block[:, local]).max(axis=0)
            )
        return peaks


def _sentence(column: int, more: int, size: float, is_narrow: bool) -> str:
    """Return the message on a refused column and `more` others, with the remedy."""
    others = f" (and {more} more)" if more else ""
    what = "its squares underflow" if size < SQUARES else "it becomes 0 below float64"
    wider = " or use --precision fp64" if is_narrow and size >= SQUARES else ""
    return (
        f"X has no value above {size:.2g} in column {column}{others}: {what};"
        f" multiply the column by a power of ten{wider}"
    )
