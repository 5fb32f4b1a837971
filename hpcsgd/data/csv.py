"""Delimited text as a source of dense rows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data import parse_native
from hpcsgd.data.compressed import Stamp, stamp_of
from hpcsgd.data.csv_layout import Column, Head, place_columns, read_head
from hpcsgd.data.faults import Fault
from hpcsgd.data.parse_python import Layout
from hpcsgd.data.source import Outline, Rows
from hpcsgd.data.text import LARGEST_PIECE, located, pieces
from hpcsgd.errors import ConfigError, DataError

Array = NDArray[Any]
BYTES_HELD = 8  # at most, beside and in the arrays, for each byte of text
NULLS = ["", "NA", "N/A", "NaN", "nan", "-nan", "null", "NULL", "None", "?"]


class CsvSource:
    """Rows of a CSV file, plain or compressed; `X` is float64.

    Columns are named or counted from 0 (−1 or "last": the last); None: there is none.
    """

    def __init__(
        self,
        path: str | Path,
        label_column: Column = 0,
        delimiter: str = "auto",
        header: str | bool = "auto",
        missing: str = "error",
        weight_column: Column = None,
        offset_column: Column = None,
    ) -> None:
        if missing not in ("error", "mean"):
            raise ConfigError(f"missing {missing!r}: known: error, mean")
        self.path, self.missing = Path(path), missing
        self.options = (delimiter, header)
        self.columns = (label_column, weight_column, offset_column)
        self.stamp: Stamp | None = None  # of the file that `outline` saw

    def outline(self, progress: Callable[[int], None]) -> Outline:
        """Counts rows, and adds up columns where their means are asked for."""
        head, layout = self._open()
        rows, end, sums = 0, 0, np.zeros((2, layout.features))
        self.stamp = stamp_of(self.path)
        for position, text, end in pieces(self.path, LARGEST_PIECE // 8, head.size):
            if self.missing == "mean":
                X, _ = self._parse(position, text, layout)
                rows += len(X)
                there = ~np.isnan(X)
                sums += [np.where(there, X, 0).sum(axis=0), there.sum(axis=0)]
            else:
                rows += parse_native.count_lines(text, layout.delimiter)
            progress(end)
        if not rows:
            raise DataError(f"{self.path} has a header and no rows; give it some")
        found = Outline(rows, layout.features, None, self.columns[0] is not None, end)
        return found if self.missing == "error" else replace(found, means=_means(*sums))

    def blocks(
        self, outline: Outline, budget: int, start: int = 0, stop: int | None = None
    ) -> Iterator[Rows]:
        """Rows of the lines that begin in start..stop."""
        if self.stamp is not None and self.stamp != stamp_of(self.path):
            raise DataError(f"{self.path} changed since it was counted; start anew")
        head, layout = self._open()
        begin = max(start, head.size)
        for position, text, end in pieces(self.path, budget // BYTES_HELD, begin, stop):
            X, other = self._parse(position, text, layout)
            if outline.means is not None:
                X = np.where(np.isnan(X), outline.means, X)
            columns = iter(other.T.copy())
            y, weights, offsets = (
                None if c is None else next(columns) for c in self.columns
            )
            yield Rows(X, y, end, weights, offsets)

    def _open(self) -> tuple[Head, Layout]:
        head = read_head(self.path, *self.options)
        places, extras = place_columns(self.path, head, self.columns)
        features = len(places) - extras
        mean = self.missing == "mean"
        return head, Layout(head.delimiter, places, features, extras, mean)

    def _parse(self, position: int, text: bytes, layout: Layout) -> tuple[Array, Array]:
        if not parse_native.available():
            table = _by_arrow(text, layout)
            if table is not None:
                return table
        try:
            return parse_native.parse_csv(text, layout)
        except Fault as fault:
            raise located(self.path, position, text, fault) from None


def _means(sums: Array, counts: Array) -> Array:
    """Of columns without any value: 0."""
    means: Array = sums / np.maximum(counts, 1)
    return means


def _by_arrow(text: bytes, layout: Layout) -> tuple[Array, Array] | None:
    """The columns as pyarrow reads them; None where ours has to look closer."""
    try:
        import pyarrow
        import pyarrow.csv as arrow
    except ImportError:
        return None
    names = [str(field) for field in range(len(layout.places))]
    try:
        table = arrow.read_csv(
            pyarrow.BufferReader(text),
            arrow.ReadOptions(use_threads=False, column_names=names),
            arrow.ParseOptions(delimiter=layout.delimiter.decode()),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.float64()), null_values=NULLS
            ),
        )
    except pyarrow.ArrowInvalid:
        return None  # our own parser says what it is
    X = np.empty((len(table), layout.features))
    other = np.empty((len(table), layout.extras))
    for place, column in zip(layout.places, table.columns, strict=True):
        if column.null_count and not (layout.missing_allowed and place >= 0):
            return None
        values = column.to_numpy()
        if np.isinf(values).any() or np.isnan(values).sum() != column.null_count:
            return None
        if place >= 0:
            X[:, place] = values
        else:
            other[:, -1 - place] = values
    return X, other
