"""Arrays to convert: .npy, .npz (dense, or SciPy's sparse), HDF5 of other makers."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hpcsgd.data.source import Outline, Rows, block_rows
from hpcsgd.data.streams import (
    ArrayStream,
    Labels,
    check_file,
    check_labels,
    open_array,
    open_file,
)
from hpcsgd.errors import ConfigError, DataError, MissingPackage

Array = NDArray[Any]
POINTERS = 65536  # row pointers of a sparse file that are held at once
SPARSE = {"format", "shape", "data", "indices", "indptr"}


class NpySource:
    """A .npy matrix; labels in a file of their own, or in one of its columns."""

    def __init__(
        self, path: Path, labels: Path | None = None, label_column: int | None = None
    ) -> None:
        self.path, self.label = Path(path), label_column
        self.labels = None if labels is None else Path(labels)
        if isinstance(label_column, str):
            raise ConfigError(
                f"--label-column {label_column}: give a number, .npy has no names"
            )
        if labels is not None and label_column is not None:
            raise ConfigError(
                "labels are in a column or in a file of their own; give one of"
                " --label-column and --labels"
            )

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """What the header says; no pass is needed."""
        stream = open_array(self.path)
        stream.close()
        rows, cols = _matrix_shape(stream)
        if self.labels is not None:
            _check_label_file(self.labels, rows)
        if self.label is not None and not -cols <= self.label < cols:
            raise ConfigError(
                f"--label-column {self.label}: {self.path} has columns 0 to {cols - 1}"
            )
        labelled = self.labels is not None or self.label is not None
        progress(rows)
        return Outline(rows, cols - (self.label is not None), None, labelled, rows)

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after row `start`."""
        stream = open_array(self.path)
        labels = _labels(self.labels, start, outline.rows)
        try:
            stream.seek(start)
            step = block_rows(budget, 2 * 8 * stream.width)
            for row in range(start, outline.rows, step):
                X = _real(stream.take(min(step, outline.rows - row)))
                y = labels.take(len(X)) if labels else None
                if self.label is not None:
                    y = X[:, self.label].astype(np.float64)
                    X = np.delete(X, self.label, axis=1)
                yield Rows(X, y, row + len(X))
        finally:
            stream.close()


