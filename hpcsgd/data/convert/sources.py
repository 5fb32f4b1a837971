"""Sources of rows: text, NumPy files, archives, other HDF5 files, arrays."""

import inspect
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from hpcsgd.data.hdf5 import (
    COLUMNS,
    Hdf5Reader,
    check_file,
    check_sources,
    dtype_of,
    layout_of,
    node_of,
)
from hpcsgd.data.preparation import NAMES, RAW, SCALES, Preparation
from hpcsgd.data.readers import row_words
from hpcsgd.errors import ConfigError, DataError, MissingPackage
from hpcsgd.formats import Array

# Sources of rows to convert: text, arrays, files of other kinds.


@dataclass(frozen=True)
class SourceRows:
    """Consecutive rows of a source: X, targets, and side columns."""

    X: Any  # (k, cols) float32 or float64: an array, or a scipy.sparse.csr_array
    y: Array | None  # (k,) float64
    end: int  # position of the source after them: byte of a text, or row number
    weights: Array | None = None  # (k,) float64
    offsets: Array | None = None  # (k,) float64
    queries: Array | None = None  # (k,) int64: groups of rows, for ranking


@dataclass(frozen=True)
class SourceColumns:
    """The facts about the columns of a source, beside their number.

    Attributes
    ----------
    index_base : int or None
        Number of the first column in a LIBSVM text; None for other sources.
    means : ndarray of shape (cols,), or None
        Values that replace missing values; None if none may be missing.
    names : tuple of str, or None
        Names of the columns, if they have any.
    categories : dict or None
        Levels of each column of text, by the name of the column.
    """

    index_base: int | None = None
    means: Array | None = None
    names: tuple[str, ...] | None = None
    categories: dict[str, list[str]] | None = None


@dataclass(frozen=True)
class Outline:
    """The result of a first pass over a source: sizes, columns and labels.

    Attributes
    ----------
    rows, cols : int
        Numbers of rows and columns.
    nnz : int or None
        Number of stored values of a sparse source; None for a dense one.
    labelled : bool
        Whether the rows have labels.
    size : int
        Size of the source as `SourceRows.end` counts it, for progress.
    columns : SourceColumns
        Facts about the columns.
    label : str or None
        Description of the column of labels, if it was guessed.
    label_numbers : dict or None
        Number of each label, if the labels are text.
    preparation : Preparation
        Preparation of the rows in the source.
    """

    rows: int
    cols: int
    nnz: int | None
    labelled: bool
    size: int
    columns: SourceColumns = SourceColumns()
    label: str | None = None
    label_numbers: dict[str, float] | None = None
    preparation: Preparation = RAW


class Source(Protocol):
    """The protocol of a file of rows that can be read twice, in bounded memory."""

    path: Path

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """Perform the first pass, and return its result.

        `progress` is called with the position in the source.
        """

    def blocks(
        self, outline: Outline, budget: int, start: int = 0
    ) -> Iterator[SourceRows]:
        """Yield rows from position `start` on, in blocks of about `budget` bytes."""


# format -> class of its sources, which is called with the path and the options
SOURCES: dict[str, str] = {
    "libsvm": "hpcsgd.data.convert.libsvm:LibsvmSource",
    "csv": "hpcsgd.data.convert.csv:CsvSource",
    "npy": "hpcsgd.data.convert.sources:NpySource",
    "npz": "hpcsgd.data.convert.sources:NpzSource",
    "hdf5": "hpcsgd.data.convert.sources:Hdf5Source",
}
# format -> class of the options, if the class of the sources takes them as one value
OPTIONS: dict[str, str] = {"csv": "hpcsgd.data.convert.csv:CsvOptions"}


def _load(place: str) -> Any:
    """Return the attribute of a module at `place`, "module:attribute"."""
    module, attribute = place.split(":")
    return getattr(import_module(module), attribute)


def open_source(path: Path, kind: str, options: dict[str, Any]) -> Source:
    """Return the source of a file in the format `kind`, opened with its options."""
    if kind not in SOURCES:
        raise ConfigError(
            f"--format {kind} is unknown; use one of {', '.join(SOURCES)}"
        )
    source_class = _load(SOURCES[kind])
    source: Source = (
        source_class(path, _load(OPTIONS[kind])(**options))
        if kind in OPTIONS
        else source_class(path, **options)
    )
    return source


