"""A store that is written bit by bit, survives a kill, and is gone on with.

HDF5 lays the file out, every chunk in its place, and is closed again; rows then go
there by plain writes. So a full disk is an error like any other, and whatever ends the
process leaves a file whose rows up to the last `save` are whole.
"""

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from hpcsgd.data.hdf5 import FORMAT, FORMAT_VERSION, _tile
from hpcsgd.data.source import Rows
from hpcsgd.errors import ConfigError, DataError, MissingPackage
from hpcsgd.files import replace_file, sync_folder

Array = NDArray[Any]
STORED = {"fp64": "<f8", "fp32": "<f4", "fp16": "<f2"}
SAVE_SECONDS = 2.0  # between journals: rows after the last one are written once more
ATTRIBUTE_BYTES = 32768


@dataclass(frozen=True)
class Plan:
    """What the files of one conversion have in common."""

    cols: int
    element: str
    sides: tuple[str, ...]  # columns that come with X: y, sample_weight, offset
    attributes: dict[str, Any]
    extras: dict[str, Array]  # what was measured, kept with the rows
    identity: dict[str, Any]  # must be the same to go on


class StoreSink:
    """One unfinished store and its journal, hidden beside the name it will have."""

    def __init__(self, path: Path, rows: int, plan: Plan, resume: bool) -> None:
        self.path, self.rows, self.plan = path, rows, plan
        self.part, self.journal = _hidden(path, "part"), _hidden(path, "json")
        self.cols, self.sides = plan.cols, plan.sides
        self.dtype = np.dtype(STORED[plan.element])
        self.tile = _tile(rows, plan.cols)
        self.done, self.place, self.file = 0, (0, 0), -1
        self.saved = time.monotonic()
        if resume:
            known = _read_journal(path) or {"done": rows, "place": (2**62, 2**62)}
            self.done, self.place = known["done"], tuple(known["place"])
        else:
            self._create()
        if self.part.exists():  # else it had its name already
            self._open()

    def append(self, rows: Rows) -> None:
        """The next rows, rounded to the element type of the store."""
        X = rows.X.toarray() if issparse(rows.X) else rows.X
        if self.done + len(X) > self.rows:
            raise DataError(
                f"{self.path}: more than {self.rows} rows came; the source has changed,"
                " convert it again"
            )
        sides = {"y": rows.y, "sample_weight": rows.weights, "offset": rows.offsets}
        try:
            self._put(self._rounded(X))
            for name in self.sides:
                column = np.ascontiguousarray(sides[name], dtype="<f8")
                os.pwrite(self.file, column.data, self.at[name] + 8 * self.done)
        except OSError as error:
            raise self._unwritten(error) from error
        self.done += len(X)

    def save(self, place: tuple[int, int]) -> None:
        """Everything so far survives a kill; the source goes on at `place`."""
        self.place = place
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self._write_journal()

    def complete(self) -> None:
        """Every row is there, and on the disk."""
        if self.done != self.rows:
            raise DataError(
                f"{self.path}: {self.done} of {self.rows} rows came; the source has"
                " changed, convert it again"
            )
        if self.file < 0:
            return
        try:
            self._write_journal()
            self._close()
            with _h5py().File(self.part, "r+") as file:
                file.attrs["finished"] = True
        except (OSError, RuntimeError) as error:
            raise self._unwritten(error) from error

    def finish(self) -> None:
        """Give the complete file its name."""
        if self.part.exists():
            os.replace(self.part, self.path)
        self.journal.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._close()
        self.part.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def leave(self) -> None:
        """Close what is unfinished, so that it can be gone on with."""
        if self.file >= 0:
            with suppress(OSError, DataError):
                self._write_journal()
        self._close()

    def _rounded(self, X: Array) -> Array:
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(X, dtype=self.dtype)
        lost = np.isinf(stored) & np.isfinite(X)
        if lost.any():
            row, col = np.argwhere(lost)[0]
            raise DataError(
                f"{self.path}: {X[row, col]:g} in row {self.done + row}, column {col}"
                f" is too large for {self.dtype}; choose a wider --element"
            )
        return stored

    def _put(self, X: Array) -> None:
        """Rows into the chunks that hold them, column slab by column slab."""
        height, width = self.tile
        row_bytes = width * self.dtype.itemsize
        for first in range(0, self.cols, width):
            slab = X[:, first : first + width]
            if slab.shape[1] < width:  # chunks are whole in the file
                slab = np.pad(slab, ((0, 0), (0, width - slab.shape[1])))
            row = 0
            while row < len(X):
                chunk, inside = divmod(self.done + row, height)
                count = min(height - inside, len(X) - row)
                piece = np.ascontiguousarray(slab[row : row + count])
                place = self.chunks[chunk * height, first] + inside * row_bytes
                _write_all(self.file, piece, place)
                row += count

    def _create(self) -> None:
        self._check_room()
        self.journal.unlink(missing_ok=True)
        try:
            with _h5py().File(self.part, "w") as file:
                file.attrs.update(
                    format=FORMAT,
                    format_version=FORMAT_VERSION,
                    finished=False,
                    **self.plan.attributes,
                )
                _early(file, "X", (self.rows, self.cols), self.dtype, self.tile)
                for name in self.sides:
                    _early(file, name, (self.rows,), np.dtype("<f8"), None)
                for name, values in self.plan.extras.items():
                    _keep(file, name, values)
        except OSError as error:
            raise ConfigError(
                f"cannot write {self.path}: its folder is missing, full or not"
                " writable; make it, or name another"
            ) from error
        self._open()
        self._write_journal()

    def _open(self) -> None:
        with _h5py().File(self.part, "r") as file:
            self.chunks = _chunk_places(file["X"])
            self.at = {name: file[name].id.get_offset() for name in self.sides}
        self.file = os.open(self.part, os.O_RDWR)

    def _write_journal(self) -> None:
        said: dict[str, Any] = {"done": self.done, "place": self.place}
        said["identity"] = self.plan.identity
        try:
            os.fdatasync(self.file)
            replace_file(self.journal, json.dumps(said).encode())
        except OSError as error:
            raise self._unwritten(error) from error
        self.saved = time.monotonic()

    def _check_room(self) -> None:
        height, width = self.tile
        slabs = -(-self.cols // width) * width
        need = -(-self.rows // height) * height * slabs * self.dtype.itemsize
        need += 8 * self.rows * len(self.sides)
        free = shutil.disk_usage(self.path.parent).free
        if need > free:
            raise ConfigError(
                f"cannot write {self.path}: it needs {need / 2**30:.1f} GiB and its"
                f" folder has {free / 2**30:.1f} GiB free; use --rows or another folder"
            )

    def _unwritten(self, error: Exception) -> DataError:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error).split("(")[0].strip()
        return DataError(
            f"{self.path} cannot be written ({reason}); make room and go on with"
            " --resume, or choose another folder"
        )


def is_begun(path: Path) -> bool:
    """Whether a broken conversion to `path` left something to go on with."""
    return _read_journal(path) is not None


def check_identity(path: Path, now: dict[str, Any]) -> None:
    """Refuse to go on with what was begun from another source or in another way."""
    known = (_read_journal(path) or {})["identity"]
    odd = sorted(k for k in known.keys() | now.keys() if known.get(k) != now.get(k))
    if odd:
        raise ConfigError(
            f"--resume: what was begun for {path} differs in {', '.join(odd)}; give"
            " the same source and options, or leave --resume out"
        )


def read_extras(path: Path) -> dict[str, Array]:
    """The arrays that an unfinished store keeps beside its rows."""
    with _h5py().File(_hidden(path, "part"), "r") as file:
        held = {**file.attrs, **{name: file[name] for name in file if name != "X"}}
        return {
            name: np.asarray(value)
            for name, value in held.items()
            if name.startswith("standardize")
        }


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.convert.{ending}")


def _read_journal(path: Path) -> dict[str, Any] | None:
    try:
        known: dict[str, Any] = json.loads(_hidden(path, "json").read_text())
    except (OSError, ValueError):
        return None
    return known if _hidden(path, "part").exists() and "identity" in known else None


def _keep(file: Any, name: str, values: Array) -> None:
    """As an attribute, which HDF5 keeps below 64 KiB, or else beside /X."""
    if values.nbytes <= ATTRIBUTE_BYTES:
        file.attrs[name] = values
    else:
        file[name] = values


def _early(file: Any, name: str, shape: Any, dtype: Any, chunks: Any) -> None:
    """A data set whose every chunk has its place before anything is in it."""
    h5py = _h5py()
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    if chunks is not None:
        plan.set_chunk(chunks)
    h5py.h5d.create(
        file.id,
        name.encode(),
        h5py.h5t.py_create(dtype),
        h5py.h5s.create_simple(shape),
        plan,
    )


def _chunk_places(X: Any) -> dict[tuple[int, int], int]:
    """First row and column of a chunk -> where it is in the file."""
    places: dict[tuple[int, int], int] = {}
    X.id.chunk_iter(lambda info: places.update({info.chunk_offset: info.byte_offset}))
    return places


def _write_all(file: int, piece: Array, place: int) -> None:
    """A write may take less than it is given when there is no room for more."""
    rest = piece.reshape(-1).view(np.uint8).data
    while rest:
        written = os.pwrite(file, rest, place)
        rest, place = rest[written:], place + written


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "HDF5 files need h5py; install it with: pip install h5py"
        ) from missing
    return h5py
