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
from hpcsgd.data.part_file import open_part
from hpcsgd.data.preparation import CATEGORIES, MEANS, NAMES, SCALES
from hpcsgd.errors import ConfigError, DataError, MissingPackage
from hpcsgd.formats import Array

# Rows as a store holds them: bytes that its writer has only to put in place.


@dataclass(frozen=True)
class StoredRows:
    """Consecutive rows of a store, and their columns beside X."""

    matrix: Array | Csr  # of stored elements, which may be bits
    columns: dict[str, Array]
    largest: float  # norm of these rows, as they were given

    def __len__(self) -> int:
        return int(self.matrix.shape[0])


def encode_rows(
    layout: StoreLayout, X: Any, columns: Mapping[str, Array], first: int, path: Path
) -> StoredRows:
    """Rows from number `first` of the store `path` on; too large a value is refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = (_largest_csr if layout.is_sparse else _largest_dense)(X)
    encode = _encode_csr if layout.is_sparse else _encode_dense
    beside = {n: np.asarray(c, COLUMNS[n]).reshape(-1) for n, c in columns.items()}
    return StoredRows(encode(layout, X, first, path), beside, largest)


def _encode_dense(layout: StoreLayout, X: Any, first: int, path: Path) -> Array:
    return _encode(layout, np.asarray(X), first, path)


def _encode_csr(layout: StoreLayout, X: Any, first: int, path: Path) -> Csr:
    """Columns in order."""
    rows = csr_array(X)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    data = _encode(layout, rows.data, first, path, rows.indptr)
    indices = rows.indices.astype(layout.index, copy=False)
    return Csr(rows.indptr.astype("<i8"), indices, data, layout.cols)


def _largest_dense(X: Any) -> float:
    """max ‖a_i‖ of these rows, before they are rounded."""
    values = np.asarray(X)
    return _largest(np.einsum("ij,ij->i", values, values, dtype=np.float64))


def _largest_csr(X: Any) -> float:
    """The same."""
    rows = csr_array(X)
    values = rows.data.astype(np.float64)
    squares = csr_array((values * values, rows.indices, rows.indptr), rows.shape)
    return _largest(np.asarray(squares.sum(axis=1)))


def _largest(squares: Array) -> float:
    """The root of the largest, passing over those that are no numbers."""
    return float(np.sqrt(np.fmax.reduce(squares, initial=0.0)))


def _encode(
    layout: StoreLayout, values: Array, first: int, path: Path, indptr: Any = None
) -> Array:
    """As stored; a finite value that the element type cannot hold is refused."""
    with np.errstate(over="ignore", invalid="ignore"):  # NaN stays NaN
        stored = layout.encode(values)
    if layout.element == "fp64" or not values.size:
        return stored
    kept = layout.decode(stored)
    with np.errstate(over="ignore", invalid="ignore"):
        total = kept.sum(dtype=np.float64)
    if np.isfinite(total):  # only if all terms are: no mask in the good case
        return stored
    lost = np.isfinite(values) & ~np.isfinite(kept)
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


# Blocks of rows of a store: where they stand in the file, and their checksums.

Piece = tuple[Any, dict[str, Array]]  # rows as they are stored, and their columns


class PendingRows:
    """Rows that wait until there is a whole block of them."""

    def __init__(self, is_sparse: bool) -> None:
        self.stack: Callable[[list[Any]], Any] = stack if is_sparse else np.concatenate
        self.pieces: list[Piece] = []

    def __len__(self) -> int:
        return sum(matrix.shape[0] for matrix, _ in self.pieces)

    def add(self, matrix: Any, columns: dict[str, Array]) -> None:
        """More rows at the end."""
        if matrix.shape[0]:
            self.pieces.append((matrix, columns))

    def all(self) -> Piece:
        """Everything, as one piece that stays."""
        if len(self.pieces) > 1:
            matrix = self.stack([matrix for matrix, _ in self.pieces])
            columns = {
                name: np.concatenate([c[name] for _, c in self.pieces])
                for name in self.pieces[0][1]
            }
            self.pieces = [(matrix, columns)]
        return self.pieces[0]

    def cut(self, rows: int) -> Piece:
        """The first `rows` rows, which go."""
        matrix, columns = self.all()
        rest = {name: column[rows:] for name, column in columns.items()}
        self.pieces = []
        self.add(matrix[rows:], rest)
        return matrix[:rows], {name: column[:rows] for name, column in columns.items()}


class StoreBlocks(ABC):
    """What dense and sparse matrices have in common: side columns and checksums."""

    def __init__(
        self,
        file: Any,
        layout: StoreLayout,
        columns: tuple[str, ...],
        rows: int | None,
        stored: float,
    ) -> None:
        self.file, self.layout, self.columns = file, layout, columns
        self.first = 0  # row of the block that is written next
        self.rows, self.stored = rows, stored
        self.nodes: dict[str, Any] = {}
        for name in columns:
            chunk = _chunk(rows, layout.block_rows)
            self._grow(name, (0,), COLUMNS[name], chunk)
            self._sums(name, ())
        self._make()

    def write(self, piece: Piece) -> None:
        """The rows from `first`, a whole block but for the last one."""
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
        """True where every data set has one chunk, for which it needs no index."""
        if self.rows is None or self.rows > self.layout.block_rows:
            return False
        return self.layout.tiles == 1 and self.rows < PIECE and 0 < self.stored <= PIECE

    def _grow(self, name: str, shape: Any, dtype: Any, chunk: tuple[int, ...]) -> None:
        """Make a data set that can get more rows, or one that is its only chunk."""
        if self.is_one_tile:
            self.file.create_dataset(name, chunk, dtype=dtype)
            return
        most = (None, *shape[1:])
        self.file.create_dataset(name, shape, dtype=dtype, chunks=chunk, maxshape=most)

    def _put(self, name: str, start: int, stop: int, values: Any) -> None:
        node = self.nodes.get(name)
        if node is None:  # looking it up takes as long as a short write
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
    """/X in tiles, one checksum a tile."""

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
    """/X/indptr, /X/indices and /X/data, one checksum of each for a block of rows."""

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
        base = int(self.file["X/indptr"][self.first])  # 0 of a new data set
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
    """Make the data sets of a store whose first block of rows is there.

    `rows` is the number of all its rows, where that is known.
    """
    matrix, columns = first
    names = tuple(columns)
    if not layout.is_sparse:
        return DenseBlocks(file, layout, names, rows, matrix.size)
    stored = math.inf
    if rows is not None:
        stored = len(matrix.data)
        if rows > len(matrix):  # in chunks of which the last one may be part empty
            stored *= rows / (FEW * len(matrix))
    return CsrBlocks(file, layout, names, rows, stored)


def _chunk(expected: float | None, most: int = PIECE) -> tuple[int]:
    """Return the chunk of a column, no larger than what is expected to be in it."""
    most = min(most, PIECE)
    return (most if expected is None else max(math.ceil(min(most, expected)), 1),)


# Writes a store row by row; the file takes its name only when it is complete.


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "HDF5 files need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


class StoreWriter:
    """Appends blocks of rows to a hidden `.part` file beside the one it will be.

    Parameters
    ----------
    path : where the complete file will stand
    cols : columns of X
    rows : how many there will be, where that is known: checked at the end
    element : fp64, fp32, fp16, bf16, fp8-e4m3 or fp8-e5m2
    scale : stored elements are values / scale
    is_sparse : True keeps X as CSR
    columns : of y, sample_weight, offset and qid, those that every `append` brings
    attributes : kept with the file, such as task, classes and source
    means, scales : (cols,) of standardised columns, as they were before
    names : of the columns, where they have any
    categories : levels of columns that were text before they were encoded
    """

    layout: StoreLayout
    held: PendingRows
    done: int  # rows appended
    position: int  # where the source goes on after them
    max_norm: float  # of the rows as they were given

    def __init__(
        self,
        path: str | Path,
        cols: int,
        *,
        rows: int | None = None,
        element: str = "fp32",
        scale: float = 1.0,
        is_sparse: bool = False,
        columns: tuple[str, ...] = ("y",),
        attributes: dict[str, Any] | None = None,
        means: Array | None = None,
        scales: Array | None = None,
        names: Sequence[str] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.path, self.rows = Path(path), rows
        self.layout = StoreLayout(cols, element, scale, is_sparse, rows=rows)
        self.done = self.position = 0
        self.max_norm = 0.0
        self.held = PendingRows(is_sparse)
        if self.path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder; name a file")
        if set(columns) - set(COLUMNS):
            raise ConfigError(f"columns are of {', '.join(COLUMNS)}, not {columns}")
        self._check_room(len(columns))
        self.raw = open_part(self.path)
        self.file: Any = None
        self.blocks: DenseBlocks | CsrBlocks | None = None  # until rows are written
        try:
            self.file = _h5py().File(self.raw, "w", libver=("v108", "v108"))
            self._lay_out(columns, attributes or {}, means, scales)
            self._keep_names(names, categories)
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
        """The next rows; `position` is where the source goes on after them."""
        given = zip(COLUMNS, (y, sample_weight, offset, qid), strict=True)
        columns = {name: column for name, column in given if column is not None}
        self._check_fit(X.shape, columns)
        self._take(encode_rows(self.layout, X, columns, self.done, self.path), position)

    def append_stored(self, rows: StoredRows, position: int) -> None:
        """The next rows, encoded for this store by whoever read them."""
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
        """Give the complete file its name; an incomplete one is not kept."""
        if self.done == 0 or self.done != (self.rows or self.done):
            self.abandon()
            raise DataError(
                f"{self.path}: {self.done} of {self.rows or 'some'} rows were written;"
                " append all of them, or ask for fewer"
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
        """Leave nothing behind."""
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

    def _lay_out(
        self,
        columns: tuple[str, ...],
        attributes: dict[str, Any],
        means: Array | None,
        scales: Array | None,
    ) -> None:
        self.columns = tuple(name for name in COLUMNS if name in columns)
        self.file.attrs.update(attributes)
        self.file.attrs.update(finished=False)
        for name, values in ((MEANS, means), (SCALES, scales)):
            if values is not None:
                kept = np.asarray(values, "<f8").reshape(self.layout.cols)
                self.file.create_dataset(name, data=kept)

    def _keep_names(
        self,
        names: Sequence[str] | None,
        categories: Mapping[str, Sequence[str]] | None,
    ) -> None:
        text = _h5py().string_dtype()
        if names is not None:
            self.file.create_dataset(NAMES, data=list(names), dtype=text)
        if categories:
            document = json.dumps({name: list(of) for name, of in categories.items()})
            self.file.create_dataset(CATEGORIES, data=document, dtype=text)

    def _write(self, piece: Piece, is_last: bool = False) -> None:
        """Write a block; the first one shows how large the chunks should be."""
        if self.blocks is None:
            if is_last:  # and the only one
                self.rows = self.done
                layout = self.layout
                kind = (layout.cols, layout.element, layout.scale, layout.is_sparse)
                self.layout = StoreLayout(*kind, rows=self.rows)
            self.file.attrs.update(self.layout.attributes())
            self.blocks = make_blocks(self.file, self.layout, piece, self.rows)
        self.blocks.write(piece)

    def _check_fit(self, shape: tuple[int, ...], columns: dict[str, Array]) -> None:
        stop = self.done + shape[0]
        lengths = {name: len(column) for name, column in columns.items()}
        wanted = dict.fromkeys(self.columns, shape[0])
        too_many = self.rows is not None and stop > self.rows
        if too_many or shape[1:] != (self.layout.cols,) or lengths != wanted:
            raise DataError(
                f"{self.path}: rows {self.done} to {stop} of shape {shape} do not fit"
                f" a file of {self.rows or 'any'} x {self.layout.cols} with"
                f" {', '.join(self.columns) or 'no y'}; give the sizes of the data"
            )

    def _check_room(self, columns: int) -> None:
        """Say at once what cannot end well; a sparse matrix cannot tell its size."""
        if not self.path.parent.is_dir() or self.rows is None:
            return
        width = 0 if self.layout.is_sparse else self.layout.cols
        need = self.rows * (self.layout.stored.itemsize * width + 8 * columns)
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


# Every byte of a store against its checksums.


@dataclass(frozen=True)
class StoreCheck:
    """What was found; a file that could be read but has no checksums is not `checked`.

    Attributes
    ----------
    path : the file
    rows, cols : of X
    blocks : blocks of rows that were gone through
    checked : False where the file has no checksums and was only read
    faults : one sentence for each block that is damaged, naming its rows
    """

    path: Path
    rows: int
    cols: int
    blocks: int
    checked: bool
    faults: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True where nothing is wrong; see also `checked`."""
        return not self.faults


def verify_store(
    path: str | Path, progress: Callable[[int, int], None] | None = None
) -> StoreCheck:
    """Read a file whole; `progress` hears (rows read, rows in all).

    What cannot be opened (truncated, unfinished, of a newer format) raises DataError.
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
    """The faults of one block of rows: tile by tile, then what belongs to its rows."""
    found: list[str] = []
    for cols in _tiles(reader):
        found += _fault(partial(_read, reader, rows, cols))
    readers = (reader.targets, reader.sample_weight, reader.offset, reader.queries)
    for name, read in zip(COLUMNS, readers, strict=True):
        if name in reader.file:
            found += _fault(partial(read, rows))
    return found


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
