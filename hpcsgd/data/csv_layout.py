"""The first lines of delimited text: delimiter, header, which column is what."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.parse_python import MISSING, bare, is_blank, parse_number
from hpcsgd.data.text import pieces
from hpcsgd.errors import ConfigError, DataError

Array = NDArray[Any]
Column = str | int | None
DELIMITERS = {"comma": b",", "tab": b"\t", "semicolon": b";"}
AUTO = "auto"  # label column: the one whose name says so
LABELS = ("label", "y", "target", "class")
MOST_NAMED = 10  # columns that an error lists
ROLES = ("label", "weight", "offset")


@dataclass(frozen=True)
class Head:
    """What the first lines say."""

    delimiter: bytes
    names: tuple[str, ...] | None  # of the header
    fields: int
    size: int  # bytes before the first row


def read_head(path: Path, delimiter: str, header: str | bool) -> Head:
    """The layout of the first line that is not blank."""
    lines, size = _first_lines(path)
    mark = _delimiter(delimiter, lines)
    fields = [bare(field, mark) for field in lines[0].split(mark)]
    if not _is_header(path, header, fields):
        return Head(mark, None, len(fields), 0)
    try:
        text = lines[0].decode("utf-8").strip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line 1: the header is not UTF-8 text; is this a binary file?"
        ) from error
    try:
        names = next(csv.reader([text], delimiter=mark.decode()))
    except csv.Error as error:
        raise DataError(
            f"{path}, line 1: the header cannot be read ({error}); mend that line"
        ) from error
    return Head(mark, tuple(name.strip() for name in names), len(names), size)


def _first_lines(path: Path) -> tuple[list[bytes], int]:
    """Lines of the sample from the first that is not blank; where its next begins."""
    for piece in pieces(path):
        lines = piece.text.split(b"\n")[:-1]
        first = next((k for k, line in enumerate(lines) if line.strip()), None)
        if first is not None:
            before = sum(len(line) + 1 for line in lines[: first + 1])
            return lines[first:], piece.position + before
    raise DataError(f"{path} is empty; give a file with rows")


def _delimiter(asked: str, lines: list[bytes]) -> bytes:
    if asked != "auto":
        mark = DELIMITERS.get(asked, asked.encode())
        if mark not in DELIMITERS.values():
            raise ConfigError(
                f"delimiter {asked!r}: known: auto, {', '.join(DELIMITERS)}"
            )
        return mark
    sample = [line for line in lines[:10] if not is_blank(line, b",")]
    marks = DELIMITERS.values()
    return max(marks, key=lambda mark: min(line.count(mark) for line in sample))


def _is_header(path: Path, asked: str | bool, fields: list[bytes]) -> bool:
    if asked in ("yes", "no", True, False):
        return asked in ("yes", True)
    if asked != "auto":
        raise ConfigError(f"header {asked!r}: known: auto, yes, no")
    told = [field for field in fields if field.lower() not in MISSING]
    numbers = sum(parse_number(field) is not None for field in told)
    if numbers and numbers < len(told):
        raise DataError(
            f"{path}: its first line mixes numbers with other words; say whether it is"
            " a header: yes or no"
        )
    return bool(told) and not numbers


def find_label(
    path: Path, head: Head, weight: Column, offset: Column
) -> tuple[int, str | None]:
    """Return the number of the label column that nobody named, and how it is called.

    Without a header it is the first one. Columns of weights and offsets are none.
    """
    if head.names is None:
        return 0, "column 0, the first (there is no header)"
    taken = [
        _field(path, head, role, column)
        for role, column in (("weight", weight), ("offset", offset))
        if column is not None
    ]
    found = [
        number
        for number, name in enumerate(head.names)
        if name.lower() in LABELS and number not in taken
    ]
    if len(found) == 1:
        return found[0], f"column {head.names[found[0]]!r}"
    known = ", ".join(LABELS[:-1]) + f" or {LABELS[-1]}"
    if found:
        several = " and ".join(repr(head.names[number]) for number in found)
        fact = f"several columns may hold its labels: {several}"
    else:
        fact = f"none of its columns is called {known}: {_shown(head.names)}"
    raise DataError(
        f"{path} does not say which column holds the labels, {fact}; name it with"
        " --label-column NAME, or give --label-column none where there are no labels"
    )


def _shown(names: tuple[str, ...]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def place_columns(
    path: Path, head: Head, columns: tuple[Column, ...]
) -> tuple[Array, int]:
    """(place of each field, number of columns that are no features)."""
    places, extras = np.zeros(head.fields, dtype=np.int32), 0
    for role, column in zip(ROLES, columns, strict=True):
        if column is None:
            continue
        field = _field(path, head, role, column)
        if places[field]:
            raise ConfigError(f"{path}: column {column} is both {role} and another")
        extras += 1
        places[field] = -extras
    features = np.flatnonzero(places == 0)
    if not len(features):
        raise DataError(f"{path} has no columns of features; check the delimiter")
    places[features] = np.arange(len(features))
    return places, extras


def _field(path: Path, head: Head, role: str, column: str | int) -> int:
    """The number of a field that is named or counted."""
    if isinstance(column, str) and head.names and column in head.names:
        return head.names.index(column)
    try:
        number = -1 if column == "last" else int(column)
    except ValueError:
        known = _shown(head.names or ("none, for there is no header",))
        raise ConfigError(
            f"{path} has no {role} column {column!r}; its names: {known}"
        ) from None
    if not -head.fields <= number < head.fields:
        raise ConfigError(
            f"{path} has {head.fields} columns; {role} column {number} is none"
        )
    return number % head.fields
