"""Text in pieces of whole lines, and the place of what is wrong in them.

Piece k holds the lines that begin in bytes k · size to (k + 1) · size: which line is in
which piece is a matter of the text alone, whoever reads it and in what order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcsgd.data.compressed import STEP, Stamp, TextStream, stamp_of
from hpcsgd.data.faults import Fault, refusal
from hpcsgd.errors import DataError

PIECE = 2**20  # larger ones gain nothing
TAIL = 2**16  # read at first behind a piece, to find the end of its last line
LINE_LIMIT = 64 * 2**20  # a longer line is no text
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Piece:
    """Whole lines of a text."""

    position: int  # byte of the plain text at which they begin
    text: bytes  # ends with a newline, the last line of the file too
    end: int

    def behind(self, position: int) -> "Piece":
        """Those that begin at `position` or later, which is where a line begins."""
        skipped = min(max(position - self.position, 0), len(self.text))
        begin = self.position + skipped
        return Piece(begin, self.text[skipped:], max(self.end, begin))


def count_pieces(size: int, piece: int = PIECE) -> int:
    """How many pieces a plain text of `size` bytes has."""
    return -(-size // piece)


def pieces(path: Path, start: int = 0, size: int = PIECE) -> Iterator[Piece]:
    """All that are not empty, from the line that begins at `start`, in one go."""
    with TextStream(path, start) as stream:
        yield from _cut(stream, start, size)
        stream.check_unchanged()


def read_piece(path: Path, number: int, size: int = PIECE) -> Piece:
    """One piece of a plain text; it may be empty, where a line is longer than it."""
    low, high = number * size, (number + 1) * size
    with TextStream(path) as stream:
        piece = _at_one_go(stream, low, high)
        if piece is not None:
            return piece
        begin = _line_start(stream, low, high)
        if begin < high:
            stream.seek(begin)
            return next(_cut(stream, begin, size), Piece(begin, b"", begin))
    return Piece(high, b"", high)


def _at_one_go(stream: TextStream, low: int, high: int) -> Piece | None:
    """The piece, where one read finds both its ends: nearly always."""
    start = max(low - 1, 0)
    stream.seek(start)
    read = stream.read(high - start + TAIL)
    first = read.find(b"\n", 0, high - start - 1) + 1 if low else 0
    stop = read.find(b"\n", high - start - 1) + 1
    if (low and not first) or not stop:
        return None
    text = read[first:stop]
    _check_line(stream, start + first, text, len(text))
    return Piece(start + first, _ended(text, start + first), start + stop)


def _line_start(stream: TextStream, low: int, high: int) -> int:
    """The first line start in low..high, or `high`."""
    if low == 0:
        return 0
    stream.seek(low - 1)
    # Most lines are short: the rest of the window is looked at only where they are not.
    for count in (min(TAIL, high - low), max(high - low - TAIL, 0)):
        begin = stream.position
        found = stream.read(count).find(b"\n")
        if found >= 0:
            return begin + found + 1
    return high


def _cut(stream: TextStream, position: int, size: int) -> Iterator[Piece]:
    """The pieces from the line that begins at `position`, where the stream is."""
    held = bytearray()
    while True:
        least = size - position % size  # what is left of its piece
        is_last = _fill(stream, position, held, least)
        stop = held.find(b"\n", least - 1) + 1 or len(held)
        _check_line(stream, position, held, stop)
        if stop:
            text = bytes(memoryview(held)[:stop])
            yield Piece(position, _ended(text, position), position + stop)
        position += stop
        del held[:stop]
        if is_last and not held:
            return


def _fill(stream: TextStream, position: int, held: bytearray, least: int) -> bool:
    """Read until a line ends at byte `least` of `held` or behind; True at the end."""
    step = TAIL
    while len(held) < least or held.find(b"\n", least - 1) < 0:
        wanted = least - len(held) if len(held) < least else step
        read = stream.read(min(wanted, STEP))
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
    """Refuse where the line that ends at `stop`, or goes on there, is no line."""
    if stop <= LINE_LIMIT:
        return
    line = held.rfind(b"\n", 0, stop - 1) + 1
    if stop - line > LINE_LIMIT:
        raise DataError(
            f"{stream.path}: the line that begins at byte {position + line} is"
            f" longer than {LINE_LIMIT >> 20} MiB; is this a text file?"
        )


def _ended(text: bytes, position: int) -> bytes:
    """With a newline at its end, and without the mark of UTF-8 at the file's start."""
    if position == 0 and text.startswith(BOM):
        text = b"   " + text[3:]  # blanks: positions stay
    return text if text.endswith(b"\n") else text + b"\n"


def refuse_changed(path: Path, stamp: Stamp | None) -> None:
    """A file that is no longer the one that was looked at first."""
    if stamp is not None and stamp != stamp_of(path):
        raise DataError(
            f"{path} changed while it was read; wait until it is complete and begin"
            " again"
        )


def located(path: Path, piece: Piece, fault: Fault, delimiter: bytes) -> DataError:
    """The error that names file, line, byte and field of a fault in a piece."""
    byte = piece.position + fault.position
    place = f"{path}, line {line_number(path, byte)} (byte {byte})"
    line = piece.text[fault.position :].split(b"\n", 1)[0]
    return refusal(place, fault.kind, line.split(delimiter, 1)[0])


def line_number(path: Path, byte: int) -> int:
    """The line, from 1, that holds a byte of the text."""
    lines = 1
    with TextStream(path) as stream:
        while stream.position < byte:
            read = stream.read(min(STEP, byte - stream.position))
            if not read:
                break
            lines += read.count(b"\n")
    return lines
