"""Writing and verifying stores: HDF5 files of encoded rows."""

import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array

from hpcsgd.data.checksums import block_sum
from hpcsgd.data.hdf5 import COLUMNS, FEW, PIECE, Hdf5Reader, StoreLayout
from hpcsgd.data.matrix import Csr, stack
from hpcsgd.data.preparation import CATEGORIES, MEANS, NAMES, SCALES, Scales
from hpcsgd.errors import ConfigError, DataError, MissingPackage
from hpcsgd.files import open_locked, publish
from hpcsgd.formats import Array

# A file that is hidden until it is complete.
#
# A failed write is stored in `error` and reported to HDF5 as successful, because HDF5
# crashes the interpreter when a disk is full; the owner of the file checks `error`.


class PartFile:
    """A hidden file `.NAME.part` beside NAME, private to this user until renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.part")
        self.place = 0
        self.error: OSError | None = None
        try:
            self.number = open_locked(self.part, _private, lock_required=True)
        except BlockingIOError as error:
            raise ConfigError(
                f"cannot write {path}: another program is writing it; wait for its"
                " end, or choose another name"
            ) from error
        os.ftruncate(self.number, 0)

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`, for the file driver of h5py."""
        data = os.pread(self.number, size, self.place)
        self.place += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, with zeros behind the end of the file, as HDF5 expects.

        Return the number of bytes that were read.
        """
        view = memoryview(buffer).cast("B")
        got = os.preadv(self.number, [view], self.place)
        view[got:] = bytes(len(view) - got)
        self.place += got
        return got

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read or write, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.place}.get(whence)
        if base is None:
            base = os.fstat(self.number).st_size
        self.place = base + offset
        return self.place

    def tell(self) -> int:
        """Return the position of the next read or write."""
        return self.place

    def write(self, data: Any) -> int:
        """Write `data` and return its length; a failure is stored in `error`."""
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                _write_all(self.number, view, self.place)
            except OSError as error:
                self.error = error
        self.place += len(view)
        return len(view)

    def truncate(self, size: int) -> int:
        """Cut or extend the file to `size` bytes; a failure is stored in `error`."""
        if self.error is None:
            try:
                os.ftruncate(self.number, size)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Do nothing: writes are not buffered; `publish` synchronizes with the disk."""

    def publish(self) -> None:
        """Rename the file to its final name, with the permissions of a new file."""
        if self.error is not None:
            raise self.error
        publish(self.number, self.part, self.path)
        self._close()

    def remove(self) -> None:
        """Remove the hidden file, unless it was published."""
        if self.number >= 0:
            with suppress(OSError):
                self.part.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        os.close(self.number)  # the lock goes with it
        self.number = -1


def open_part(path: Path) -> PartFile:
    """Return the PartFile of a store `path`; raise ConfigError if it cannot be made."""
    try:
        return PartFile(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: its folder is missing or not writable;"
            " make it, or name another"
        ) from error


def _write_all(number: int, data: memoryview, place: int) -> None:
    """Write all of `data` at byte `place` of the descriptor `number`."""
    while data:
        done = os.pwrite(number, data, place)
        data = data[done:]
        place = place + done


def _private(path: Path) -> int:
    """Open or make a file that only this user may access, and return its descriptor.

    A symbolic link is not followed, since it may be that of another user.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number


# Rows as a store contains them: their writer only copies the bytes.


@dataclass(frozen=True)
class StoredRows:
    """Consecutive rows as a store contains them, and their side columns, such as y."""

    matrix: Array | Csr  # of stored elements, which may be bits
    columns: dict[str, Array]
    largest: float  # largest norm of these rows, before encoding

    def __len__(self) -> int:
        return int(self.matrix.shape[0])


def encode_rows(
    layout: StoreLayout, X: Any, columns: Mapping[str, Array], first: int, path: Path
) -> StoredRows:
    """Return rows encoded for a store; raise DataError for values that are too large.

    `first` is the number of the first row in the store, for the message.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        largest = (_largest_csr if layout.is_sparse else _largest_dense)(X)
    encode = _encode_csr if layout.is_sparse else _encode_dense
    beside = {n: np.asarray(c, COLUMNS[n]).reshape(-1) for n, c in columns.items()}
    return StoredRows(encode(layout, X, first, path), beside, largest)


