"""HDF5 files of other makers as a source of rows."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcsgd.data.arrays import column, real
from hpcsgd.data.hdf5_open import check_sources, node_of
from hpcsgd.data.layout import COLUMNS
from hpcsgd.data.source import Outline, Rows, block_rows
from hpcsgd.data.streams import check_labels, open_file
from hpcsgd.errors import DataError, MissingPackage


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
        self.sides = {"weights": weight_name, "offsets": offset_name, "queries": "qid"}

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
        dtype = getattr(node, "dtype", None)  # groups have none
        if dtype is None or dtype.kind not in "fiub":
            raise DataError(
                f"{self.path}: /{name} must hold real numbers, not"
                f" {'a group' if dtype is None else dtype}; choose another with {flag}"
            )
        if node.is_virtual:
            check_sources(self.path, name, node)
        return node

    def _lacks(self, name: str, flag: str, found: Any = None) -> DataError:
        held = f"; it holds {found or 'nothing'}" if found is not None else ""
        return DataError(
            f"{self.path} has no /{name}{held}; name the data set with {flag}"
        )
