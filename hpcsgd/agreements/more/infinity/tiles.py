"""Files of tiles: plan, checksums, stamps, locks."""

import errno
import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import (
    CREATE,
    open_entry,
    open_locked,
    open_to_append,
    read_entry,
)
from hpcsgd.formats import Array

# The columns of each tile, and the part of each tile that a replica keeps.
#
# Every tile is split over all replicas, so that all drives and all links work on each
# of them. A part begins on a page of its file and ends on one: no write of whole blocks
# has to add a tail of a few bytes.

PAGE = 4096  # O_DIRECT requires offsets and lengths that are multiples of it
MIB = 2**20


def padded(size: int) -> int:
    """Return a size rounded up to a multiple of a page."""
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class TilePlan:
    """The tiles of a member's columns, and the part of each tile on each replica.

    All tiles have `height` columns except the last.
    """

    columns: int
    height: int  # columns of a tile
    replicas: int = 1
    replica: int = 0

    @property
    def count(self) -> int:
        """Return the number of tiles."""
        return -(-self.columns // self.height)

    def tile(self, number: int) -> slice:
        """Return the columns of a tile, as a slice of the member's columns."""
        first = number * self.height
        return slice(first, min(first + self.height, self.columns))

    def part(self, number: int, replica: int | None = None) -> slice:
        """Return the columns of a tile on a replica, by default on this replica."""
        tile = self.tile(number)
        who = self.replica if replica is None else replica
        share = split_range(tile.stop - tile.start, self.replicas, who)
        return slice(tile.start + share.start, tile.start + share.stop)

    def within(self, number: int) -> slice:
        """Return this replica's columns of a tile, counted from the tile's first."""
        columns = self.part(number)
        first = self.tile(number).start
        return slice(columns.start - first, columns.stop - first)

    def rows(self, number: int) -> int:
        """Return the number of columns of this replica's part of a tile."""
        columns = self.part(number)
        return int(columns.stop - columns.start)

    def sizes(self, number: int) -> list[int]:
        """Return the number of columns of the parts of a tile on all replicas."""
        parts = [self.part(number, replica) for replica in range(self.replicas)]
        return [part.stop - part.start for part in parts]

    @property
    def most(self) -> int:
        """Return the number of columns of the largest part of this replica."""
        return self.rows(0) if self.count else 0

    @property
    def total(self) -> int:
        """Return the number of columns of all parts of this replica."""
        return sum(self.rows(number) for number in range(self.count))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def columns_for(budget: float, each: int, columns: int) -> int:
    """Return the number of columns of a tile that fit into `budget` MiB.

    A column takes `each` bytes in all buffers together. The result is at most
    `columns`. Raise ConfigError if no column fits.
    """
    fit = int(budget * MIB) // each
    if fit < 1:
        raise ConfigError(
            f"[agreement] tile = {budget:g} MiB holds no column, because one column"
            f" takes {each} bytes in all buffers together; use at least"
            f" {each / MIB:.3g} MiB"
        )
    return min(fit, max(columns, 1))


# Bytes to and from the drive, as they were moved and as they should be.
#
# For states of s words a column in all, of which the forward pass needs k:
#
# read  (s + k) · words · itemsize / R,  written  s · words · itemsize / R
#
# With Adam in float32 (s = 3, k = 1) that is 12D/P + 4D/P, and 12D/P.


@dataclass
class Traffic:
    """The bytes of states and of padding that a rank has read and written.

    The seconds that this took are counted, too.
    """

    read: int = 0
    written: int = 0
    padding: int = 0
    seconds_read: float = 0.0  # of the threads that read and write
    seconds_written: float = 0.0
    seconds_summed: float = 0.0  # of checksums, by a thread of their own
    seconds_flushed: float = 0.0  # until the drive had a step
    stood: float = 0.0  # seconds that the step waited for the threads
    _lock: Lock = field(default_factory=Lock, repr=False)

    def has_read(self, size: int, moved: int, seconds: float) -> None:
        """Count a read of `size` bytes of states, `moved` bytes with padding."""
        with self._lock:
            self.read += size
            self.padding += moved - size
            self.seconds_read += seconds

    def has_written(self, size: int, moved: int, seconds: float) -> None:
        """Count a write of `size` bytes of states, `moved` bytes with padding."""
        with self._lock:
            self.written += size
            self.padding += moved - size
            self.seconds_written += seconds

    def has_summed(self, seconds: float) -> None:
        """Count the seconds spent on the checksum of a tile that is written."""
        with self._lock:
            self.seconds_summed += seconds


def step_bytes(
    columns: int, words: int, itemsize: int, forward: int
) -> tuple[int, int]:
    """Return the bytes that one step reads, and the bytes that it writes.

    A column has `words` words of all states; `forward` of them are read once more, for
    the scores.
    """
    each = columns * itemsize
    return each * (words + forward), each * words


# One state in one file of its size: a page that describes it, and two halves.
#
# A step reads one half and writes the other, so that what it reads stays whole until
# all of the new half is written. The space of the whole file is reserved when it is
# made: a full disk is found before the first step.

MAGIC = "hpcsgd state 1"
REFUSES_DIRECT = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def aligned_buffer(size: int) -> Array:
    """Return zeros, at least `size` bytes, that begin and end on a page of memory."""
    raw = np.zeros(padded(size) + PAGE, dtype=np.uint8)
    skip = -raw.ctypes.data % PAGE
    return raw[skip : skip + padded(size)]


class StateFile:
    """A file of one state: two halves of (this replica's columns, width) words."""

    def __init__(
        self,
        path: Path,
        plan: TilePlan,
        width: int,
        dtype: np.dtype[Any],
        direct: bool = False,
    ) -> None:
        self.path = path
        self.plan = plan
        self.width = width
        self.dtype = dtype
        # Bytes of this replica's part of every tile but the last.
        self.each = padded(plan.most * width * dtype.itemsize)
        last = plan.rows(plan.count - 1) * width * dtype.itemsize if plan.count else 0
        self.half = self.each * max(plan.count - 1, 0) + padded(last)
        # Of the tiles of both halves, as they were written last.
        self.checksums = np.zeros((2, plan.count), dtype=np.uint32)
        self.wants_direct = direct
        self.is_direct = False
        self._file = -1

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        return PAGE + 2 * self.half

    def create(self) -> None:
        """Create the file with zeros, and reserve its whole size on the drive."""
        try:
            file = open_entry(self.path, CREATE)
            try:
                os.posix_fallocate(file, 0, self.size)
                os.pwrite(file, json.dumps(self.says()).encode().ljust(PAGE), 0)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise disk_full_error(self.path, error, self.size) from error

    def open(self) -> None:
        """Open the file for reading and writing.

        It bypasses the page cache if that is requested and the file system permits it.
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
                # Some file systems refuse O_DIRECT only when data is read.
                os.preadv(self._file, [aligned_buffer(PAGE).data], 0)
                self.is_direct = True
            except OSError as error:
                if error.errno not in REFUSES_DIRECT:
                    raise
                self.close()
        if self._file < 0:
            self._file = open_entry(self.path, os.O_RDWR)

    @property
    def is_open(self) -> bool:
        """Return whether the file is open."""
        return self._file >= 0

    def says(self) -> dict[str, Any]:
        """Return the contents of the first page, which describe the file."""
        return {
            "is": MAGIC,
            "columns": self.plan.columns,
            "kept": self.plan.total,
            "width": self.width,
            "dtype": self.dtype.str,
            "half": self.half,
        }

    def bytes_of(self, number: int) -> int:
        """Return the bytes of this replica's part of a tile, without padding."""
        return self.plan.rows(number) * self.width * self.dtype.itemsize

    def view(self, buffer: Array, number: int) -> Array:
        """Return the words of a tile, (columns, width), as a view of `buffer`."""
        words: Array = buffer[: self.bytes_of(number)].view(self.dtype)
        return words.reshape(self.plan.rows(number), self.width)

    def checksum_of(self, buffer: Array, number: int) -> int:
        """Return the CRC-32 of the words of a tile, without their padding."""
        return zlib.crc32(buffer[: self.bytes_of(number)].data)

    def sum_up(self, half: int, number: int, buffer: Array, traffic: Traffic) -> None:
        """Compute and store the checksum of a tile that is written to `half`."""
        began = perf_counter()
        self.checksums[half, number] = self.checksum_of(buffer, number)
        traffic.has_summed(perf_counter() - began)

    def read(self, half: int, number: int, buffer: Array, traffic: Traffic) -> None:
        """Read this replica's part of a tile, with padding, from disk into `buffer`."""
        began = perf_counter()
        size = self.bytes_of(number)
        moved = padded(size)
        place = self._place(half, number)
        view = memoryview(buffer.data)[:moved]
        done = 0
        try:
            while done < moved:
                count = os.preadv(self._file, [view[done:]], place + done)
                if not count:
                    raise OSError(errno.EIO, "the file ends too soon")
                done += count
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be read ({error.strerror}); repair the drive or"
                " restore the files of all ranks, then go on with --resume auto"
            ) from error
        traffic.has_read(size, moved, perf_counter() - began)

    def write(self, half: int, number: int, buffer: Array, traffic: Traffic) -> None:
        """Write this replica's part of a tile, with padding, from `buffer` to disk."""
        began = perf_counter()
        size = self.bytes_of(number)
        moved = padded(size)
        place = self._place(half, number)
        view = memoryview(buffer.data)[:moved]
        done = 0
        try:
            while done < moved:
                done += os.pwritev(self._file, [view[done:]], place + done)
        except OSError as error:
            raise disk_full_error(self.path, error, moved) from error
        traffic.has_written(size, moved, perf_counter() - began)

    def flush(self) -> None:
        """Wait until the drive has stored all that was written."""
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise disk_full_error(self.path, error, self.half) from error

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _place(self, half: int, number: int) -> int:
        return PAGE + half * self.half + number * self.each


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error of a file or folder that `error` kept from being opened."""
    return DataError(
        f"{path} cannot be opened ({error.strerror}); restore the files of all ranks,"
        " or remove it and start anew with --resume no"
    )


def disk_full_error(path: Path, error: OSError, size: int) -> DataError:
    """Return the error of a failed write of `size` bytes.

    A step that was complete before the write stays complete.
    """
    return DataError(
        f"{path} cannot be written ({error.strerror}), {size} bytes were asked for;"
        " make room and go on with --resume auto (the last complete step is kept), or"
        " start anew with --resume no and another [agreement] store"
    )


# Which step the files of a rank are complete for.
#
# A stamp is written after all words of its step, in the one of two slots that the last
# stamp is not in. A kill tears at most the slot that is being written; its checksum is
# then wrong, and the other slot is intact.


@dataclass(frozen=True)
class Stamp:
    """The mark of a complete step.

    `version` is its number since the files were made, `document` the state beside the
    tiles.
    """

    version: int
    document: dict[str, Any]


class Stamps:
    """The file of the stamps of one rank.

    A stamp says after which step the files of the tiles were last complete. Two are
    kept, so that one is intact while the other is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slot = 0

    def create(self, first: Stamp) -> None:
        """Create the file with the stamp `first`, in slots over twice its size."""
        self.slot = padded(2 * len(_line(first)) + 256)
        try:
            with open(open_entry(self.path, CREATE), "wb") as file:
                file.write(f"{self.slot}\n".encode().ljust(padded(1)))
                file.write(bytes(2 * self.slot))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_full_error(self.path, error, 2 * self.slot) from error
        self.write(first)

    def write(self, stamp: Stamp, sync: bool = True) -> None:
        """Write a stamp into slot 0 or 1, the parity of its step number."""
        line = _line(stamp).ljust(self.slot)
        try:
            number = open_entry(self.path, os.O_RDWR)
            with open(number, "r+b", buffering=0) as file:
                file.seek(padded(1) + stamp.version % 2 * self.slot)
                file.write(line)
                if sync:
                    os.fdatasync(file.fileno())
        except OSError as error:
            raise disk_full_error(self.path, error, len(line)) from error

    def read(self) -> list[Stamp]:
        """Return the intact stamps, the newest first."""
        try:
            data = read_entry(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from error
        head = data[: padded(1)].split(b"\n")[0]
        if not head.isdigit() or not int(head):
            return []
        self.slot = int(head)
        slots = (padded(1) + k * self.slot for k in (0, 1))
        candidates = [_parsed(data[first : first + self.slot]) for first in slots]
        stamps = [stamp for stamp in candidates if stamp is not None]
        return sorted(stamps, key=lambda stamp: -stamp.version)


def _line(stamp: Stamp) -> bytes:
    payload = json.dumps([stamp.version, stamp.document]).encode()
    return b"%08x %s\n" % (zlib.crc32(payload), payload)


def _parsed(slot: bytes) -> Stamp | None:
    line, end, _ = slot.partition(b"\n")
    checksum, _, payload = line.partition(b" ")
    if not end or checksum != b"%08x" % zlib.crc32(payload):
        return None
    version, document = json.loads(payload)
    return Stamp(version, document)


# A checksum of every tile, by which words that no step wrote are detected.
#
# A stamp shows that a step is complete. It does not show that the drive has stored the
# words correctly, or that no other program has written since: the CRC-32 of each tile
# does. Checksums are computed during writes, are stored in the stamp, and are compared
# with the tiles once, when a run resumes.

WORD = np.dtype("<u4")


def in_text(files: dict[str, StateFile], half: int) -> dict[str, str]:
    """Return the checksums of one half in base64, by name of the state."""
    return {
        name: b64encode(file.checksums[half].astype(WORD).tobytes()).decode()
        for name, file in files.items()
    }


def restore_checksums(
    files: dict[str, StateFile], half: int, said: dict[str, str]
) -> None:
    """Restore the checksums of the files from the texts of `in_text`."""
    for name, file in files.items():
        file.checksums[half] = from_text(said[name])


def from_text(said: str) -> np.ndarray:
    """Return the checksums of all tiles of a state from their text."""
    return np.frombuffer(b64decode(said), dtype=WORD)


def differing(
    files: Iterable[StateFile], half: int, traffic: Traffic
) -> tuple[StateFile, int] | None:
    """Return file and number of the first tile with a wrong checksum, or None.

    All tiles before that one are read.
    """
    for file in files:
        buffer = aligned_buffer(file.each)
        for number in file.plan:
            file.read(half, number, buffer, traffic)
            if file.checksum_of(buffer, number) != file.checksums[half, number]:
                return file, number
    return None


def of_zeros(file: StateFile) -> None:
    """Set the checksums of a new file, in which every tile contains zeros."""
    checksums: dict[int, int] = {}
    for number in file.plan:
        size = file.bytes_of(number)
        if size not in checksums:
            checksums[size] = zlib.crc32(bytes(size))
        file.checksums[:, number] = checksums[size]


# One run at a time on the states of a rank; the system frees them however it ends.


class TileLock:
    """A lock on the states of a rank, from `take` to `release`.

    The end of the process, too, releases it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = -1  # descriptor of the file

    def take(self) -> None:
        """Take the lock, or raise ConfigError.

        The error is raised if another run has the lock, or if its file cannot be made.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.number = open_locked(self.path, open_to_append)
        except BlockingIOError as error:
            raise ConfigError(
                f"{self.path.parent} is in use by another run; choose another"
                " [agreement] store, or wait until that run has ended"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{self.path.parent} cannot be written ({error.strerror}); choose"
                " another [agreement] store, a folder with write permission"
            ) from error

    def release(self) -> None:
        """Release the lock."""
        if self.number >= 0:
            os.close(self.number)
            self.number = -1
