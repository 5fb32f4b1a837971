"""The compiled backend: C kernels for dense and sparse rows."""

from functools import cached_property
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import HostPlan, StepBatch, StepSequence
from hpcsgd.backends.compiled_calls import (
    FAMILIES,
    SOFTMAX,
    CompiledRecurrence,
    CompiledSteps,
    CStruct,
    KernelScratch,
    PlainStepsPlan,
)
from hpcsgd.backends.numpy_rows import (
    HostBackend,
    ManyPlan,
    SparseHostBackend,
    SparseRows,
)
from hpcsgd.data.sparse import ByColumns, Csr
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family
from hpcsgd.glm.unrolling import Blocks, PlainSteps
from hpcsgd.precision import Precision

# Sampled rows that are taken where they lie.


class Sampled:
    """Sampled rows by their numbers, with room for a copy where one is asked for."""

    def __init__(self, matrix: Array, rows: Array, room: Array) -> None:
        self.matrix = matrix
        self.rows = rows
        self.room = room
        self.is_copied = False
        self.whole: tuple[Sampled, slice] | None = None  # some columns of those rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> "Sampled":
        some = Sampled(self.matrix, self.rows[part], self.room[part])
        some.is_copied = self.is_copied
        return some


# The compiled backend: kernels that take the sampled rows where they lie.
#
# What the kernels do not cover (several columns of weights, other formats) is done by
# NumPy on a copy of the rows, which is made when it is first needed.

MOST_STATES = 8
PAIRS_FROM = 48  # sampled rows from which turning them pays
DOTS_FROM = 256  # columns from which a dot product is worth its last addition
# Sampled rows and columns from which kernels multiply several columns of weights:
# below, turning the weights costs more than a copy of the rows.
MANY_ROWS, MANY_COLUMNS = 128, 1000
MOST_COLUMNS = 32  # from here on BLAS has enough to do with a copy of the rows
LEAST_ROWS = 16  # of a tile
DOTS_TO = {"float32": 512, "uint16": 64}  # rows from which BLAS on a copy is faster


