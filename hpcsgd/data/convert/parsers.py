"""Parsers of LIBSVM and CSV lines: compiled, or in Python without a compiler."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.data.convert.text import Fault, Kind
from hpcsgd.files import load_kernels
from hpcsgd.formats import Array

# Text to numbers without the compiled kernels/cpu/parse.c: same values, slower.

NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
NUMERIC = b"0123456789+-.eE"  # what float() takes of these bytes, NUMBER takes
TOKEN = re.compile(rb"[^ \t\r\v\f]+")
MISSING = frozenset(
    (b"", b"na", b"n/a", b"nan", b"-nan", b"+nan", b"null", b"none", b"?")
)
BLANKS = b" \t\r\v\f"
QUOTE = ord(b'"')
QUOTED = re.compile(rb'"(?:[^"]|"")*+"')  # a quote inside is written as two
SPACED = b" "  # as a delimiter: blanks of any kind and number


@dataclass(frozen=True)
class Pairs:
    """Rows of LIBSVM text.

    If they were only counted, `starts` is [0] and the other arrays are empty.
    """

    rows: int
    count: int
    lowest: int  # index as written; -1 where there is none
    highest: int
    labels: Array  # (rows,) float64
    starts: Array  # (rows + 1,) int32, of the rows in `indices` and `values`
    indices: Array  # (count,) int32, from 0
    values: Array  # (count,) float64
    queries: Array  # (rows,) int64, -1 where there is no qid; empty if none may have


@dataclass(frozen=True)
class LineLayout:
    """The layout of a line of delimited text, and the places of its fields."""

    delimiter: bytes
    places: Array  # (fields,) int32: k of X, features + k of texts, -1 - k of others
    features: int
    extras: int
    missing_allowed: bool
    texts: int = 0  # fields that are no numbers


def parse_number(token: bytes) -> float | None:
    """Return the nearest float64, or None where the token is no finite number."""
    value = float(token) if NUMBER.fullmatch(token) else math.inf
    return value if math.isfinite(value) else None


def _number_fault(token: bytes) -> Kind:
    """Return the kind of fault of a token that `parse_number` refuses."""
    with suppress(ValueError):
        if not math.isfinite(float(token)):
            return Kind.NONFINITE
    return Kind.NUMBER


def parse_libsvm_in_python(
    text: bytes, base: int, keep: bool = True, queried: bool | None = None
) -> Pairs:
    """Return the rows of a LIBSVM text that ends with a newline, parsed in Python.

    The arguments are those of `parse_libsvm`.
    """
    labels = list[float]()
    queries = list[int]()
    starts = [0]
    indices = list[int]()
    values = list[float]()
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
    """Return the label of a row and the number of its qid, -1 if it has no qid.

    `queried` is True if the row must have a qid, False if it may not, None if it may.
    """
    label = parse_number(words[0])
    query = -1
    if label is None:
        raise Fault(Kind.LABEL if b":" in words[0] else _number_fault(words[0]), 0)
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
    """Append index (as written) and value of all pairs to `indices` and `values`.

    The pairs are the words from number `first` on.
    """
    before = -1
    for number, word in enumerate(words[first:], first):
        name, colon, rest = word.partition(b":")
        index = _whole(name)
        value = parse_number(rest)
        if index < 0 or not colon:
            raise Fault(Kind.PAIR, number)
        if value is None:
            raise Fault(_number_fault(rest), number)
        if index >= 2**31 or index < base:
            raise Fault(Kind.BELOW if index < base else Kind.LARGE, number)
        if index <= before:
            raise Fault(Kind.DUPLICATE if index == before else Kind.UNSORTED, number)
        indices.append(index)
        values.append(value)
        before = index


def _whole(digits: bytes) -> int:
    """Return the whole number of these digits, at most 2⁶³; -1 for other characters."""
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


def parse_csv_in_python(text: bytes, layout: LineLayout) -> tuple[Array, Array, Array]:
    """Return X, the other columns and the spans of texts, parsed in Python.

    The arguments and results are those of `parse_csv`.
    """
    rows = [
        _fields(line, position, layout)
        for position, line in _lines(text)
        if not is_blank(line, layout.delimiter)
    ]
    numbers = np.array([row for row, _ in rows], dtype=np.float64)
    table = numbers.reshape(len(rows), len(layout.places))
    X = np.empty((len(rows), layout.features))
    other = np.empty((len(rows), layout.extras))
    spans = np.array([span for _, span in rows], dtype=np.int64)
    is_extra = layout.places < 0
    is_text = layout.places >= layout.features
    is_feature = ~(is_extra | is_text)
    X[:, layout.places[is_feature]] = table[:, is_feature]
    other[:, -1 - layout.places[is_extra]] = table[:, is_extra]
    return X, other, spans.reshape(len(rows), layout.texts, 2)


def is_blank(line: bytes, delimiter: bytes) -> bool:
    """Return whether a line has blanks only, and so is no row."""
    return not line.strip(_pads(delimiter))


def bare(field: bytes, delimiter: bytes) -> bytes:
    """Return a field without blanks and quotes around it."""
    start, stop = _bare_span(field, delimiter)
    return field[start:stop]


def _bare_span(field: bytes, delimiter: bytes) -> tuple[int, int]:
    """Return where a field begins and ends without blanks and quotes around it."""
    start, stop = _trimmed(field, 0, len(field), delimiter)
    if stop - start >= 2 and field[start] == field[stop - 1] == QUOTE:
        return _trimmed(field, start + 1, stop - 1, delimiter)
    return start, stop


def _trimmed(field: bytes, start: int, stop: int, delimiter: bytes) -> tuple[int, int]:
    """Return start and stop of a span of `field` without blanks around it.

    A span of blanks alone becomes empty, at its end.
    """
    pads = _pads(delimiter)
    part = field[start:stop]
    first = start + len(part) - len(part.lstrip(pads))
    return first, max(start + len(part.rstrip(pads)), first)


def _pads(delimiter: bytes) -> bytes:
    return BLANKS if delimiter == SPACED else BLANKS.replace(delimiter, b"")


def split_fields(line: bytes, delimiter: bytes) -> list[tuple[int, bytes]]:
    """Return the fields of a line, each as (position in the line, field).

    A delimiter inside quotes does not end a field.
    """
    if QUOTE not in line:
        if delimiter == SPACED:
            return [(token.start(), token.group()) for token in TOKEN.finditer(line)]
        fields = line.split(delimiter)
        starts = accumulate((len(field) + 1 for field in fields[:-1]), initial=0)
        return list(zip(starts, fields, strict=True))
    tokens = list[tuple[int, bytes]]()
    pads = _pads(delimiter)
    place = 0
    ends = BLANKS if delimiter == SPACED else delimiter
    while True:
        start = place
        while place < len(line) and line[place] in pads:
            place += 1
        if delimiter == SPACED:
            if place == len(line):
                return tokens
            start = place
        place = _behind_quotes(line, place)
        while place < len(line) and line[place] not in ends:
            place += 1
        tokens.append((start, line[start:place]))
        if delimiter != SPACED:
            if place == len(line):
                return tokens
            place += 1


def _behind_quotes(line: bytes, place: int) -> int:
    """Return the place behind a quoted text that begins at `place`; else `place`."""
    quoted = QUOTED.match(line, place)
    return place if quoted is None else quoted.end()


def _fields(
    line: bytes, position: int, layout: LineLayout
) -> tuple[list[float], list[tuple[int, int]]]:
    """Return the numbers of one line, and (start, stop) of each of its texts."""
    if not layout.texts:
        line = line.rstrip(b"\r")
    tokens = split_fields(line, layout.delimiter)
    if len(tokens) != len(layout.places):
        raise Fault(Kind.RAGGED, position)
    fields = [field for _, field in tokens]
    if not layout.texts and not b"".join(fields).translate(None, NUMERIC):
        with suppress(ValueError):
            values = [float(field) for field in fields]
            if math.isfinite(sum(values)):  # only if all terms are
                return values, []
    numbers = list[float]()
    spans = [(0, 0)] * layout.texts
    for (start, field), place in zip(tokens, layout.places.tolist(), strict=True):
        if place < layout.features:
            numbers.append(_field(field, position + start, layout, place))
            continue
        first, last = _bare_span(field, layout.delimiter)
        at = position + start
        spans[place - layout.features] = (at + first, at + last)
        numbers.append(math.nan)
    return numbers, spans


def _field(field: bytes, position: int, layout: LineLayout, place: int) -> float:
    """Return the number of a field, NaN if it is missing and that is allowed.

    `place` is the place of its column in a `LineLayout`.
    """
    token = bare(field, layout.delimiter)
    if token.lower() in MISSING:
        if layout.missing_allowed and place >= 0:
            return math.nan
        raise Fault(Kind.MISSING, position)
    value = parse_number(token)
    if value is None:
        raise Fault(_number_fault(token), position)
    return value


def count_lines_in_python(text: bytes, delimiter: bytes) -> int:
    """Return how many lines are rows, in a text that ends with a newline."""
    return sum(not is_blank(line, delimiter) for line in text.split(b"\n")[:-1])


POWERS = range(-342, 309)  # of ten that can give a double from 19 digits
SIGNATURES = {
    "hpcsgd_parse_libsvm": ("i", "sll" + 6 * "p" + "illp"),
    "hpcsgd_parse_csv": ("i", "slillllppi" + "ppplp"),
    "hpcsgd_count_lines": ("l", "sli"),
}


@lru_cache(maxsize=1)
def _load() -> tuple[Any, str]:
    """Return (the library of the compiled parser or None, a text about it)."""
    folder = Path(__file__).parent
    return load_kernels(folder, "_parse", "the Python parser", SIGNATURES)


def available() -> bool:
    """Return whether the compiled parser is in use."""
    return _load()[0] is not None


def why() -> str:
    """Return the name of the parser in use, or why no compiled parser is in use."""
    return _load()[1]


@lru_cache(maxsize=1)
def powers_of_five() -> Array:
    """Return the upper 128 bits of 5^q for q in POWERS, as rows (high, low) of uint64.

    They are rounded up if q < 0.
    """
    rows = [divmod(_upper_bits(q), 2**64) for q in POWERS]
    return np.array(rows, dtype=np.uint64)


def _upper_bits(q: int) -> int:
    if q >= 0:
        whole: int = 5**q
        spare = whole.bit_length() - 128
        return whole >> spare if spare > 0 else whole << -spare
    power: int = 5**-q
    bits = (power - 1).bit_length()
    value = (1 << (bits + 127 if q >= -27 else 2 * bits + 128)) // power + 1
    return int(value >> max(value.bit_length() - 128, 0))


def parse_libsvm(
    text: bytes, base: int, keep: bool = True, queried: bool | None = None
) -> Pairs:
    """Return the rows of a LIBSVM text that ends with a newline.

    `base` is the index of the first column. Without `keep`, rows are only counted.
    `queried` is True if every row must have a qid, False if none may, None if any may.
    """
    if not available():
        return parse_libsvm_in_python(text, base, keep, queried)
    capacity, pairs = (_count(text, b"\n"), _count(text, b":")) if keep else (0, 0)
    labels = np.empty(capacity)
    values = np.empty(pairs)
    starts = np.empty(capacity + 1, dtype=np.int32)
    queries = np.empty(0 if queried is False else capacity, dtype=np.int64)
    indices = np.empty(pairs, dtype=np.int32)
    counts = np.zeros(5, dtype=np.int64)
    arrays = (labels, starts, indices, values)
    kind = _load()[0].hpcsgd_parse_libsvm(
        text,
        len(text),
        base,
        powers_of_five().ctypes.data,
        *(array.ctypes.data if keep else None for array in arrays),
        queries.ctypes.data if keep and queried is not False else None,
        -1 if queried is None else int(queried),
        capacity,
        pairs,
        counts.ctypes.data,
    )
    rows, count, lowest, highest, position = counts.tolist()
    if kind:
        raise Fault(kind, position)
    if not keep:
        starts[0] = 0
    return Pairs(
        rows=rows,
        count=count,
        lowest=lowest,
        highest=highest,
        labels=labels[:rows],
        starts=starts[: rows + 1],
        indices=indices[:count],
        values=values[:count],
        queries=queries[:rows],
    )


def parse_csv(text: bytes, layout: LineLayout) -> tuple[Array, Array, Array]:
    """Return the rows of a delimited text that ends with a newline.

    Returns
    -------
    X : (rows, features) float64, NaN where a value is missing and may be
    other : (rows, extras) float64
    spans : (rows, texts, 2) int64, where in `text` each text begins and ends
    """
    if not available():
        return parse_csv_in_python(text, layout)
    capacity = _count(text, b"\n")
    places = np.ascontiguousarray(layout.places, np.int32)
    X = np.empty((capacity, layout.features))
    other = np.empty((capacity, layout.extras))
    spans = np.empty((capacity, layout.texts, 2), dtype=np.int64)
    counts = np.zeros(2, dtype=np.int64)
    kind = _load()[0].hpcsgd_parse_csv(
        text,
        len(text),
        ord(layout.delimiter),
        len(places),
        layout.features,
        layout.extras,
        layout.texts,
        places.ctypes.data,
        powers_of_five().ctypes.data,
        layout.missing_allowed,
        X.ctypes.data,
        other.ctypes.data,
        spans.ctypes.data,
        capacity,
        counts.ctypes.data,
    )
    rows, position = counts.tolist()
    if kind:
        raise Fault(kind, position)
    return X[:rows], other[:rows], spans[:rows]


def count_lines(text: bytes, delimiter: bytes) -> int:
    """Return the number of lines that are rows; the text ends with a newline."""
    if not available():
        return count_lines_in_python(text, delimiter)
    lines: int = _load()[0].hpcsgd_count_lines(text, len(text), ord(delimiter))
    return lines


def _count(text: bytes, byte: bytes) -> int:
    """Return the number of occurrences of a byte."""
    return int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == byte[0]))