class NpzSource:
    """A .npz with X and y (`numpy.savez`), or a sparse one (`scipy.sparse.save_npz`).

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
        self.x_name, self.y_name = x_name, y_name

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """What the headers of the members say; no pass is needed."""
        with _Archive(self.path) as archive:
            sparse = archive.names >= SPARSE
            if sparse:
                rows, cols = _sparse_shape(archive)
                nnz = len(archive.open("data"))
            else:
                rows, cols = _matrix_shape(archive.open(self.x_name))
                nnz = None
            own = not sparse and self.y_name in archive.names
            if own and self.labels is None:
                shape = archive.open(self.y_name).shape
                check_labels(shape, rows, f"{self.path}: {self.y_name}")
        if self.labels is not None:
            _check_label_file(self.labels, rows)
        progress(rows)
        return Outline(rows, cols, nnz, own or self.labels is not None, rows)

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after row `start`."""
        with _Archive(self.path) as archive:
            labels: Any = _labels(self.labels, start, outline.rows)
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
                yield Rows(X, None if y is None else _column(y), row)

    def _dense(
        self, archive: "_Archive", outline: Outline, budget: int, start: int
    ) -> Iterator[Any]:
        stream = archive.open(self.x_name)
        stream.seek(start)
        step = block_rows(budget, 2 * 8 * stream.width)
        for row in range(start, outline.rows, step):
            yield _real(stream.take(min(step, outline.rows - row)))

    def _sparse(
        self, archive: "_Archive", outline: Outline, budget: int, start: int
    ) -> Iterator[Any]:
        data, indices = archive.open("data"), archive.open("indices")
        most = max(budget // 32, 1)  # stored values: read, widened, and their columns
        for row, pointers in _pointer_pieces(archive, outline, start):
            if row == start:
                data.seek(int(pointers[0]))
                indices.seek(int(pointers[0]))
            yield from _csr_blocks(self.path, outline, pointers, data, indices, most)


class Hdf5Source:
    """An HDF5 file of another maker: a dense X under any name, and y if there is."""

    def __init__(
        self,
        path: Path,
        x_name: str = "X",
        y_name: str = "y",
        weight_name: str = "sample_weight",
        offset_name: str = "offset",
    ) -> None:
        self.path = Path(path)
        self.x_name, self.y_name = x_name, y_name
        self.sides = {"weights": weight_name, "offsets": offset_name}

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """What the file says of its data sets; no pass is needed."""
        with self._open() as file:
            X = self._node(file, self.x_name)
            if len(X.shape) != 2 or 0 in X.shape:
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

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after row `start`; whole chunks at a time, which are read once."""
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

    def _rows(self, file: Any, X: Any, rows: slice) -> Rows:
        try:
            taken = {
                side: _column(file[name][rows])
                for side, name in (("y", self.y_name), *self.sides.items())
                if name in file
            }
            return Rows(_real(X[rows]), taken.pop("y", None), rows.stop, **taken)
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
            return h5py.File(self.path, "r")
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read as HDF5 (truncated, or another format);"
                " check --format"
            ) from error

    def _node(self, file: Any, name: str) -> Any:
        flag = "--x-name" if name == self.x_name else "--y-name"
        if name not in file:
            raise self._lacks(name, flag, sorted(file))
        dtype = getattr(file[name], "dtype", None)  # groups have none
        if dtype is None or dtype.kind not in "fiub":
            raise DataError(
                f"{self.path}: /{name} must hold real numbers, not"
                f" {'a group' if dtype is None else dtype}; choose another with {flag}"
            )
        return file[name]

    def _lacks(self, name: str, flag: str, found: Any = None) -> DataError:
        held = f"; it holds {found or 'nothing'}" if found is not None else ""
        return DataError(
            f"{self.path} has no /{name}{held}; name the data set with {flag}"
        )


class _Archive:
    """The members of a .npz, each opened as a stream of its own."""

    def __init__(self, path: Path) -> None:
        check_file(path, "a .npz file")
        self.path, self.streams = path, list[ArrayStream]()
        try:
            self.zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path} is no .npz file (truncated, or another format); write it"
                " with numpy.savez"
            ) from error
        self.names = {name.removesuffix(".npy") for name in self.zip.namelist()}

    def open(self, name: str) -> ArrayStream:
        """The member called `name`."""
        if name not in self.names:
            raise DataError(
                f"{self.path} has no {name}; it holds {sorted(self.names)}, and either"
                " X (and y) or what scipy.sparse.save_npz writes is needed"
            )
        stream = ArrayStream(self.zip.open(f"{name}.npy"), f"{self.path}: {name}")
        self.streams.append(stream)
        return stream

    def text(self, name: str) -> str:
        """A short text, which SciPy stores as an array of bytes."""
        with self.zip.open(f"{name}.npy") as file:
            value = np.lib.format.read_array(file, allow_pickle=False)
        return value.tobytes().replace(b"\0", b"").decode(errors="replace")

    def __enter__(self) -> "_Archive":
        return self

    def __exit__(self, *raised: object) -> None:
        for stream in self.streams:
            stream.close()
        self.zip.close()


def _matrix_shape(stream: ArrayStream) -> tuple[int, int]:
    if len(stream.shape) != 2 or 0 in stream.shape:
        raise DataError(
            f"{stream.said} has shape {stream.shape}; give a matrix with rows and"
            " columns"
        )
    return stream.shape[0], stream.shape[1]


def _sparse_shape(archive: _Archive) -> tuple[int, int]:
    """Rows and columns of a sparse matrix that is stored by rows."""
    found = archive.text("format")
    if found != "csr":
        raise DataError(
            f"{archive.path} is sparse in format {found}; save its .tocsr() instead"
        )
    rows, cols = archive.open("shape").take(2).tolist()
    counts = [len(archive.open(name)) for name in ("indptr", "data", "indices")]
    if counts[0] != rows + 1 or counts[1] != counts[2] or min(rows, cols) < 1:
        raise DataError(
            f"{archive.path}: its row pointers, columns and values do not fit its"
            f" shape {rows} x {cols}; write it again with scipy.sparse.save_npz"
        )
    return int(rows), int(cols)


def _pointer_pieces(
    archive: _Archive, outline: Outline, start: int
) -> Iterator[tuple[int, Array]]:
    """(first row, its pointers and those of the rows after it, and one more)."""
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


def _csr_blocks(
    path: Path,
    outline: Outline,
    pointers: Array,
    data: ArrayStream,
    indices: ArrayStream,
    most: int,
) -> Iterator[Any]:
    """Rows of at most about `most` stored values at a time."""
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
                _real(data.take(count)),
                columns,
                pointers[first : last + 1] - pointers[first],
            ),
            shape=(last - first, outline.cols),
        )
        block.sum_duplicates()
        yield block
        first = last


def _labels(path: Path | None, start: int, rows: int) -> Labels | None:
    return None if path is None else Labels(path, start, rows)


def _check_label_file(path: Path, rows: int) -> None:
    """Before anything is written; lines of a text are counted as they are read."""
    if path.suffix.lower() != ".npy":
        check_file(path, "a file of labels")
        return
    stream = open_array(path)
    stream.close()
    check_labels(stream.shape, rows, str(path))


def _real(block: Any) -> Array:
    """float32 where every value fits it, else float64."""
    kept = block.dtype.kind == "f" and block.dtype.itemsize in (4, 8)
    if kept and block.dtype.isnative:
        array: Array = block
        return array
    narrow = block.dtype.itemsize <= 2
    return np.asarray(block, dtype=np.float32 if narrow else np.float64)


def _column(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64).reshape(-1)
