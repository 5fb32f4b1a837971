"""Readers of rows: from memory, from files, from a GPU, and prepared for a model."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcsgd.data.matrix import from_scipy
from hpcsgd.data.preparation import RAW, Preparation
from hpcsgd.data.stream import RowDevice, Unheld
from hpcsgd.errors import DataError
from hpcsgd.formats import ROUNDING, Array, Format

# Where rows come from, and how a rank's block is read and checked.

CHUNK_BYTES = 64 * 2**20  # read at once: bounds the memory beside the shard
WIDE = 8  # bytes of a float64
# The largest value that narrow storages do not round to inf: bf16, below float32.
NARROW_MAX = 3.38e38
LOOKED = 1024  # rows from which the number of stored values is estimated

# suffix -> reader; other files are opened as .h5, whose checks report the error
READERS = {
    ".h5": "hpcsgd.data.hdf5:Hdf5Reader",
    ".hdf5": "hpcsgd.data.hdf5:Hdf5Reader",
}


class RowReader(Protocol):
    """A matrix with targets, read by rows and columns.

    A sparse matrix has two more attributes, `is_sparse = True` and the number `nnz` of
    its stored values, and is read by `read_csr`. A reader may have the attributes
    `preparation` (of its rows) and `column_names`.
    """

    rows: int
    cols: int

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a dense block of real numbers, in the same dtype for all blocks."""

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """Return a scipy.sparse.csr_array, columns from 0 and sorted in each row."""

    def targets(self, rows: slice) -> Array:
        """Return the targets of these rows, float64."""

    def sample_weight(self, rows: slice) -> Array | None:
        """Return the weights of these rows, float64, or None."""

    def offset(self, rows: slice) -> Array | None:
        """Return the offsets of these rows, float64, or None."""

    def describe(self) -> dict[str, Any]:
        """Return the description of the data that a result stores."""

    def close(self) -> None:
        """Close the file."""


def open_reader(path: Path, *shared: Any) -> RowReader:
    """Return a reader of the file `path`, of the class for its suffix.

    `shared` are further arguments of the class, such as a communicator for MPI-IO.
    """
    row = READERS.get(path.suffix.lower(), READERS[".h5"])
    module, attribute = row.split(":")
    reader: RowReader = getattr(import_module(module), attribute)(path, *shared)
    return reader


def read_shape(path: Path) -> tuple[int, int]:
    """Return the numbers of rows and columns in a file."""
    reader = open_reader(path)
    try:
        return reader.rows, reader.cols
    finally:
        reader.close()


def is_sparse(reader: RowReader) -> bool:
    """Return whether a reader is sparse: it has stored values only."""
    return bool(getattr(reader, "is_sparse", False))


def preparation_of(reader: RowReader) -> Preparation:
    """Return the preparation of the rows of a reader; RAW if it has none."""
    preparation: Preparation = getattr(reader, "preparation", RAW)
    return preparation


def names_of(reader: RowReader) -> list[str] | None:
    """Return the names of the columns of a reader, or None."""
    names: list[str] | None = getattr(reader, "column_names", None)
    return names


def categories_of(reader: RowReader) -> dict[str, list[str]] | None:
    """Return column -> levels for columns that were text; None without any."""
    levels: dict[str, list[str]] | None = getattr(reader, "categories", None)
    return levels


def stored_in(reader: RowReader) -> int:
    """Return the number of stored values, estimated from some rows if not known."""
    if not is_sparse(reader):
        return reader.rows * reader.cols
    count = getattr(reader, "nnz", None)
    if count is not None:
        return int(count)
    looked = min(reader.rows, LOOKED)
    sample = reader.read_csr(slice(0, looked), slice(0, reader.cols))
    return int(sample.nnz * reader.rows / looked)


def element_of(reader: RowReader) -> np.dtype[Any]:
    """Return the dtype of the values of a reader as they are read."""
    element: np.dtype[Any] | None = getattr(reader, "element", None)
    if element is not None:
        return element
    read = reader.read_csr if is_sparse(reader) else reader.read
    dtype: np.dtype[Any] = read(slice(0, 0), slice(0, 0)).dtype
    return dtype


