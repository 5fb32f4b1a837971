"""One state in one file of its size: a page that says what it is, and two halves.

A step reads one half and writes the other, so that what it reads stays whole until all
of the new half is there. All of the file is claimed when it is made: a full disk is
found before the first step.
"""

import errno
import json
import os
import zlib
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import DataError
from hpcsgd.files import CREATE, open_entry
from hpcsgd.tiles.plan import PAGE, Plan, padded
from hpcsgd.tiles.traffic import Traffic

Array = NDArray[Any]
MAGIC = "hpcsgd state 1"
REFUSES_DIRECT = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def room(size: int) -> Array:
    """Bytes in memory that begin on a page and end on one."""
    raw = np.zeros(padded(size) + PAGE, dtype=np.uint8)
    skip = -raw.ctypes.data % PAGE
    return raw[skip : skip + padded(size)]


class StateFile:
    """(columns kept, width) words of one state, twice."""

    def __init__(
        self,
        path: Path,
        plan: Plan,
        width: int,
        dtype: np.dtype[Any],
        direct: bool = False,
    ) -> None:
        self.path, self.plan, self.width, self.dtype = path, plan, width, dtype
        self.each = padded(plan.most * width * dtype.itemsize)  # of every tile but one
        last = plan.rows(plan.count - 1) * width * dtype.itemsize if plan.count else 0
        self.half = self.each * max(plan.count - 1, 0) + padded(last)
        # Of the tiles of both halves, as they were written last.
        self.checksums = np.zeros((2, plan.count), dtype=np.uint32)
        self.wants_direct, self.is_direct = direct, False
        self._file = -1

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return PAGE + 2 * self.half

    def create(self) -> None:
        """Claim all of it, zeros."""
        try:
            file = open_entry(self.path, CREATE)
            try:
                os.posix_fallocate(file, 0, self.size)
                os.pwrite(file, json.dumps(self.says()).encode().ljust(PAGE), 0)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise no_room(self.path, error, self.size) from error

    def open(self) -> None:
        """For reading and writing, past the page cache where that is wanted and can
        be.
        """
        try:
            self._open()
        except OSError as error:
            self.close()
            raise unreadable(self.path, error) from error

    def _open(self) -> None:
        if self.wants_direct and hasattr(os, "O_DIRECT"):
            try:
                self._file = open_entry(self.path, os.O_RDWR | os.O_DIRECT)
                # Some file systems refuse only what is read.
                os.preadv(self._file, [room(PAGE).data], 0)
                self.is_direct = True
            except OSError as error:
                if error.errno not in REFUSES_DIRECT:
                    raise
                self.close()
        if self._file < 0:
            self._file = open_entry(self.path, os.O_RDWR)

    @property
    def is_open(self) -> bool:
        """Whether it can be read and written."""
        return self._file >= 0

    def says(self) -> dict[str, Any]:
        """What the first page holds."""
        return {
            "is": MAGIC,
            "columns": self.plan.columns,
            "kept": self.plan.total,
            "width": self.width,
            "dtype": self.dtype.str,
            "half": self.half,
        }

    def bytes_of(self, number: int) -> int:
        """Of the words of a tile's own part."""
        return self.plan.rows(number) * self.width * self.dtype.itemsize

    def view(self, buffer: Array, number: int) -> Array:
        """The words of a tile in a buffer of bytes, (columns, width)."""
        words: Array = buffer[: self.bytes_of(number)].view(self.dtype)
        return words.reshape(self.plan.rows(number), self.width)

    def checksum_of(self, buffer: Array, number: int) -> int:
        """CRC-32 of the words of a tile, without their padding."""
        return zlib.crc32(buffer[: self.bytes_of(number)].data)

    def sum_up(self, half: int, number: int, buffer: Array, traffic: Traffic) -> None:
        """Note the checksum of a tile that is written."""
        began = perf_counter()
        self.checksums[half, number] = self.checksum_of(buffer, number)
        traffic.has_summed(perf_counter() - began)

    def read(self, half: int, number: int, buffer: Array, traffic: Traffic) -> None:
        """buffer ← a tile's own part."""
        began, size = perf_counter(), self.bytes_of(number)
        moved, place = padded(size), self._place(half, number)
        view, done = memoryview(buffer.data)[:moved], 0
        try:
            while done < moved:
                count = os.preadv(self._file, [view[done:]], place + done)
                if not count:
                    raise OSError(errno.EIO, "the file ends too soon")
                done += count
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read ({error.strerror}); look after the drive,"
                " then go on with --resume auto"
            ) from error
        traffic.has_read(size, moved, perf_counter() - began)

    def write(self, half: int, number: int, buffer: Array, traffic: Traffic) -> None:
        """A tile's own part ← buffer, padding along."""
        began, size = perf_counter(), self.bytes_of(number)
        moved, place = padded(size), self._place(half, number)
        view, done = memoryview(buffer.data)[:moved], 0
        try:
            while done < moved:
                done += os.pwritev(self._file, [view[done:]], place + done)
        except OSError as error:
            raise no_room(self.path, error, moved) from error
        traffic.has_written(size, moved, perf_counter() - began)

    def flush(self) -> None:
        """Wait until the drive has it."""
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise no_room(self.path, error, self.half) from error

    def close(self) -> None:
        """Let go of it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _place(self, half: int, number: int) -> int:
        return PAGE + half * self.half + number * self.each


def unreadable(path: Path, error: OSError) -> DataError:
    """One sentence for a file that is not there, or not for us."""
    return DataError(
        f"{path} cannot be opened ({error.strerror}); bring the files of all ranks"
        " back, or start anew with --resume no"
    )


def no_room(path: Path, error: OSError, size: int) -> DataError:
    """One sentence; what was complete before stays so."""
    return DataError(
        f"{path} cannot be written ({error.strerror}), {size} bytes were asked for;"
        " make room or choose another [agreement] store, then go on with --resume auto:"
        " the last complete step is kept"
    )
