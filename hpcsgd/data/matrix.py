"""Matrices in memory, dense or sparse, as readers fill and backends read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from hpcsgd.formats import Array

MOST_INT32 = 2**31 - 1
MOST_OPERANDS = 4096  # blocks of rows that a cache stores as SciPy arrays
COLUMN = 4  # bytes of a column number, where it is an int32


# The block of a rank in one of its storages. Each storage states whether it `is_sparse`
# and whether all of it `is_in_memory` of the host, and hands its rows to a backend.

Gathered = TypeVar("Gathered", covariant=True)


class RowGatherer(Protocol[Gathered]):
    """The methods by which a backend converts sampled rows, one for each storage."""

    def gather(self, matrix: Array, rows: Array, out: Array | None) -> Gathered:
        """Return sampled rows of an array, in `out` if given."""

    def gather_sparse(self, matrix: "Csr", rows: Array) -> Gathered:
        """Return sampled rows of a sparse matrix."""


class DenseMatrix:
    """Rows as one array.

    Parameters
    ----------
    values : ndarray, (rows, columns), in any storage: bf16 as uint16
    """

    is_sparse: ClassVar[Literal[False]] = False
    is_in_memory: ClassVar[Literal[True]] = True

    def __init__(self, values: Array) -> None:
        self.values = values
        self.shape: tuple[int, int] = values.shape
        self.dtype: np.dtype[Any] = values.dtype

    def __getitem__(self, rows: slice) -> "DenseMatrix":
        """Return neighbouring rows; values are views."""
        return DenseMatrix(self.values[rows])

    def take(self, rows: Array) -> Array:
        """Return a copy of these rows, in the storage format."""
        return np.take(self.values, rows, axis=0)

    def gather(
        self, backend: RowGatherer[Gathered], rows: Array, room: Array | None
    ) -> Gathered:
        """Return these rows as `backend` computes with them.

        `room`, if given, is an array that the backend may fill with them.
        """
        return backend.gather(self.values, rows, room)

    def gather_columns(
        self, backend: RowGatherer[Gathered], rows: Array, columns: slice, room: Array
    ) -> Gathered:
        """Return some columns of these rows as `backend` computes with them."""
        return backend.gather(self.values[:, columns], rows, room)

    def operand(self, rows: slice) -> Array:
        """Return neighbouring rows as NumPy multiplies them: a view."""
        return self.values[rows]

    def read_into(self, rows: slice, out: Array) -> None:
        """Copy neighbouring rows to `out`."""
        np.copyto(out, self.values[rows])

    def close(self) -> None:
        """Do nothing: no file is open."""


@dataclass(frozen=True)
class Csr:
    """A sparse matrix in CSR form, with ascending columns in each row.

    Row i has the values data[indptr[i]:indptr[i + 1]]; `indices` has their columns at
    the same positions.
    """

    is_sparse: ClassVar[Literal[True]] = True
    is_in_memory: ClassVar[Literal[True]] = True

    indptr: Array  # (rows + 1,) int64
    indices: Array  # (nnz,) int32, or int64 where columns need it
    data: Array  # (nnz,) in any storage: float32, float64, or bf16 as uint16
    width: int  # columns

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns."""
        return len(self.indptr) - 1, self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the stored values."""
        return self.data.dtype

    @property
    def nnz(self) -> int:
        """Return the number of stored values, stored zeros included."""
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the three arrays."""
        return self.indptr.nbytes + self.indices.nbytes + self.data.nbytes

    @property
    def lengths(self) -> Array:
        """Return the number of stored values of each row, (rows,)."""
        return np.diff(self.indptr)

    @property
    def is_sound(self) -> bool:
        """Return whether `indptr` ascends from 0 to nnz and all columns are valid."""
        edges = self.indptr
        columns = self.indices
        ends = len(edges) > 0 and (edges[0], edges[-1]) == (0, len(columns))
        if not ends or len(columns) != len(self.data) or (np.diff(edges) < 0).any():
            return False
        return not len(columns) or 0 <= columns.min() <= columns.max() < self.width

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: slice) -> "Csr":
        """Return neighbouring rows; values and columns are views."""
        first, last, _ = rows.indices(len(self))
        edges = self.indptr[first : max(last, first) + 1]
        part = slice(int(edges[0]), int(edges[-1]))
        return Csr(edges - edges[0], self.indices[part], self.data[part], self.width)

    def take(self, rows: Array) -> "Csr":
        """Return a copy of these rows, in this order."""
        starts = self.indptr[rows]
        indptr = edges_of(self.indptr[rows + 1] - starts)
        places = stretch(starts, indptr)
        indices = np.take(self.indices, places, mode="clip")
        data = np.take(self.data, places, mode="clip")
        return Csr(indptr, indices, data, self.width)

    def gather(
        self, backend: RowGatherer[Gathered], rows: Array, room: Array | None
    ) -> Gathered:
        """Return these rows as `backend` computes with them; they need no `room`."""
        return backend.gather_sparse(self, rows)

    def operand(self, rows: slice) -> Any:
        """Return neighbouring rows as SciPy multiplies them.

        The SciPy arrays, which are views, are cached: every pass over all rows needs
        the same blocks, and SciPy checks a small block for longer than it multiplies.
        """
        key = rows.indices(len(self))
        if key not in self._operands:
            if len(self._operands) >= MOST_OPERANDS:
                self._operands.clear()
            self._operands[key] = self[rows].to_scipy()
        return self._operands[key]

    @cached_property
    def _operands(self) -> dict[tuple[int, int, int], Any]:
        return {}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def with_data(self, data: Array) -> "Csr":
        """Return a matrix with values `data` in the places of the stored values."""
        return Csr(self.indptr, self.indices, data, self.width)

    def to_dense(self) -> Array:
        """Return a dense copy, (rows, columns); a stored -0.0 remains -0.0."""
        dense = np.zeros(self.shape, dtype=self.dtype)
        dense[np.repeat(np.arange(len(self)), self.lengths), self.indices] = self.data
        return dense

    def to_scipy(self) -> Any:
        """Return the matrix as a scipy.sparse.csr_array; floating storages only.

        The result shares `data` with this matrix, and `indices` unless SciPy requires
        another dtype of integers; its `indptr` is a copy.
        """
        from scipy.sparse import csr_array

        # SciPy requires the same integer dtype for both.
        kind = np.int64 if self.nnz > MOST_INT32 else self.indices.dtype
        edges = self.indptr.astype(kind)
        columns = self.indices.astype(kind, copy=False)
        matrix = csr_array((self.data, columns, edges), shape=self.shape)
        # SciPy copies a view of less than half of an array; cached blocks of rows would
        # be a second copy of the whole matrix.
        matrix.data, matrix.indices = self.data, columns
        matrix.has_sorted_indices = matrix.has_canonical_format = True
        return matrix

    def place(self, number: int) -> tuple[int, int]:
        """Return row and column of stored value `number`."""
        row = int(np.searchsorted(self.indptr, number, side="right")) - 1
        return row, int(self.indices[number])


