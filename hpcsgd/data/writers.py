"""Writers of columns of numbers, block by block of rows: .npy, .csv and .h5.

A file gets its name only when it is complete; until then it is a hidden `.part` file
beside it, which is removed after an exception.
"""

import os
import shutil
from abc import ABC, abstractmethod
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from hpcsgd.errors import ConfigError, DataError, MissingPackage
from hpcsgd.files import open_private, publish, temporary_name
from hpcsgd.formats import Array

CSV_BYTES = 25  # of the longest float64 as text, with its separator


class ColumnWriter(ABC):
    """A writer of float64 rows in order: a vector if one column, else a matrix."""

    value_bytes = 8  # at most, of one value on disk

    def __init__(
        self, path: Path, rows: int, names: list[str], attributes: dict[str, Any]
    ) -> None:
        self.path = path
        self.rows = rows
        self.names = names
        self.attributes = attributes
        self.done = 0
        self.temporary = temporary_name(path)
        self.shape = (rows,) if len(names) == 1 else (rows, len(names))
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder; name a file")
        self._check_room()
        try:
            os.close(open_private(self.temporary))
            self._open()
        except OSError as error:
            self.abandon()
            raise ConfigError(
                f"cannot write {path}: its folder is missing, full or not writable;"
                " choose another one"
            ) from error

    def append(self, values: Array) -> None:
        """Append the k rows `values`, in float64.

        Their shape is (k,) if there is one column, else (k, columns).
        """
        stop = self.done + len(values)
        if stop > self.rows or values.shape[1:] != self.shape[1:]:
            raise DataError(
                f"{self.path}: the appended rows {self.done} to {stop} of shape"
                f" {values.shape} do not fit a file of shape {self.shape}; open the"
                " writer with the sizes of the data"
            )
        try:
            self._write(values, slice(self.done, stop))
        except (OSError, RuntimeError) as error:
            raise self._unwritten(error) from error
        self.done = stop

    def finish(self) -> None:
        """Rename the complete file to `path`; raise DataError if rows are missing."""
        if self.done != self.rows:
            raise DataError(
                f"{self.path}: only {self.done} of {self.rows} rows were appended, and"
                " no file was kept; append all rows"
            )
        try:
            self._close()
            with open(self.temporary, "rb") as written:
                publish(written.fileno(), self.temporary, self.path)
        except (OSError, RuntimeError) as error:  # h5py's close raises either
            raise self._unwritten(error) from error

    def abandon(self) -> None:
        """Remove the temporary file, unless `finish` has renamed it."""
        # On a full disk, close fails too; the file is removed nevertheless.
        with suppress(OSError, RuntimeError, AttributeError):
            self._close()
        with suppress(OSError):
            self.temporary.unlink(missing_ok=True)

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.abandon()

    def _check_room(self) -> None:
        # HDF5 crashes the interpreter when a disk becomes full under an open file.
        folder = self.path.parent
        if not folder.is_dir():
            return
        need = self.rows * len(self.names) * self.value_bytes
        free = shutil.disk_usage(folder).free
        if need > free:
            raise ConfigError(
                f"cannot write {self.path}: it needs {need / 2**20:.1f} MiB and its"
                f" folder has {free / 2**20:.1f} MiB free; choose another folder"
            )

    def _unwritten(self, error: Exception) -> DataError:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error).split("(")[0].strip()
        return DataError(
            f"{self.path} cannot be written ({reason}), and nothing was kept; make"
            " room or choose another folder"
        )

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _write(self, values: Array, rows: slice) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class NpyWriter(ColumnWriter):
    """A writer of .npy files, which `numpy.load` can also memory-map."""

    def _open(self) -> None:
        self.file = open(self.temporary, "wb")  # noqa: SIM115 (closed by _close)
        header = {"descr": "<f8", "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self.file, header)

    def _write(self, values: Array, rows: slice) -> None:
        self.file.write(np.ascontiguousarray(values, dtype="<f8").data)

    def _close(self) -> None:
        self.file.close()


class CsvWriter(ColumnWriter):
    """A writer of text: a line of names, then rows with every float64 exactly."""

    value_bytes = CSV_BYTES

    def _open(self) -> None:
        self.file = open(self.temporary, "w", encoding="ascii")  # noqa: SIM115
        self.file.write(",".join(self.names) + "\n")

    def _write(self, values: Array, rows: slice) -> None:
        for row in values.reshape(len(values), -1).tolist():
            # The shortest text of this number; whole numbers without a fraction.
            self.file.write(",".join(repr(v).removesuffix(".0") for v in row) + "\n")

    def _close(self) -> None:
        self.file.close()


class Hdf5Writer(ColumnWriter):
    """A writer of the HDF5 data set /prediction; file attributes describe it."""

    def _open(self) -> None:
        try:
            import h5py
        except ImportError as missing:
            raise MissingPackage(
                "HDF5 files need h5py; install it with: pip install h5py"
            ) from missing
        self.raw = _Patient(self.temporary, "r+")
        self.file = h5py.File(self.raw, "w")
        self.file.attrs.update(format="hpcsgd-prediction", format_version=1)
        self.file.attrs.update(columns=self.names, **self.attributes)
        self.file.create_dataset("prediction", self.shape, dtype=np.float64)

    def _write(self, values: Array, rows: slice) -> None:
        self.file["prediction"][rows] = values
        self.raw.check()

    def _close(self) -> None:
        self.file.close()
        self.raw.close()
        self.raw.check()


class _Patient(FileIO):
    """A file that reports every write as successful and stores the first error.

    HDF5 crashes the interpreter if a write fails.
    """

    error: OSError | None = None

    def check(self) -> None:
        """Raise the stored error, if any, and forget it."""
        error = self.error
        self.error = None
        if error is not None:
            raise error

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; bytes after the end of the file are 0, as HDF5 expects."""
        view = memoryview(buffer).cast("B")
        got = super().readinto(view) or 0
        view[got:] = bytes(len(view) - got)
        return len(view)

    def write(self, data: Any) -> int:
        """Write `data` and return its length; a failure is stored in `error`."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and self.error is None:
                view = view[super().write(view) :]
        except OSError as error:
            self.error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Cut or extend the file to `size` bytes; a failure is stored in `error`."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = error
            return size or 0


WRITERS: dict[str, type[ColumnWriter]] = {
    ".npy": NpyWriter,
    ".csv": CsvWriter,
    ".h5": Hdf5Writer,
}


def open_writer(
    path: Path, rows: int, names: list[str], attributes: dict[str, Any] | None = None
) -> ColumnWriter:
    """Return a writer by the suffix of `path`; raise ConfigError for other suffixes.

    `names` are those of the columns, and only HDF5 files contain `attributes`.
    """
    kind = WRITERS.get(path.suffix.lower())
    if kind is None:
        *most, last = WRITERS
        raise ConfigError(
            f"cannot write {path}: its suffix names no known format; use"
            f" {', '.join(most)} or {last}"
        )
    return kind(path, rows, names, attributes or {})
