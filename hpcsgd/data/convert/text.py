"""Text as a source of rows: chunks of lines, compression, faults in lines."""

import bz2
import gzip
import lzma
import os
import stat
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcsgd.data.convert.sources import Outline, SourceRows
from hpcsgd.data.convert.transform import ColumnMoments, Like, Parts
from hpcsgd.errors import DataError, did_you_mean_file

# Text files, plain or compressed, as bytes at positions of the plain text.

MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}
OPENERS: dict[str, Any] = {
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": lzma.open,
}
BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
STEP = 2**20  # bytes that are decompressed at once to skip them
Stamp = tuple[int, int, int]


class TextStream:
    """A reader of a regular file from a position of its plain text on."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self.position = 0
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
        """Return the next `count` bytes, or fewer at the end of the text."""
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
        """Move to byte `position` of the file, which must not be compressed."""
        self.file.seek(position)
        self.position = position

    def check_unchanged(self) -> None:
        """Raise DataError if the file was changed while it was read."""
        if self.stamp != stamp_of(self.path):
            raise DataError(
                f"{self.path} changed while it was read (found after byte"
                f" {self.position} of its text); wait until it is complete and begin"
                " again"
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
    """Return the compression that the first bytes show; None for a plain text.

    Raise DataError if the suffix of `path` is that of another compression.
    """
    head = file.read(6)
    file.seek(0)
    kind = next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)
    claimed = SUFFIXES.get(path.suffix.lower())
    if claimed and claimed != kind and head:
        raise DataError(
            f"{path} has the suffix {path.suffix}, but its first bytes are"
            f" {'those of ' + kind if kind else 'not those of ' + claimed}; rename it"
            " with the suffix of its format"
        )
    return kind


def stamp_of(path: Path) -> Stamp | None:
    """Return size, modification time and inode of a file; None if it is gone."""
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
            raise DataError(
                f"{path} is not a regular file (a pipe, for example); copy its content"
                " to a regular file first"
            )
        return open(path, "rb")
    except FileNotFoundError:
        hint = did_you_mean_file(path)
        raise DataError(f"{path} does not exist{hint}; check the name") from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be opened ({error.strerror}); check its permissions"
        ) from error


# The faults of a text: their kinds, and one sentence for each.


class Kind(IntEnum):
    """The kinds of faults, with the numbers of kernels/cpu/parse.c."""

    NUMBER = 1
    NONFINITE = 2
    LABEL = 3
    PAIR = 4
    INDEX = 5
    LARGE = 6
    BELOW = 7
    DUPLICATE = 8
    UNSORTED = 9
    QID = 10
    RAGGED = 11
    MISSING = 12
    ROOM = 13  # the caller's arrays are too small: not a fault of the text
    UNENDED = 14  # no newline at the end: not a fault of the text either
    MIXED = 15


SENTENCES = {
    Kind.NUMBER: "{token} is not a number; mend or leave out that line",
    Kind.NONFINITE: "{token} is not finite in float64; clean the file",
    Kind.LABEL: "the label is missing before {token}; begin each line with one",
    Kind.PAIR: "{token} is not index:value; mend that line",
    Kind.INDEX: "{token} has no whole number before its colon; mend that line",
    Kind.LARGE: "the index of {token} is beyond 2^31 - 1; number the columns from 1",
    Kind.BELOW: "{token} has index 0 where columns count from 1; give --index-base 0,"
    " or mend that line",
    Kind.DUPLICATE: "the index of {token} comes twice in its row; remove one of them",
    Kind.UNSORTED: "the index of {token} is lower than the one before it; sort the row",
    Kind.QID: "{token} is not qid: and a whole number below 2^63; mend that line",
    Kind.MIXED: "only one of the first row and this row has a qid: ({token}); give"
    " every row one, or none",
    Kind.RAGGED: "this row has not as many fields as the first one; mend that line",
    Kind.MISSING: "a value is missing ({token}); fill it in, or take the mean of its"
    " column with --missing mean, where it is a feature",
}
SHOWN = 40  # characters of a token in a message


class Fault(Exception):
    """A fault that a parser reports: its kind, and its first byte in the text."""

    def __init__(self, kind: int, position: int) -> None:
        super().__init__(kind, position)
        self.kind = Kind(kind)
        self.position = position


def refusal(place: str, kind: Kind, text: bytes, remedy: str = "") -> DataError:
    """Return the error for a fault at `place`; `text` begins with the faulty token."""
    if kind not in SENTENCES:
        raise AssertionError(
            f"the parser reported {kind.name} at {place}, which is no fault of the text"
        )
    token = text.split(b"\n", 1)[0]
    control = next((b for b in token if b < 9 or 13 < b < 32 or b > 126), None)
    if control is not None and kind is not Kind.RAGGED:
        return DataError(
            f"{place}: byte 0x{control:02x} does not belong to numbers in text; is this"
            " a word, a binary file, or text that is not UTF-8?"
        )
    sentence = SENTENCES[kind].format(token=_shown(token, kind))
    return DataError(f"{place}: {sentence}{remedy}")


def _shown(token: bytes, kind: Kind) -> str:
    """Return the token in quotes, without later text, cut if it is long."""
    if kind is not Kind.MISSING:
        token = (token.split() or [b""])[0]
    word = token[:SHOWN].decode("ascii", "replace").strip()
    return repr(word + ("..." if len(token) > SHOWN else ""))


# Text in pieces of whole lines, and the places of faults in them.
#
# Piece k contains the lines that begin in bytes k · size to (k + 1) · size, so that the
# division into pieces depends on the text only, not on the rank that reads it.

PIECE = 2**20  # bytes; larger pieces are not faster
TAIL = 2**16  # read at first behind a piece, to find the end of its last line
LINE_LIMIT = 64 * 2**20  # a longer line is no text
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextChunk:
    """Whole lines of a text."""

    position: int  # byte of the plain text at which they begin
    text: bytes  # ends with a newline, the last line of the file too
    end: int  # byte of the plain text behind them

    def behind(self, position: int) -> "TextChunk":
        """Return the lines that begin at `position`, a line start, or later."""
        skipped = min(max(position - self.position, 0), len(self.text))
        begin = self.position + skipped
        return TextChunk(begin, self.text[skipped:], max(self.end, begin))


def count_pieces(size: int, piece: int = PIECE) -> int:
    """Return how many pieces a plain text of `size` bytes has."""
    return -(-size // piece)


def pieces(path: Path, start: int = 0, size: int = PIECE) -> Iterator[TextChunk]:
    """Yield all pieces that are not empty, from the line start `start` on."""
    with TextStream(path, start) as stream:
        yield from _cut(stream, start, size)
        stream.check_unchanged()


def read_piece(path: Path, number: int, size: int = PIECE) -> TextChunk:
    """Return piece `number` of a plain text; it is empty if no line begins in it."""
    low = number * size
    high = (number + 1) * size
    with TextStream(path) as stream:
        piece = _at_one_go(stream, low, high)
        if piece is not None:
            return piece
        begin = _line_start(stream, low, high)
        if begin < high:
            stream.seek(begin)
            return next(_cut(stream, begin, size), TextChunk(begin, b"", begin))
    return TextChunk(high, b"", high)


def _at_one_go(stream: TextStream, low: int, high: int) -> TextChunk | None:
    """Return the piece if one read finds both its ends, as usual; else None."""
    start = max(low - 1, 0)
    stream.seek(start)
    read = stream.read(high - start + TAIL)
    first = read.find(b"\n", 0, high - start - 1) + 1 if low else 0
    stop = read.find(b"\n", high - start - 1) + 1
    if (low and not first) or not stop:
        return None
    text = read[first:stop]
    _check_line(stream, start + first, text, len(text))
    return TextChunk(start + first, _ended(text, start + first), start + stop)


def _line_start(stream: TextStream, low: int, high: int) -> int:
    """Return the first line start in low..high, or `high`."""
    if low == 0:
        return 0
    stream.seek(low - 1)
    # Most lines are short: the rest of the window is read only for long lines.
    for count in (min(TAIL, high - low), max(high - low - TAIL, 0)):
        begin = stream.position
        newline = stream.read(count).find(b"\n")
        if newline >= 0:
            return begin + newline + 1
    return high


def _cut(stream: TextStream, position: int, size: int) -> Iterator[TextChunk]:
    """Yield the pieces from `position` on, a line start and the stream's position."""
    buffer = bytearray()
    while True:
        least = size - position % size  # bytes left in its piece
        is_last = _fill(stream, position, buffer, least)
        stop = buffer.find(b"\n", least - 1) + 1 or len(buffer)
        _check_line(stream, position, buffer, stop)
        if stop:
            text = bytes(memoryview(buffer)[:stop])
            yield TextChunk(position, _ended(text, position), position + stop)
        position += stop
        del buffer[:stop]
        if is_last and not buffer:
            return


