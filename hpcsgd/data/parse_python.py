"""Text to numbers where kernels/cpu/parse.c is not compiled: same values, slowly."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.faults import Fault, Kind

Array = NDArray[Any]
NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NUMERIC = b"0123456789+-.eE"  # what float() takes of these bytes, NUMBER takes
TOKEN = re.compile(rb"[^ \t\r\v\f]+")
MISSING = frozenset(
    (b"", b"na", b"n/a", b"nan", b"-nan", b"+nan", b"null", b"none", b"?")
)
BLANKS = b" \t\r\v\f"


@dataclass(frozen=True)
class Pairs:
    """Rows of LIBSVM text; the arrays are empty where it was only gone through."""

    rows: int
    count: int
    lowest: int  # index as written; -1 where there is none
    highest: int
    labels: Array  # (rows,) float64
    starts: Array  # (rows + 1,) int32, of the rows in the two below
    indices: Array  # (count,) int32, from 0
    values: Array  # (count,) float64
    queries: Array  # (rows,) int64, -1 where there is no qid; empty if none may have


@dataclass(frozen=True)
class Layout:
    """How a line of delimited text is made, and where its fields go."""

    delimiter: bytes
    places: Array  # (fields,) int32: column of X, or -1 - column of the others
    features: int
    extras: int
    missing_allowed: bool


def parse_number(token: bytes) -> float | None:
    """Return the nearest float64, or None where the token is no finite number."""
    value = float(token) if NUMBER.fullmatch(token) else math.inf
    return value if math.isfinite(value) else None


def parse_libsvm(
    text: bytes, base: int, keep: bool = True, queried: bool | None = None
) -> Pairs:
    """Return the rows of a text that ends with a newline."""
    labels, queries = list[float](), list[int]()
    starts, indices, values = [0], list[int](), list[float]()
    for position, line in _lines(text):
        tokens = list(TOKEN.finditer(line.partition(b"#")[0]))
        if not tokens:
            continue
        words = [token.group() for token in tokens]
        try:
            label, query = _row_head(words, queried)
            first = 1 + (query >= 0)
            _add_pairs(words, first, base, indices, values)
        except Fault as fault:  # its position is the number of the token
            start = tokens[fault.position].start()
            raise Fault(fault.kind, position + start) from None
        labels.append(label)
        queries.append(query)
        starts.append(len(values))
    columns = np.array(indices, dtype=np.int64)
    return Pairs(
        rows=len(labels),
        count=len(values),
        lowest=int(columns.min(initial=2**31)) if values else -1,
        highest=int(columns.max(initial=-1)),
        labels=np.array(labels if keep else [], dtype=np.float64),
        starts=np.array(starts if keep else [0], dtype=np.int32),
        indices=(columns - base if keep else columns[:0]).astype(np.int32),
        values=np.array(values if keep else [], dtype=np.float64),
        queries=np.array(
            queries if keep and queried is not False else [], dtype=np.int64
        ),
    )


def _row_head(words: list[bytes], queried: bool | None) -> tuple[float, int]:
    """Return the label and the number of the qid, -1 where a row has none."""
    label, query = parse_number(words[0]), -1
    if label is None:
        raise Fault(Kind.LABEL if b":" in words[0] else Kind.NUMBER, 0)
    if len(words) > 1 and words[1].startswith(b"qid:"):
        query = _whole(words[1][4:])
        if not 0 <= query < 2**63:
            raise Fault(Kind.QID, 1)
    if queried is not None and queried != (query >= 0):
        raise Fault(Kind.MIXED, 0 if queried else 1)
    return label, query


def _add_pairs(
    words: list[bytes],
    first: int,
    base: int,
    indices: list[int],
    values: list[float],
) -> None:
    """Add the index as written and the value of every word from number `first` on."""
    before = -1
    for number, word in enumerate(words[first:], first):
        name, _, rest = word.partition(b":")
        index, value = _whole(name), parse_number(rest)
        if index < 0 or value is None:
            raise Fault(Kind.PAIR if index < 0 else Kind.NUMBER, number)
        if index >= 2**31 or index < base:
            raise Fault(Kind.BELOW if index < base else Kind.LARGE, number)
        if index <= before:
            raise Fault(Kind.DUPLICATE if index == before else Kind.UNSORTED, number)
        indices.append(index)
        values.append(value)
        before = index


def _whole(digits: bytes) -> int:
    """Return a whole number, 2⁶³ for any that is larger, or -1 where there is none."""
    if not digits.isdigit():
        return -1
    digits = digits.lstrip(b"0") or b"0"  # int() refuses very long ones, zeros or not
    return int(digits) if len(digits) <= 18 else min(int(digits[:20]), 2**63)


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each line, and the line without its newline."""
    position = 0
    for line in text.split(b"\n")[:-1]:
        yield position, line
        position += len(line) + 1


def parse_csv(text: bytes, layout: Layout) -> tuple[Array, Array]:
    """Return X and the other columns of a text that ends with a newline."""
    rows = [
        _fields(line, position, layout)
        for position, line in _lines(text)
        if not is_blank(line, layout.delimiter)
    ]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(layout.places))
    X = np.empty((len(rows), layout.features))
    other = np.empty((len(rows), layout.extras))
    is_feature = layout.places >= 0
    X[:, layout.places[is_feature]] = table[:, is_feature]
    other[:, -1 - layout.places[~is_feature]] = table[:, ~is_feature]
    return X, other


def is_blank(line: bytes, delimiter: bytes) -> bool:
    """Return True for a line that is no row."""
    return not line.strip(_pads(delimiter))


def bare(field: bytes, delimiter: bytes) -> bytes:
    """Return a field without blanks and quotes around it."""
    field = field.strip(_pads(delimiter))
    if len(field) >= 2 and field[:1] == field[-1:] == b'"':
        field = field[1:-1].strip(_pads(delimiter))
    return field


def _pads(delimiter: bytes) -> bytes:
    return BLANKS.replace(delimiter, b"")


def _fields(line: bytes, position: int, layout: Layout) -> list[float]:
    """Return the numbers of one line."""
    fields = line.rstrip(b"\r").split(layout.delimiter)
    if len(fields) != len(layout.places):
        raise Fault(Kind.RAGGED, position)
    if not b"".join(fields).translate(None, NUMERIC):
        with suppress(ValueError):
            values = [float(field) for field in fields]
            if math.isfinite(sum(values)):  # only if all terms are
                return values
    starts = np.cumsum([position] + [len(field) + 1 for field in fields]).tolist()
    return [
        _field(field, start, layout, place)
        for field, start, place in zip(fields, starts, layout.places, strict=False)
    ]


def _field(field: bytes, position: int, layout: Layout, place: int) -> float:
    """Return the number of a field, NaN where it is missing and may be."""
    token = bare(field, layout.delimiter)
    if token.lower() in MISSING:
        if layout.missing_allowed and place >= 0:
            return math.nan
        raise Fault(Kind.MISSING, position)
    value = parse_number(token)
    if value is None:
        raise Fault(Kind.NUMBER, position)
    return value


def count_lines(text: bytes, delimiter: bytes) -> int:
    """Return how many lines are rows, in a text that ends with a newline."""
    return sum(not is_blank(line, delimiter) for line in text.split(b"\n")[:-1])
