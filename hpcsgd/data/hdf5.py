"""The HDF5 reader, its layout, and how files are opened."""

import json
import os
from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from hpcsgd.data.checksums import block_sum
from hpcsgd.data.preads import DatasetTiles, open_tiles
from hpcsgd.data.preparation import (
    CATEGORIES,
    LABELS,
    MEANS,
    NAMES,
    SCALES,
    Preparation,
    preparation_from,
)
from hpcsgd.errors import ConfigError, DataError, MissingPackage, did_you_mean_file
from hpcsgd.formats import Array, decode_element, encode_element

# How a store lies in its file: attributes, element types, tiles and blocks of rows.

FORMAT = "hpcsgd"
FORMAT_VERSION = 2
COLUMNS = {"y": "<f8", "sample_weight": "<f8", "offset": "<f8", "qid": "<i8"}
TILE_BYTES = 2**20  # of a chunk: large enough to stream, small enough to cut columns
TILE_COLUMNS = 256
FEW = 8  # least number of tile rows for which the last one may be partly empty
SPARSE_ROWS = 4096  # rows of one block of a CSR matrix
PIECE = 2**16  # entries of one chunk of a sparse matrix's indices and data

# name -> NumPy dtype as stored; a type that NumPy lacks is stored as its bits
ELEMENTS = {
    "fp64": "<f8",
    "fp32": "<f4",
    "fp16": "<f2",
    "bf16": "<u2",
    "fp8-e4m3": "u1",
    "fp8-e5m2": "u1",
}


@dataclass(frozen=True)
class StoreLayout:
    """The layout of a store: number of columns, element type, size of its tiles."""

    cols: int
    element: str = "fp32"
    scale: float = 1.0  # values are stored elements times this
    is_sparse: bool = False
    block_rows: int = 0  # rows per checksum; 0: chosen by the width
    tile_cols: int = 0  # columns per checksum; 0: chosen by the width
    rows: InitVar[int | None] = None  # of the whole store, where that is known

    def __post_init__(self, rows: int | None) -> None:
        if self.element not in ELEMENTS:
            raise ConfigError(
                f"unknown element type {self.element!r}; known: {', '.join(ELEMENTS)}"
            )
        if self.cols < 1:
            raise ConfigError(f"{self.cols} columns: a store needs at least one")
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"scale = {self.scale} must be above 0 and finite")
        item = self.stored.itemsize
        tile_rows, tile_cols = tile_shape(self.cols, item, self.is_sparse, rows)
        object.__setattr__(self, "block_rows", self.block_rows or tile_rows)
        object.__setattr__(self, "tile_cols", self.tile_cols or tile_cols)

    def for_rows(self, rows: int | None) -> "StoreLayout":
        """Return this layout with tiles for a store of `rows` rows; None: unknown."""
        return replace(self, block_rows=0, tile_cols=0, rows=rows)

    @property
    def stored(self) -> np.dtype[Any]:
        """Return the dtype of the elements of X on disk."""
        return np.dtype(ELEMENTS[self.element])

    @property
    def index(self) -> np.dtype[Any]:
        """Return the dtype of column numbers of a sparse matrix."""
        return np.dtype("<i4" if self.cols <= np.iinfo(np.int32).max else "<i8")

    @property
    def tiles(self) -> int:
        """Return the number of tiles side by side, which cover all columns."""
        return -(-self.cols // self.tile_cols)

    def encode(self, values: Array) -> Array:
        """Return `values` as stored elements (or bits), rounded to nearest even."""
        return encode_element(values, self.element, self.stored, self.scale)

    def decode(self, stored: Array) -> Array:
        """Return the values of stored elements: float64 for fp64, else float32."""
        return decode_element(stored, self.element, self.scale)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the file that describe this layout."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "element": self.element,
            "scale": self.scale,
            "sparse": self.is_sparse,
            "block_rows": self.block_rows,
            "tile_columns": self.tile_cols,
        }