def block_rows(budget: int, row_bytes: float) -> int:
    """Return how many rows of `row_bytes` bytes fit into `budget` bytes, at least 1."""
    return max(int(budget // max(row_bytes, 1.0)), 1)


def label_column(y: Any, rows: int) -> Array:
    """Return the targets `y` as they are stored: (rows,) in float64."""
    column: Array = np.asarray(y, dtype=np.float64).reshape(rows)
    return column


# NumPy arrays read in pieces: .npy files and the members of .npz files.

REAL = "fiub"  # kinds of elements that are real numbers
TEXT_PIECE = 65536  # labels of a text file that are read at once


class ArrayStream:
    """A .npy array, read row by row from an open file, without unpickling."""

    def __init__(self, file: IO[bytes], said: str) -> None:
        self.file = file
        self.description = said
        try:
            self.shape, self.fortran, self.dtype = _header(file)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{said} is no NumPy array; write it with numpy.save or numpy.savez"
            ) from error
        if self.dtype.kind not in REAL:
            raise DataError(
                f"{said} has elements of type {self.dtype}; give real numbers"
            )
        if self.fortran and len(self.shape) > 1 and 1 not in self.shape:
            raise DataError(
                f"{said} is stored by columns (Fortran order) and cannot be read by"
                " rows; save numpy.ascontiguousarray of the array"
            )
        self.begin = file.tell()
        self.width = int(np.prod(self.shape[1:], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.shape[0])

    def seek(self, row: int) -> None:
        """Set the row at which the next `take` begins."""
        self.file.seek(self.begin + row * self.width * self.dtype.itemsize)

    def take(self, rows: int) -> Array:
        """Read and return the next rows."""
        count = rows * self.width
        need = count * self.dtype.itemsize
        try:
            content = self.file.read(need)
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(f"({error})") from error
        if len(content) < need:
            raise self._damaged("(it ends too early)")
        return np.frombuffer(content, self.dtype, count).reshape(rows, *self.shape[1:])

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _damaged(self, why: str) -> DataError:
        return DataError(f"{self.description} is damaged {why}; write or copy it again")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file; return shape, Fortran order and dtype."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def open_file(path: Path, what: str) -> IO[bytes]:
    """Open a file for reading; `what` describes it in messages."""
    check_file(path, what)
    try:
        return open(path, "rb")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); change its permissions"
        ) from error


def open_array(path: Path) -> ArrayStream:
    """Open a .npy file, and return its stream."""
    return ArrayStream(open_file(path, "a .npy file"), str(path))


def label_pieces(path: Path, start: int, rows: int) -> Iterator[Array]:
    """Yield the labels of a file from row `start` on, in arrays of float64.

    The file is a .npy vector of `rows` labels, or a text with one label a line.
    """
    if path.suffix.lower() == ".npy":
        yield from _array_pieces(path, start, rows)
        return
    with open_file(path, "a file of labels") as file:
        piece: list[bytes] = []
        for number, line in enumerate(file):
            if number >= start:
                piece.append(line)
            if len(piece) == TEXT_PIECE:
                yield _numbers(path, piece, number + 1)
                piece = []
        if any(line.strip() for line in piece):
            yield _numbers(path, piece, number + 1)


def _array_pieces(path: Path, start: int, rows: int) -> Iterator[Array]:
    stream = open_array(path)
    try:
        check_labels(stream.shape, rows, str(path))
        stream.seek(start)
        for row in range(start, rows, TEXT_PIECE):
            taken = stream.take(min(TEXT_PIECE, rows - row))
            yield taken.astype(np.float64).reshape(-1)
    finally:
        stream.close()


def check_labels(shape: tuple[int, ...] | None, rows: int, said: str) -> None:
    """Raise DataError unless `shape` is that of one value for each of `rows` rows.

    `said` names the values in the message: labels, or another column beside X. The
    shape of an empty data set is None.
    """
    if shape not in ((rows,), (rows, 1)):
        raise DataError(
            f"{said} has shape {shape} and X has {rows} rows; give one value"
            " for each row"
        )


