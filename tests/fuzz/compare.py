"""Every way to read a text, by the compiled parser and by the fallback, side by side.

Whole texts through both, then the same bytes as a file cut into pieces at many places:
the arrays must be the same bit for bit, and what one refuses the other refuses at the
same line. In pieces of any size the compiled parser says the same sentence.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np

from hpcsgd.data.convert import parsers
from hpcsgd.data.convert.csv import CsvOptions, CsvSource
from hpcsgd.data.convert.libsvm import LibsvmSource
from hpcsgd.data.convert.parsers import LineLayout
from hpcsgd.data.convert.text import Fault, TextChunk, located, pieces
from hpcsgd.errors import DataError

FOUND = Path(__file__).parents[1] / "data_regressions"
PLACES = np.array([-1, 0, 1], dtype=np.int32)
MARKS = (b",", b"\t", b";", b" ")
PLACE = re.compile(r", line [0-9]+")
EVERY_CUT = 40  # bytes up to which a file is cut at every place
PIECES = (1, 2**20)  # bytes: one line each, and all at once

BOTH = ("", "_in_python")  # behind the name of a parser: compiled, and its fallback


def differences(text: bytes) -> list[str]:
    """What the two parsers disagree about."""
    return [name for name, one, other in outcomes(text) if _differ(one, other)]


def differences_in_files(text: bytes, sizes: range | list[int]) -> list[str]:
    """As a source, by both parsers; and in pieces of each of `sizes` bytes."""
    found, path = list[str](), _scratch() / "text"
    path.write_bytes(text)
    for name, read in _of_files(path):
        one = read(PIECES[0])
        others = [_by_fallback(partial(read, size)) for size in PIECES]
        differ = _differ(one, read(PIECES[1]))
        differ |= any(_differ(_placed(one), _placed(other)) for other in others)
        found += [f"source {name}"] if differ else []
    whole = _in_pieces(path, 2**20)
    return found + [f"size {s}" for s in sizes if _in_pieces(path, s) != whole]


def _placed(outcome: object) -> object:
    """The outcome; of a sentence that names a line all up to there."""
    place = PLACE.search(outcome) if isinstance(outcome, str) else None
    return outcome if place is None else outcome[: place.end()]


def cuts(text: bytes, place: float) -> range | list[int]:
    """Every size of pieces for a short text, else a few."""
    size = len(text)
    if size <= EVERY_CUT:
        return range(1, size + 2)
    return [1, 1 + int(place * (size - 1)), size - 1]


def _differ(one: object, other: object) -> bool:
    """True where the outcomes differ, and where one is no refusal but a breakdown."""
    return one != other or isinstance(one, Broken)


class Broken(str):
    """An exception that nobody should see."""


def outcomes(text: bytes) -> list[tuple]:
    """(name, compiled, fallback) of all ways to read a text that ends in a newline."""
    text = text if text.endswith(b"\n") else text + b"\n"
    ways = [("libsvm", "parse_libsvm", (base,)) for base in (0, 1)]
    ways.append(("libsvm, gone through", "parse_libsvm", (0, False)))
    ways += [
        (f"libsvm, queried {q}", "parse_libsvm", (0, True, q)) for q in (True, False)
    ]
    ways += [("csv", "parse_csv", (layout,)) for layout in _layouts()]
    ways += [("lines", "count_lines", (mark,)) for mark in MARKS]
    return [
        (name, *(_outcome(getattr(parsers, kind + end), text, a) for end in BOTH))
        for name, kind, a in ways
    ]


def _layouts() -> list[LineLayout]:
    """Of numbers, and then with a text in the place of the last one."""
    ways = list(product(MARKS, (False, True)))
    numbers = [LineLayout(mark, PLACES, 2, 1, allowed) for mark, allowed in ways]
    return numbers + [
        LineLayout(mark, PLACES, 1, 1, allowed, texts=1) for mark, allowed in ways
    ]


def _outcome(function: Callable, text: bytes, arguments: tuple) -> object:
    try:
        found = function(text, *arguments)
    except Fault as fault:
        return "refused in line", text.count(b"\n", 0, fault.position)
    except Exception as error:  # whatever it is, it is what is looked for
        return Broken(repr(error))
    if isinstance(found, int):
        return found
    values = found if isinstance(found, tuple) else vars(found).values()
    return [v.tobytes() if isinstance(v, np.ndarray) else v for v in values]


def _of_files(path: Path) -> Iterator[tuple[str, Callable]]:
    """(name, what reads the file in pieces of so many bytes) of every source."""
    for base in ("auto", "1"):
        yield f"libsvm {base}", partial(_rows, partial(LibsvmSource, path, base))
    for missing in ("error", "mean"):
        options = CsvOptions(label_column=0, missing=missing)
        source = partial(CsvSource, path, options)
        yield f"csv {missing}", partial(_rows, source)


def _rows(source: Callable, size: int) -> object:
    """All rows as bytes, or the sentence."""
    try:
        opened = source()
        opened.piece = size
        outline = opened.outline(lambda position: None)
        blocks = list(opened.blocks(outline, 2**20))
    except DataError as error:
        return str(error)
    except Exception as error:  # whatever it is, it is what is looked for
        return Broken(repr(error))
    y = b"".join(block.y.tobytes() for block in blocks)
    X = [block.X for block in blocks]
    dense = [x.toarray() if hasattr(x, "toarray") else x for x in X if x.shape[1] < 999]
    sparse = [(x.data, x.indices) for x in X if hasattr(x, "indices")]
    kept = [np.concatenate(column).tobytes() for column in zip(*sparse, strict=True)]
    queries = [block.queries for block in blocks if block.queries is not None]
    kept += [q.tobytes() for q in queries] and [np.concatenate(queries).tobytes()]
    return outline.rows, outline.cols, y, b"".join(x.tobytes() for x in dense), kept


def _by_fallback(read: Callable) -> object:
    with mock.patch.object(parsers, "available", lambda: False):
        return read()


def _in_pieces(path: Path, size: int) -> list:
    """Both formats as they come from pieces of `size` bytes."""
    readers = [partial(parsers.parse_libsvm, base=0)]
    readers += [partial(parsers.parse_csv, layout=one) for one in _layouts()[:2]]
    return [_joined(path, size, read) for read in readers]


def _joined(path: Path, size: int, read: Callable) -> object:
    columns: list[list[bytes]] = []
    try:
        for piece in pieces(path, size=size):
            columns.append(_columns(path, piece, read))
    except DataError as error:
        return str(error)
    except Exception as error:  # whatever it is, it is what is looked for
        return Broken(repr(error))
    return [b"".join(column) for column in zip(*columns, strict=True)]


def _columns(path: Path, piece: TextChunk, read: Callable) -> list[bytes]:
    try:
        found = read(piece.text)
    except Fault as fault:
        raise located(path, piece, fault, b",") from None
    if isinstance(found, tuple):
        return [part.tobytes() for part in found]
    rows = (found.labels, np.diff(found.starts), found.indices, found.values)
    return [part.tobytes() for part in rows]


@lru_cache(maxsize=1)
def _scratch() -> Path:
    """A folder for one small file, in memory where there is such a place."""
    memory = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
    _held.append(folder)
    return Path(folder.name)


_held: list[tempfile.TemporaryDirectory] = []