def from_scipy(matrix: Any) -> Csr:
    """Return a Csr from a scipy.sparse CSR array with sorted columns."""
    width = int(matrix.shape[1])
    indices = matrix.indices.astype(index_dtype(width), copy=False)
    return Csr(matrix.indptr.astype(np.int64), indices, matrix.data, width)


def stack(parts: list[Csr]) -> Csr:
    """Return the rows of several blocks, one below the other."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Csr(
        edges_of(lengths),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.data for part in parts]),
        parts[0].width,
    )


def side_by_side(parts: list[Csr]) -> Csr:
    """Return the columns of several blocks of the same rows, side by side."""
    width = sum(part.width for part in parts)
    indptr = edges_of(np.sum([part.lengths for part in parts], axis=0))
    indices = np.empty(indptr[-1], dtype=index_dtype(width))
    data = np.empty(indptr[-1], dtype=parts[0].dtype)
    free = indptr[:-1].copy()
    offset = 0
    for part in parts:
        places = stretch(free, part.indptr)
        indices[places] = part.indices
        indices[places] += indices.dtype.type(offset)
        data[places] = part.data
        free = free + part.lengths
        offset = offset + part.width
    return Csr(indptr, indices, data, width)


def split_columns(block: Csr, parts: Sequence[slice]) -> list[Csr]:
    """Return the columns of each part, which cover all columns in order."""
    ends = np.array([part.stop for part in parts])
    owners = np.searchsorted(ends, block.indices, side="right")
    order = np.argsort(owners, kind="stable")  # the values of a row stay in order
    rows = np.repeat(np.arange(len(block)), block.lengths)
    counts = np.bincount(
        owners * len(block) + rows, minlength=len(parts) * len(block)
    ).reshape(len(parts), -1)
    edges = edges_of(counts.sum(axis=1))
    indices = block.indices[order]
    data = block.data[order]
    pieces = []
    for part, lengths, places in zip(
        parts, counts, map(slice, edges, edges[1:]), strict=False
    ):
        width = part.stop - part.start
        columns = (indices[places] - part.start).astype(index_dtype(width))
        pieces.append(Csr(edges_of(lengths), columns, data[places], width))
    return pieces


def edges_of(lengths: Array) -> Array:
    """Return the indptr of rows of these lengths, (rows + 1,) int64."""
    indptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def stretch(starts: Array, indptr: Array) -> Array:
    """Return starts[i], starts[i] + 1, ... for every row i, as many as the row has."""
    places = np.repeat(starts - indptr[:-1], np.diff(indptr))
    places += np.arange(len(places))
    return places


def index_dtype(width: int) -> np.dtype[Any]:
    """Return int32 if it can number `width` columns, else int64."""
    return np.dtype(np.int32 if width <= MOST_INT32 else np.int64)


# Columns of a few sparse rows, tile by tile: one sort serves all tiles.
#
# Stored values are ordered by row, so that the values of a column are scattered. After
# one sort by column, the values of neighbouring columns are contiguous. No array has an
# entry for each column.


class ByColumns:
    """The stored values of a sparse matrix, sorted by column."""

    def __init__(self, whole: Csr) -> None:
        self.whole = whole
        self.order = np.argsort(whole.indices, kind="stable")
        self.sorted: Array = whole.indices[self.order]
        self.row_of = np.repeat(np.arange(len(whole)), whole.lengths)

    def tile(self, part: slice) -> Csr:
        """Return the neighbouring columns `part` of all rows, numbered from 0."""
        ends = np.array([part.start, part.stop], dtype=self.sorted.dtype)
        first, last = np.searchsorted(self.sorted, ends)
        chosen = np.sort(self.order[first:last])  # in row order again
        lengths = np.bincount(self.row_of[chosen], minlength=len(self.whole))
        width = part.stop - part.start
        indices = self.whole.indices[chosen] - part.start
        indices = indices.astype(index_dtype(width), copy=False)
        return Csr(edges_of(lengths), indices, self.whole.data[chosen], width)
