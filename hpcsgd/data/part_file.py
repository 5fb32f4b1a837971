"""A file in the making, hidden until it is complete.

A write that fails is remembered and said to have been done: HDF5, which takes the
interpreter down when a disk fills, never hears of it, and the owner checks `error`.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.files import open_locked, publish


class PartFile:
    """`.NAME.part` beside the file it will be, for this user alone until then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.part")
        self.place = 0
        self.error: OSError | None = None
        try:
            self.number = open_locked(self.part, _private, lock_required=True)
        except BlockingIOError as error:
            raise ConfigError(
                f"cannot write {path}: another program is writing it; wait for its"
                " end, or choose another name"
            ) from error
        os.ftruncate(self.number, 0)

    def read(self, size: int) -> bytes:
        """What h5py's driver asks for."""
        data = os.pread(self.number, size, self.place)
        self.place += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """What h5py's driver asks for; HDF5 expects zeros behind the end."""
        view = memoryview(buffer).cast("B")
        got = os.preadv(self.number, [view], self.place)
        self.place += got
        return got

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """The next place to read or write."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.place}.get(whence)
        if base is None:
            base = os.fstat(self.number).st_size
        self.place = base + offset
        return self.place

    def tell(self) -> int:
        """The next place to read or write."""
        return self.place

    def write(self, data: Any) -> int:
        """Always as if it had worked; see `error`."""
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                _write_all(self.number, view, self.place)
            except OSError as error:
                self.error = error
        self.place += len(view)
        return len(view)

    def truncate(self, size: int) -> int:
        """Cut or extend."""
        if self.error is None:
            try:
                os.ftruncate(self.number, size)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Nothing is held back here; `publish` reaches the disk."""

    def publish(self) -> None:
        """The final name, in one move, and permissions as of any new file."""
        if self.error is not None:
            raise self.error
        publish(self.number, self.part, self.path)
        self._close()

    def remove(self) -> None:
        """Leave nothing behind."""
        if self.number >= 0:
            with suppress(OSError):
                self.part.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        os.close(self.number)  # the lock goes with it
        self.number = -1


def open_part(path: Path) -> PartFile:
    """For a store that will be called `path`; what goes wrong is one sentence."""
    try:
        return PartFile(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: its folder is missing or not writable;"
            " make it, or name another"
        ) from error


def _write_all(number: int, data: memoryview, place: int) -> None:
    """All of it, or an OSError."""
    while data:
        done = os.pwrite(number, data, place)
        data, place = data[done:], place + done


def _private(path: Path) -> int:
    """Open for this user alone; a link that somebody planted is not followed."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number