def _encode_dense(layout: StoreLayout, X: Any, first: int, path: Path) -> Array:
    return _encode(layout, np.asarray(X), first, path)


def _encode_csr(layout: StoreLayout, X: Any, first: int, path: Path) -> Csr:
    """Return the encoded rows as CSR with ascending columns."""
    rows = csr_array(X)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    data = _encode(layout, rows.data, first, path, rows.indptr)
    indices = rows.indices.astype(layout.index, copy=False)
    return Csr(rows.indptr.astype("<i8"), indices, data, layout.cols)


def _largest_dense(X: Any) -> float:
    """Return max ‖a_i‖ of dense rows, before they are rounded."""
    values = np.asarray(X)
    return _largest(np.einsum("ij,ij->i", values, values, dtype=np.float64))


def _largest_csr(X: Any) -> float:
    """Return max ‖a_i‖ of sparse rows, before they are rounded."""
    rows = csr_array(X)
    values = rows.data.astype(np.float64)
    squares = csr_array((values * values, rows.indices, rows.indptr), rows.shape)
    return _largest(np.asarray(squares.sum(axis=1)))


def _largest(squares: Array) -> float:
    """Return the root of the largest square; NaN is ignored."""
    return float(np.sqrt(np.fmax.reduce(squares, initial=0.0)))