def _numbers(path: Path, lines: list[bytes], stop: int) -> Array:
    """Return lines of a label file as numbers; raise DataError for other text.

    `stop` is the number of the last line.
    """
    values = np.empty(len(lines))
    for place, line in enumerate(lines):
        try:
            values[place] = float(line)
        except ValueError as error:
            raise DataError(
                f"{path}, line {stop - len(lines) + place + 1}: {line.strip()[:40]!r}"
                " is no number; write one label a line"
            ) from error
    return values


class Labels:
    """The labels of a file, read for consecutive rows."""

    def __init__(self, path: Path, start: int, rows: int) -> None:
        self.path = path
        self.rows = rows
        self.pieces = label_pieces(path, start, rows)
        self.held = np.empty(0)
        self.at = start

    def take(self, count: int) -> Array:
        """Return the labels of the next `count` rows.

        Raise DataError if the file has more or fewer labels than rows.
        """
        parts = [self.held]
        while sum(map(len, parts)) < count:
            parts.append(self._next())
        self.held = np.concatenate(parts)
        taken = self.held[:count]
        self.held = self.held[count:]
        self.at += count
        if self.at == self.rows and (len(self.held) or any(map(len, self.pieces))):
            raise self._uneven("more")
        return taken

    def _next(self) -> Array:
        piece = next(self.pieces, None)
        if piece is None:
            raise self._uneven("fewer")
        return piece

    def _uneven(self, how: str) -> DataError:
        return DataError(
            f"{self.path} has {how} labels than the {self.rows} rows of X; give one"
            " label for each row"
        )


# Functions for all sources of arrays: shapes, labels, real numbers.


def matrix_shape(stream: ArrayStream) -> tuple[int, int]:
    """Return (rows, columns) of an array; raise DataError if it is no matrix."""
    if len(stream.shape) != 2 or 0 in stream.shape:
        raise DataError(
            f"{stream.description} has shape {stream.shape}; give a matrix with rows"
            " and columns"
        )
    return stream.shape[0], stream.shape[1]


def open_labels(path: Path | None, start: int, rows: int) -> Labels | None:
    """Return the labels of a file from row `start` on; None without a file."""
    return None if path is None else Labels(path, start, rows)


def check_label_file(path: Path, rows: int) -> None:
    """Raise DataError if a .npy file of labels does not have `rows` labels.

    The lines of a text are counted later, while they are read.
    """
    if path.suffix.lower() != ".npy":
        check_file(path, "a file of labels")
        return
    stream = open_array(path)
    stream.close()
    check_labels(stream.shape, rows, str(path))


def real(block: Any) -> Array:
    """Return a block in float32 or float64.

    float32 and float64 in native byte order stay, types of at most two bytes become
    float32, and all others float64.
    """
    is_float = block.dtype.kind == "f" and block.dtype.itemsize in (4, 8)
    if is_float and block.dtype.isnative:
        array: Array = block
        return array
    narrow = block.dtype.itemsize <= 2
    return np.asarray(block, dtype=np.float32 if narrow else np.float64)


def column(values: Any, dtype: Any = np.float64) -> Array:
    """Return a side column as a vector of `dtype`."""
    return np.asarray(values, dtype=dtype).reshape(-1)


# The format of a file to convert, and the options of that format.

ENDINGS = {
    ".npy": "npy",
    ".npz": "npz",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".csv": "csv",
    ".tsv": "csv",
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
}
PACKED = (".gz", ".bz2", ".xz")
SAMPLE = 65536
PAIRS = re.compile(rb"\s*[-+.\w]+(\s+(qid:)?\d+:[-+.\w]+)+\s*(#.*)?")
TABLE = re.compile(rb"[^,;\t]*([,;\t][^,;\t]*)+")
NUMBERS = re.compile(rb"\s*[-+.\deE]+([ \t]+[-+.\deE]+)+\s*")  # separated by blanks


