"""Rows of a source as its stores hold them, made on any rank and sent to the writer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.encoding import CsrStored, StoredRows, encode_rows
from hpcsgd.data.layout import Layout
from hpcsgd.data.numbered import choose
from hpcsgd.data.packing import Parts
from hpcsgd.data.recipe import Recipe
from hpcsgd.data.sink import Part, held
from hpcsgd.data.source import Rows
from hpcsgd.data.transform import count_test

Array = NDArray[Any]


@dataclass(frozen=True)
class Ready:
    """Consecutive rows of the source: encoded, for every store those it takes."""

    first: int  # number of the first row
    count: int
    end: int  # where the source goes on after them
    stores: list[StoredRows | None]

    def parts(self) -> Parts:
        """As it travels."""
        parts: Parts = {"ready": [self.first, self.count, self.end]}
        parts["stores"] = [None if s is None else s.largest for s in self.stores]
        for number, stored in enumerate(self.stores):
            named = {} if stored is None else _named(stored)
            parts |= {f"{number}/{name}": array for name, array in named.items()}
        return parts

    @classmethod
    def of(cls, parts: Parts) -> "Ready":
        """As it was."""
        stores = [
            None if largest is None else _stored(parts, f"{number}/", largest)
            for number, largest in enumerate(parts["stores"])
        ]
        first, count, end = parts["ready"]
        return cls(first, count, end, stores)


class Encoder:
    """Encodes rows for every store; the same wherever it is done."""

    def __init__(
        self,
        files: Sequence[Part],
        layout: Layout,
        recipe: Recipe,
    ) -> None:
        self.files, self.layout, self.recipe = files, layout, recipe
        self._at = self._drawn = 0  # rows looked at, and how many of them are test rows

    def encode(self, first: int, rows: Rows) -> Ready:
        """Rows of the source from number `first` on."""
        count = rows.X.shape[0]
        test = self.recipe.drawn(first, count)
        stores = [self._of(k, first, rows, test) for k in range(len(self.files))]
        return Ready(first, count, rows.end, stores)

    def _of(
        self, number: int, first: int, rows: Rows, test: Array
    ) -> StoredRows | None:
        part = self.files[number]
        ours = test == part.test
        if not ours.any():
            return None
        chosen = rows if ours.all() else choose(rows, ours)
        at = self._before(first + int(np.argmax(ours)), part.test)
        return encode_rows(self.layout, chosen.X, held(chosen), at, part.path)

    def _before(self, row: int, test: bool) -> int:
        """How many rows before this one are test rows, or are not."""
        if not self.recipe.test_fraction:
            return row
        if row < self._at:
            self._at = self._drawn = 0
        fraction, seed = self.recipe.test_fraction, self.recipe.seed
        self._drawn += count_test(row, fraction, seed, self._at)
        self._at = row
        return self._drawn if test else row - self._drawn


def _named(stored: StoredRows) -> dict[str, Array]:
    """Its arrays by name; those beside X begin with a dot."""
    beside = {f".{name}": column for name, column in stored.columns.items()}
    matrix = stored.matrix
    if not isinstance(matrix, CsrStored):
        return {"X": matrix, **beside}
    own = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    return {**own, **beside}


def _stored(parts: Parts, prefix: str, largest: float) -> StoredRows:
    """What was named so."""
    own = {k.removeprefix(prefix): v for k, v in parts.items() if k.startswith(prefix)}
    columns = {name[1:]: array for name, array in own.items() if name[0] == "."}
    if "X" in own:
        return StoredRows(own["X"], columns, largest)
    matrix = CsrStored(own["data"], own["indices"], own["indptr"])
    return StoredRows(matrix, columns, largest)
