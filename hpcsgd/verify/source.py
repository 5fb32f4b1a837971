"""The data of a run, read once more by one process."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcsgd.backends.looks import weigh
from hpcsgd.backends.scaling import Scaling, make_scaling
from hpcsgd.csr import Csr
from hpcsgd.data.fingerprint import Fingerprint
from hpcsgd.data.folds import Split
from hpcsgd.data.peaks import column_peaks
from hpcsgd.data.readers import CHUNK_BYTES, RowReader, is_sparse
from hpcsgd.data.sparse_block import pieces
from hpcsgd.data.targets import encode_targets
from hpcsgd.families.base import Array, Family
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.storage import decode, encode

L = np.longdouble
WHOLE = Split()


@dataclass(frozen=True)
class Sides:
    """What belongs to the rows, as it was given: a loss is that of the data."""

    targets: Array  # (n, 1), encoded for the family
    weights: Array  # (n, 1), mean 1; ones where there are none
    offsets: Array  # (n, 1)

    def rounded(self, dtype: Any) -> "Sides":
        """As steps have it that compute in `dtype`."""
        columns = (self.targets, self.weights, self.offsets)
        return Sides(*(column.astype(dtype) for column in columns))


@dataclass(frozen=True)
class Source:
    """Rows as they are in the file, and columns as the run stored them."""

    reader: RowReader
    precision: Precision
    given: Sides
    scale: str = "column"  # [precision] scale

    @cached_property
    def stored(self) -> Sides:
        """What steps take."""
        return self.given.rounded(self.precision.working)

    def rows(self, numbers: Array) -> Array:
        """These rows of X in longdouble, rounded as the run rounded them."""
        whole = slice(0, self.reader.cols)
        # One read a run of neighbours, and every row once: files like neither more.
        wanted, place = np.unique(numbers, return_inverse=True)
        cuts = np.flatnonzero(np.diff(wanted) != 1) + 1
        parts = [
            self.reader.read(slice(int(p[0]), int(p[-1]) + 1), whole)
            for p in np.split(wanted, cuts)
        ]
        name, scaling = self.precision.matrix, self._scaling
        values = np.concatenate(parts)
        stored = encode(values if scaling is None else scaling.up(values), name)
        widened = decode(stored, name, self.precision.working)
        if scaling is not None:
            scaling.down(widened)
        return widened[place].astype(L)

    @cached_property
    def _scaling(self) -> Scaling | None:
        """Formats with few exponents have one for each column, or one for all."""
        form, whole = get_format(self.precision.matrix), slice(0, self.reader.cols)
        if not form.wants_scale:
            return None
        peaks = column_peaks(self.reader, slice(0, self.reader.rows), whole)
        is_one = is_sparse(self.reader) and self.scale == "column"
        return make_scaling(form, peaks, whole, "global" if is_one else self.scale)

    def blocks(self) -> Any:
        """(slice, X) over all rows."""
        step = max(CHUNK_BYTES // (16 * self.reader.cols), 1)
        for start in range(0, self.reader.rows, step):
            rows = slice(start, min(start + step, self.reader.rows))
            yield rows, self.reader.read(rows, slice(0, self.reader.cols))

    def lengths(self, columns: int) -> Array:
        """Stored values of every row of a sparse matrix in its first columns."""
        return np.concatenate([p.lengths for _, p in self._pieces(columns)])

    def _pieces(self, columns: int) -> Iterator[tuple[int, Csr]]:
        rows, cols = slice(0, self.reader.rows), slice(0, columns)
        return pieces(self.reader, rows, cols, CHUNK_BYTES)

    def fingerprint(self) -> str:
        """Of every value, as training takes it."""
        seen, every = Fingerprint(weigh), slice(0, self.reader.rows)
        if is_sparse(self.reader):
            for start, piece in self._pieces(self.reader.cols):
                seen.add_sparse(piece, start, 0)
        else:
            for rows, X in self.blocks():
                seen.add(X, rows.start, 0)
        columns = (self.reader.targets, self.reader.sample_weight, self.reader.offset)
        for number, column in enumerate(columns):
            seen.add_column(number, column(every), 0)
        return seen.total(self.reader.rows, self.reader.cols, lambda own: [own])


def open_source(
    reader: RowReader,
    family: Family,
    precision: Precision,
    split: Split = WHOLE,
    scale: str = "column",
) -> Source:
    """The columns of the whole data, encoded as a run does."""
    every = slice(0, reader.rows)
    encoded, _ = encode_targets(
        reader.targets(every), family.targets, 0, lambda own: [own]
    )
    c, o = reader.sample_weight(every), reader.offset(every)
    c = np.ones(reader.rows) if c is None else c
    if not split.is_whole:
        c = c * ~split.kept_apart(every)[:, 0]
    c = c * (reader.rows / float(c.sum()))
    o = np.zeros(reader.rows) if o is None else o
    given = Sides(encoded.astype(np.float64), c[:, None], o[:, None])
    return Source(reader, precision, given, scale)