def guess_format(path: Path) -> str:
    """Return the format of a file by its suffix, or by its first lines.

    A compressed file is LIBSVM text unless a known suffix precedes that of compression.
    """
    ending = path.suffix.lower()
    if ending in PACKED:
        ending = path.with_suffix("").suffix.lower()
        return ENDINGS.get(ending, "libsvm")
    if ending in ENDINGS:
        return ENDINGS[ending]
    with open_file(path, "a file of rows") as file:
        sample = file.read(SAMPLE)
    for line in sample.splitlines():
        if PAIRS.fullmatch(line):
            return "libsvm"
        if TABLE.fullmatch(line) or NUMBERS.fullmatch(line):
            return "csv"
    raise ConfigError(
        f"{path}: its format cannot be told from its name or its first lines; add"
        f" --format with one of {', '.join(SOURCES)}"
    )


def open_any(path: Path, kind: str, options: dict[str, Any]) -> Source:
    """Return the source of a file, opened with the options that are not None.

    Refuse options that its format does not have, and name those of `options` that it
    has.
    """
    kind = guess_format(path) if kind == "auto" else kind
    arguments = {name: value for name, value in options.items() if value is not None}
    names = [name for name in options_of(kind) if name in options]
    for name in arguments:
        if name not in names:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} is not for {kind} files; the flags for them are:"
                f" {', '.join('--' + n.replace('_', '-') for n in names) or 'none'}"
            )
    return open_source(path, kind, arguments)


def options_of(kind: str) -> list[str]:
    """Return the names of the options of a format."""
    options_class = _load(OPTIONS.get(kind, SOURCES[kind]))
    names = inspect.signature(options_class).parameters
    return [name for name in names if name != "path"]


# A .npy matrix as a source of rows.


class NpySource:
    """A source of a .npy matrix; labels, if any, are in another file or in a column."""

    def __init__(
        self, path: Path, labels: Path | None = None, label_column: int | None = None
    ) -> None:
        self.path = Path(path)
        self.label = label_column
        self.labels = None if labels is None else Path(labels)
        if isinstance(label_column, str):
            raise ConfigError(
                f"--label-column {label_column} must be a number for a .npy file, whose"
                " columns have no names"
            )
        if labels is not None and label_column is not None:
            raise ConfigError(
                "--label-column and --labels cannot be used together; give"
                " --label-column for labels in this file, or --labels for another file"
            )

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """Return the outline from the header of the file, without a pass."""
        stream = open_array(self.path)
        stream.close()
        rows, cols = matrix_shape(stream)
        if self.labels is not None:
            check_label_file(self.labels, rows)
        if self.label is not None and not -cols <= self.label < cols:
            raise ConfigError(
                f"--label-column {self.label} does not exist: {self.path} has columns"
                f" 0 to {cols - 1}; give the number of one of them"
            )
        labelled = self.labels is not None or self.label is not None
        progress(rows)
        return Outline(rows, cols - (self.label is not None), None, labelled, rows)

    def blocks(
        self, outline: Outline, budget: int, start: int = 0
    ) -> Iterator[SourceRows]:
        """Yield the rows from row `start` on."""
        stream = open_array(self.path)
        labels = open_labels(self.labels, start, outline.rows)
        try:
            stream.seek(start)
            step = block_rows(budget, 2 * 8 * stream.width)
            for row in range(start, outline.rows, step):
                X = real(stream.take(min(step, outline.rows - row)))
                y = labels.take(len(X)) if labels else None
                if self.label is not None:
                    y = X[:, self.label].astype(np.float64)
                    X = np.delete(X, self.label, axis=1)
                yield SourceRows(X, y, row + len(X))
        finally:
            stream.close()


# The members of a .npz as streams, and the CSR matrix that SciPy stores in one.

POINTERS = 65536  # row pointers of a sparse file that are read at once


