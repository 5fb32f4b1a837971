"""CSV files as sources of rows."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.convert import parsers
from hpcsgd.data.convert.parsers import (
    MISSING,
    LineLayout,
    bare,
    is_blank,
    parse_number,
)
from hpcsgd.data.convert.sources import Outline, SourceRows
from hpcsgd.data.convert.text import Fault, PassCounts, TextChunk, TextSource, pieces
from hpcsgd.data.convert.transform import ColumnMoments
from hpcsgd.errors import ConfigError, DataError

# The first lines of delimited text: delimiter, header, which column is what.

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


# Delimited text as a source of dense rows.


class CsvSource(TextSource):
    """Rows of a CSV file, plain or compressed; `X` is float64.

    Columns are named or counted from 0 (−1 or "last": the last); None: there is none.
    Labels are "auto" in the column whose name says so, one of `LABELS` in any case, or
    in the first one where there is no header.
    """

    def __init__(
        self,
        path: str | Path,
        label_column: Column = AUTO,
        delimiter: str = "auto",
        header: str | bool = "auto",
        missing: str = "error",
        weight_column: Column = None,
        offset_column: Column = None,
    ) -> None:
        if missing not in ("error", "mean"):
            raise ConfigError(f"missing {missing!r}: known: error, mean")
        self.path, self.fills = Path(path), missing == "mean"
        self.options = (delimiter, header)
        label = None if label_column == "none" else label_column
        self.columns = (label, weight_column, offset_column)
        self.label: str | None = None  # of "auto", what was found

    def _read_head(self) -> None:
        """Delimiter, header, which column is what."""
        head = read_head(self.path, *self.options)
        label, weight, offset = self.columns
        if label == AUTO:
            label, self.label = find_label(self.path, head, weight, offset)
            self.columns = (label, weight, offset)
        places, extras = place_columns(self.path, head, self.columns)
        features = len(places) - extras
        self.names = _feature_names(head.names, places)
        self.first, self.delimiter = head.size, head.delimiter
        self.layout = LineLayout(head.delimiter, places, features, extras, self.fills)

    def scan(self, piece: TextChunk, keep: bool) -> tuple[PassCounts, Any]:
        """Counts; missing values of X are NaN."""
        if not keep:
            rows = parsers.count_lines(piece.text, self.layout.delimiter)
            return PassCounts(rows, end=piece.end), None
        X, _ = self._parse(piece)
        return PassCounts(len(X), end=piece.end), X

    def outline_of(self, tally: PassCounts, moments: ColumnMoments) -> Outline:
        """The means are those of the rows that were measured; without any, 0."""
        if not tally.rows:
            raise DataError(f"{self.path} has a header and no rows; give it some")
        cols, is_labelled = self.layout.features, self.columns[0] is not None
        means = moments.of_columns(0, cols).mean if self.fills else None
        return Outline(
            tally.rows,
            cols,
            None,
            is_labelled,
            tally.end,
            means=means,
            names=self.names,
            label=self.label,
        )

    def moments_of(self, outline: Outline, moments: ColumnMoments) -> ColumnMoments:
        """What is missing becomes the mean."""
        return moments.of_columns(0, outline.cols).with_means()

    def rows(self, piece: TextChunk, outline: Outline) -> SourceRows:
        """As dense rows, and what else stands in them."""
        X, other = self._parse(piece)
        if outline.means is not None:
            X = np.where(np.isnan(X), outline.means, X)
        columns = iter(other.T.copy())
        y, weights, offsets = (
            None if c is None else next(columns) for c in self.columns
        )
        return SourceRows(X, y, piece.end, weights, offsets)

    def _parse(self, piece: TextChunk) -> tuple[Array, Array]:
        try:
            return parsers.parse_csv(piece.text, self.layout)
        except Fault as fault:
            raise self.refused(piece, fault) from None


def _feature_names(
    header: tuple[str, ...] | None, places: Array
) -> tuple[str, ...] | None:
    """The names of the features; None where some have none, or two have the same."""
    if header is None:
        return None
    each = zip(header, places, strict=True)
    names = tuple(name for name, place in each if place >= 0)
    return names if all(names) and len(set(names)) == len(names) else None