def _fill(stream: TextStream, position: int, held: bytearray, least: int) -> bool:
    """Extend `held` until a line ends at byte `least` or later; return True at EOF."""
    step = TAIL
    while len(held) < least or held.find(b"\n", least - 1) < 0:
        size = least - len(held) if len(held) < least else step
        read = stream.read(min(size, STEP))
        if not read:
            return True
        held += read
        step *= 2
        if not held.endswith(b"\n"):
            _check_line(stream, position, held, len(held))
    return False


def _check_line(
    stream: TextStream, position: int, held: bytes | bytearray, stop: int
) -> None:
    """Raise DataError if the line that contains byte `stop` − 1 is too long."""
    if stop <= LINE_LIMIT:
        return
    line = held.rfind(b"\n", 0, stop - 1) + 1
    if stop - line > LINE_LIMIT:
        raise DataError(
            f"{stream.path}: the line that begins at byte {position + line} is"
            f" longer than {LINE_LIMIT >> 20} MiB; is this a text file?"
        )


def _ended(text: bytes, position: int) -> bytes:
    """Return a text with a newline at its end and without a byte order mark."""
    if position == 0 and text.startswith(BOM):
        text = b"   " + text[3:]  # blanks: positions do not change
    return text if text.endswith(b"\n") else text + b"\n"