class Archive:
    """A .npz file, each member of which is opened as a stream."""

    def __init__(self, path: Path) -> None:
        check_file(path, "a .npz file")
        self.path = path
        self.streams = list[ArrayStream]()
        try:
            self.zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path} is no .npz file (truncated, or another format); write it"
                " with numpy.savez"
            ) from error
        self.names = {name.removesuffix(".npy") for name in self.zip.namelist()}

    def open(self, name: str) -> ArrayStream:
        """Return a stream of the member `name`; raise DataError if it is missing."""
        if name not in self.names:
            raise DataError(
                f"{self.path} has no array {name}; it holds {sorted(self.names)}; save"
                " X (and y) with numpy.savez, or a matrix with scipy.sparse.save_npz"
            )
        stream = ArrayStream(self.zip.open(f"{name}.npy"), f"{self.path}: {name}")
        self.streams.append(stream)
        return stream

    def text(self, name: str) -> str:
        """Return the member `name` as a short text, which SciPy stores as bytes."""
        with self.zip.open(f"{name}.npy") as file:
            value = np.lib.format.read_array(file, allow_pickle=False)
        return value.tobytes().replace(b"\0", b"").decode(errors="replace")

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *raised: object) -> None:
        for stream in self.streams:
            stream.close()
        self.zip.close()


def sparse_shape(archive: Archive) -> tuple[int, int]:
    """Return (rows, columns) of a saved CSR matrix.

    Raise DataError for other formats.
    """
    matrix_format = archive.text("format")
    if matrix_format != "csr":
        raise DataError(
            f"{archive.path} holds a sparse matrix in format {matrix_format}, and only"
            " csr can be read; save matrix.tocsr() instead"
        )
    rows, cols = archive.open("shape").take(2).tolist()
    counts = [len(archive.open(name)) for name in ("indptr", "data", "indices")]
    if counts[0] != rows + 1 or counts[1] != counts[2] or min(rows, cols) < 1:
        raise DataError(
            f"{archive.path}: its row pointers, columns and values do not fit its"
            f" shape {rows} x {cols}; write it again with scipy.sparse.save_npz"
        )
    return int(rows), int(cols)


def pointer_pieces(
    archive: Archive, outline: Outline, start: int
) -> Iterator[tuple[int, Array]]:
    """Yield (first row, row pointers) of consecutive rows from row `start` on.

    The pointers are those of the rows, and the end of the last row.
    """
    stream = archive.open("indptr")
    for row in range(start, outline.rows, POINTERS):
        stream.seek(row)
        count = min(POINTERS, outline.rows - row)
        pointers = stream.take(count + 1).astype(np.int64)
        if (np.diff(pointers) < 0).any() or pointers[-1] > (outline.nnz or 0):
            raise DataError(
                f"{archive.path}: row pointers after row {row} are out of order;"
                " write it again with scipy.sparse.save_npz"
            )
        yield row, pointers


def csr_blocks(
    path: Path,
    outline: Outline,
    pointers: Array,
    data: ArrayStream,
    indices: ArrayStream,
    most: int,
) -> Iterator[Any]:
    """Yield CSR blocks of consecutive rows with about `most` stored values each."""
    first = 0
    while first < len(pointers) - 1:
        fits = np.searchsorted(pointers, pointers[first] + most, side="right") - 1
        last = max(int(fits), first + 1)
        count = int(pointers[last] - pointers[first])
        columns = indices.take(count)
        if count and not 0 <= columns.min() <= columns.max() < outline.cols:
            raise DataError(
                f"{path}: a stored value lies outside its {outline.cols} columns;"
                " write it again with scipy.sparse.save_npz"
            )
        block = csr_array(
            (
                real(data.take(count)),
                columns,
                pointers[first : last + 1] - pointers[first],
            ),
            shape=(last - first, outline.cols),
        )
        if not block.has_canonical_format:
            block = block.copy()  # the arrays that were read are read-only
            block.sum_duplicates()
        yield block
        first = last


# A .npz as a source of rows, dense or sparse.

SPARSE = {"format", "shape", "data", "indices", "indptr"}