def _encode(
    layout: StoreLayout, values: Array, first: int, path: Path, indptr: Any = None
) -> Array:
    """Return encoded values; raise DataError if a finite value becomes inf or NaN.

    `indptr` is that of CSR rows, None for dense rows; `first` is the number of the
    first row.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # NaN remains NaN
        stored = layout.encode(values)
    if layout.element == "fp64" or not values.size:
        return stored
    decoded_values = layout.decode(stored)
    with np.errstate(over="ignore", invalid="ignore"):
        total = decoded_values.sum(dtype=np.float64)
    if np.isfinite(total):  # only if all terms are: no mask in the good case
        return stored
    lost = np.isfinite(values) & ~np.isfinite(decoded_values)
    if lost.any():
        place = np.argwhere(lost)[0]
        row = (
            place[0]
            if indptr is None
            else np.searchsorted(indptr, place[0], "right") - 1
        )
        raise DataError(
            f"{path}: {values[tuple(place)]:g} at row {first + row} is too large for"
            f" {layout.element} with scale {layout.scale:g}; choose a wider element"
            " type or a larger scale"
        )
    return stored


# Blocks of rows of a store: their data sets in the file, and their checksums.

Piece = tuple[Any, dict[str, Array]]  # rows as they are stored, and their columns


class PendingRows:
    """Rows that are collected until they fill a block."""

    def __init__(self, is_sparse: bool) -> None:
        self.stack: Callable[[list[Any]], Any] = stack if is_sparse else np.concatenate
        self.pieces: list[Piece] = []

    def __len__(self) -> int:
        return sum(matrix.shape[0] for matrix, _ in self.pieces)

    def add(self, matrix: Any, columns: dict[str, Array]) -> None:
        """Append rows and their side columns."""
        if matrix.shape[0]:
            self.pieces.append((matrix, columns))

    def all(self) -> Piece:
        """Return all collected rows as one piece, without removing them."""
        if len(self.pieces) > 1:
            matrix = self.stack([matrix for matrix, _ in self.pieces])
            columns = {
                name: np.concatenate([c[name] for _, c in self.pieces])
                for name in self.pieces[0][1]
            }
            self.pieces = [(matrix, columns)]
        return self.pieces[0]

    def cut(self, rows: int) -> Piece:
        """Remove the first `rows` rows and return them."""
        matrix, columns = self.all()
        rest = {name: column[rows:] for name, column in columns.items()}
        self.pieces = []
        self.add(matrix[rows:], rest)
        return matrix[:rows], {name: column[:rows] for name, column in columns.items()}


class StoreBlocks(ABC):
    """The data sets of a store; this base class writes side columns, with checksums."""

    def __init__(
        self,
        file: Any,
        layout: StoreLayout,
        columns: tuple[str, ...],
        rows: int | None,
        stored: float,
    ) -> None:
        self.file = file
        self.layout = layout
        self.columns = columns
        self.first = 0  # row of the block that is written next
        self.rows = rows
        self.stored = stored
        self.nodes: dict[str, Any] = {}
        for name in columns:
            chunk = _chunk(rows, layout.block_rows)
            self._grow(name, (0,), COLUMNS[name], chunk)
            self._sums(name, ())
        self._make()

    def write(self, piece: Piece) -> None:
        """Write `piece` after the rows written so far: a block, or the last rows."""
        matrix, columns = piece
        stop = self.first + matrix.shape[0]
        number = self.first // self.layout.block_rows
        for name, values in columns.items():
            self._put(name, self.first, stop, values)
            self._put(f"checksums/{name}", number, number + 1, block_sum(values))
        self._write_matrix(matrix, number, stop)
        self.first = stop

    def _sums(self, name: str, rest: tuple[int, ...]) -> None:
        most = max(4096 // max(rest[0] if rest else 1, 1), 1)
        if self.rows is not None:
            most = min(most, -(-self.rows // self.layout.block_rows))
        self._grow(f"checksums/{name}", (0, *rest), "<u8", (most, *rest))

    @property
    def is_one_tile(self) -> bool:
        """Return whether every data set fits into one chunk, which needs no index."""
        if self.rows is None or self.rows > self.layout.block_rows:
            return False
        return self.layout.tiles == 1 and self.rows < PIECE and 0 < self.stored <= PIECE

    def _grow(self, name: str, shape: Any, dtype: Any, chunk: tuple[int, ...]) -> None:
        """Make the data set `name`, chunked and growable from `shape` on.

        If every data set of the store fits into one chunk, make it contiguous instead,
        of the shape `chunk`.
        """
        if self.is_one_tile:
            self.file.create_dataset(name, chunk, dtype=dtype)
            return
        most = (None, *shape[1:])
        self.file.create_dataset(name, shape, dtype=dtype, chunks=chunk, maxshape=most)

    def _put(self, name: str, start: int, stop: int, values: Any) -> None:
        node = self.nodes.get(name)
        if node is None:  # a look-up takes as long as a short write
            node = self.nodes[name] = self.file[name]
        if len(node) != stop:
            node.resize(stop, axis=0)
        node[start:stop] = values

    @abstractmethod
    def _make(self) -> None:
        """Make the data sets of X."""

    @abstractmethod
    def _write_matrix(self, matrix: Any, number: int, stop: int) -> None: ...


class DenseBlocks(StoreBlocks):
    """The data set /X of a dense store, in tiles with one checksum each."""

    def _make(self) -> None:
        tile = (self.layout.block_rows, self.layout.tile_cols)
        shape = (0, self.layout.cols)
        self._grow("X", shape, self.layout.stored, tile)
        self._sums("X", (self.layout.tiles,))

    def _write_matrix(self, matrix: Any, number: int, stop: int) -> None:
        self._put("X", self.first, stop, matrix)
        width = self.layout.tile_cols
        starts = range(0, self.layout.cols, width)
        sums = [block_sum(matrix[:, at : at + width]) for at in starts]
        self._put("checksums/X", number, number + 1, np.array(sums, "<u8"))


class CsrBlocks(StoreBlocks):
    """/X/indptr, /X/indices and /X/data, each with one checksum per block of rows."""

    def _make(self) -> None:
        for name, dtype in (
            ("indices", self.layout.index),
            ("data", self.layout.stored),
        ):
            self._grow(f"X/{name}", (0,), dtype, _chunk(self.stored))
            self._sums(name, ())
        pointers = None if self.rows is None else self.rows + 1
        self._grow("X/indptr", (1,), "<i8", _chunk(pointers))
        self._sums("indptr", ())

    def _write_matrix(self, matrix: Any, number: int, stop: int) -> None:
        base = int(self.file["X/indptr"][self.first])  # 0 in a new data set
        end = base + len(matrix.data)
        pointers = matrix.indptr + base
        self._put("X/indptr", self.first, stop + 1, pointers)
        self._put("X/indices", base, end, matrix.indices)
        self._put("X/data", base, end, matrix.data)
        for name, values in (
            ("indptr", pointers),
            ("indices", matrix.indices),
            ("data", matrix.data),
        ):
            self._put(f"checksums/{name}", number, number + 1, block_sum(values))


def make_blocks(
    file: Any, layout: StoreLayout, first: Piece, rows: int | None
) -> DenseBlocks | CsrBlocks:
    """Make the data sets of a store, with sizes that suit its `first` block of rows.

    `rows` is the number of all its rows, or None if unknown.
    """
    matrix, columns = first
    names = tuple(columns)
    if not layout.is_sparse:
        return DenseBlocks(file, layout, names, rows, matrix.size)
    stored = math.inf
    if rows is not None:
        stored = len(matrix.data)
        if rows > len(matrix):  # in chunks, the last of which may be partly empty
            stored *= rows / (FEW * len(matrix))
    return CsrBlocks(file, layout, names, rows, stored)


def _chunk(expected: float | None, most: int = PIECE) -> tuple[int]:
    """Return the chunk shape of a column, not larger than its expected entries."""
    most = min(most, PIECE)
    return (most if expected is None else max(math.ceil(min(most, expected)), 1),)


# Writing a store row by row; the file gets its name only when it is complete.


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "HDF5 files need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


@dataclass(frozen=True)
class ColumnFacts:
    """The facts about the columns of X that a store contains beside their values.

    Attributes
    ----------
    scales : Scales or None
        Means and scales of the columns before they were standardized, if they were.
    names : sequence of str, or None
        Names of the columns, if they have any.
    categories : mapping or None
        Levels of each column that was text before it was encoded, by its name.
    """

    scales: Scales | None = None
    names: Sequence[str] | None = None
    categories: Mapping[str, Sequence[str]] | None = None

    def write(self, file: Any, cols: int) -> None:
        """Write the facts on `cols` columns into the HDF5 file of a store."""
        scales = self.scales
        moments = {} if scales is None else {MEANS: scales.mean, SCALES: scales.scale}
        for name, values in moments.items():
            if values is not None:
                vector = np.asarray(values, "<f8").reshape(cols)
                file.create_dataset(name, data=vector)
        text = _h5py().string_dtype()
        if self.names is not None:
            file.create_dataset(NAMES, data=list(self.names), dtype=text)
        if self.categories:
            levels = {name: list(of) for name, of in self.categories.items()}
            file.create_dataset(CATEGORIES, data=json.dumps(levels), dtype=text)


class StoreWriter:
    """A writer that appends blocks of rows to a hidden `.part` file.

    Parameters
    ----------
    path : path-like
        Name of the complete file.
    layout : StoreLayout
        Columns of X, and how its elements are stored. The writer itself chooses the
        size of the tiles.
    rows : int or None
        Number of all rows if it is known; `finish` compares it.
    columns : tuple of str
        Those of y, sample_weight, offset and qid that every `append` gets.
    attributes : dict or None
        Attributes of the file, such as task, classes and source.
    column_facts : ColumnFacts
        Facts about the columns of X, which the file contains too.
    """

    layout: StoreLayout
    held: PendingRows
    done: int  # rows appended
    position: int  # of the source after these rows
    max_norm: float  # of the rows before encoding

    def __init__(
        self,
        path: str | Path,
        layout: StoreLayout,
        *,
        rows: int | None = None,
        columns: tuple[str, ...] = ("y",),
        attributes: dict[str, Any] | None = None,
        column_facts: ColumnFacts = ColumnFacts(),
    ) -> None:
        self.path = Path(path)
        self.rows = rows
        self.layout = layout.for_rows(rows)
        self.done = self.position = 0
        self.max_norm = 0.0
        self.held = PendingRows(layout.is_sparse)
        if self.path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder; name a file")
        if set(columns) - set(COLUMNS):
            raise ConfigError(
                f"columns = {columns} names an unknown column; known:"
                f" {', '.join(COLUMNS)}"
            )
        self.columns = tuple(name for name in COLUMNS if name in columns)
        self._check_room()
        self.raw = open_part(self.path)
        self.file: Any = None
        self.blocks: DenseBlocks | CsrBlocks | None = None  # until rows are written
        try:
            self.file = _h5py().File(self.raw, "w", libver=("v108", "v108"))
            self.file.attrs.update(attributes or {})
            self.file.attrs.update(finished=False)
            column_facts.write(self.file, layout.cols)
        except OSError as error:
            self.abandon()
            raise self._unwritten(error) from error
        except BaseException:
            self.abandon()
            raise

    def append(
        self,
        X: Any,
        y: Array | None = None,
        sample_weight: Array | None = None,
        offset: Array | None = None,
        position: int | None = None,
        qid: Array | None = None,
    ) -> None:
        """Append rows; `position` is where the source goes on after them.

        It is saved in the file; by default it is the number of rows so far.
        """
        pairs = zip(COLUMNS, (y, sample_weight, offset, qid), strict=True)
        columns = {name: column for name, column in pairs if column is not None}
        self._check_fit(X.shape, columns)
        self._take(encode_rows(self.layout, X, columns, self.done, self.path), position)

    def append_stored(self, rows: StoredRows, position: int) -> None:
        """Append rows that are already encoded; `position` is that of `append`."""
        self._check_fit(rows.matrix.shape, rows.columns)
        self._take(rows, position)

    def _take(self, rows: StoredRows, position: int | None) -> None:
        self.max_norm = max(self.max_norm, rows.largest)
        self.held.add(rows.matrix, rows.columns)
        self.done += len(rows)
        self.position = self.done if position is None else position
        try:
            while len(self.held) >= self.layout.block_rows:
                self._write(self.held.cut(self.layout.block_rows))
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unwritten(error) from error
        if self.raw.error is not None:
            raise self._unwritten(self.raw.error)

    def finish(self) -> None:
        """Write the last rows, and give the file its name.

        If rows are missing, remove the unfinished file and raise DataError.
        """
        if self.done == 0 or self.done != (self.rows or self.done):
            self.abandon()
            raise DataError(
                f"{self.path}: only {self.done} of {self.rows or 'some'} rows were"
                " appended, and no file was kept; append all rows, or set rows to fewer"
            )
        try:
            if len(self.held):
                self._write(self.held.all(), is_last=True)
            self.file.attrs["shape"] = (self.done, self.layout.cols)
            self.file.attrs["position"] = self.position
            self.file.attrs["max_row_norm"] = self.max_norm
            self.file.attrs["finished"] = True
            self.file.close()
            self.raw.publish()
        except (OSError, RuntimeError, ValueError) as error:
            self.abandon()
            raise self._unwritten(error) from error

    def abandon(self) -> None:
        """Remove the unfinished file."""
        self._close()
        self.raw.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    def _write(self, piece: Piece, is_last: bool = False) -> None:
        """Write a block; the first one determines the sizes of the chunks."""
        if self.blocks is None:
            if is_last:  # and the only one
                self.rows = self.done
                self.layout = self.layout.for_rows(self.rows)
            self.file.attrs.update(self.layout.attributes())
            self.blocks = make_blocks(self.file, self.layout, piece, self.rows)
        self.blocks.write(piece)

    def _check_fit(self, shape: tuple[int, ...], columns: dict[str, Array]) -> None:
        stop = self.done + shape[0]
        lengths = {name: len(column) for name, column in columns.items()}
        expected_lengths = dict.fromkeys(self.columns, shape[0])
        too_many = self.rows is not None and stop > self.rows
        if too_many or shape[1:] != (self.layout.cols,) or lengths != expected_lengths:
            raise DataError(
                f"{self.path}: the appended rows {self.done} to {stop} of shape {shape}"
                f" do not fit a store of {self.rows or 'any'} x {self.layout.cols} with"
                f" {', '.join(self.columns) or 'no y'}; create the store with the sizes"
                " of the data"
            )

    def _check_room(self) -> None:
        """Raise ConfigError if the disk has no space for the rows.

        For a sparse matrix, whose size is unknown, only side columns are counted.
        """
        if not self.path.parent.is_dir() or self.rows is None:
            return
        width = 0 if self.layout.is_sparse else self.layout.cols
        need = self.rows * (self.layout.stored.itemsize * width + 8 * len(self.columns))
        free = shutil.disk_usage(self.path.parent).free
        if need > free:
            raise ConfigError(
                f"cannot write {self.path}: it needs {need / 2**30:.3g} GiB and its"
                f" folder has {free / 2**30:.3g} GiB free; use fewer rows or another"
                " folder"
            )

    def _close(self) -> None:
        with suppress(OSError, RuntimeError, ValueError):
            if self.file is not None:
                self.file.close()

    def _unwritten(self, error: Exception) -> DataError:
        cause = self.raw.error or error
        number = getattr(cause, "errno", None)
        reason = os.strerror(number) if number else str(cause).split("(")[0].strip()
        return DataError(
            f"{self.path} cannot be written ({reason}); make room or choose"
            " another folder"
        )


# Verification of a store: all bytes are compared with their checksums.


@dataclass(frozen=True)
class StoreCheck:
    """The result of `verify_store`; `checked` is False for a file without checksums.

    Attributes
    ----------
    path : the file
    rows, cols : of X
    blocks : number of blocks of rows that were read
    checked : False if the file has no checksums and was only read
    faults : one sentence for each damaged tile or block, naming its rows
    """

    path: Path
    rows: int
    cols: int
    blocks: int
    checked: bool
    faults: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Return whether no fault was found; see also `checked`."""
        return not self.faults