def refuse_changed(path: Path, stamp: Stamp | None) -> None:
    """Raise DataError if the file has changed since `stamp` was taken."""
    if stamp is not None and stamp != stamp_of(path):
        raise DataError(
            f"{path} changed while it was read; wait until it is complete and begin"
            " again"
        )


def located(
    path: Path,
    piece: TextChunk,
    fault: Fault,
    delimiter: bytes,
    column: str = "",
    remedy: str = "",
) -> DataError:
    """Return the error that names file, line, byte and field of a fault in a piece.

    `column` describes the field's column, and `remedy` is appended to the message.
    """
    place = place_of(path, piece.position + fault.position, column)
    line = piece.text[fault.position :].split(b"\n", 1)[0]
    return refusal(place, fault.kind, line.split(delimiter, 1)[0], remedy)


def place_of(path: Path, byte: int, column: str = "") -> str:
    """Return the words for a byte of the text: file, line, byte, column."""
    line = f"{path}, line {line_number(path, byte)} (byte {byte})"
    return f"{line}, {column}" if column else line


def line_number(path: Path, byte: int) -> int:
    """Return the number, from 1, of the line that contains a byte of the text."""
    lines = 1
    with TextStream(path) as stream:
        while stream.position < byte:
            read = stream.read(min(STEP, byte - stream.position))
            if not read:
                break
            lines += read.count(b"\n")
    return lines


# The base class of sources of text: pieces that any rank may parse.

ENDLESS = 2**62  # for the unknown length of a compressed text


@dataclass
class PassCounts:
    """The counts of a pass over a text, or over one piece."""

    rows: int = 0
    stored: int = 0  # values written out in sparse text
    lowest: int = 2**31  # index, as written
    highest: int = -1
    end: int = 0

    def add(self, other: "PassCounts") -> None:
        """Add the counts of another piece."""
        self.rows += other.rows
        self.stored += other.stored
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        self.end = max(self.end, other.end)


MOST_LEVELS = 10_000  # of one column


