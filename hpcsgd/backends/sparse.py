"""The NumPy backend for rows held as CSR.

Scores and gradients touch stored values alone. The Gram is a sum of two: columns that
many of the sampled rows share are made a dense panel for BLAS, the others are
multiplied as they are.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.host import HostBackend, block_rows
from hpcsgd.csr import Csr
from hpcsgd.csr_columns import ByColumns
from hpcsgd.schedule import Blocks
from hpcsgd.storage import decode

Array = NDArray[Any]
# Share of the sampled rows from which BLAS multiplies a column faster; measured by
# benchmarks/bench_sparse.py, part "gram": a multiply-add between sparse rows costs as
# much as several hundred of BLAS.
HEAVY = 0.04
SPLIT_WORK = 5e5  # multiply-adds of a sparse Gram from which halves pay


class Marks:
    """Which columns were touched: scratch as wide as the shard, clean between calls."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Array, Array]] = {}

    def compact(self, indices: Array, width: int) -> tuple[Array, Array]:
        """The touched columns in ascending order, and each index among them."""
        if width not in self._seen:
            self._seen[width] = np.zeros(width, dtype=bool), np.empty(width, np.int32)
        seen, place = self._seen[width]
        seen[indices] = True
        touched = np.flatnonzero(seen)
        seen[touched] = False
        place[touched] = np.arange(len(touched), dtype=np.int32)
        return touched, place[indices]


@dataclass(frozen=True)
class SparseRows:
    """Sampled rows, widened: what the dense backend has an array for."""

    csr: Csr
    marks: Marks

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return self.csr.dtype

    @cached_property
    def matrix(self) -> Any:
        """All columns, as scipy multiplies them."""
        return self.csr.to_scipy()

    @cached_property
    def compact(self) -> tuple[Any, Any]:
        """The touched columns, and the matrix of these alone; or of all, if many."""
        if self.csr.nnz >= self.csr.width:
            return slice(None), self.matrix
        touched, indices = self.marks.compact(self.csr.indices, self.csr.width)
        parts = self.csr.indptr, indices, self.csr.data
        return touched, Csr(*parts, len(touched)).to_scipy()

    @cached_property
    def by_columns(self) -> ByColumns:
        """The same, for tiles of columns."""
        return ByColumns(self.csr)

    def __len__(self) -> int:
        return len(self.csr)

    def __getitem__(self, part: slice) -> "SparseRows":
        return SparseRows(self.csr[part], self.marks)


class SparseHostBackend(HostBackend):
    """The host backend on `Csr` where that one takes arrays."""

    marks: Marks

    def pick(self, matrix: Csr, rows: Array) -> Csr:  # type: ignore[override]
        """The sampled rows as they are stored."""
        return matrix.take(rows)

    def widen(self, stored: Csr, out: Array | None) -> SparseRows:  # type: ignore[override]
        """Stored rows for the products; `out` is for dense ones."""
        data = decode(stored.data, self.precision.matrix, self.working)
        if self.scaling is not None:
            self.scaling.down(data)
        return SparseRows(stored.with_data(data), self._own_marks())

    def gather(  # type: ignore[override]
        self, matrix: Csr, rows: Array, out: Array | None
    ) -> SparseRows:
        """The sampled rows, widened."""
        return self.widen(self.pick(matrix, rows), out)

    def some_columns(self, rows: Any, part: slice) -> Any:
        """A copy of their values, sorted by column for the first who asks."""
        return SparseRows(rows.by_columns.tile(part), rows.marks)

    def scores(self, rows: SparseRows, weights: Array, out: Array) -> Array:  # type: ignore[override]
        """out ← Y W over stored values."""
        out[...] = times(rows.matrix, weights.astype(rows.dtype, copy=False))
        return out

    def strict_gram(self, rows: SparseRows, blocks: Blocks, out: Array) -> Array:  # type: ignore[override]
        """Packed G: shared columns by BLAS, the others by sparse products."""
        _, matrix = rows.compact
        counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
        heavy = counts > max(HEAVY * len(rows), 1.0)
        total = out if out.dtype == rows.dtype else np.empty(out.shape, rows.dtype)
        if heavy.any():
            panel, matrix = split(matrix, heavy)
            super().strict_gram(panel, blocks, total)
        else:
            total[...] = 0.0
        shared = counts[~heavy & (counts > 1)].astype(float)
        if len(shared):
            work = float(shared @ shared)
            _add_light(matrix, blocks, block_rows(total, blocks), work)
        if total is not out:
            out[...] = total
        return out

    def _add_gradient(self, weights: Array, rows: SparseRows, scaled: Array) -> None:  # type: ignore[override]
        touched, matrix = rows.compact
        weights[touched] += times(matrix.T, scaled.astype(rows.dtype, copy=False))

    def _own_marks(self) -> Marks:
        """Its own on every rank: threads share no scratch."""
        if not hasattr(self, "marks"):
            self.marks = Marks()
        return self.marks


def times(matrix: Any, right: Array) -> Array:
    """matrix @ right, (m, K); one column is faster as a vector."""
    if right.shape[1] == 1:
        one: Array = matrix @ right[:, 0]
        return one[:, None]
    many: Array = matrix @ right
    return many


def split(matrix: Any, heavy: Array) -> tuple[Array, Any]:
    """The heavy columns as a dense array, and the matrix of the light ones."""
    if heavy.all():
        return matrix.toarray(), _chosen(matrix, np.zeros_like(matrix.indices, bool))
    is_heavy = heavy[matrix.indices]
    panel, rest = _chosen(matrix, is_heavy), _chosen(matrix, ~is_heavy)
    # Heavy columns side by side; the light ones may keep their numbers.
    place = np.cumsum(heavy, dtype=np.int32) - np.int32(1)
    columns = Csr(panel.indptr, place[panel.indices], panel.data, int(place[-1]) + 1)
    return columns.to_scipy().toarray(), rest


def _chosen(matrix: Any, values: Array) -> Any:
    """The matrix with the chosen stored values alone."""
    before = np.concatenate([[0], np.cumsum(values)])
    indptr = before[matrix.indptr]
    parts = indptr, matrix.indices[values], matrix.data[values]
    return Csr(*parts, matrix.shape[1]).to_scipy()


def _add_light(matrix: Any, blocks: Blocks, panels: list[Array], work: float) -> None:
    """panels += the strictly-lower blocks of matrix · matrixᵀ."""

    def part(low: int, high: int, work: float) -> None:
        if high - low < 2:
            return
        middle = (low + high) // 2 if work > SPLIT_WORK else low
        first, cut, last = (blocks.starts[j] for j in (low, middle, high))
        # One square of all of them where they are few; else the second half against
        # the first, and each half alone.
        left = slice(first, cut) if middle > low else slice(first, last)
        square = (matrix[cut:last] @ matrix[left].T).toarray()
        for j in range(max(middle, 1), high):
            own = square[blocks.starts[j] - cut : blocks.starts[j + 1] - cut]
            stop = cut if middle > low else blocks.starts[j]
            panels[j - 1][:, first:stop] += own[:, : stop - first]
        if middle > low:
            part(low, middle, work / 4)
            part(middle, high, work / 4)

    part(0, len(blocks.sizes), work)
