"""Whole lines of a text in bounded pieces, and the place of what is wrong in them."""

from collections.abc import Iterator
from pathlib import Path

from hpcsgd.data.compressed import STEP, TextStream
from hpcsgd.data.faults import Fault, refusal
from hpcsgd.errors import ConfigError, DataError

LINE_LIMIT = 64 * 2**20  # a longer line is no text
LARGEST_PIECE = 8 * 2**20  # larger ones gain nothing
BOM = b"\xef\xbb\xbf"


def pieces(
    path: Path, size: int, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes, int]]:
    """(position, whole lines, end), about `size` bytes each; the last ends in \\n too.

    A range ends before the first line that begins at `stop` or later.
    """
    size = min(max(size, 1), LARGEST_PIECE)
    with TextStream(path, start) as stream:
        position, rest = start, b""
        while stop is None or position < stop:
            text, rest = _lines(stream, size, rest)
            if stop is not None and position + len(text) >= stop:
                text = text[: _line_start(text, stop - position)]
            end = position + len(text)
            if not text:
                break
            yield position, _ended(text, position), end
            position = end
        stream.check_unchanged()


def _lines(stream: TextStream, size: int, rest: bytes) -> tuple[bytes, bytes]:
    """Whole lines, and the beginning of the next."""
    text = [rest]
    held, searched = len(rest), rest.rfind(b"\n") >= 0
    while held < size or not searched:
        piece = stream.read(max(size - held, min(size, STEP), 1))
        if not piece:
            return b"".join(text), b""
        text.append(piece)
        held += len(piece)
        searched = searched or b"\n" in piece
        if held > LINE_LIMIT and not searched:
            raise DataError(
                f"{stream.path}: the line that begins at byte {stream.position - held}"
                f" is longer than {LINE_LIMIT >> 20} MiB; is this a text file?"
            )
    whole = b"".join(text)
    cut = whole.rfind(b"\n") + 1
    return whole[:cut], whole[cut:]


def _line_start(text: bytes, position: int) -> int:
    """The first line start at `position` or behind it."""
    found = text.find(b"\n", max(position - 1, 0))
    return len(text) if found < 0 else found + 1


def _ended(text: bytes, position: int) -> bytes:
    """With a newline at its end, and without the mark of UTF-8 at the file's start."""
    if position == 0 and text.startswith(BOM):
        text = b"   " + text[3:]  # blanks: positions stay
    return text if text.endswith(b"\n") else text + b"\n"


def located(path: Path, position: int, text: bytes, fault: Fault) -> DataError:
    """The error that names file, line and byte of a fault in a piece."""
    byte = position + fault.position
    place = f"{path}, line {line_number(path, byte)} (byte {byte})"
    return refusal(place, fault.kind, text[fault.position :])


def line_number(path: Path, byte: int) -> int:
    """The line, from 1, that holds a byte of the text."""
    lines = 1
    with TextStream(path) as stream:
        while stream.position < byte:
            piece = stream.read(min(STEP, byte - stream.position))
            if not piece:
                break
            lines += piece.count(b"\n")
    return lines


def split_offsets(path: Path, parts: int) -> list[int]:
    """parts + 1 line starts that cut a plain text into about equal ranges."""
    if parts < 1:
        raise ConfigError(f"a file is split into 1 part or more, not {parts}")
    with TextStream(path) as stream:
        if stream.kind:
            raise DataError(
                f"{path} is {stream.kind}, which is read from its start only;"
                " decompress it, or convert it on one rank"
            )
        size = stream.stamp[0]
        cuts = [_next_line(stream, size * k // parts) for k in range(1, parts)]
    return [0, *cuts, size]


def _next_line(stream: TextStream, position: int) -> int:
    if position == 0:
        return 0
    stream.file.seek(position - 1)
    at: int = position - 1
    while piece := stream.file.read(STEP):
        found = piece.find(b"\n")
        if found >= 0:
            return at + int(found) + 1
        at += len(piece)
    return at