class NpzSource:
    """A source of a .npz with X and y (`numpy.savez`), or of SciPy's sparse `save_npz`.

    Members are read as streams, so that a file may be larger than memory.
    """

    def __init__(
        self,
        path: Path,
        labels: Path | None = None,
        x_name: str = "X",
        y_name: str = "y",
    ) -> None:
        self.path = Path(path)
        self.labels = None if labels is None else Path(labels)
        self.x_name = x_name
        self.y_name = y_name

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """Return the outline from the headers of the members, without a pass."""
        with Archive(self.path) as archive:
            sparse = archive.names >= SPARSE
            if sparse:
                rows, cols = sparse_shape(archive)
                nnz = len(archive.open("data"))
            else:
                rows, cols = matrix_shape(archive.open(self.x_name))
                nnz = None
            has_labels = not sparse and self.y_name in archive.names
            if has_labels and self.labels is None:
                shape = archive.open(self.y_name).shape
                check_labels(shape, rows, f"{self.path}: {self.y_name}")
        if self.labels is not None:
            check_label_file(self.labels, rows)
        progress(rows)
        return Outline(rows, cols, nnz, has_labels or self.labels is not None, rows)

    def blocks(
        self, outline: Outline, budget: int, start: int = 0
    ) -> Iterator[SourceRows]:
        """Yield the rows from row `start` on."""
        with Archive(self.path) as archive:
            labels: Any = open_labels(self.labels, start, outline.rows)
            if labels is None and outline.labelled:
                labels = archive.open(self.y_name)
                labels.seek(start)
            sparse = outline.nnz is not None
            draw = self._sparse if sparse else self._dense
            row = start
            for X in draw(archive, outline, budget, start):
                count = X.shape[0]
                row += count
                y = labels.take(count) if labels is not None else None
                yield SourceRows(X, None if y is None else column(y), row)

    def _dense(
        self, archive: "Archive", outline: Outline, budget: int, start: int
    ) -> Iterator[Any]:
        stream = archive.open(self.x_name)
        stream.seek(start)
        step = block_rows(budget, 2 * 8 * stream.width)
        for row in range(start, outline.rows, step):
            yield real(stream.take(min(step, outline.rows - row)))

    def _sparse(
        self, archive: "Archive", outline: Outline, budget: int, start: int
    ) -> Iterator[Any]:
        data = archive.open("data")
        indices = archive.open("indices")
        most = max(budget // 32, 1)  # stored values: read, widened, and their columns
        for row, pointers in pointer_pieces(archive, outline, start):
            if row == start:
                data.seek(int(pointers[0]))
                indices.seek(int(pointers[0]))
            yield from csr_blocks(self.path, outline, pointers, data, indices, most)


# HDF5 files as sources of rows: any files, and stores of hpcsgd.


class Hdf5Source:
    """A source of an HDF5 file: a dense X under any name, and y if the file has it.

    A store of hpcsgd, or /X as CSR, is read by `Hdf5Reader`, which decodes elements and
    returns the preparation of the rows.
    """

    def __init__(
        self,
        path: Path,
        x_name: str = "X",
        y_name: str = "y",
        weight_name: str = "sample_weight",
        offset_name: str = "offset",
    ) -> None:
        self.path = Path(path)
        self.x_name = x_name
        self.y_name = y_name
        self.sides = {"weights": weight_name, "offsets": offset_name, "queries": "qid"}

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """Return the outline from the data sets of the file, without a pass."""
        reader = self._own_reader()
        if reader is not None:
            try:
                return _outline_of(reader)
            finally:
                reader.close()
        with self._open() as file:
            X = self._node(file, self.x_name)
            if X.shape is None or len(X.shape) != 2 or 0 in X.shape:
                raise DataError(
                    f"{self.path}: /{self.x_name} has shape {X.shape}; name a matrix"
                    " of rows x columns with --x-name"
                )
            labelled = self.y_name in file
            for name in (self.y_name, *self.sides.values()):
                if name in file:
                    shape = self._node(file, name).shape
                    check_labels(shape, len(X), f"{self.path}: /{name}")
            rows, cols = X.shape
        if not labelled and self.y_name != "y":
            raise self._lacks(self.y_name, "--y-name")
        progress(rows)
        return Outline(rows, cols, None, labelled, rows)

    def blocks(
        self, outline: Outline, budget: int, start: int = 0
    ) -> Iterator[SourceRows]:
        """Yield the rows from row `start` on.

        Blocks consist of whole chunks, which are then read once, unless a chunk exceeds
        the budget.
        """
        reader = self._own_reader()
        if reader is not None:
            try:
                yield from _blocks_of(reader, budget, start)
            finally:
                reader.close()
            return
        with self._open() as file:
            X = self._node(file, self.x_name)
            step = block_rows(budget, 2 * 8 * outline.cols)
            if X.chunks and step > X.chunks[0]:
                step -= step % X.chunks[0]
            row = start
            while row < outline.rows:
                stop = min(row - row % step + step, outline.rows)
                yield self._rows(file, X, slice(row, stop))
                row = stop

    def _own_reader(self) -> Hdf5Reader | None:
        """Return an `Hdf5Reader` if the file needs it, else None.

        It is needed for a store of hpcsgd, for CSR, and for columns with names or
        scales. Other names than X and y are never read by it.
        """
        if (self.x_name, self.y_name) != ("X", "y"):
            return None
        with self._open() as file:
            layout = layout_of(self.path, file.attrs)
            is_sparse = "X" in file and hasattr(node_of(self.path, file, "X"), "keys")
            knows = any(name in file for name in (SCALES, NAMES))
        return Hdf5Reader(self.path) if layout or is_sparse or knows else None

    def _rows(self, file: Any, X: Any, rows: slice) -> SourceRows:
        try:
            taken = {
                side: column(file[name][rows], COLUMNS.get(name, "<f8"))
                for side, name in (("y", self.y_name), *self.sides.items())
                if name in file
            }
            return SourceRows(real(X[rows]), taken.pop("y", None), rows.stop, **taken)
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read at row {rows.start}; the file is damaged,"
                " write or copy it again"
            ) from error

    def _open(self) -> Any:
        try:
            import h5py
        except ImportError as missing:
            raise MissingPackage(
                "HDF5 files need h5py; install it with: pip install h5py"
            ) from missing
        open_file(self.path, "an HDF5 file").close()
        try:
            return h5py.File(self.path, "r", locking=False)
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read as HDF5 (truncated, or another format);"
                " check --format"
            ) from error

    def _node(self, file: Any, name: str) -> Any:
        flag = {self.y_name: "--y-name", self.x_name: "--x-name"}.get(name, "")
        if name not in file:
            raise self._lacks(name, flag, sorted(file))
        node = node_of(self.path, file, name)
        dtype = dtype_of(node)
        if dtype is None or dtype.kind not in "fiub":
            remedy = (
                f"choose another data set with {flag}"
                if flag
                else "write it again in numbers, or delete it from the file"
            )
            raise DataError(
                f"{self.path}: /{name} must hold real numbers, not"
                f" {'a group or a type' if dtype is None else dtype}; {remedy}"
            )
        if node.is_virtual:
            check_sources(self.path, name, node)
        return node

    def _lacks(self, name: str, flag: str, found: Any = None) -> DataError:
        contents = f"; it holds {found or 'nothing'}" if found is not None else ""
        return DataError(
            f"{self.path} has no /{name}{contents}; name the data set with {flag}"
        )


