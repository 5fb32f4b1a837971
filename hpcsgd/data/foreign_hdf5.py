"""HDF5 files as a source of rows: those of other makers, and stores of our own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcsgd.data.arrays import column, real
from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.hdf5_open import check_sources, dtype_of, node_of
from hpcsgd.data.layout import COLUMNS, layout_of
from hpcsgd.data.preparation import NAMES, SCALES
from hpcsgd.data.readers import row_words
from hpcsgd.data.source import Outline, Rows, block_rows
from hpcsgd.data.streams import check_labels, open_file
from hpcsgd.errors import DataError, MissingPackage


class Hdf5Source:
    """An HDF5 file: a dense X under any name, and y if there is.

    A store of our own is read by its own reader, which decodes its elements and knows
    how its rows were prepared; so is /X as CSR.
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
        self.x_name, self.y_name = x_name, y_name
        self.sides = {"weights": weight_name, "offsets": offset_name, "queries": "qid"}

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """What the file says of its data sets; no pass is needed."""
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

    def blocks(self, outline: Outline, budget: int, start: int = 0) -> Iterator[Rows]:
        """The rows after row `start`; whole chunks at a time, which are read once."""
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
        """The reader of a store, or of another file that says more than its rows."""
        if (self.x_name, self.y_name) != ("X", "y"):
            return None
        with self._open() as file:
            layout = layout_of(self.path, file.attrs)
            is_sparse = "X" in file and hasattr(node_of(self.path, file, "X"), "keys")
            knows = any(name in file for name in (SCALES, NAMES))
        return Hdf5Reader(self.path) if layout or is_sparse or knows else None

    def _rows(self, file: Any, X: Any, rows: slice) -> Rows:
        try:
            taken = {
                side: column(file[name][rows], COLUMNS.get(name, "<f8"))
                for side, name in (("y", self.y_name), *self.sides.items())
                if name in file
            }
            return Rows(real(X[rows]), taken.pop("y", None), rows.stop, **taken)
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
        flag = "--x-name" if name == self.x_name else "--y-name"
        if name not in file:
            raise self._lacks(name, flag, sorted(file))
        node = node_of(self.path, file, name)
        dtype = dtype_of(node)
        if dtype is None or dtype.kind not in "fiub":
            raise DataError(
                f"{self.path}: /{name} must hold real numbers, not"
                f" {'a group or a type' if dtype is None else dtype}; choose another"
                f" with {flag}"
            )
        if node.is_virtual:
            check_sources(self.path, name, node)
        return node

    def _lacks(self, name: str, flag: str, found: Any = None) -> DataError:
        held = f"; it holds {found or 'nothing'}" if found is not None else ""
        return DataError(
            f"{self.path} has no /{name}{held}; name the data set with {flag}"
        )


def _outline_of(reader: Hdf5Reader) -> Outline:
    names = reader.column_names
    return Outline(
        rows=reader.rows,
        cols=reader.cols,
        nnz=reader.nnz if reader.is_sparse else None,
        labelled="y" in reader.file,
        size=reader.rows,
        names=None if names is None else tuple(names),
        preparation=reader.preparation,
    )


def _blocks_of(reader: Hdf5Reader, budget: int, start: int) -> Iterator[Rows]:
    """The rows from `start` on, whole blocks of the store at a time."""
    step = block_rows(budget, 2 * 8 * row_words(reader))
    step = step // reader.block_rows * reader.block_rows or step
    every, row = slice(0, reader.cols), start
    while row < reader.rows:
        rows = slice(row, min(row - row % step + step, reader.rows))
        X = (
            reader.read_csr(rows, every)
            if reader.is_sparse
            else real(reader.read(rows, every))
        )
        yield Rows(
            X,
            reader.targets(rows) if "y" in reader.file else None,
            rows.stop,
            reader.sample_weight(rows),
            reader.offset(rows),
            reader.queries(rows),
        )
        row = rows.stop
