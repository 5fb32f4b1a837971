"""Text files, plain or compressed, as bytes at positions of the plain text."""

import bz2
import gzip
import lzma
import os
import stat
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcsgd.errors import DataError

MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}
OPENERS: dict[str, Any] = {
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": lzma.open,
}
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
STEP = 2**20  # bytes decompressed at once where they are skipped
Stamp = tuple[int, int, int]


class TextStream:
    """Reads a regular file from a position of its plain text on."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path, self.position = path, 0
        self.file = _open(path)
        try:
            self.stamp = _stamp(os.fstat(self.file.fileno()))
            self.kind = compression(path, self.file)
            self.text = (
                OPENERS[self.kind](self.file, mode="rb") if self.kind else self.file
            )
            self._skip(start)
        except BaseException:
            self.file.close()
            raise

    def read(self, count: int) -> bytes:
        """The next `count` bytes; fewer at the end of the text."""
        try:
            piece: bytes = self.text.read(count)
        except BROKEN as error:
            raise DataError(
                f"{self.path}: the {self.kind or 'text'} file is truncated or damaged"
                f" at about byte {self.file.tell()} (byte {self.position} of its text):"
                f" {error}; copy or compress it again"
            ) from error
        self.position += len(piece)
        return piece

    def seek(self, position: int) -> None:
        """Go to a byte of a plain text."""
        self.file.seek(position)
        self.position = position

    def check_unchanged(self) -> None:
        """Refuse what was read from a file that others wrote to meanwhile."""
        if self.stamp != stamp_of(self.path):
            raise DataError(
                f"{self.path} changed while it was read, up to byte {self.position} of"
                " its text; wait until it is complete and begin again"
            )

    def _skip(self, start: int) -> None:
        if self.kind is None:
            self.seek(start)
        while self.position < start and self.read(min(STEP, start - self.position)):
            pass

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()


def compression(path: Path, file: Any) -> str | None:
    """What the first bytes say; a suffix that says otherwise is refused."""
    head = file.read(6)
    file.seek(0)
    kind = next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)
    claimed = SUFFIXES.get(path.suffix.lower())
    if claimed and claimed != kind and head:
        raise DataError(
            f"{path} is called {path.suffix} but at byte 0 it is {kind or 'not'}"
            f"{'' if kind else ' ' + claimed}; give it the suffix of what it is"
        )
    return kind


def stamp_of(path: Path) -> Stamp | None:
    """Size, time of change and identity of a file; None where it is gone."""
    try:
        return _stamp(os.stat(path))
    except OSError:
        return None


def _stamp(facts: os.stat_result) -> Stamp:
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


def _open(path: Path) -> Any:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise DataError(f"{path} is a folder; give the name of a file")
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is not a regular file; write it to one first")
        return open(path, "rb")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the name") from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be opened ({error.strerror}); check its permissions"
        ) from error