def verify_store(
    path: str | Path, progress: Callable[[int, int], None] | None = None
) -> StoreCheck:
    """Compare all bytes of a store with their checksums, and return the result.

    `progress` is called with (rows read, rows in all). A file that cannot be opened
    (truncated, unfinished, newer format) raises DataError.
    """
    reader = Hdf5Reader(path)
    faults: list[str] = []
    step = reader.block_rows if reader.checks else max(2**20 // reader.cols, 1)
    try:
        for start in range(0, reader.rows, step):
            rows = slice(start, min(start + step, reader.rows))
            faults += _faults(reader, rows)
            if progress is not None:
                progress(rows.stop, reader.rows)
        blocks = -(-reader.rows // step)
        size = (reader.rows, reader.cols)
        return StoreCheck(Path(path), *size, blocks, reader.checks, tuple(faults))
    finally:
        reader.close()


def _faults(reader: Hdf5Reader, rows: slice) -> list[str]:
    """Return the faults of one block of rows: first of X, then of side columns."""
    faults: list[str] = []
    for cols in _tiles(reader):
        faults += _fault(partial(_read, reader, rows, cols))
    readers = (reader.targets, reader.sample_weight, reader.offset, reader.queries)
    for name, read in zip(COLUMNS, readers, strict=True):
        if name in reader.file:
            faults += _fault(partial(read, rows))
    return faults


def _tiles(reader: Hdf5Reader) -> list[slice]:
    width = reader.cols
    if reader.checks and not reader.is_sparse and reader.layout is not None:
        width = reader.layout.tile_cols
    starts = range(0, reader.cols, width)
    return [slice(at, min(at + width, reader.cols)) for at in starts]


def _read(reader: Hdf5Reader, rows: slice, cols: slice) -> None:
    if reader.is_sparse:
        reader.read_csr(rows, cols)
    else:
        reader.read_stored(rows, cols)


def _fault(read: Callable[[], object]) -> list[str]:
    try:
        read()
    except DataError as error:
        return [str(error)]
    return []
