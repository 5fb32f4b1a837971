"""HDF5 files: /X (rows × columns), /y, optionally /sample_weight and /offset."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, DataError, MissingPackage

Array = NDArray[Any]
FORMAT, FORMAT_VERSION = "hpcsgd", 1
COLUMNS = ("y", "sample_weight", "offset")
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
    """Reads a file that `Hdf5Writer` wrote, or any with /X, and /y to learn from."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.file = _open(self.path)
        try:
            _check(self.path, self.file)
        except DataError:
            self.file.close()
            raise
        self.rows, self.cols = self.file["X"].shape

    def read(self, rows: slice, cols: slice) -> Array:
        """A dense block in the stored dtype."""
        block: Array = self._take("X", (rows, cols))
        return block

    def targets(self, rows: slice) -> Any:
        """Targets as float64; a file without /y is good for predictions only."""
        if "y" not in self.file:
            raise _lacks("y", self.path, self.file)
        return self._column("y", rows)

    def sample_weight(self, rows: slice) -> Any:
        """Weights as float64, or None."""
        return self._column("sample_weight", rows)

    def offset(self, rows: slice) -> Any:
        """Offsets as float64, or None."""
        return self._column("offset", rows)

    def describe(self) -> dict[str, Any]:
        """What a result remembers of its data."""
        attributes = {
            # Scales of thousands of columns are for programs, no part of a report.
            k: _plain(v)
            for k, v in self.file.attrs.items()
            if np.ndim(v) == 0
        }
        return {"kind": "hdf5", "path": str(self.path), **attributes}

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def _column(self, name: str, rows: slice) -> Any:
        if name not in self.file:
            return None
        return self._take(name, rows).astype(np.float64).reshape(-1)

    def _take(self, name: str, place: Any) -> Any:
        try:
            return self.file[name][place]
        except OSError as error:
            raise DataError(
                f"{self.path}: /{name} cannot be read ({_reason(error)});"
                " the file is damaged, write or copy it again"
            ) from error


def _open(path: Path) -> Any:
    if not path.exists():
        raise DataError(f"{path} does not exist; check the name")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the name of an HDF5 file")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} may not be read by this user; change its permissions")
    try:
        return _h5py().File(path, "r")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read as HDF5 (truncated, or another format);"
            " write it again, for example with: hpcsgd data synth"
        ) from error


def _check(path: Path, file: Any) -> None:
    """Refuse what cannot be learnt from, in one sentence."""
    if not file.attrs.get("finished", True):
        raise DataError(f"{path} was never finished; write it again")
    if "X" not in file:
        raise _lacks("X", path, file)
    X = file["X"]
    if not isinstance(X, _h5py().Dataset) or len(X.shape or ()) != 2 or 0 in X.shape:
        raise DataError(
            f"{path}: /X must be a dense rows x columns dataset; write it as one"
        )
    for name in ("X", *COLUMNS):
        if name in file:
            _check_numbers(path, name, file[name])
    for name in COLUMNS:
        if name in file and file[name].shape not in ((len(X),), (len(X), 1)):
            raise DataError(
                f"{path}: /{name} has shape {file[name].shape} and /X has"
                f" {len(X)} rows; write one value for each row"
            )


def _lacks(name: str, path: Path, file: Any) -> DataError:
    return DataError(
        f"{path} has no /{name}; it holds {sorted(file) or 'nothing'},"
        " and hpcsgd reads /X (rows x columns) and /y"
    )


def _check_numbers(path: Path, name: str, node: Any) -> None:
    dtype = getattr(node, "dtype", None)  # groups have none
    if dtype is None or dtype.kind not in "fiub":
        raise DataError(
            f"{path}: /{name} must hold real numbers, not"
            f" {'a group' if dtype is None else dtype}; encode it and write it again"
        )


class Hdf5Writer:
    """Writes rows in order; the file takes its name only when it is complete.

    Until then it is a hidden `.part` beside it, which an exception removes.
    """

    def __init__(
        self, path: str | Path, rows: int, cols: int, attributes: dict[str, Any]
    ) -> None:
        self.path = Path(path)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self.rows, self.cols, self.done = rows, cols, 0
        if self.path.is_dir():
            raise ConfigError(f"cannot write {self.path}: it is a folder; name a file")
        _check_room(self.path, rows, cols)
        try:
            self.file = _h5py().File(self.temporary, "w")
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: its folder is missing or not writable;"
                " make it, or name another"
            ) from error
        try:
            self._lay_out(attributes)
        except BaseException:
            self.abandon()
            raise

    def append(self, X: Array, y: Array) -> None:
        """The next rows."""
        stop = self.done + len(X)
        if stop > self.rows or X.shape[1:] != (self.cols,) or len(y) != len(X):
            raise DataError(
                f"{self.path}: rows {self.done} to {stop} of shape {X.shape} do not fit"
                f" a file of {self.rows} x {self.cols}; give the sizes of the data"
            )
        try:
            self.X[self.done : stop] = X
            self.y[self.done : stop] = y
        except OSError as error:
            raise self._unwritten(error) from error
        self.done = stop

    def finish(self) -> None:
        """Give the complete file its name; an incomplete one is removed."""
        if self.done != self.rows:
            self.abandon()
            raise DataError(
                f"{self.path}: {self.done} of {self.rows} rows were written;"
                " nothing was kept; append all of them, or ask for fewer"
            )
        try:
            self.file.attrs["finished"] = True
            self.file.close()
            with open(self.temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(self.temporary, self.path)
        except (OSError, RuntimeError) as error:  # h5py's close raises either
            self.abandon()
            raise self._unwritten(error) from error

    def abandon(self) -> None:
        """Leave nothing behind."""
        # A full disk makes close fail too; the file goes away all the same.
        with suppress(OSError, RuntimeError):
            self.file.close()
        self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> "Hdf5Writer":
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

    def _lay_out(self, attributes: dict[str, Any]) -> None:
        self.file.attrs.update(
            format=FORMAT, format_version=FORMAT_VERSION, finished=False, **attributes
        )
        self.X = self.file.create_dataset(
            "X",
            (self.rows, self.cols),
            dtype=np.float32,
            chunks=_tile(self.rows, self.cols),
        )
        self.y = self.file.create_dataset("y", (self.rows,), dtype=np.float64)

    def _unwritten(self, error: Exception) -> DataError:
        return DataError(
            f"{self.path} cannot be written ({_reason(error)}); make room or choose"
            " another folder, nothing was kept"
        )


def _check_room(path: Path, rows: int, cols: int) -> None:
    # HDF5 takes the interpreter down with it when a disk fills under an open file.
    if not path.parent.is_dir():
        return
    need, free = rows * (4 * cols + 8), shutil.disk_usage(path.parent).free
    if need > free:
        raise ConfigError(
            f"cannot write {path}: it needs {need / 2**30:.1f} GiB and its folder has"
            f" {free / 2**30:.1f} GiB free; use fewer rows or another folder"
        )


def _reason(error: Exception) -> str:
    """What the system said, without HDF5's own paragraph."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error).split("(")[0].strip()


def _tile(rows: int, cols: int) -> tuple[int, int]:
    """A chunk of about a megabyte that a column slab and a row range both like."""
    width = min(cols, 256)
    return min(rows, max(TILE_BYTES // (4 * width), 1)), width


def _plain(value: Any) -> Any:
    """An attribute as JSON can hold it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return value if isinstance(value, str | int | float | bool | list) else str(value)
