"""The twin of kernels/cpu/parse.c: the same values, the same refusals, slowly."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.faults import Fault, Kind

Array = NDArray[Any]
NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NAMED = re.compile(rb"[+-]?(?:inf|infinity|nan)", re.IGNORECASE)
TOKEN = re.compile(rb"[^ \t\r\v\f]+")
QUERY = re.compile(rb"qid:[0-9]+")
MISSING = frozenset(
    (b"", b"na", b"n/a", b"nan", b"-nan", b"+nan", b"null", b"none", b"?")
)
BLANKS = b" \t\r\v\f"
LARGEST = 2**31 - 1


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


def parse_number(token: bytes) -> float | Kind:
    """The nearest float64, or why there is none."""
    if not NUMBER.fullmatch(token):
        return Kind.NONFINITE if NAMED.fullmatch(token) else Kind.NUMBER
    value = float(token)
    return value if math.isfinite(value) else Kind.NONFINITE


def parse_libsvm(
    text: bytes, base: int, keep: bool = True, queried: bool | None = None
) -> Pairs:
    """Rows of a text that ends with a newline."""
    labels, queries = list[float](), list[int]()
    starts, indices, values = [0], list[int](), list[float]()
    lowest, highest = LARGEST + 1, -1
    for position, line in _lines(text):
        found = list(TOKEN.finditer(line.split(b"#", 1)[0]))
        if not found:
            continue
        start = position + found[0].start()
        labels.append(_label(found[0].group(), start))
        query = _query(found[1:2], position)
        if queried is not None and queried != (query >= 0):
            at = start if queried else position + found[1].start()
            raise Fault(Kind.MIXED, at)
        queries.append(query)
        tokens = found[1 + (query >= 0) :]
        for index, value in _pairs(tokens, position, base):
            indices.append(index - base)
            values.append(value)
            lowest, highest = min(lowest, index), max(highest, index)
        starts.append(len(values))
    return Pairs(
        rows=len(labels),
        count=len(values),
        lowest=lowest if values else -1,
        highest=highest,
        labels=np.array(labels if keep else [], dtype=np.float64),
        starts=np.array(starts if keep else [0], dtype=np.int32),
        indices=np.array(indices if keep else [], dtype=np.int32),
        values=np.array(values if keep else [], dtype=np.float64),
        queries=np.array(
            queries if keep and queried is not False else [], dtype=np.int64
        ),
    )


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """(position, line without its newline)."""
    position = 0
    for line in text.split(b"\n")[:-1]:
        yield position, line
        position += len(line) + 1


def _label(token: bytes, position: int) -> float:
    value = parse_number(token)
    if isinstance(value, Kind):
        raise Fault(Kind.LABEL if b":" in token else value, position)
    return value


def _query(tokens: list[re.Match[bytes]], line: int) -> int:
    """The number of the qid behind a label; -1 where there is none."""
    if not tokens or not tokens[0].group().startswith(b"qid:"):
        return -1
    token = tokens[0].group()
    digits = token[4:].lstrip(b"0")  # int() refuses very long ones, zeros or not
    if not QUERY.fullmatch(token) or len(digits) > 19 or int(digits or b"0") >= 2**63:
        raise Fault(Kind.QID, line + tokens[0].start())
    return int(digits or b"0")


def _pairs(
    tokens: list[re.Match[bytes]], line: int, base: int
) -> Iterator[tuple[int, float]]:
    """(index as written, value) of the tokens behind a label and its qid."""
    before = -1
    for match in tokens:
        before, value = _pair(match.group(), line + match.start(), base, before)
        yield before, value


def _pair(token: bytes, position: int, base: int, before: int) -> tuple[int, float]:
    digits, colon, rest = token.partition(b":")
    if not colon or not digits.isdigit():
        raise Fault(Kind.INDEX if colon else Kind.PAIR, position)
    digits = digits.lstrip(b"0")  # int() refuses very long ones, zeros or not
    index = int(digits or b"0") if len(digits) <= 10 else LARGEST + 1
    if index > LARGEST:
        raise Fault(Kind.LARGE, position)
    if index < base:
        raise Fault(Kind.BELOW, position)
    if index <= before:
        raise Fault(Kind.DUPLICATE if index == before else Kind.UNSORTED, position)
    value = parse_number(rest)
    if isinstance(value, Kind):
        raise Fault(value, position)
    return index, value


def parse_csv(text: bytes, layout: Layout) -> tuple[Array, Array]:
    """(X, the other columns) of a text that ends with a newline."""
    rows = [
        _fields(line, position, layout)
        for position, line in _lines(text)
        if not is_blank(line, layout.delimiter)
    ]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(layout.places))
    X = np.empty((len(rows), layout.features))
    other = np.empty((len(rows), layout.extras))
    for field, place in enumerate(layout.places):
        if place >= 0:
            X[:, place] = table[:, field]
        else:
            other[:, -1 - place] = table[:, field]
    return X, other


def is_blank(line: bytes, delimiter: bytes) -> bool:
    """True for a line that is no row."""
    return not line.strip(_pads(delimiter))


def bare(field: bytes, delimiter: bytes) -> bytes:
    """A field without blanks and quotes around it."""
    field = field.strip(_pads(delimiter))
    if len(field) >= 2 and field[:1] == field[-1:] == b'"':
        field = field[1:-1].strip(_pads(delimiter))
    return field


def _pads(delimiter: bytes) -> bytes:
    return BLANKS.replace(delimiter, b"")


def _fields(line: bytes, position: int, layout: Layout) -> list[float]:
    """The numbers of one line."""
    values, at = list[float](), position
    for field in line.split(layout.delimiter):
        if len(values) == len(layout.places):
            raise Fault(Kind.RAGGED, position)
        values.append(_field(field, at, layout, len(values)))
        at += len(field) + 1
    if len(values) < len(layout.places):
        raise Fault(Kind.RAGGED, position)
    return values


def _field(field: bytes, position: int, layout: Layout, number: int) -> float:
    token = bare(field, layout.delimiter)
    if token.lower() in MISSING:
        if layout.missing_allowed and layout.places[number] >= 0:
            return math.nan
        raise Fault(Kind.MISSING, position)
    value = parse_number(token)
    if isinstance(value, Kind):
        raise Fault(value, position)
    return value


def count_lines(text: bytes, delimiter: bytes) -> int:
    """Lines that are rows, in a text that ends with a newline."""
    return sum(not is_blank(line, delimiter) for line in text.split(b"\n")[:-1])
