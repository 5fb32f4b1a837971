"""Delimited text as a source of dense rows."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data import parse_native
from hpcsgd.data.csv_layout import AUTO, Column, find_label, place_columns, read_head
from hpcsgd.data.faults import Fault
from hpcsgd.data.moments import Moments
from hpcsgd.data.parse_python import Layout
from hpcsgd.data.source import Outline, Rows
from hpcsgd.data.text import Piece
from hpcsgd.data.text_source import Tally, TextSource
from hpcsgd.errors import ConfigError, DataError

Array = NDArray[Any]


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
        self.layout = Layout(head.delimiter, places, features, extras, self.fills)

    def scan(self, piece: Piece, keep: bool) -> tuple[Tally, Any]:
        """Counts; missing values of X are NaN."""
        if not keep:
            rows = parse_native.count_lines(piece.text, self.layout.delimiter)
            return Tally(rows, end=piece.end), None
        X, _ = self._parse(piece)
        return Tally(len(X), end=piece.end), X

    def outline_of(self, tally: Tally, moments: Moments) -> Outline:
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

    def moments_of(self, outline: Outline, moments: Moments) -> Moments:
        """What is missing becomes the mean."""
        return moments.of_columns(0, outline.cols).with_means()

    def rows(self, piece: Piece, outline: Outline) -> Rows:
        """As dense rows, and what else stands in them."""
        X, other = self._parse(piece)
        if outline.means is not None:
            X = np.where(np.isnan(X), outline.means, X)
        columns = iter(other.T.copy())
        y, weights, offsets = (
            None if c is None else next(columns) for c in self.columns
        )
        return Rows(X, y, piece.end, weights, offsets)

    def _parse(self, piece: Piece) -> tuple[Array, Array]:
        try:
            return parse_native.parse_csv(piece.text, self.layout)
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