def row_words(reader: RowReader) -> int:
    """Return about how many words of 8 bytes one row takes while it is read."""
    if not is_sparse(reader):
        return max(reader.cols, 1)
    return 2 * (stored_in(reader) // reader.rows + 1)  # values with their columns


def load_block(
    reader: RowReader,
    rows: slice,
    cols: slice,
    store: Callable[[Array], Array],
    seen: Callable[[Array, int, int], None] | None = None,
    finite: Callable[[Array], bool] | None = None,
    chunks: Iterator[tuple[int, Array]] | None = None,
) -> Array:
    """Read a block in chunks and return it as `store` converts it.

    NaN and inf raise DataError. An array in memory is not copied if `store` returns it
    unchanged.

    `seen` is called with every chunk as it was read, its first row and its first
    column. `finite` returns whether a chunk is finite. `chunks` are the first row and
    the rows of each chunk, in order; None: those of `read_chunks`.
    """
    width = cols.stop - cols.start
    whole: Array | None = None
    chunks = chunks or read_chunks(reader, rows, cols)
    for first, stored in pieces(reader, cols, store, chunks, seen, finite):
        if whole is None and _is_own(reader, stored):
            whole = reader.read(rows, cols)
        if whole is None:
            whole = np.empty((rows.stop - rows.start, width), dtype=stored.dtype)
        if not _is_own(reader, stored):
            whole[first - rows.start : first - rows.start + len(stored)] = stored
        del stored  # else it would occupy memory while the next chunk is read
    if whole is None:
        return store(np.empty((0, width), dtype=np.float32))
    return whole


def bytes_of_block(
    reader: RowReader, rows: int, cols: int, form: Format
) -> tuple[int, int]:
    """Return the bytes of a dense block, and of chunks beside it in `load_block`.

    Both are 0 if the block is the caller's array itself. A chunk is in memory as it is
    read and as it is stored. The part of the block that the last chunk fills is not yet
    in memory while the chunk before is read; it is subtracted.
    """
    element = element_of(reader)
    in_memory = getattr(reader, "is_in_memory", False)
    if in_memory and _is_in_place(reader, cols, form):
        return 0, 0
    words = _piece_bytes(reader) // WIDE
    read = 0 if in_memory else words * element.itemsize
    is_copied = in_memory or not form.is_wide or element != form.dtype
    stored = words * form.dtype.itemsize if is_copied else 0
    if not form.is_wide:
        stored += ROUNDING
    whole, rest = divmod(rows * cols, words)
    share = rest / words  # of a piece, the last one
    unfilled = share * words * form.dtype.itemsize
    piece = read + stored - unfilled if whole else 0
    size = rows * cols * form.dtype.itemsize
    return size, int(max(piece, share * (read + stored)))


def _is_in_place(reader: RowReader, cols: int, form: Format) -> bool:
    """Return whether the block is the caller's array itself, whole and aligned."""
    X = reader.X  # type: ignore[attr-defined]
    is_whole = cols == reader.cols and X.flags.c_contiguous and X.flags.aligned
    return bool(is_whole and form.is_wide and X.dtype == form.dtype)


def _piece_bytes(reader: RowReader) -> int:
    """Return the size of a chunk that is read at once, in bytes of float64."""
    return min(getattr(reader, "best_piece", CHUNK_BYTES), CHUNK_BYTES)


def pieces(
    reader: RowReader,
    cols: slice,
    store: Callable[[Array], Array],
    chunks: Iterator[tuple[int, Array]],
    seen: Callable[[Array, int, int], None] | None = None,
    finite: Callable[[Array], bool] | None = None,
) -> Iterator[tuple[int, Array]]:
    """Yield (first row, rows as `store` converts them) of checked chunks, in order.

    The arguments are those of `load_block`; `cols` are the columns of the chunks.
    """
    for start, piece in chunks:
        if not (finite or _all_finite)(piece):
            _refuse_non_finite(piece, start, cols.start, names_of(reader))
        if seen is not None:
            seen(piece, start, cols.start)
        with np.errstate(over="ignore"):  # reported below, with the place
            stored = store(piece)
        if stored.dtype.itemsize < piece.dtype.itemsize:
            _refuse_too_large(piece, start, cols.start, names_of(reader))
        del piece  # each is freed before the next one is read
        yield start, stored
        del stored


def read_chunks(
    reader: RowReader, rows: slice, cols: slice, budget: int | None = None
) -> Iterator[tuple[int, Array]]:
    """Yield (first row, rows) of the chunks that are read at once, in order.

    A chunk takes about `budget` bytes of float64; None: what suits the reader.
    """
    width = cols.stop - cols.start
    step = max((budget or _piece_bytes(reader)) // (WIDE * max(width, 1)), 1)
    blocks = getattr(reader, "block_rows", 1)  # only whole blocks can be checked
    step = step // blocks * blocks or step
    for start in range(rows.start, rows.stop, step):
        stop = min(start + step, rows.stop)
        yield start, reader.read(slice(start, stop), cols)


def _is_own(reader: RowReader, stored: Array) -> bool:
    """Return whether these rows share memory with the array of the reader."""
    is_array = getattr(reader, "is_in_memory", False) and not is_sparse(reader)
    return is_array and np.may_share_memory(stored, reader.X)  # type: ignore[attr-defined]


def _all_finite(piece: Array) -> bool:
    # A sum is finite only if all terms are: one pass without a mask in the good case.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(piece.sum(dtype=np.float64)))


def _refuse_non_finite(
    piece: Array, first_row: int, first_col: int, names: list[str] | None
) -> None:
    place = _first(~np.isfinite(piece), first_row, first_col)
    if place:
        row, col = place
        value = piece[row - first_row, col - first_col]
        raise DataError(non_finite(value, row, col, names))


def _refuse_too_large(
    piece: Array, first_row: int, first_col: int, names: list[str] | None
) -> None:
    """Raise DataError if a finite value would become infinite when stored."""
    # Extremes first: no mask as large as the piece in the good case.
    if max(float(piece.max()), -float(piece.min())) <= NARROW_MAX:
        return
    place = _first(np.abs(piece) > NARROW_MAX, first_row, first_col)
    if place:
        row, col = place
        value = piece[row - first_row, col - first_col]
        raise DataError(too_large(value, row, col, names))


def non_finite(
    value: Any, row: int, col: int, names: Sequence[str] | None = None
) -> str:
    """Return the message about a value of X that is not finite."""
    column = _column_text(col, names)
    return f"X has {value} at row {row}, {column}; clean the file or drop that row"


def too_large(
    value: Any, row: int, col: int, names: Sequence[str] | None = None
) -> str:
    """Return the message about a value of X that is too large to be stored."""
    column = _column_text(col, names)
    return (
        f"X has {value:g} at row {row}, {column}, too large for less than float64;"
        " clean the file, rescale the column or use --precision fp64"
    )


def _column_text(col: int, names: Sequence[str] | None) -> str:
    """Return the words for a column in a message: its number, and its name if any."""
    return f"column {col}" if names is None else f"column {col} ({names[col]!r})"


def _first(bad: Array, first_row: int, first_col: int) -> tuple[int, int] | None:
    """Return global row and column of the first true entry, or None."""
    if not bad.any():
        return None
    row, col = np.argwhere(bad)[0]
    return first_row + int(row), first_col + int(col)


# Rows that are in memory already.

RAGGED = "X has rows of different lengths; give a matrix with rows and columns"


class MemoryReader:
    """A reader of arrays or sparse matrices that are equal on every rank.

    Aligned arrays of float32 or float64 are not copied. Sparse matrices of any format
    are converted to CSR with ascending columns once. Rows count as raw unless
    `preparation` states how they were prepared.
    """

    is_in_memory = True
    best_piece = 2**20  # bytes: a chunk is read several times and stays in cache

    def __init__(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        offset: Any = None,
        names: list[str] | None = None,
        preparation: Preparation = RAW,
    ) -> None:
        self.X = self._matrix(X)
        self.is_sparse = hasattr(self.X, "tocsr")
        self.rows, self.cols = self.X.shape
        self.element = self.X.dtype
        self.nnz = int(self.X.nnz if self.is_sparse else self.X.size)
        self.y = self._column("y", y)
        self.weights = self._column("sample_weight", sample_weight)
        self.offsets = self._column("offset", offset)
        self.column_names = names
        self.preparation = preparation

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a view of a dense block, or a dense copy of a sparse one."""
        if self.is_sparse:
            return from_scipy(self.read_csr(rows, cols)).to_dense()
        block: Array = self.X[rows, cols]
        return block

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """Return a sparse block, columns from 0 and ascending in each row.

        All rows and columns are the matrix itself, which must not be changed.
        """
        everything = (0, self.rows, 0, self.cols)
        if (rows.start, rows.stop, cols.start, cols.stop) == everything:
            return self.X
        block = self.X[rows]
        if (cols.start, cols.stop) != (0, self.cols):
            block = block[:, cols]
        block.sort_indices()
        return block

    def targets(self, rows: slice) -> Any:
        """Return targets as float64."""
        if self.y is None:
            raise DataError(
                "no y was given; pass y, which is optional for predictions only"
            )
        return self.y[rows]

    def sample_weight(self, rows: slice) -> Any:
        """Return weights as float64, or None."""
        return None if self.weights is None else self.weights[rows]

    def offset(self, rows: slice) -> Any:
        """Return offsets as float64, or None."""
        return None if self.offsets is None else self.offsets[rows]

    def describe(self) -> dict[str, Any]:
        """Return the description of the data that a result stores."""
        return {"kind": "memory", "rows": self.rows, "cols": self.cols}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _matrix(self, X: Any) -> Any:
        """Return X as a dense array or as CSR, in float32 or float64."""
        return _sparse(X) if hasattr(X, "tocsr") else _dense(X)

    def _column(self, name: str, values: Any) -> Any:
        if values is None:
            return None
        column = to_numbers(name, values)
        if column.shape not in ((self.rows,), (self.rows, 1)):
            raise DataError(
                f"{name} has shape {column.shape} and X has {self.rows} rows;"
                f" give {self.rows} values"
            )
        return column.reshape(-1)


def _sparse(X: Any) -> Any:
    """Return X as CSR; duplicates are added up, stored zeros remain."""
    from scipy.sparse import csr_array

    dtype = real_dtype(X.dtype, X.shape)
    if hasattr(X, "check_format"):  # compressed: SciPy does not check its indices
        try:
            X.check_format(full_check=True)
        except ValueError as error:
            raise DataError(
                f"X is not a sound sparse matrix ({error}); make it again from its"
                " rows, columns and values"
            ) from error
    matrix = csr_array(X)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()  # the caller's matrix is not changed
        matrix.sum_duplicates()
    arrays = matrix.indptr, matrix.indices, matrix.data
    if not all(array.flags.c_contiguous for array in arrays):
        matrix = matrix.copy()  # kernels read arrays without gaps
    return matrix.astype(dtype, copy=False)


def to_numbers(name: str, values: Any) -> Array:
    """Return targets, weights or offsets in float64; refuse times and other types."""
    refuse_masked(name, values)
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    try:
        if kind in ("c", "m", "M"):
            raise TypeError(values.dtype)
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{name} is not numeric; encode it as numbers, labels as 0, 1, ..., for"
            " example by numpy.unique(y, return_inverse=True)"
        ) from error


def refuse_masked(name: str, values: Any) -> None:
    """Raise DataError for a masked array, whose mask NumPy would ignore."""
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            f"{name} is a masked array, whose mask would be lost; fill it"
            f" ({name}.filled(value)) or drop those rows"
        )


def _dense(X: Any) -> Array:
    refuse_masked("X", X)
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise DataError(RAGGED) from error
    array = array.astype(real_dtype(array.dtype, array.shape), copy=False)
    # NumPy multiplies unaligned rows in another order of additions than BLAS.
    return array if array.flags.aligned else array.copy()


def real_dtype(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.dtype[Any]:
    """Return the dtype in which X is read, float32 or float64; refuse unfit X.

    `dtype` and `shape` are those of X: real numbers in a matrix that is not empty.
    """
    if dtype.kind not in "fiub":
        raise DataError(f"X has elements of type {dtype}; give real numbers")
    if len(shape) != 2 or 0 in shape:
        raise DataError(f"X has shape {shape}; give a matrix with rows and columns")
    if dtype.kind == "f" and dtype.itemsize in (4, 8):
        return dtype
    return np.dtype(np.float64 if dtype.itemsize > 2 else np.float32)


# The block of the data that this rank has in memory.


class HeldReader:
    """A reader of the block of one rank, by row and column numbers of the whole data.

    Parameters
    ----------
    block : array or sparse matrix
        The values of this rank.
    held : (slice, slice)
        The rows and columns of the whole data that `block` consists of.
    parts : tuple of slice
        The columns of every member of the grid.
    stored : int
        The stored elements of all ranks together.
    sides : dict
        y, sample_weight, offset and qid of all rows, or None.
    layout : str
        Which axis the ranks divide: "rows" or "columns".
    """

    is_in_memory = True
    best_piece = 2**20  # bytes: a chunk is read several times and stays in cache

    def __init__(
        self,
        block: Any,
        held: tuple[slice, slice],
        parts: tuple[slice, ...],
        stored: int,
        sides: dict[str, Array | None],
        layout: str,
    ) -> None:
        self.X = block
        self.is_sparse = hasattr(block, "tocsr")
        assert sides["y"] is not None  # data of a run have targets
        self.y = sides["y"]
        self.rows = len(self.y)
        self.cols = int(parts[-1].stop)
        self.nnz = stored
        self.parts = parts
        self.held_rows, self.held_cols = held
        self.sides = sides
        self.layout = layout

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a view of a dense block, or a dense copy of a sparse one."""
        if self.is_sparse:
            return from_scipy(self.read_csr(rows, cols)).to_dense()
        block: Array = self.X[self._local(rows, cols)]
        return block

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """Return a sparse block, columns from 0 and ascending in each row."""
        height, width = self._local(rows, cols)
        block = self.X[height]
        if (width.start, width.stop) != (0, self.X.shape[1]):
            block = block[:, width]
        block.sort_indices()
        return block

    def targets(self, rows: slice) -> Any:
        """Return targets as float64."""
        return self.y[rows]

    def sample_weight(self, rows: slice) -> Any:
        """Return weights as float64, or None."""
        return self._side("sample_weight", rows)

    def offset(self, rows: slice) -> Any:
        """Return offsets as float64, or None."""
        return self._side("offset", rows)

    def describe(self) -> dict[str, Any]:
        """Return the description of the data that a result stores."""
        facts = {"rows": self.rows, "cols": self.cols, "layout": self.layout}
        return {"kind": "memory", **facts}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _side(self, name: str, rows: slice) -> Any:
        side = self.sides[name]
        return None if side is None else side[rows]

    def _local(self, rows: slice, cols: slice) -> tuple[slice, slice]:
        """Return the slices of a block in this rank's array; refuse other blocks."""
        slices = []
        for request, shard in ((rows, self.held_rows), (cols, self.held_cols)):
            if request.start >= request.stop:  # an empty range is valid anywhere
                slices.append(slice(0, 0))
                continue
            if not shard.start <= request.start <= request.stop <= shard.stop:
                raise DataError(
                    f"this rank holds only rows {self.held_rows.start} to"
                    f" {self.held_rows.stop} of columns {self.held_cols.start} to"
                    f" {self.held_cols.stop} and needs others; pass"
                    " layout='replicated', or a file"
                )
            slices.append(
                slice(request.start - shard.start, request.stop - shard.start)
            )
        return slices[0], slices[1]


# Rows that a caller has in the memory of a GPU, as CuPy arrays.
#
# They stay on the GPU: blocks are copied to the host for the checksum, the check for
# NaN, and losses. CuPy is not imported here: only methods of the arrays are used.

AS_THEY_ARE = ("fp32", "tf32")  # formats that float32 rows are stored in


class DeviceReader(MemoryReader):
    """A reader of a dense matrix on a GPU, with targets in host memory."""

    is_in_memory = False  # not in host memory
    is_there = True
    best_piece = 64 * 2**20  # bytes: a block crosses the bus

    def _matrix(self, X: Any) -> Any:
        return X.astype(real_dtype(X.dtype, X.shape), copy=False)

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a copy of the block in host memory."""
        block: Array = self.X[rows, cols].get()
        return block

    def device_block(self, rows: slice, cols: slice, element: str) -> Any:
        """Return the block on the GPU, or None if it must be converted on the host.

        It is returned if X is float32 and `element` is fp32 or tf32.
        """
        if element not in AS_THEY_ARE or self.X.dtype != np.float32:
            return None
        return self.X[rows, cols]


class DeviceBlock(Unheld):
    """A block that is in GPU memory already."""

    def __init__(self, unheld: Unheld, block: Any) -> None:
        super().__init__(unheld.read_into, unheld.shape, unheld.dtype)
        self.block = block

    def straight(self, held: Any, device: RowDevice) -> bool:
        """Copy the block to `held`, an array on the same GPU, and return True."""
        device.put_rows(held, self.block)
        return True


def is_device_array(X: Any) -> bool:
    """Return whether X is an array in the memory of a GPU."""
    return hasattr(X, "__cuda_array_interface__")


# Rows for predictions, prepared as the training data of the model were.
#
# Raw rows are prepared while they are read: x ← (x − mean) / scale with the moments of
# the training data, then x ← x / ‖x‖ where its rows have length 1.

MOST_NAMED = 10  # columns that an error lists
MOMENTS = "the column means and scales of the training data"
SCALED_NOW = f"rows were raw: scaled with {MOMENTS}"
SCALED_BEFORE = f"rows were scaled already, with {MOMENTS}"
SHORTENED = "rows were brought to length 1, as those of the training data"


class PreparedReader:
    """The rows of a reader in float64, prepared while they are read.

    Sparse rows remain sparse unless columns are centred; then blocks are dense.
    """

    def __init__(self, reader: RowReader, preparation: Preparation) -> None:
        self.reader = reader
        self.applied = preparation
        self.rows = reader.rows
        self.cols = reader.cols
        scales = preparation.scales
        self.is_sparse = is_sparse(reader) and (scales is None or scales.mean is None)
        if self.is_sparse and hasattr(reader, "nnz"):
            self.nnz = reader.nnz
        self.block_rows = getattr(reader, "block_rows", 1)
        rows, _ = getattr(reader, "read_together", (0, 0))
        # All columns of a row are prepared together.
        self.read_together = (rows, reader.cols if rows else 0)

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a dense block in float64."""
        prepared: Array = self.applied.apply(self.reader.read(rows, self._every))
        return prepared[:, cols]

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """Return a sparse block in float64, columns ascending in each row."""
        from scipy.sparse import csr_array

        raw = csr_array(self.reader.read_csr(rows, self._every))
        prepared = csr_array(self.applied.apply(raw))[:, cols]
        prepared.sort_indices()
        return prepared

    def targets(self, rows: slice) -> Array:
        """Return the targets of these rows, float64."""
        return self.reader.targets(rows)

    def sample_weight(self, rows: slice) -> Array | None:
        """Return the weights of these rows, float64, or None."""
        return self.reader.sample_weight(rows)

    def offset(self, rows: slice) -> Array | None:
        """Return the offsets of these rows, float64, or None."""
        return self.reader.offset(rows)

    def describe(self) -> dict[str, Any]:
        """Return the description of the data that a result stores."""
        return self.reader.describe()

    def close(self) -> None:
        """Close the file."""
        self.reader.close()

    @property
    def _every(self) -> slice:
        return slice(0, self.cols)


def prepare(
    reader: RowReader, wanted: Preparation | None, trained_on: str = "train.h5"
) -> tuple[RowReader, str]:
    """Return a reader of the rows with the preparation `wanted`, and a sentence on it.

    `wanted` is the preparation of the training data; if it is None (unknown), rows are
    not changed. `trained_on` is the file of the training, for the remedy in a message.
    Rows that were prepared in another way raise DataError; raw rows do not. The
    sentence is "" if rows are not changed, unless their columns were scaled before.
    """
    preparation = preparation_of(reader)
    if wanted is None:
        return reader, ""
    missing = _missing(wanted, preparation)
    if missing is None:
        raise _scaled_otherwise(reader, wanted, preparation, trained_on)
    if missing.is_raw:
        return reader, "" if wanted.scales is None else SCALED_BEFORE
    sentence = SHORTENED if missing.scales is None else SCALED_NOW
    return PreparedReader(reader, missing), sentence


def _missing(wanted: Preparation, given: Preparation) -> Preparation | None:
    """Return the preparation that rows still need; None if they cannot get it."""
    if given.is_raw:
        return wanted
    if given.unit_rows and not wanted.unit_rows:
        return None
    if not wanted.scales_as(given):
        return None
    return Preparation(None, wanted.unit_rows and not given.unit_rows)


def _scaled_otherwise(
    reader: RowReader, wanted: Preparation, given: Preparation, trained_on: str
) -> DataError:
    """Return the error of rows whose preparation differs from the training data."""
    data = str(reader.describe().get("path", "the data"))
    same = wanted.unit_rows == given.unit_rows
    if wanted.is_raw or (wanted.scales is None and given.scales is not None):
        what = "scaled columns" if given.scales is not None else "rows of length 1"
        return DataError(f"{data} has {what}, unlike the training data; give raw rows")
    if wanted.scales is not None and given.scales is not None and same:
        what = "columns scaled with other means and scales than the training data"
    else:
        what = "rows that were prepared otherwise than the training data"
    return DataError(
        f"{data} has {what}; give the raw rows, or prepare them as the training data"
        f" with: hpcsgd data convert --like {trained_on}"
    )


def check_names(
    wanted: Sequence[str] | None, given: Sequence[str] | None, remedy: str
) -> None:
    """Raise DataError if column names or their order differ from the training data.

    `wanted` are the names of the training data. If either data has no names, columns
    are taken by position, as in scikit-learn. `remedy` is the end of the message about
    a wrong order.
    """
    if wanted is None or given is None or list(wanted) == list(given):
        return  # without names, columns are taken by position
    lacking, unknown = differing(wanted, given)
    if not lacking and not unknown and len(wanted) == len(given):
        place = next(k for k, name in enumerate(wanted) if given[k] != name)
        raise DataError(
            f"the columns are in another order than in the training data: column"
            f" {place} is {given[place]!r} and was {wanted[place]!r}; {remedy}"
        )
    raise other_columns(lacking, unknown)


def differing(
    wanted: Sequence[str], given: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the names that only `wanted` has, and those that only `given` has."""
    has = set(given)
    wants = set(wanted)
    lacking = [name for name in wanted if name not in has]
    return lacking, [name for name in given if name not in wants]


def other_columns(
    lacking: Sequence[str], unknown: Sequence[str], whose: str = "the data"
) -> DataError:
    """Return the error of columns that are not those of the training."""
    parts = []
    if lacking:
        parts.append(f"lacks the columns {_listed(lacking)}")
    if unknown:
        parts.append(f"has the columns {_listed(unknown)} beyond them")
    mismatch = " and ".join(parts) or "has columns of the same name twice"
    return DataError(
        f"{whose} has other columns than the training data: it {mismatch}; give exactly"
        " the columns of the training"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