class NativeBackend(HostBackend):
    """The NumPy backend with the kernels in place of what they are faster at."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(precision)
        narrow = np.dtype(np.float32)
        self._has_rows = precision.working == narrow and self.weights == narrow
        self._rounds_margins = precision.margin == "bf16"
        self._scratch = KernelScratch()
        self._last_walk: tuple[PlainSteps, str, PlainStepsPlan] | None = None

    def for_sparse(self) -> HostBackend:
        """The same precision for rows held as CSR."""

        return self._like(NativeSparseBackend(self.precision))

    def gather(self, matrix: Array, rows: Array, out: Array) -> Any:
        """The rows where they lie; `out` is room for a copy."""
        lies_flat = matrix.strides[1] == matrix.itemsize
        if (
            not self._has_rows
            or not lies_flat
            or matrix.dtype.char not in compiled_calls.MATRICES
        ):
            return super().gather(matrix, rows, out)
        return Sampled(matrix, np.ascontiguousarray(rows, dtype=np.int64), out)

    def some_columns(self, rows: Any, part: slice) -> Any:
        """Where they lie; a copy is one of all columns."""
        if not isinstance(rows, Sampled):
            return super().some_columns(rows, part)
        some = Sampled(rows.matrix[:, part], rows.rows, rows.room[:, part])
        some.whole = rows, part
        return some

    def round(self, values: Array, name: str) -> None:
        """By the kernel where it has the format."""
        has = name == "bf16" and values.dtype == np.float32
        if has and values.flags.c_contiguous and compiled_calls.available():
            compiled_calls.round_bf16(values)
        else:
            super().round(values, name)

    def scores(self, rows: Any, weights: Array, out: Array) -> Array:
        """out ← Y W, without a copy of Y for one column.

        Whether there is a copy changes nothing: a run that goes on where another
        broke off may need one where that one did not.
        """
        if self._takes_tiles(rows, weights, out):
            compiled_calls.margins_tiles(
                rows.matrix, rows.rows, _packed(weights), out, self._scratch
            )
            return out
        if self._takes_columns(rows, weights, out):
            compiled_calls.margins_columns(
                rows.matrix, rows.rows, _packed(weights), out
            )
            return out
        if not isinstance(rows, Sampled) or not _is_one(weights, out):
            return super().scores(self._copy(rows), weights, out)
        compiled_calls.margins(rows.matrix, rows.rows, weights, out)
        return out

    def strict_gram(self, rows: Any, blocks: Blocks, out: Array) -> Array:
        """Packed G straight from the rows, where that is what this processor is for."""
        way = self._way_to_gram(rows, out)
        if way == "numpy":
            return super().strict_gram(self._copy(rows), blocks, out)
        starts = np.array(blocks.starts, dtype=np.int64)
        if way == "pairs":
            compiled_calls.strict_gram_pairs(
                rows.matrix, rows.rows, starts, out, self._scratch
            )
        else:
            compiled_calls.strict_gram(rows.matrix, rows.rows, starts, out)
        return out

    def corrected_residuals(
        self,
        margins: Array,
        gram: Array,
        plan: HostPlan,
        family: Family,
        batch: StepBatch,
        intercept: Array | None,
    ) -> Array:
        """All s steps in one call, for families with one score a row."""
        kernel = self._recurrence_kernel(margins, gram, plan, family, batch)
        if kernel is None:
            return super().corrected_residuals(
                margins, gram, plan, family, batch, intercept
            )
        if family.name not in plan.recurrences:
            recurrence = CompiledRecurrence(kernel, plan, family, self.inner)
            plan.recurrences[family.name] = recurrence
        return plan.recurrences[family.name](margins, gram, batch, intercept)

    def _recurrence_kernel(
        self,
        margins: Array,
        gram: Array,
        plan: HostPlan,
        family: Family,
        batch: StepBatch,
    ) -> str | None:
        """Name the kernel of all s steps; None where NumPy takes them."""
        # Scores of one step may come as they are read, not state by state.
        fits = batch.anchors is None and len(plan.lead) == plan.states <= MOST_STATES
        if not fits or not margins.dtype == gram.dtype == self.inner:
            return None
        if isinstance(plan, ManyPlan):
            return "recur_many" if family.name in FAMILIES else None
        if family.name == SOFTMAX:
            return "recur_softmax"
        is_one = margins.shape[1] == plan.states and family.name in FAMILIES
        return "recur" if is_one else None

    def apply_update(
        self, weights: Array, rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """One pass over the rows where they lie, where `_takes_columns` for several."""
        is_column = weights.shape[1] == 1 and weights.flags.c_contiguous
        is_column &= not isinstance(plan, ManyPlan)
        if not isinstance(rows, Sampled) or not is_column:
            super().apply_update(weights, rows, residuals, plan)
            return
        scaled = (residuals * plan.gain[0]).astype(np.float32, copy=False)
        carry = float(plan.carry[0, 0])
        if carry != 1.0:
            weights *= carry
        compiled_calls.update(rows.matrix, rows.rows, scaled, weights)

    def fused_steps(self, weights: Array, plain: StepSequence) -> Array | None:
        """All steps in one call, with their residuals; None where NumPy has to."""
        rows = plain.rows
        matrix = rows.matrix if isinstance(rows, Sampled) else rows
        numbers = rows.rows if isinstance(rows, Sampled) else np.arange(len(rows))
        if not self._walks_dense(matrix, weights, plain):
            return None
        steps = self._steps("walk", matrix, numbers, weights, plain)
        steps()
        return steps.residuals

    def pipelined_steps(
        self, weights: Array, plain: StepSequence
    ) -> tuple[CompiledSteps, Array] | None:
        """The same for steps that sums over members part; None where NumPy has to."""
        rows = plain.rows
        if not isinstance(rows, Sampled):
            return None
        if not self._walks_dense(rows.matrix, weights, plain):
            return None
        steps = self._steps("between", rows.matrix, rows.rows, weights, plain)
        return steps, steps.residuals

    def _steps(
        self,
        kernel: str,
        matrix: Array,
        numbers: Array,
        weights: Array,
        plain: StepSequence,
    ) -> CompiledSteps:
        """Plain steps by the kernel of this name, on rows of a dense matrix."""
        if plain.family.name == SOFTMAX:
            kernel = f"{kernel}_softmax"
        place = (matrix, compiled_calls.stride_of(matrix), numbers, matrix.shape[1])
        return CompiledSteps(
            compiled_calls.kernel(kernel, matrix),
            self._walk(plain, weights),
            place,
            weights,
            plain,
        )

    def _walk(self, plain: StepSequence, weights: Array) -> PlainStepsPlan:
        """The coefficients as the kernel wants them; the last ones are remembered."""
        steps, family, known = plain.steps, plain.family, self._last_walk
        if known is None or known[0] is not steps or known[1] != family.name:
            go = PlainStepsPlan(plain, weights.shape[1], self._rounds_margins)
            known = self._last_walk = (steps, family.name, go)
        return known[2]

    def _add_gradient(self, weights: Array, rows: Any, scaled: Array) -> None:
        flat = weights.flags.c_contiguous
        if flat and self._takes_tiles(rows, weights, scaled):
            compiled_calls.update_tiles(
                rows.matrix, rows.rows, _packed(scaled), weights, self._scratch
            )
        elif flat and self._takes_columns(rows, weights, scaled):
            compiled_calls.update_columns(
                rows.matrix, rows.rows, _packed(scaled), weights
            )
        else:
            super()._add_gradient(weights, self._copy(rows), scaled)

    def _takes_tiles(self, rows: Any, weights: Array, other: Array) -> bool:
        """True for so many columns that tiles beat BLAS on a copy."""
        if not isinstance(rows, Sampled) or weights.shape[1] <= MOST_COLUMNS:
            return False
        is_narrow = weights.dtype == other.dtype == np.float32
        fits = rows.matrix.dtype == np.uint16 and len(rows) >= LEAST_ROWS
        return is_narrow and fits and compiled_calls.has_tiles()

    def _takes_columns(self, rows: Any, weights: Array, other: Array) -> bool:
        """True for several columns, where no copy is made for the Gram and it pays."""
        if not isinstance(rows, Sampled) or not 1 < weights.shape[1] <= MOST_COLUMNS:
            return False
        m, width = len(rows), rows.matrix.shape[1]
        is_narrow = weights.dtype == other.dtype == np.float32
        pays = m >= MANY_ROWS and width >= MANY_COLUMNS
        return is_narrow and pays and self._way_to_gram(rows, other) != "numpy"

    def _walks(self, weights: Array, plain: StepSequence) -> bool:
        """True for one score a row."""
        fits = self._fits(weights, plain) and plain.family.name in FAMILIES
        return fits and weights.shape[1] == plain.steps.states

    def _walks_dense(self, matrix: Array, weights: Array, plain: StepSequence) -> bool:
        """True for K scores a row too, where the rows are dense."""
        is_softmax = plain.family.name == SOFTMAX and self._fits(weights, plain)
        fits = is_softmax or self._walks(weights, plain)
        return fits and matrix.dtype.char in compiled_calls.MATRICES

    def _fits(self, weights: Array, plain: StepSequence) -> bool:
        narrow = {np.dtype(np.float32)}
        fits = {self.inner, self.weights, weights.dtype} == narrow
        few = plain.steps.states <= MOST_STATES
        return fits and few and weights.flags.c_contiguous

    def _copy(self, rows: Any) -> Any:
        """The rows as NumPy takes them, copied once."""
        if not isinstance(rows, Sampled):
            return rows
        if rows.whole is not None:
            rows, part = rows.whole
            return self._copy(rows)[:, part]
        if not rows.is_copied:
            super().gather(rows.matrix, rows.rows, rows.room)
            rows.is_copied = True
        return rows.room

    def _way_to_gram(self, rows: Any, out: Array) -> str:
        """What was fastest by benchmarks/bench_cpu.py: pairs, dots or numpy."""
        if not isinstance(rows, Sampled) or out.dtype != np.float32:
            return "numpy"
        m, width = len(rows), rows.matrix.shape[1]
        if (
            rows.matrix.dtype == np.uint16
            and m >= PAIRS_FROM
            and compiled_calls.has_pairs()
        ):
            return "pairs"
        fits = width >= DOTS_FROM and m <= DOTS_TO[rows.matrix.dtype.name]
        return (
            "dots" if fits and compiled_calls.instructions() != "portable" else "numpy"
        )


def _packed(values: Array) -> Array:
    """Row behind row."""
    return np.ascontiguousarray(values)


def _is_one(weights: Array, out: Array) -> bool:
    """True for one contiguous column of float32, from which scores of float32 come."""
    narrow = weights.dtype == out.dtype == np.float32
    return narrow and weights.shape[1] == 1 and weights.flags.c_contiguous


# The compiled backend for CSR rows: kernels that take them where they are stored.
#
# What the kernels do not cover (float64) is done as `SparseHostBackend` does it.


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
        compiled_calls.csr_margins(rows.stored, rows.rows, weights, out)
        return out

    def strict_gram(self, rows: Any, blocks: Blocks, out: Array) -> Array:
        """Packed G, from the columns that sampled rows share."""
        if not isinstance(rows, SampledCsr):
            return super().strict_gram(rows, blocks, out)
        if out.dtype != np.float32:
            return super().strict_gram(rows.widened, blocks, out)
        starts = np.array(blocks.starts, dtype=np.int64)
        compiled_calls.csr_strict_gram(
            rows.stored, rows.rows, starts, out, self._scratch
        )
        return out

    def apply_update(
        self, weights: Array, rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """One pass over stored values for every state and all s steps."""
        HostBackend.apply_update(self, weights, rows, residuals, plan)

    def _add_gradient(self, weights: Array, rows: Any, scaled: Array) -> None:
        if not isinstance(rows, SampledCsr):
            super()._add_gradient(weights, rows, scaled)
            return
        scaled = np.ascontiguousarray(scaled, dtype=np.float32)
        if _is_narrow(weights):
            compiled_calls.csr_update(rows.stored, rows.rows, scaled, weights)
        else:
            super()._add_gradient(weights, rows.widened, scaled)

    def fused_steps(self, weights: Array, plain: StepSequence) -> Array | None:
        """All steps in one call, with their residuals; None where SciPy has to."""
        rows = plain.rows
        if not isinstance(rows, SampledCsr) or not self._walks(weights, plain):
            return None
        csr = rows.stored
        stored = CStruct((), None, (csr.indptr, csr.indices, csr.data))
        place = (stored.words, 0, rows.rows, csr.width)
        kernel = compiled_calls.csr_kernel("walk_csr", csr)
        coefficients = self._walk(plain, weights)
        steps = CompiledSteps(kernel, coefficients, place, weights, plain)
        steps()
        return steps.residuals

    def _is_for_kernels(self, stored: Csr) -> bool:
        return self._has_rows and stored.data.dtype.char in compiled_calls.MATRICES


def _is_narrow(*arrays: Array) -> bool:
    """True for contiguous float32."""
    return all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)