def layout_of(path: Any, attributes: Any) -> StoreLayout | None:
    """Return the layout of a store from the attributes of its file; else None.

    It is None for files of another format and of format version 1.
    """
    if _text(attributes.get("format")) != FORMAT:
        return None
    version = attributes.get("format_version")
    if not isinstance(version, int | np.integer) or version > FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {version} and this hpcsgd reads up to"
            f" {FORMAT_VERSION}; use a newer hpcsgd or write the file again"
        )
    if version < 2:
        return None
    try:
        return StoreLayout(
            cols=int(attributes["shape"][1]),
            element=str(_text(attributes["element"])),
            scale=float(attributes["scale"]),
            is_sparse=bool(attributes["sparse"]),
            block_rows=int(attributes["block_rows"]),
            tile_cols=int(attributes["tile_columns"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{path} has attributes that are incomplete or wrong ({error});"
            " write the file again"
        ) from error


def widen(part: slice, size: int, whole: int) -> slice:
    """Return `part` of range(whole), widened to multiples of `size`."""
    stop = min(-(-part.stop // size) * size, whole)
    return slice(part.start // size * size, max(stop, part.start))


def tile_shape(
    cols: int, item: int, is_sparse: bool, rows: int | None = None
) -> tuple[int, int]:
    """Return (rows, columns) of a tile: about a megabyte, or a block of sparse rows.

    Dense tiles suit reads of ranges of rows and of columns; a sparse block has
    `SPARSE_ROWS` rows and all columns. HDF5 stores whole tiles. If all `rows` of the
    store make fewer than `FEW` tiles one below the other, tiles share the rows and the
    columns evenly: a small store is about as large as its values.
    """
    width = cols if is_sparse else min(cols, TILE_COLUMNS)
    height = SPARSE_ROWS if is_sparse else max(TILE_BYTES // (item * width), 1)
    if rows is None or rows >= FEW * height:
        return height, width
    return _even(rows, height), _even(cols, width)


def _even(size: int, most: int) -> int:
    """Return the length of the fewest equal parts of `size` of at most `most` each."""
    return -(-size // -(-size // most))


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# Opening an HDF5 file of data, and the checks before a row of it is read.

PARTS = ("indptr", "indices", "data")
MOST = np.iinfo(np.int64).max  # columns that an index of 64 bits can name


def need_h5py() -> Any:
    """Return the module h5py; raise MissingPackage with a command to install it."""
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "HDF5 files need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


def open_parallel(path: Path, mpi: Any) -> Any:
    """Open a file for reading by all ranks of `mpi` through MPI-IO. Collective.

    `mpi` is a communicator of mpi4py; None raises ConfigError.
    """
    if not need_h5py().get_config().mpi:
        raise ConfigError(
            "[data] hdf5 = 'mpio' needs an h5py that was built with MPI; leave --hdf5"
            " out (every rank then reads for itself), or build h5py with HDF5_MPI=ON"
        )
    if mpi is None:
        raise ConfigError(
            "[data] hdf5 = 'mpio' needs MPI ranks; start them with mpiexec or --ranks,"
            " or leave --hdf5 out"
        )
    return open_hdf5(path, driver="mpio", comm=mpi)


def open_hdf5(path: Path, **driver: Any) -> Any:
    """Open a file for reading, without a lock.

    No program writes to a store under its final name, some parallel file systems refuse
    locks, and thousands of ranks would request one at the same moment.
    """
    check_file(path, "an HDF5 file")
    if not os.access(path, os.R_OK):
        raise DataError(
            f"this user has no permission to read {path}; change its permissions"
        )
    try:
        return need_h5py().File(path, "r", locking=False, **driver)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read as HDF5 (truncated, or another format);"
            f" {_remedy(path)}"
        ) from error


def _remedy(path: Path) -> str:
    """Return the remedy for a file that is not HDF5, by its suffix."""
    if path.suffix in (".h5", ".hdf5", ".hdf", ""):
        return "write it again, for example with: hpcsgd data synth"
    return f"convert text first: hpcsgd data convert {path} {path.with_suffix('.h5')}"


def check_finished(path: Path, file: Any) -> None:
    """Raise DataError if the file is unfinished or has no /X."""
    if not file.attrs.get("finished", True):
        raise DataError(f"{path} was never finished; write it again")
    if "X" not in file:
        raise lacks("X", path, file)


def shape_of(path: Path, file: Any) -> tuple[int, int]:
    """Return rows and columns of /X, dense or CSR; raise DataError if it is neither."""
    X = node_of(path, file, "X")
    if isinstance(X, need_h5py().Group) and set(PARTS) <= set(X):
        return _sparse_shape(path, file, X)
    if (
        not isinstance(X, need_h5py().Dataset)
        or len(X.shape or ()) != 2
        or 0 in X.shape
    ):
        raise DataError(
            f"{path}: /X must be a dense rows x columns data set, or a group of"
            " indptr, indices and data; write it in one of these forms"
        )
    _check_numbers(path, "X", X)
    return int(X.shape[0]), int(X.shape[1])


def _sparse_shape(path: Path, file: Any, X: Any) -> tuple[int, int]:
    shape = X.attrs.get("shape", file.attrs.get("shape"))
    for name in PARTS:
        node = node_of(path, file, f"X/{name}")
        _check_numbers(path, f"X/{name}", node, "fiub" if name == "data" else "iu")
    rows = len(X["indptr"]) - 1
    is_pair = np.shape(shape) == (2,)
    if not is_pair or shape[0] != rows or rows < 1 or not 1 <= shape[1] <= MOST:
        raise DataError(
            f"{path}: /X has no attribute shape (rows, columns) that suits its indptr;"
            " write it again"
        )
    ends = (int(X["indptr"][0]), int(X["indptr"][rows]))
    if ends != (0, len(X["data"])) or len(X["indices"]) != len(X["data"]):
        raise DataError(
            f"{path}: /X/indptr, indices and data do not belong together (indptr runs"
            f" from {ends[0]} to {ends[1]}, with {len(X['indices'])} indices and"
            f" {len(X['data'])} data); write them again"
        )
    return rows, int(shape[1])


def check_columns(path: Path, file: Any, rows: int) -> None:
    """Raise DataError unless each column beside /X has one value for each row.

    These columns are targets, sample weights, offsets and query groups.
    """
    for name in COLUMNS:
        if name not in file:
            continue
        _check_numbers(path, name, node_of(path, file, name))
        if file[name].shape not in ((rows,), (rows, 1)):
            raise DataError(
                f"{path}: /{name} has shape {file[name].shape} and /X has"
                f" {rows} rows; write one value for each row"
            )


def lacks(name: str, path: Path, file: Any) -> DataError:
    """Return the error that the file has no data set `name`."""
    return DataError(
        f"{path} has no /{name}; it holds {sorted(file) or 'nothing'},"
        " and hpcsgd reads /X (rows x columns) and /y"
    )


def node_of(path: Path, file: Any, name: str) -> Any:
    """Return the object `name` of a file; raise DataError if it is a broken link.

    HDF5 raises KeyError for a link to nothing, RuntimeError for a link to itself.
    """
    try:
        return file[name]
    except (KeyError, RuntimeError) as error:
        raise DataError(
            f"{path}: /{name} is a link that leads nowhere; restore its target, or"
            " write the values into this file"
        ) from error


def dtype_of(node: Any) -> Any:
    """Return the dtype of a data set; None for a group or a named type."""
    return node.dtype if isinstance(node, need_h5py().Dataset) else None


def _check_numbers(path: Path, name: str, node: Any, kinds: str = "fiub") -> None:
    dtype = dtype_of(node)
    if dtype is None or dtype.kind not in kinds or dtype.itemsize > 8:
        numbers = "real numbers of at most 64 bits" if "f" in kinds else "whole numbers"
        raise DataError(
            f"{path}: /{name} must hold {numbers}, not"
            f" {'a group or a type' if dtype is None else dtype}; encode it and write"
            " it again"
        )
    if node.is_virtual:
        check_sources(path, name, node)


def check_sources(path: Path, name: str, node: Any) -> None:
    """Raise DataError if a source file of a virtual data set is missing.

    HDF5 itself would read the fill value without an error.
    """
    for source in node.virtual_sources():
        other = Path(source.file_name)
        if "%" in other.name or source.file_name == ".":
            continue  # a pattern of files, or this one
        if not any(place.exists() for place in (path.parent / other, other)):
            raise DataError(
                f"{path}: /{name} takes values from {other}, which does not exist;"
                " restore that file, or write the values into this one"
            )


def check_file(path: Path, what: str) -> None:
    """Raise DataError if `path` is no regular file; `what` names what was expected."""
    if not path.exists():
        raise DataError(
            f"{path} does not exist{did_you_mean_file(path)}; check the name"
        )
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the name of {what}")
    if not path.is_file():  # a read of a pipe would wait
        raise DataError(
            f"{path} is not a regular file (a pipe, for example); copy its content to"
            " a regular file first"
        )


# HDF5 files: /X (rows × columns), /y, optionally /sample_weight and /offset.

Fill = Callable[[slice, slice, Array], None]  # rows, columns, where to
# Elements that have the same bits in a file and in a matrix in memory.
STORED_AS = {
    "fp64": ("fp64", "float64"),
    "fp32": ("fp32", "float32"),
    "bf16": ("bf16", "uint16"),
}
SHORT = 32  # entries of an attribute that a report shows
PAGE = 4096  # bytes that a file system reads at once, at least
MOST_SUMS = 2**17  # checksums of blocks that are kept: 1 MiB
WIDER = 1.25  # a read may grow by this factor to whole blocks, to check them


class Hdf5Reader:
    """A reader of a store or of any file with /X (and /y, for training).

    While `checks` is true, whole blocks are compared with their checksums as they are
    read. A read of X is widened to whole blocks if that adds at most a quarter to it.
    `mpi` is the communicator of mpi4py whose ranks all open the file, for MPI-IO.
    """

    def __init__(self, path: str | Path, *mpi: Any) -> None:
        self.path = Path(path)
        self.file = open_parallel(self.path, *mpi) if mpi else open_hdf5(self.path)
        if mpi:
            # Of a file behind MPI-IO, HDF5 refuses to free what still has open nodes.
            finalize(self, self.file.close).atexit = False
        self._nodes: dict[str, Any] = {}
        self._all_sums: dict[str, Any] = {}
        try:
            self.layout = layout_of(self.path, self.file.attrs)
            check_finished(self.path, self.file)
            self.rows, self.cols = shape_of(self.path, self.file)
            check_columns(self.path, self.file, self.rows)
        except DataError:
            self.file.close()
            raise
        self.is_sparse = hasattr(self.file["X"], "keys")
        self.nnz = len(self.file["X/data"]) if self.is_sparse else self.rows * self.cols
        self.checks = self.layout is not None and "checksums" in self.file
        self.block_rows = 1 if self.layout is None else self.layout.block_rows

    @property
    def read_together(self) -> tuple[int, int]:
        """Return the rows and columns of X that the disk or HDF5 reads at once."""
        if self.is_sparse:
            return 1, self.cols
        X = self.file["X"]
        rows, cols = X.chunks or (1, PAGE // X.dtype.itemsize)
        return int(rows), int(cols)

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a dense block.

        From a store or a sparse matrix it is float32 or float64; from another file it
        has the dtype of the file.
        """
        if self.is_sparse:
            dense: Array = self.read_csr(rows, cols).toarray()
            return dense
        stored = self.read_stored(rows, cols)
        return stored if self.layout is None else self.layout.decode(stored)

    def read_stored(self, rows: slice, cols: slice) -> Array:
        """Return a dense block of the elements (or their bits) that the file stores."""
        layout = self.layout
        if not self.checks or layout is None:
            block: Array = self._take("X", (rows, cols))
            return block
        wide_rows = widen(rows, layout.block_rows, self.rows)
        wide_cols = widen(cols, layout.tile_cols, self.cols)
        if _area(wide_rows, wide_cols) > WIDER * _area(rows, cols):
            wide_rows = rows
            wide_cols = cols
        read: Array = self._take("X", (wide_rows, wide_cols))
        self._check_tiles(read, wide_rows, wide_cols, layout)
        return read[_within(rows, wide_rows), _within(cols, wide_cols)]

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """Return a block as scipy.sparse.csr_array.

        Its first column, `cols.start` of the matrix, has number 0.
        """
        from scipy.sparse import csr_array

        if not self.is_sparse:
            return csr_array(self.read(rows, cols))
        wide = self._wide(rows)
        pointers = self._pointers(wide)
        part = slice(int(pointers[0]), int(pointers[-1]))
        indices = self._take("X/indices", part)
        data = self._take("X/data", part)
        self._check_sparse(wide, pointers, indices, data)
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.cols:
            raise self._bad("X/indices has columns outside of the matrix in", wide)
        values = data if self.layout is None else self.layout.decode(data)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype(np.float64 if values.itemsize > 2 else np.float32)
        shape = (wide.stop - wide.start, self.cols)
        block = csr_array((values, indices, pointers - pointers[0]), shape=shape)
        inside = _within(rows, wide)
        return block[inside.start : inside.stop, cols.start : cols.stop]

    def reader_of_blocks(self) -> Callable[[slice, slice], Array]:
        """Return a function like `read` that a thread may call while the run trains.

        The function bypasses HDF5 and its lock, and compares no checksums, if the tiles
        can be read directly.
        """
        tiles = self._tiles()
        layout = self.layout
        if tiles is None:
            return self.read
        if layout is None:
            return tiles.read
        return lambda rows, cols: layout.decode(tiles.read(rows, cols))

    def filler_of_blocks(self, matrix: str) -> Fill | None:
        """Return a function (rows, cols, out) that reads a block directly into `out`.

        Return None if the file stores another format than `matrix`, or if only HDF5 can
        read the tiles.
        """
        tiles = self._tiles()
        if tiles is None or STORED_AS.get(matrix) != self._element():
            return None
        return tiles.read_into

    def place_of_blocks(self, matrix: str) -> Path | None:
        """Return the path of the file if it stores format `matrix`, else None.

        It is None, too, if only HDF5 can read the tiles.
        """
        return None if self.filler_of_blocks(matrix) is None else self.path

    def _tiles(self) -> DatasetTiles | None:
        return None if self.is_sparse else open_tiles(self.path, self.file["X"])

    def _element(self) -> tuple[str, str]:
        """Return the element type of X and the name of its dtype in the file.

        The type is "scaled" for elements with a scale, and "" if it is not supported.
        """
        dtype = self.file["X"].dtype.name
        if self.layout is None:
            return {"float32": "fp32", "float64": "fp64"}.get(dtype, ""), dtype
        plain = self.layout.scale == 1.0
        return self.layout.element if plain else "scaled", dtype

    def targets(self, rows: slice) -> Any:
        """Return targets of these rows as float64; raise DataError without /y."""
        if "y" not in self.file:
            raise lacks("y", self.path, self.file)
        return self._column("y", rows)

    def sample_weight(self, rows: slice) -> Any:
        """Return sample weights of these rows as float64; None if the file has none."""
        return self._column("sample_weight", rows)

    def offset(self, rows: slice) -> Any:
        """Return offsets of these rows as float64; None if the file has none."""
        return self._column("offset", rows)

    def queries(self, rows: slice) -> Any:
        """Return the query group of each of these rows as int64; None without groups.

        Training does not use them.
        """
        return self._column("qid", rows)

    @property
    def preparation(self) -> Preparation:
        """Return how the stored rows were prepared: column scales, unit rows."""
        moments = {name: self._of_columns(name, "f") for name in (MEANS, SCALES)}
        arrays = {name: array for name, array in moments.items() if array is not None}
        return preparation_from(arrays, bool(self.file.attrs.get("unit_rows", False)))

    @property
    def column_names(self) -> list[str] | None:
        """Return the names of the columns; None if the file has none."""
        names = self._of_columns(NAMES, "O")
        return None if names is None else [_plain(name) for name in names]

    @property
    def categories(self) -> dict[str, list[str]] | None:
        """Return column -> levels for columns that were text before encoding.

        None if the file has none.
        """
        node = self.file.get(CATEGORIES)
        is_text = getattr(node, "shape", None) == () and node.dtype.kind == "O"
        return _document(self._take(CATEGORIES, ())) if is_text else None

    @property
    def label_numbers(self) -> dict[str, float] | None:
        """Return text -> number for labels that were text; None without any."""
        return _document(self.file.attrs.get(LABELS))

    def _of_columns(self, name: str, kind: str) -> Array | None:
        """Return a data set with one entry per column; None if there is none.

        `kind` is the kind of its dtype.
        """
        node = self.file.get(name)
        if getattr(node, "shape", None) != (self.cols,) or node.dtype.kind != kind:
            return None
        values: Array = self._take(name, slice(0, self.cols))
        return values

    def describe(self) -> dict[str, Any]:
        """Return the description of the data that a result stores."""
        attributes = {
            # A report omits long arrays, such as the scales of thousands of columns.
            k: _plain(v)
            for k, v in self.file.attrs.items()
            if (np.size(v) or 0) <= SHORT  # np.size is None for an empty attribute
        }
        return {"kind": "hdf5", "path": str(self.path), **attributes}

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _column(self, name: str, rows: slice) -> Any:
        if name not in self.file:
            return None
        if not self.checks:
            return self._take(name, rows).astype(COLUMNS[name]).reshape(-1)
        wide = widen(rows, self.block_rows, self.rows)  # a few more words only
        values = self._take(name, wide)
        for number, span in self._whole_blocks(wide):
            self._compare(name, number, span, values[_within(span, wide)])
        return values[_within(rows, wide)]

    def _wide(self, rows: slice) -> slice:
        if not self.checks:
            return rows
        wide = widen(rows, self.block_rows, self.rows)
        more = (wide.stop - wide.start) > WIDER * (rows.stop - rows.start)
        return rows if more else wide

    def _pointers(self, rows: slice) -> Any:
        pointers = self._take("X/indptr", slice(rows.start, rows.stop + 1))
        pointers = pointers.astype(np.int64)  # differences of unsigned ones never fall
        if pointers[0] < 0 or (np.diff(pointers) < 0).any() or pointers[-1] > self.nnz:
            raise self._bad("X/indptr does not ascend in", rows)
        return pointers

    def _check_tiles(
        self, block: Array, rows: slice, cols: slice, layout: StoreLayout
    ) -> None:
        """Compare all tiles inside of a block just read with their checksums."""
        width = layout.tile_cols
        for number, span in self._whole_blocks(rows):
            sums = self._sums("X", number)
            for tile in range(-(-cols.start // width), layout.tiles):
                side = slice(tile * width, min((tile + 1) * width, self.cols))
                if side.stop > cols.stop:
                    break
                part = block[_within(span, rows), _within(side, cols)]
                if block_sum(part) != sums[tile]:
                    where = f" columns {side.start} to {side.stop - 1} of"
                    raise self._bad("X differs from its checksum in" + where, span)

    def _check_sparse(
        self, rows: slice, pointers: Array, indices: Array, data: Array
    ) -> None:
        if not self.checks:
            return
        for number, span in self._whole_blocks(rows):
            inside = _within(span, rows)
            mine = pointers[inside.start : inside.stop + 1]
            part = slice(int(mine[0] - pointers[0]), int(mine[-1] - pointers[0]))
            for name, values in zip(
                PARTS, (mine, indices[part], data[part]), strict=True
            ):
                self._compare(name, number, span, values)

    def _whole_blocks(self, rows: slice) -> Any:
        """Yield (number, rows) of every block that lies wholly in a range of rows."""
        size = self.block_rows
        for number in range(-(-rows.start // size), -(-self.rows // size)):
            span = slice(number * size, min((number + 1) * size, self.rows))
            if span.stop > rows.stop:
                return
            yield number, span

    def _compare(self, name: str, number: int, rows: slice, values: Array) -> None:
        if block_sum(values) != self._sums(name, number):
            place = f"X/{name}" if name in PARTS else name
            raise self._bad(f"{place} differs from its checksum in", rows)

    def _bad(self, what: str, rows: slice) -> DataError:
        return DataError(
            f"{self.path}: /{what} rows {rows.start} to {rows.stop - 1};"
            " the file is damaged, write or copy it again"
        )

    def _sums(self, name: str, number: int) -> Any:
        """Return the checksums of block `number`; those of all blocks are read once.

        If there are more than `MOST_SUMS`, they are read block by block.
        """
        path = f"checksums/{name}"
        if path not in self._all_sums:
            few = self._node(path).size <= MOST_SUMS
            self._all_sums[path] = self._take(path, slice(None)) if few else None
        sums = self._all_sums[path]
        return self._take(path, number) if sums is None else sums[number]

    def _node(self, name: str) -> Any:
        """Return a data set of the file, which is looked up once."""
        if name not in self._nodes:
            try:
                self._nodes[name] = self.file[name]
            except (OSError, KeyError, ValueError) as error:
                raise self._unreadable(name, error) from error
        return self._nodes[name]

    def _take(self, name: str, place: Any) -> Any:
        node = self._node(name)
        try:
            return node[place]
        except (OSError, KeyError, ValueError) as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: Exception) -> DataError:
        return DataError(
            f"{self.path}: /{name} cannot be read ({_reason(error)});"
            " the file is damaged, write or copy it again"
        )


def _area(rows: slice, cols: slice) -> int:
    return int((rows.stop - rows.start) * (cols.stop - cols.start))


def _within(part: slice, whole: slice) -> slice:
    """Return a range relative to the start of the range `whole` that contains it."""
    return slice(part.start - whole.start, part.stop - whole.start)


def _reason(error: Exception) -> str:
    """Return why a read failed: the text of its error number if it has one."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error).split("(")[0].strip()


def _document(text: Any) -> dict[str, Any] | None:
    """Return the JSON object that `text` contains; None if it contains no object."""
    try:
        document = json.loads(_text(text))
    except (TypeError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _plain(value: Any) -> Any:
    """Return an attribute as a value for JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return value if isinstance(value, str | int | float | bool | list) else str(value)