class LevelSets:
    """The levels of columns of text, added piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.levels: dict[str, set[str]] = {}

    def add(self, parts: Parts) -> int:
        """Add the levels that `find_levels` returned of a piece; return its end."""
        for column, piece_levels in parts["levels"].items():
            levels = self.levels.setdefault(column, set())
            levels.update(piece_levels)
            if len(levels) > MOST_LEVELS:
                raise DataError(
                    f"{self.path}: column {column!r} has more than {MOST_LEVELS}"
                    " different values, too many for --categories (does it identify"
                    " rows?); remove that column from the file"
                )
        return int(parts["end"])

    def in_order(self) -> dict[str, list[str]]:
        """Return the sorted levels of each column: by value if all are numbers."""
        for column, levels in self.levels.items():
            if not levels:
                raise DataError(
                    f"{self.path}: column {column!r}, which --categories names, has no"
                    " values; remove that column from the file"
                )
        return {column: _sorted(levels) for column, levels in self.levels.items()}


def _sorted(levels: set[str]) -> list[str]:
    try:
        return sorted(levels, key=lambda level: (float(level), level))
    except ValueError:
        return sorted(levels)


class TextSource(ABC):
    """A source of rows of a text, plain or compressed. `begin` is called first."""

    path: Path
    fills: bool  # values that are missing become the mean of their column
    piece = PIECE  # bytes; the same for every rank and every pass
    delimiter = b"\n"  # between fields; a newline if there are none
    first = 0  # byte at which the rows begin
    size = ENDLESS  # of a plain text
    packed: str | None = None  # how it is compressed
    stamp: Stamp | None = None
    levels: dict[str, list[str]]  # column of text -> its levels
    lacks_levels = False  # a separate pass must find them

    def follow(self, like: Like) -> None:  # noqa: B027
        """Take the levels of text columns from the file `like`; by default, none."""

    def begin(self) -> None:
        """Determine stamp, compression and size of the file; read its first lines."""
        with TextStream(self.path) as stream:
            self.stamp = stream.stamp
            self.packed = stream.kind
        self.size = ENDLESS if self.packed else self.stamp[0]
        self._read_head()

    @abstractmethod
    def _read_head(self) -> None:
        """Read the first lines and set the layout of the text."""

    def find_levels(self, piece: TextChunk) -> Parts:
        """Return the levels of the columns of text in a piece, for `LevelSets.add`."""
        return {"end": piece.end, "levels": {}}

    def learn_levels(self, levels: dict[str, list[str]]) -> None:
        """Store the levels of each text column, in the order of their columns of X."""
        self.levels = levels
        self.lacks_levels = False

    @abstractmethod
    def scan(self, piece: TextChunk, keep: bool) -> tuple[PassCounts, Any]:
        """Return the counts of a piece, and with `keep` its X, else None.

        X has a column for each index as written (less 1 for index base 1), and NaN for
        missing values.
        """

    @abstractmethod
    def outline_of(self, tally: PassCounts, moments: ColumnMoments) -> Outline:
        """Return the outline, from counts and moments of all pieces."""

    @abstractmethod
    def moments_of(self, outline: Outline, moments: ColumnMoments) -> ColumnMoments:
        """Return the moments of the columns of X, with all absent values filled in."""

    @abstractmethod
    def rows(self, piece: TextChunk, outline: Outline) -> SourceRows:
        """Return the rows of a piece."""

    def tasks(self, start: int = 0, stop: int = ENDLESS) -> Iterator[int | TextChunk]:
        """Yield the tasks of `load` for the lines that begin in start..stop.

        A task is a piece's number, or the piece itself of a compressed text.
        """
        if self.packed is None:
            last = count_pieces(min(stop, self.size), self.piece)
            yield from range(start // self.piece, last)
            return
        for piece in pieces(self.path, start, self.piece):
            if piece.position >= stop:
                return
            yield piece

    def load(self, task: int | TextChunk) -> TextChunk:
        """Return the piece of a task, without lines before the first row.

        This rank reads it if the task is a number.
        """
        if isinstance(task, int):
            task = read_piece(self.path, task, self.piece)
            refuse_changed(self.path, self.stamp)
        return task.behind(self.first)

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """Perform the first pass over the text on this rank; return its outline."""
        self.begin()
        if self.lacks_levels:
            sets = LevelSets(self.path)
            for task in self.tasks():
                progress(sets.add(self.find_levels(self.load(task))))
            self.learn_levels(sets.in_order())
        tally = PassCounts()
        moments = ColumnMoments()
        for task in self.tasks():
            piece = self.load(task)
            counts, X = self.scan(piece, keep=self.fills)
            if X is not None:
                moments.add_block(X)
            tally.add(counts)
            progress(piece.end)
        refuse_changed(self.path, self.stamp)
        return self.outline_of(tally, moments)

    def blocks(
        self, outline: Outline, budget: int, start: int = 0
    ) -> Iterator[SourceRows]:
        """Yield the rows from byte `start` on, by pieces; `budget` is not used."""
        if self.stamp is None:
            self.begin()
        for task in self.tasks(start):
            rows = self.rows(self.load(task), outline)
            if rows.X.shape[0]:
                yield rows
        refuse_changed(self.path, self.stamp)

    def check_unchanged(self) -> None:
        """Raise DataError if the file has changed since `begin`."""
        refuse_changed(self.path, self.stamp)

    def refused(self, piece: TextChunk, fault: Fault) -> DataError:
        """Return the error that names place and kind of a fault in `piece`."""
        self.check_unchanged()  # else the line number may be wrong
        return located(self.path, piece, fault, self.delimiter)
