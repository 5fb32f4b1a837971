"""HDF5 files: /X (rows × columns), /y, optionally /sample_weight and /offset."""

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, DataError, MissingPackage

Array = NDArray[Any]
FORMAT, FORMAT_VERSION = "hpcsgd", 1
TILE_BYTES = 2**20  # of a chunk: large enough to stream, small enough to cut columns


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "HDF5 files need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


class Hdf5Reader:
    """Reads a file that `Hdf5Writer` wrote, or any with /X and /y."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.file = self._open()
        try:
            self._check()
        except DataError:
            self.file.close()
            raise
        self.rows, self.cols = self.file["X"].shape

    def read(self, rows: slice, cols: slice) -> Array:
        """A dense block in the stored dtype."""
        block: Array = self.file["X"][rows, cols]
        return block

    def targets(self, rows: slice) -> Any:
        """Targets as float64."""
        return self.file["y"][rows].astype(np.float64)

    def sample_weight(self, rows: slice) -> Any:
        """Weights as float64, or None."""
        return self._optional("sample_weight", rows)

    def offset(self, rows: slice) -> Any:
        """Offsets as float64, or None."""
        return self._optional("offset", rows)

    def describe(self) -> dict[str, Any]:
        """What a result remembers of its data."""
        attributes = {k: _plain(v) for k, v in self.file.attrs.items()}
        return {"kind": "hdf5", "path": str(self.path), **attributes}

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def _optional(self, name: str, rows: slice) -> Any:
        if name not in self.file:
            return None
        return self.file[name][rows].astype(np.float64)

    def _open(self) -> Any:
        if not self.path.exists():
            raise DataError(f"{self.path} does not exist; check the name")
        try:
            return _h5py().File(self.path, "r")
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read as HDF5 (truncated, or another format);"
                " write it again, for example with: hpcsgd data synth"
            ) from error

    def _check(self) -> None:
        h5py, file, path = _h5py(), self.file, self.path
        if not file.attrs.get("finished", True):
            raise DataError(f"{path} was never finished; write it again")
        for name in ("X", "y"):
            if name not in file:
                raise DataError(
                    f"{path} has no /{name}; it holds {sorted(file) or 'nothing'},"
                    " and hpcsgd reads /X (rows x columns) and /y"
                )
        X = file["X"]
        if not isinstance(X, h5py.Dataset) or X.ndim != 2 or 0 in X.shape:
            raise DataError(f"{path}: /X must be a dense rows x columns dataset")
        for name in ("X", "y", "sample_weight", "offset"):
            if name in file and file[name].dtype.kind not in "fiub":
                raise DataError(f"{path}: /{name} must hold real numbers")
        for name in ("y", "sample_weight", "offset"):
            if name in file and file[name].shape != X.shape[:1]:
                raise DataError(
                    f"{path}: /{name} has shape {file[name].shape} and /X has"
                    f" {X.shape[0]} rows; they must match"
                )


class Hdf5Writer:
    """Writes rows in order; the file takes its name only when it is complete."""

    def __init__(
        self, path: str | Path, rows: int, cols: int, attributes: dict[str, Any]
    ) -> None:
        self.path = Path(path)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self.rows, self.cols, self.done = rows, cols, 0
        try:
            self.file = _h5py().File(self.temporary, "w")
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: its folder is missing or not writable"
            ) from error
        self.file.attrs.update(
            format=FORMAT, format_version=FORMAT_VERSION, finished=False, **attributes
        )
        self.X = self.file.create_dataset(
            "X", (rows, cols), dtype=np.float32, chunks=_tile(rows, cols)
        )
        self.y = self.file.create_dataset("y", (rows,), dtype=np.float64)

    def append(self, X: Array, y: Array) -> None:
        """The next rows."""
        stop = self.done + len(X)
        self.X[self.done : stop] = X
        self.y[self.done : stop] = y
        self.done = stop

    def __enter__(self) -> "Hdf5Writer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        complete = kind is None and self.done == self.rows
        self.file.attrs["finished"] = complete
        self.file.close()
        if complete:
            with open(self.temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(self.temporary, self.path)
        else:
            self.temporary.unlink(missing_ok=True)
            if kind is None:
                raise DataError(
                    f"{self.path}: {self.done} of {self.rows} rows were written;"
                    " nothing was kept"
                )


def _tile(rows: int, cols: int) -> tuple[int, int]:
    """A chunk of about a megabyte that a column slab and a row range both like."""
    width = min(cols, 256)
    return min(rows, max(TILE_BYTES // (4 * width), 1)), width


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
