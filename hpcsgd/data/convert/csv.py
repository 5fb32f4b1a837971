"""CSV files as sources of rows."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.data.convert import parsers
from hpcsgd.data.convert.parsers import (
    MISSING,
    SPACED,
    LineLayout,
    bare,
    is_blank,
    parse_number,
    split_fields,
)
from hpcsgd.data.convert.sources import Outline, SourceColumns, SourceRows
from hpcsgd.data.convert.text import (
    SHOWN,
    Fault,
    Kind,
    PassCounts,
    TextChunk,
    TextSource,
    located,
    pieces,
    place_of,
)
from hpcsgd.data.convert.transform import ColumnMoments, Like, Parts
from hpcsgd.errors import ConfigError, DataError, did_you_mean
from hpcsgd.formats import Array

# The first lines of delimited text: delimiter, header, roles of the columns.

Column = str | int | None
DELIMITERS = {"comma": b",", "tab": b"\t", "semicolon": b";", "whitespace": SPACED}
AUTO = "auto"  # label column: the one whose name is in LABELS
LABELS = ("label", "y", "target", "class")
MOST_NAMED = 10  # columns, or levels of one, that an error lists
SHORTEST_PIECE = 2**16  # bytes of text, for any number of levels
ROLES = ("label", "weight", "offset")


@dataclass(frozen=True)
class Head:
    """The layout of a CSV file, read from its first lines."""

    delimiter: bytes
    names: tuple[str, ...] | None  # of the header
    fields: int
    size: int  # bytes before the first row

    def called(self, field: int) -> str:
        """Return the name of field `field`, or its number if it has no name."""
        name = self.names[field] if self.names and field < len(self.names) else ""
        return name or str(field)


def read_head(path: Path, delimiter: str, header: str | bool) -> Head:
    """Return the layout of a CSV file, read from its first lines with text."""
    lines, size = _first_lines(path)
    mark = _delimiter(delimiter, lines)
    fields = [bare(field, mark) for _, field in split_fields(lines[0], mark)]
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
    if mark == SPACED:
        names = [field.decode("utf-8") for field in fields]
    return Head(mark, tuple(name.strip() for name in names), len(names), size)


def _first_lines(path: Path) -> tuple[list[bytes], int]:
    """Return the first lines of a CSV file, without blank lines at its beginning.

    The second result is the byte after the first of these lines.
    """
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
                f"--delimiter {asked!r} is unknown; use auto, {', '.join(DELIMITERS)}"
            )
        return mark
    sample = [line for line in lines[:10] if not is_blank(line, b",")]
    marks = [mark for mark in DELIMITERS.values() if mark != SPACED]
    counts = {mark: min(line.count(mark) for line in sample) for mark in marks}
    best = max(marks, key=counts.__getitem__)
    widths = {len(split_fields(line, SPACED)) for line in sample}
    if len(widths) == 1 and widths != {1}:
        # Only blanks make an equal number of fields in every line.
        uneven_tabs = len({line.count(b"\t") for line in sample}) > 1
        if not counts[best] or (best == b"\t" and uneven_tabs):
            return SPACED
    return best


def _is_header(path: Path, asked: str | bool, fields: list[bytes]) -> bool:
    if asked in ("yes", "no", True, False):
        return asked in ("yes", True)
    if asked != "auto":
        raise ConfigError(f"--header {asked!r} is unknown; use auto, yes or no")
    values = [field for field in fields if field.lower() not in MISSING]
    numbers = sum(parse_number(field) is not None for field in values)
    if numbers and numbers < len(values):
        raise DataError(
            f"{path}: its first line mixes numbers with other words; add --header yes"
            " if it is a header, else --header no"
        )
    return bool(values) and not numbers


def find_label(
    path: Path, head: Head, weight: Column, offset: Column
) -> tuple[int, str | None]:
    """Find the label column; return its number and a description for messages.

    It is the column whose name is in `LABELS`, the weight and offset columns excluded,
    or the first column if there is no header. Raise DataError if no or several names
    match.
    """
    if head.names is None:
        return 0, "column 0, the first (there is no header)"
    taken = [
        _field(path, head, role, column)
        for role, column in (("weight", weight), ("offset", offset))
        if column is not None
    ]
    numbers = [
        number
        for number, name in enumerate(head.names)
        if name.lower() in LABELS and number not in taken
    ]
    if len(numbers) == 1:
        return numbers[0], f"column {head.names[numbers[0]]!r}"
    label_names = ", ".join(LABELS[:-1]) + f" or {LABELS[-1]}"
    if numbers:
        several = " and ".join(repr(head.names[number]) for number in numbers)
        fact = f"several columns may hold its labels: {several}"
    else:
        fact = f"none of its columns is called {label_names}: {_shown(head.names)}"
    raise DataError(
        f"{path} does not say which column holds the labels, {fact}; name it with"
        " --label-column NAME, or give --label-column none where there are no labels"
    )


def _shown(names: tuple[str, ...]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class FieldRoles:
    """The role of each field of a line: number of X, text of X, or side column."""

    extras: dict[str, int]  # role -> field of numbers beside X
    texts: dict[str, int]  # column of text in X -> its field, in the order of fields
    label_text: int | None  # field of labels that are text
    features: tuple[int, ...]  # all fields of X

    def layout(self, head: Head, missing_allowed: bool) -> LineLayout:
        """Return the layout of a line for the parser, with the place of each field.

        If `missing_allowed`, numbers of X may be missing.
        """
        numbers = [f for f in self.features if f not in self.texts.values()]
        texts = list(self.texts.values())
        if self.label_text is not None:
            texts.append(self.label_text)
        places = np.zeros(head.fields, dtype=np.int32)
        places[numbers] = np.arange(len(numbers))
        places[texts] = len(numbers) + np.arange(len(texts))
        extras = list(self.extras.values())
        places[extras] = -1 - np.arange(len(extras))
        return LineLayout(
            head.delimiter,
            places,
            len(numbers),
            len(extras),
            missing_allowed,
            len(texts),
        )


def field_roles(
    path: Path,
    head: Head,
    columns: tuple[Column, ...],
    categories: tuple[str, ...],
    is_label_text: bool,
) -> FieldRoles:
    """Return the roles of all fields; refuse a column that is given two roles.

    `columns` are the label, weight and offset columns, and `categories` the columns of
    text.
    """
    taken = dict[int, str]()
    extras = dict[str, int]()
    for role, column in zip(ROLES, columns, strict=True):
        if column is not None:
            field = _field(path, head, role, column)
            if field in taken:
                raise ConfigError(
                    f"{path}: column {column} cannot be both {taken[field]} and {role}"
                    " column; give each of them a column of its own"
                )
            taken[field] = role
            extras[role] = field
    texts = dict[int, str]()
    for column in categories:
        field = _field(path, head, "--categories", column)
        if field in taken or field in texts:
            other = taken.get(field)
            why = f"is the {other} column" if other else "is named twice"
            raise ConfigError(
                f"{path}: --categories names column {column}, which {why}; name each"
                " column of text once, and no other column"
            )
        if head.called(field) in texts.values():
            raise ConfigError(
                f"{path}: --categories names two columns called {head.called(field)!r};"
                " rename one of them"
            )
        texts[field] = head.called(field)
    features = [f for f in range(head.fields) if f not in taken]
    if not features:
        raise DataError(f"{path} has no columns of features; check the delimiter")
    label_text = extras.pop("label", None) if is_label_text else None
    if is_label_text and label_text is None:
        raise ConfigError(
            f"{path}: --label needs a label column, and none is chosen; leave --label"
            " out, or name the column with --label-column"
        )
    named = {texts[field]: field for field in sorted(texts)}
    return FieldRoles(extras, named, label_text, tuple(features))


def _field(path: Path, head: Head, role: str, column: str | int) -> int:
    """Return the number of a field from its name or number (negative: from the end).

    `role` names the field in messages.
    """
    if isinstance(column, str) and head.names and column in head.names:
        return head.names.index(column)
    try:
        number = -1 if column == "last" else int(column)
    except ValueError:
        names = _shown(head.names or ("none, for there is no header",))
        raise ConfigError(
            f"{path} has no {role} column {column!r}"
            f"{did_you_mean(str(column), head.names or ())}; its column names: {names}"
        ) from None
    if not -head.fields <= number < head.fields:
        raise ConfigError(
            f"{path} has {head.fields} columns, so that {role} column {number} does not"
            f" exist; give a number from 0 to {head.fields - 1}"
        )
    return number % head.fields


# Delimited text as a source of dense rows.


@dataclass(frozen=True)
class CsvOptions:
    """The options for reading a CSV file.

    A column is given by its name, or by its number from 0; −1 and "last" are the last
    column.

    Attributes
    ----------
    label_column : str, int or None
        Column of the labels; None or "none" for a file without labels. "auto" is the
        column whose name is in `LABELS`, in upper or lower case, or the first column if
        there is no header.
    delimiter : str
        "auto", a key of `DELIMITERS`, or one of its characters.
    header : str or bool
        Whether the first line has the names of the columns: "auto", "yes" or "no".
    missing : {"error", "mean"}
        Treatment of missing values; "mean" replaces them by the mean of the column.
    weight_column : str, int or None
        Column of the sample weights.
    offset_column : str, int or None
        Column of the offsets.
    categories : sequence of str
        Columns of text, which are encoded one-hot: a column of X for each level.
    label : sequence of (str, float)
        Text and number of each label, if the labels are text.
    """

    label_column: Column = AUTO
    delimiter: str = "auto"
    header: str | bool = "auto"
    missing: str = "error"
    weight_column: Column = None
    offset_column: Column = None
    categories: Sequence[str] = ()
    label: Sequence[tuple[str, float]] = ()

    def __post_init__(self) -> None:
        if self.missing not in ("error", "mean"):
            raise ConfigError(
                f"--missing {self.missing!r} is unknown; use error or mean"
            )

    @property
    def columns(self) -> tuple[Column, Column, Column]:
        """Return the columns of labels, weights and offsets; None if there is none."""
        label = None if self.label_column == "none" else self.label_column
        return label, self.weight_column, self.offset_column


class CsvSource(TextSource):
    """Rows of a CSV file, plain or compressed; `X` is float64."""

    def __init__(self, path: str | Path, options: CsvOptions = CsvOptions()) -> None:
        self.path = Path(path)
        self.options = options
        self.fills = options.missing == "mean"
        self.columns = options.columns
        self.label: str | None = None  # description of the label column of "auto"
        self.categories = tuple(options.categories)
        self.levels = {}
        self.lacks_levels = bool(options.categories)
        self.label_numbers = dict(options.label)
        self.like: Path | None = None  # the file whose levels these are

    def follow(self, like: Like) -> None:
        """Use the levels of text columns of the file `like`, and its label numbers.

        The label numbers of the options take precedence.
        """
        categories = set(self.categories)
        levels = like.categories or {}
        if categories and categories != set(levels):
            names = ", ".join(levels) or "none"
            raise ConfigError(
                f"--categories {','.join(self.categories)} contradicts --like"
                f" {like.path}, whose columns of text are: {names}; leave --categories"
                " out"
            )
        self.categories = tuple(levels)
        self.levels = levels
        self.like = like.path
        self.lacks_levels = False
        if self.columns[0] is not None and not self.label_numbers:
            self.label_numbers = like.label_numbers or {}

    def _read_head(self) -> None:
        """Determine delimiter, header and roles of the columns."""
        self.head = head = read_head(
            self.path, self.options.delimiter, self.options.header
        )
        label, weight, offset = self.columns
        if label == AUTO:
            label, self.label = find_label(self.path, head, weight, offset)
            self.columns = (label, weight, offset)
        self.roles = field_roles(
            self.path, head, self.columns, self.categories, bool(self.label_numbers)
        )
        self.levels = {  # of another file, which may name columns by number
            head.called(_field(self.path, head, "--categories", column)): levels
            for column, levels in self.levels.items()
        }
        self.first = head.size
        self.delimiter = head.delimiter
        self.layout = self.roles.layout(head, self.fills)
        self._place_columns()

    def learn_levels(self, levels: dict[str, list[str]]) -> None:
        """Store the levels of each column of text."""
        super().learn_levels(levels)
        self._place_columns()

    def _place_columns(self) -> None:
        """Assign columns of X to numbers and to levels, in the order of the fields."""
        by_field = {field: name for name, field in self.roles.texts.items()}
        self.numbers = list[int]()
        self.codes = dict[str, dict[bytes, int]]()
        names = list[str]()
        for field in self.roles.features:
            if field not in by_field:
                self.numbers.append(len(names))
                names.append(self.head.names[field] if self.head.names else "")
                continue
            column = by_field[field]
            levels = self.levels.get(column, [])
            start = len(names)
            self.codes[column] = {
                level.encode(): start + k for k, level in enumerate(levels)
            }
            names += [f"{column}={level}" for level in levels]
        self.cols = len(names)
        self.names = _distinct(names) if self.head.names else None
        if self.levels:  # one-hot rows are longer than their text: fewer at a time
            least = self.piece * self.head.fields // self.cols
            self.piece = min(self.piece, max(least, SHORTEST_PIECE))

    def find_levels(self, piece: TextChunk) -> Parts:
        """Return the levels of each text column that occur in a piece of the text."""
        spans = self._parse(piece)[2]
        levels: dict[str, list[str]] = {}
        for number, column in enumerate(self.roles.texts):
            tokens = set[bytes]()
            for start, stop in spans[:, number].tolist():
                token = piece.text[start:stop]
                if token not in tokens and not self._is_missing(piece, start, stop):
                    tokens.add(token)
            levels[column] = [self._decoded(piece, token) for token in tokens]
        return {"end": piece.end, "levels": levels}

    def scan(self, piece: TextChunk, keep: bool) -> tuple[PassCounts, Any]:
        """Return the counts of a piece, and its X if `keep`, else None.

        X has NaN where a value is missing.
        """
        if not keep:
            rows = parsers.count_lines(piece.text, self.layout.delimiter)
            return PassCounts(rows, end=piece.end), None
        X, _, spans = self._parse(piece)
        return PassCounts(len(X), end=piece.end), self._encoded(piece, X, spans)

    def outline_of(self, tally: PassCounts, moments: ColumnMoments) -> Outline:
        """Return the outline of the file from the results of its first pass.

        If missing values are replaced, its `means` are those of the measured rows, or 0
        for a column without values.
        """
        if not tally.rows:
            raise DataError(f"{self.path} has a header and no rows; give it some")
        is_labelled = self.columns[0] is not None
        columns = SourceColumns(
            means=moments.of_columns(0, self.cols).mean if self.fills else None,
            names=self.names,
            categories=self.levels or None,
        )
        return Outline(
            rows=tally.rows,
            cols=self.cols,
            nnz=None,
            labelled=is_labelled,
            size=tally.end,
            columns=columns,
            label=self.label,
            label_numbers=self.label_numbers or None,
        )

    def moments_of(self, outline: Outline, moments: ColumnMoments) -> ColumnMoments:
        """Return the moments of the columns of X, with means for missing values."""
        return moments.of_columns(0, outline.cols).with_means()

    def rows(self, piece: TextChunk, outline: Outline) -> SourceRows:
        """Return the rows of a piece: dense X, and targets, weights and offsets."""
        X, other, spans = self._parse(piece)
        X = self._encoded(piece, X, spans)
        means = outline.columns.means
        if means is not None:
            X = np.where(np.isnan(X), means, X)
        sides = dict(zip(self.roles.extras, other.T.copy(), strict=True))
        if self.roles.label_text is not None:
            sides["label"] = self._labels(piece, spans[:, -1])
        y, weights, offsets = (sides.get(role) for role in ROLES)
        return SourceRows(X, y, piece.end, weights, offsets)

    def _parse(self, piece: TextChunk) -> tuple[Array, Array, Array]:
        try:
            return parsers.parse_csv(piece.text, self.layout)
        except Fault as fault:
            raise self.refused(piece, fault) from None

    def _encoded(self, piece: TextChunk, numbers: Array, spans: Array) -> Array:
        """Return X: the numbers, and one column of 0 and 1 for each level of a text.

        `spans` has the begin and end byte of each text. Missing texts become NaN.
        """
        if not self.roles.texts:
            return numbers
        X = np.zeros((len(numbers), self.cols))
        X[:, self.numbers] = numbers
        for number, (column, codes) in enumerate(self.codes.items()):
            first = min(codes.values())
            for row, (start, stop) in enumerate(spans[:, number].tolist()):
                code = codes.get(piece.text[start:stop])
                if code is None:
                    code = self._code(piece, start, stop, column, codes)
                if code < 0:
                    X[row, first : first + len(codes)] = np.nan
                else:
                    X[row, code] = 1.0
        return X

    def _code(
        self,
        piece: TextChunk,
        start: int,
        stop: int,
        column: str,
        codes: dict[bytes, int],
    ) -> int:
        """Return the column of X for a text that is not literally a level.

        It may be quoted, with two quotes for one. Return -1 if it is missing, and raise
        DataError if it is no level.
        """
        if self._is_missing(piece, start, stop):
            return -1
        token = piece.text[start:stop]
        code = codes.get(self._decoded(piece, token).encode())
        if code is None:
            levels = _shown(tuple(self.levels[column]))
            source = self.like or self.path
            raise self._refused_text(
                piece,
                start,
                f"{_quoted(token)} is no level of {source} ({levels}); leave that line"
                " out, or convert the training again with rows of this level",
            )
        return code

    def _is_missing(self, piece: TextChunk, start: int, stop: int) -> bool:
        """Return whether a text means a missing value.

        Raise DataError if it does and missing values are not replaced by means.
        """
        if piece.text[start:stop].lower() not in MISSING:
            return False
        if not self.fills:
            raise self.refused(piece, Fault(Kind.MISSING, start))
        return True

    def _labels(self, piece: TextChunk, spans: Array) -> Array:
        """Return the number of each label, for labels that are text."""
        numbers = {text.encode(): number for text, number in self.label_numbers.items()}
        y = np.empty(len(spans))
        for row, (start, stop) in enumerate(spans.tolist()):
            token = piece.text[start:stop]
            number = numbers.get(token)
            if number is None:
                number = numbers.get(self._decoded(piece, token).encode())
            if number is None:
                labels = ", ".join(self.label_numbers)
                raise self._refused_text(
                    piece,
                    start,
                    f"the label {_quoted(token)} has no number (those with one are"
                    f" {labels}); give it one with --label, or leave that line out",
                )
            y[row] = number
        return y

    def _decoded(self, piece: TextChunk, token: bytes) -> str:
        """Return a token as text, in which one quote replaces two."""
        try:
            return token.replace(b'""', b'"').decode("utf-8")
        except UnicodeDecodeError:
            start = piece.text.index(token)
            raise self._refused_text(
                piece, start, f"{_quoted(token)} is not UTF-8 text; convert the file"
            ) from None

    def _refused_text(
        self, piece: TextChunk, position: int, sentence: str
    ) -> DataError:
        """Return an error with `sentence` on the text at byte `position` of a piece."""
        column = self._column_at(piece, position)
        return DataError(
            f"{place_of(self.path, piece.position + position, column)}: {sentence}"
        )

    def refused(self, piece: TextChunk, fault: Fault) -> DataError:
        """Return the error for a fault of the parser: line, column and remedy."""
        self.check_unchanged()  # else the line number may be wrong
        column = ""
        remedy = ""
        if fault.kind is not Kind.RAGGED:
            column = self._column_at(piece, fault.position)
        if fault.kind is Kind.NUMBER and column:
            field = self._field_at(piece, fault.position)
            if DECIMAL_COMMA.match(piece.text, fault.position):
                remedy = "; write decimals with a point, as 1.5"
            elif field == self.roles.extras.get("label"):
                remedy = "; text labels get numbers by --label TEXT=0,OTHER=1"
            elif field in self.roles.features:
                name = self.head.called(field)
                remedy = f"; a column of text is encoded by --categories {name}"
        return located(self.path, piece, fault, self.delimiter, column, remedy)

    def _column_at(self, piece: TextChunk, position: int) -> str:
        """Return how messages name the column of byte `position` of a piece."""
        field = self._field_at(piece, position)
        if self.head.names and field < len(self.head.names):
            return f"column {self.head.called(field)!r}"
        return f"column {field}"

    def _field_at(self, piece: TextChunk, position: int) -> int:
        """Return the number of the field that contains byte `position` of a piece."""
        start = piece.text.rfind(b"\n", 0, position) + 1
        line = piece.text[start : piece.text.index(b"\n", position)]
        starts = [at for at, _ in split_fields(line, self.delimiter)]
        return max(sum(at <= position - start for at in starts) - 1, 0)


DECIMAL_COMMA = re.compile(rb"[-+]?\d+,\d+\b")


def _distinct(names: list[str]) -> tuple[str, ...] | None:
    """Return the names of the columns; None if a name is empty or occurs twice."""
    return tuple(names) if all(names) and len(set(names)) == len(names) else None


def _quoted(token: bytes) -> str:
    text = token[: SHOWN + 1].decode("utf-8", "replace")
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
