"""A file in the making that can be killed at any moment and taken up again.

Bytes that a `commit` has made sure of are copied into an undo file before they are
overwritten; whoever opens the pair again goes back to the last commit. A write that
fails is remembered and said to have been done: HDF5, which takes the interpreter down
when a disk fills, never hears of it, and the owner asks `check` instead.
"""

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from hpcsgd.errors import ConfigError
from hpcsgd.files import UMASK, sync_folder

PAGE = 4096
HEAD = struct.Struct("<8sQI")  # magic, size at the commit, checksum of both
RECORD = struct.Struct("<QQI")  # where, how many bytes, their checksum
MAGIC = b"hpcsgdU1"


class PartFile:
    """`.NAME.part` beside the file it will be, for this user alone until then."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.part")
        self.undo = path.with_name(f".{path.name}.part.undo")
        self.place = 0
        self.error: OSError | None = None
        self.number = _locked(path, self.part, fresh)
        try:
            self.undo_number = _private(self.undo, fresh=True)
            if fresh:
                os.ftruncate(self.number, 0)
            else:
                self._go_back()
            self._begin()
        except BaseException:
            os.close(self.number)
            raise

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
                self._save(self.place, self.place + len(view))
                _write_all(self.number, view, self.place)
            except OSError as error:
                self.error = error
        self.place += len(view)
        return len(view)

    def truncate(self, size: int) -> int:
        """Cut or extend; what is cut off can come back."""
        if self.error is None:
            try:
                self._save(size, self.committed)
                os.ftruncate(self.number, size)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Nothing is held back here; `commit` reaches the disk."""

    def commit(self) -> None:
        """From now on this is what there is, whatever happens later."""
        if self.error is not None:
            raise self.error
        os.fsync(self.number)
        self._begin()

    def publish(self) -> None:
        """The final name, in one move, and permissions as of any new file."""
        if self.error is not None:
            raise self.error
        os.fsync(self.number)
        self.undo.unlink(missing_ok=True)
        os.fchmod(self.number, 0o666 & ~UMASK)
        os.replace(self.part, self.path)
        self.close()
        sync_folder(self.path.parent)

    def remove(self) -> None:
        """Leave nothing behind."""
        if self.number >= 0:
            for name in (self.part, self.undo):
                with suppress(OSError):
                    name.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of both; `.part` and its undo file stay."""
        if self.number >= 0:
            os.close(self.undo_number)
            os.close(self.number)  # the lock goes with it
            self.number = -1

    def _begin(self) -> None:
        """An empty undo file for the size that there is now."""
        self.committed = os.fstat(self.number).st_size
        self.saved: set[int] = set()
        self.undo_end = 0
        os.ftruncate(self.undo_number, 0)
        head = struct.pack("<8sQ", MAGIC, self.committed)
        self._log(head + struct.pack("<I", crc32(head)))

    def _save(self, start: int, stop: int) -> None:
        """Copy committed pages before something is written over them."""
        stop = min(stop, self.committed)
        if start >= stop:
            return
        records = []
        for page in range(start // PAGE, -(-stop // PAGE)):
            if page in self.saved:
                continue
            old = os.pread(
                self.number, min(PAGE, self.committed - page * PAGE), page * PAGE
            )
            records += [RECORD.pack(page * PAGE, len(old), crc32(old)), old]
            self.saved.add(page)
        if records:
            self._log(b"".join(records))

    def _log(self, data: bytes) -> None:
        """To disk before anything that it undoes."""
        _write_all(self.undo_number, memoryview(data), self.undo_end)
        self.undo_end += len(data)
        os.fsync(self.undo_number)

    def _go_back(self) -> None:
        """To the last commit; without a valid head nothing was written since it."""
        data = os.pread(self.undo_number, os.fstat(self.undo_number).st_size, 0)
        if len(data) < HEAD.size:
            return
        magic, size, check = HEAD.unpack_from(data)
        if magic != MAGIC or check != crc32(data[: HEAD.size - 4]):
            return
        at = HEAD.size
        while at + RECORD.size <= len(data):
            where, length, check = RECORD.unpack_from(data, at)
            at += RECORD.size
            old = data[at : at + length]
            if len(old) < length or crc32(old) != check:
                break  # torn: what it would undo was never written
            _write_all(self.number, memoryview(old), where)
            at += length
        os.ftruncate(self.number, size)
        os.fsync(self.number)


def open_part(path: Path, fresh: bool) -> PartFile:
    """For a store that will be called `path`; what goes wrong is one sentence."""
    try:
        return PartFile(path, fresh)
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


def _private(path: Path, fresh: bool) -> int:
    """Open for this user alone; a link that somebody planted is not followed."""
    create = os.O_CREAT if fresh else 0
    number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | create, 0o600)
    os.fchmod(number, 0o600)
    return number


def _locked(path: Path, part: Path, fresh: bool) -> int:
    """Opened and ours alone, until it is closed or the process ends."""
    while True:
        number = _private(part, fresh)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(number)
            raise ConfigError(
                f"cannot write {path}: another program is writing it; wait for its"
                " end, or choose another name"
            ) from error
        # Between opening and locking, its last owner may have renamed it.
        with suppress(FileNotFoundError):
            if os.fstat(number).st_ino == os.stat(part).st_ino:
                return number
        os.close(number)
