"""The compiled backend for CSR rows: kernels that take them where they are stored.

What the kernels do not cover (float64) is done as `SparseHostBackend` does it.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import csr_kernels
from hpcsgd.backends.base import Plain
from hpcsgd.backends.host import HostBackend
from hpcsgd.backends.host_plan import HostPlan
from hpcsgd.backends.native import NativeBackend
from hpcsgd.backends.sparse import SparseHostBackend, SparseRows
from hpcsgd.csr import Csr
from hpcsgd.csr_columns import ByColumns
from hpcsgd.precision import Precision
from hpcsgd.schedule import Blocks

Array = NDArray[Any]


class SampledCsr:
    """Sampled rows by their numbers; `widened` is a copy, made when asked for."""

    def __init__(self, backend: SparseHostBackend, stored: Csr, rows: Array) -> None:
        self.backend = backend
        self.stored = stored
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> "SampledCsr":
        return SampledCsr(self.backend, self.stored, self.rows[part])

    @cached_property
    def widened(self) -> SparseRows:
        """As the backend of SciPy takes them."""
        taken = self.stored.take(self.rows)
        return SparseHostBackend.widen(self.backend, taken, None)

    @cached_property
    def by_columns(self) -> ByColumns:
        """A copy as it is stored, for tiles of columns."""
        return ByColumns(self.stored.take(self.rows))

    @property
    def csr(self) -> Csr:
        """The copy, as `SparseRows` has it."""
        return self.widened.csr


class NativeSparseBackend(SparseHostBackend, NativeBackend):
    """Kernels for scores, gradients and the Gram, any number of columns of weights."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(precision)
        self._gram_room = csr_kernels.GramRoom()

    def gather(  # type: ignore[override]
        self, matrix: Csr, rows: Array, out: Array | None
    ) -> Any:
        """The rows where they are stored."""
        if not self._is_for_kernels(matrix):
            return super().widen(self.pick(matrix, rows), out)
        return SampledCsr(self, matrix, np.ascontiguousarray(rows, dtype=np.int64))

    def widen(self, stored: Csr, out: Array | None) -> Any:  # type: ignore[override]
        """All of the rows, where they are stored."""
        if not self._is_for_kernels(stored):
            return super().widen(stored, out)
        return SampledCsr(self, stored, np.arange(len(stored), dtype=np.int64))

    def some_columns(self, rows: Any, part: slice) -> Any:
        """A copy of their values, which kernels take, too."""
        if not isinstance(rows, SampledCsr):
            return super().some_columns(rows, part)
        return self.widen(rows.by_columns.tile(part), None)

    def scores(self, rows: Any, weights: Array, out: Array) -> Array:
        """out ← Y W over stored values."""
        if not isinstance(rows, SampledCsr):
            return super().scores(rows, weights, out)
        if not _is_narrow(weights, out):
            return super().scores(rows.widened, weights, out)
        csr_kernels.margins(rows.stored, rows.rows, weights, out)
        return out

    def strict_gram(self, rows: Any, blocks: Blocks, out: Array) -> Array:
        """Packed G, from the columns that sampled rows share."""
        if not isinstance(rows, SampledCsr):
            return super().strict_gram(rows, blocks, out)
        if out.dtype != np.float32:
            return super().strict_gram(rows.widened, blocks, out)
        starts = np.array(blocks.starts, dtype=np.int64)
        csr_kernels.strict_gram(rows.stored, rows.rows, starts, out, self._gram_room)
        return out

    def descend(
        self, weights: Array, rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """One pass over stored values for every state and all s steps."""
        HostBackend.descend(self, weights, rows, residuals, plan)

    def _add_gradient(self, weights: Array, rows: Any, scaled: Array) -> None:
        if not isinstance(rows, SampledCsr):
            super()._add_gradient(weights, rows, scaled)
            return
        scaled = np.ascontiguousarray(scaled, dtype=np.float32)
        if _is_narrow(weights):
            csr_kernels.update(rows.stored, rows.rows, scaled, weights)
        else:
            super()._add_gradient(weights, rows.widened, scaled)

    def walk(self, weights: Array, plain: Plain) -> Array | None:
        """All steps in one call, with their residuals; None where SciPy has to."""
        rows = plain.rows
        if not isinstance(rows, SampledCsr) or not self._walks(weights, plain):
            return None
        go = self._walk(plain, weights)
        return csr_kernels.walk(go, rows.stored, rows.rows, weights, plain)

    def _is_for_kernels(self, stored: Csr) -> bool:
        return self._has_rows and stored.dtype.name in csr_kernels.VALUES


def _is_narrow(*arrays: Array) -> bool:
    """True for contiguous float32."""
    return all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)
