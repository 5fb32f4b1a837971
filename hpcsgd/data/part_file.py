"""A file that is hidden until it is complete.

A failed write is stored in `error` and reported to HDF5 as successful, because HDF5
crashes the interpreter when a disk is full; the owner of the file checks `error`.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.files import open_locked, publish


class PartFile:
    """A hidden file `.NAME.part` beside NAME, private to this user until renamed."""

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
        """Return the next bytes, at most `size`, for the file driver of h5py."""
        data = os.pread(self.number, size, self.place)
        self.place += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, with zeros behind the end of the file, as HDF5 expects.

        Return the bytes that were read.
        """
        view = memoryview(buffer).cast("B")
        got = os.preadv(self.number, [view], self.place)
        view[got:] = bytes(len(view) - got)
        self.place += got
        return got

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read or write, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.place}.get(whence)
        if base is None:
            base = os.fstat(self.number).st_size
        self.place = base + offset
        return self.place

    def tell(self) -> int:
        """Return the position of the next read or write."""
        return self.place

    def write(self, data: Any) -> int:
        """Write `data` and return its length; a failure is stored in `error`."""
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                _write_all(self.number, view, self.place)
            except OSError as error:
                self.error = error
        self.place += len(view)
        return len(view)

    def truncate(self, size: int) -> int:
        """Cut or extend the file to `size` bytes; a failure is stored in `error`."""
        if self.error is None:
            try:
                os.ftruncate(self.number, size)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Do nothing: writes are not buffered; `publish` synchronizes with the disk."""

    def publish(self) -> None:
        """Rename the file to its final name, with the permissions of a new file."""
        if self.error is not None:
            raise self.error
        publish(self.number, self.part, self.path)
        self._close()

    def remove(self) -> None:
        """Remove the hidden file, unless it was published."""
        if self.number >= 0:
            with suppress(OSError):
                self.part.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        os.close(self.number)  # the lock goes with it
        self.number = -1


def open_part(path: Path) -> PartFile:
    """Return the PartFile of a store `path`; raise ConfigError if it cannot be made."""
    try:
        return PartFile(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: its folder is missing or not writable;"
            " make it, or name another"
        ) from error


def _write_all(number: int, data: memoryview, place: int) -> None:
    """Write all of `data` at byte `place`; raise OSError if that fails."""
    while data:
        done = os.pwrite(number, data, place)
        data, place = data[done:], place + done


def _private(path: Path) -> int:
    """Open the file for this user alone; a symbolic link of others is not followed."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT
    number = os.open(path, flags, 0o600)
    os.fchmod(number, 0o600)
    return number