def _outline_of(reader: Hdf5Reader) -> Outline:
    names = reader.column_names
    columns = SourceColumns(
        names=None if names is None else tuple(names), categories=reader.categories
    )
    return Outline(
        rows=reader.rows,
        cols=reader.cols,
        nnz=reader.nnz if reader.is_sparse else None,
        labelled="y" in reader.file,
        size=reader.rows,
        columns=columns,
        label_numbers=reader.label_numbers,
        preparation=reader.preparation,
    )


def _blocks_of(reader: Hdf5Reader, budget: int, start: int) -> Iterator[SourceRows]:
    """Yield the rows from row `start` on.

    They are in whole blocks of the store, unless such a block exceeds the budget.
    """
    step = block_rows(budget, 2 * 8 * row_words(reader))
    step = step // reader.block_rows * reader.block_rows or step
    every = slice(0, reader.cols)
    row = start
    while row < reader.rows:
        rows = slice(row, min(row - row % step + step, reader.rows))
        X = (
            reader.read_csr(rows, every)
            if reader.is_sparse
            else real(reader.read(rows, every))
        )
        yield SourceRows(
            X,
            reader.targets(rows) if "y" in reader.file else None,
            rows.stop,
            reader.sample_weight(rows),
            reader.offset(rows),
            reader.queries(rows),
        )
        row = rows.stop
