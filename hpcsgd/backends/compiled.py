"""The compiled backend: C kernels that take sampled rows where they are stored.

NumPy does what the kernels do not cover (float64, other formats, few rows of several
columns), on a copy of the rows, which is made when it is first needed.
"""

from functools import cached_property
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import HostPlan, Rows, StepBatch, StepSequence
from hpcsgd.backends.compiled_calls import (
    FAMILIES,
    SOFTMAX,
    Call,
    CompiledRecurrence,
    CompiledSteps,
    CStruct,
    KernelScratch,
    PlainStepsPlan,
)
from hpcsgd.backends.numpy_rows import DenseRows, HostBackend
from hpcsgd.data.matrix import ByColumns, Csr
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family, kernel_setting
from hpcsgd.glm.unrolling import Blocks, PlainSteps
from hpcsgd.precision import Precision

MOST_STATES = 8
PAIRS_FROM = 48  # sampled rows from which turning them pays
DOTS_FROM = 256  # columns from which a dot product is worth its last addition
# Sampled rows and columns from which kernels multiply several columns of weights:
# below, turning the weights costs more than a copy of the rows.
MANY_ROWS = 128
MANY_COLUMNS = 1000
MOST_COLUMNS = 32  # from here on BLAS has enough to do with a copy of the rows
LEAST_ROWS = 16  # of a tile
FLOAT32, BF16 = "f", "H"  # letters of dtypes: asking for a name takes longer
DOTS_TO = {FLOAT32: 512, BF16: 64}  # rows from which BLAS on a copy is faster


class SampledRows:
    """Sampled rows of a dense matrix, taken where they are stored.

    Whether there is a copy changes no result: a run that is resumed may need one where
    the run before it did not.

    Parameters
    ----------
    matrix : ndarray of float32 or bf16 bits whose rows are contiguous
    numbers : ndarray of int64, of the sampled rows
    room : ndarray, where a copy goes
    backend : NativeBackend, makes the copy and keeps scratch of kernels
    """

    def __init__(
        self, matrix: Array, numbers: Array, room: Array, backend: "NativeBackend"
    ) -> None:
        self.matrix = matrix
        self.numbers = numbers
        self.room = room
        self.backend = backend
        self.is_copied = False
        self.whole: tuple[SampledRows, slice] | None = None  # rows, and columns of them

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice) -> "SampledRows":
        numbers = self.numbers[part]
        workspace = self.room[part]
        some = SampledRows(self.matrix, numbers, workspace, self.backend)
        some.is_copied = self.is_copied
        return some

    def part(self, columns: slice) -> "SampledRows":
        """Return the rows in `columns`, as they are stored.

        If a copy is needed, it is one of all columns.
        """
        matrix = self.matrix[:, columns]
        workspace = self.room[:, columns]
        some = SampledRows(matrix, self.numbers, workspace, self.backend)
        some.whole = self, columns
        return some

    def copy(self) -> DenseRows:
        """Return a widened copy of the rows, for NumPy; it is made only once."""
        if self.whole is not None:
            rows, columns = self.whole
            return rows.copy().part(columns)
        if not self.is_copied:
            HostBackend.gather(self.backend, self.matrix, self.numbers, self.room)
            self.is_copied = True
        return DenseRows(self.room)

    def dense(self) -> tuple[Array, Array | slice]:
        """Return the values of a copy of the rows, and a slice of all their columns."""
        return self.copy().dense()

    def first_not_finite(self) -> tuple[int, int] | None:
        """Return row and column of the first value that is not finite, or None."""
        return self.copy().first_not_finite()

    def margins(self, weights: Array, out: Array) -> None:
        """Compute out ← Y W for these rows Y."""
        kernel = self.product_kernel(weights, out)
        if kernel is None:
            self.copy().margins(weights, out)
        elif kernel == "column":
            compiled_calls.margins(self.matrix, self.numbers, weights, out)
        else:
            weights = np.ascontiguousarray(weights)
            tiles = self.backend.scratch if kernel == "tiles" else None
            compiled_calls.margins_columns(
                self.matrix, self.numbers, weights, out, tiles
            )

    def gram(self, blocks: Blocks, out: Array) -> None:
        """Compute the packed Gram of the rows.

        It consists of the strictly-lower blocks of Y Yᵀ. The rows are read where they
        are stored if a kernel for that is fast.
        """
        kernel = self.gram_kernel(out)
        if kernel is None:
            self.copy().gram(blocks, out)
            return
        starts = np.array(blocks.starts, dtype=np.int64)
        if kernel == "pairs":
            scratch = self.backend.scratch
            compiled_calls.strict_gram_pairs(
                self.matrix, self.numbers, starts, out, scratch
            )
        else:
            compiled_calls.strict_gram(self.matrix, self.numbers, starts, out)

    def add_transposed(self, scaled: Array, weights: Array) -> None:
        """Add Yᵀ scaled, for these rows Y, to the first columns of `weights`."""
        part = weights[:, : scaled.shape[1]]
        kernel = self.product_kernel(part, scaled)
        # Weights of one row have contiguous states, too: BLAS takes these as well.
        if kernel == "column" and part.shape == weights.shape:
            compiled_calls.update(self.matrix, self.numbers, scaled, part)
        elif kernel in ("columns", "tiles") and part.flags.c_contiguous:
            scaled = np.ascontiguousarray(scaled)
            tiles = self.backend.scratch if kernel == "tiles" else None
            compiled_calls.update_columns(
                self.matrix, self.numbers, scaled, part, tiles
            )
        else:
            self.copy().add_transposed(scaled, weights)

    def product_kernel(self, weights: Array, other: Array) -> str | None:
        """Return the name of the kernel that multiplies rows with these weights.

        It is "column", "columns" or "tiles". It is None where BLAS on a copy is faster,
        where `weights` or `other`, an array with a row for each sampled row, is not
        float32, or where a single column of weights is not contiguous.
        """
        if not weights.dtype.char == other.dtype.char == FLOAT32:
            return None
        K = weights.shape[1]
        if K == 1:
            return "column" if weights.flags.c_contiguous else None
        m = len(self.numbers)
        width = self.matrix.shape[1]
        if K > MOST_COLUMNS:
            is_bf16 = self.matrix.dtype.char == BF16
            fits = is_bf16 and m >= LEAST_ROWS and compiled_calls.has_tiles()
            return "tiles" if fits else None
        # Where the Gram needs a copy, BLAS has it already.
        pays = m >= MANY_ROWS and width >= MANY_COLUMNS and self.gram_kernel(other)
        return "columns" if pays else None

    def gram_kernel(self, out: Array) -> str | None:
        """Return the name of the Gram kernel, the fastest in benchmarks/bench_cpu.py.

        It is "pairs" or "dots"; None where BLAS on a copy was the fastest, or if `out`
        is not float32.
        """
        if out.dtype.char != FLOAT32:
            return None
        m = len(self.numbers)
        width = self.matrix.shape[1]
        stored = self.matrix.dtype.char
        if stored == BF16 and m >= PAIRS_FROM and compiled_calls.has_pairs():
            return "pairs"
        fits = width >= DOTS_FROM and m <= DOTS_TO[stored]
        return "dots" if fits and compiled_calls.instructions() != "portable" else None

    def steps_kernel(self, name: str, family: str) -> Call | None:
        """Return the compiled kernel `name` of plain steps for a loss family."""
        name = f"{name}_softmax" if family == SOFTMAX else name
        return compiled_calls.kernel(name, self.matrix)

    def place(self) -> tuple[Array, int, Array, int]:
        """Return the matrix, its row stride, the row numbers and the column count."""
        stride = compiled_calls.stride_of(self.matrix)
        return self.matrix, stride, self.numbers, self.matrix.shape[1]


class SampledCsrRows:
    """Sampled CSR rows, taken where they are stored.

    Kernels take any number of columns of weights.

    Parameters
    ----------
    stored : Csr of float32 or bf16 bits
    numbers : ndarray of int64, of the sampled rows
    backend : NativeBackend, makes a copy and keeps scratch of kernels
    """

    def __init__(self, stored: Csr, numbers: Array, backend: "NativeBackend") -> None:
        self.stored = stored
        self.numbers = numbers
        self.backend = backend

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, part: slice) -> "SampledCsrRows":
        return SampledCsrRows(self.stored, self.numbers[part], self.backend)

    @cached_property
    def widened(self) -> Rows:
        """Return a copy of the rows, widened to the working format, for SciPy."""
        taken = self.stored.take(self.numbers)
        return HostBackend.widen(self.backend, taken)

    @cached_property
    def by_columns(self) -> ByColumns:
        """Return a copy of the stored rows, sorted by column, for tiles of columns."""
        return ByColumns(self.stored.take(self.numbers))

    def part(self, columns: slice) -> Rows:
        """Return the rows in `columns`, as a copy that compiled kernels accept."""
        return self.backend.widen(self.by_columns.tile(columns))

    def dense(self) -> tuple[Array, Array | slice]:
        """Return a dense copy of the columns that have values, and their numbers."""
        return self.widened.dense()

    def first_not_finite(self) -> tuple[int, int] | None:
        """Return row and column of the first stored value not finite, or None."""
        return self.widened.first_not_finite()

    def margins(self, weights: Array, out: Array) -> None:
        """Compute out ← Y W for these rows Y, over stored values."""
        if _is_narrow(weights, out):
            compiled_calls.csr_margins(self.stored, self.numbers, weights, out)
        else:
            self.widened.margins(weights, out)

    def gram(self, blocks: Blocks, out: Array) -> None:
        """Compute the packed Gram of the rows, from the columns that rows share.

        It consists of the strictly-lower blocks of Y Yᵀ.
        """
        if out.dtype != np.float32:
            self.widened.gram(blocks, out)
            return
        starts = np.array(blocks.starts, dtype=np.int64)
        scratch = self.backend.scratch
        compiled_calls.csr_strict_gram(self.stored, self.numbers, starts, out, scratch)

    def add_transposed(self, scaled: Array, weights: Array) -> None:
        """Add Yᵀ scaled to the first columns of `weights`, over stored values."""
        part = weights[:, : scaled.shape[1]]
        scaled = np.ascontiguousarray(scaled, dtype=np.float32)
        if _is_narrow(part):
            compiled_calls.csr_update(self.stored, self.numbers, scaled, part)
        else:
            self.widened.add_transposed(scaled, weights)

    def steps_kernel(self, name: str, family: str) -> Call | None:
        """Return the kernel `name` of plain steps for a family on CSR rows, or None.

        Only "walk", which takes all steps in one call, has one, for families with one
        score a row.
        """
        if name != "walk" or family == SOFTMAX:
            return None
        return compiled_calls.csr_kernel("walk_csr", self.stored)

    def place(self) -> tuple[Array, int, Array, int]:
        """Return the arguments of kernels: CSR arrays, 0, row numbers, column count.

        The CSR arrays are given by an array of their addresses; the 0 is in the place
        of a row stride.
        """
        csr = self.stored
        parts = CStruct((), None, (csr.indptr, csr.indices, csr.data))
        return parts.words, 0, self.numbers, csr.width


class NativeBackend(HostBackend):
    """The NumPy backend, with compiled kernels where they are faster."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(precision)
        narrow = np.dtype(np.float32)
        self._has_rows = precision.working == narrow and self.weights == narrow
        self._rounds_margins = precision.margin == "bf16"
        self.scratch = KernelScratch()
        self._last_plan: tuple[PlainSteps, Family, PlainStepsPlan] | None = None

    def gather(self, matrix: Array, rows: Array, out: Array | None) -> Rows:
        """Return the sampled rows without a copy, as they are stored.

        `out` is the memory for a copy that may be made later. Rows that kernels do not
        take are copied at once, as by `HostBackend`.
        """
        if not self._takes(matrix.dtype) or matrix.strides[1] != matrix.itemsize:
            return super().gather(matrix, rows, out)
        if out is None:
            out = np.empty((len(rows), matrix.shape[1]), self.working)
        numbers = np.ascontiguousarray(rows, dtype=np.int64)
        return SampledRows(matrix, numbers, out, self)

    def gather_sparse(self, matrix: Csr, rows: Array) -> Rows:
        """Return the sampled sparse rows without a copy, as they are stored.

        Rows that kernels do not take are copied at once, as by `HostBackend`.
        """
        if not self._takes(matrix.dtype):
            return super().gather_sparse(matrix, rows)
        numbers = np.ascontiguousarray(rows, dtype=np.int64)
        return SampledCsrRows(matrix, numbers, self)

    def widen(self, stored: Csr) -> Rows:
        """Return all rows of `stored` without a copy, as they are stored.

        Rows that kernels do not take are copied at once, as by `HostBackend`.
        """
        if not self._takes(stored.dtype):
            return super().widen(stored)
        return SampledCsrRows(stored, np.arange(len(stored), dtype=np.int64), self)

    def _takes(self, stored: np.dtype[Any]) -> bool:
        """Return whether kernels take values of this dtype where they are stored."""
        return self._has_rows and stored.char in compiled_calls.MATRICES

    def corrected_residuals(
        self,
        margins: Array,
        gram: Array,
        plan: HostPlan,
        family: Family,
        batch: StepBatch,
        intercept: Array | None,
    ) -> Array:
        """Return the residuals (m, K) of all s steps, by one kernel if there is one."""
        kernel = self._recurrence_kernel(margins, gram, plan, family, batch)
        if kernel is None:
            return super().corrected_residuals(
                margins, gram, plan, family, batch, intercept
            )
        key = family.name, kernel_setting(family, self.inner)
        if key not in plan.recurrences:
            recurrence = CompiledRecurrence(kernel, plan, family, self.inner)
            plan.recurrences[key] = recurrence
        return plan.recurrences[key](margins, gram, batch, intercept)

    def _recurrence_kernel(
        self,
        margins: Array,
        gram: Array,
        plan: HostPlan,
        family: Family,
        batch: StepBatch,
    ) -> str | None:
        """Return the name of the kernel for this recurrence of s steps.

        None: no kernel takes the arguments, and NumPy computes the recurrence.
        """
        # The margins of a plain step may be those of one point, not of all states.
        fits = batch.anchors is None and len(plan.lead) == plan.states <= MOST_STATES
        if not fits or not margins.dtype == gram.dtype == self.inner:
            return None
        if plan.by_column:
            return "recur_many" if family.name in FAMILIES else None
        if family.name == SOFTMAX:
            return "recur_softmax"
        is_one = margins.shape[1] == plan.states and family.name in FAMILIES
        return "recur" if is_one else None

    def apply_update(
        self, weights: Array, rows: Rows, residuals: Array, plan: HostPlan
    ) -> None:
        """Apply weights ← Φ weights + Σ_i gain_i Y_iᵀ r_i, in place."""
        if plan.by_column and isinstance(rows, SampledRows):
            # A sweep of a single model adds in the order of BLAS, as wider ones do.
            rows = rows.copy() if weights.shape[1] == 1 else rows
        super().apply_update(weights, rows, residuals, plan)

    def fused_steps(self, weights: Array, plain: StepSequence) -> Array | None:
        """Take all steps in one call of a kernel, and return their residuals (m, K).

        The weights advance in place. Return None, without a step, if no kernel takes
        the steps.
        """
        rows = plain.rows
        if isinstance(rows, DenseRows):  # a copy is as good as rows in their place
            numbers = np.arange(len(rows))
            rows = SampledRows(rows.values, numbers, rows.values, self)
        steps = self._compiled_steps("walk", rows, weights, plain)
        if steps is None:
            return None
        steps()
        return steps.residuals

    def pipelined_steps(
        self, weights: Array, plain: StepSequence
    ) -> tuple[CompiledSteps, Array] | None:
        """Return the steps as a function, and the residuals (m, K) that it fills.

        Members sum margins between its calls. Return None if no kernel takes the steps.
        """
        steps = self._compiled_steps("between", plain.rows, weights, plain)
        return None if steps is None else (steps, steps.residuals)

    def _compiled_steps(
        self, name: str, rows: Rows, weights: Array, plain: StepSequence
    ) -> CompiledSteps | None:
        """Return the steps `plain` as a call of kernel `name` on `rows`.

        None: the kernel does not take these rows, formats or loss.
        """
        family = plain.family.name
        states = plain.steps.states
        narrow = {self.inner, self.weights, weights.dtype} == {np.dtype(np.float32)}
        fits = narrow and states <= MOST_STATES and weights.flags.c_contiguous
        is_one = family in FAMILIES and weights.shape[1] == states
        if not (fits and (is_one or family == SOFTMAX)):
            return None
        if not isinstance(rows, SampledRows | SampledCsrRows):
            return None
        kernel = rows.steps_kernel(name, family)
        if kernel is None:
            return None
        steps = self._steps_plan(plain, weights)
        return CompiledSteps(kernel, steps, rows.place(), weights, plain)

    def _steps_plan(self, plain: StepSequence, weights: Array) -> PlainStepsPlan:
        """Return the coefficients of `plain` for a kernel, cached until they change."""
        steps = plain.steps
        family = plain.family
        last_plan = self._last_plan
        if last_plan is None or last_plan[0] is not steps or last_plan[1] is not family:
            plan = PlainStepsPlan(plain, weights.shape[1], self._rounds_margins)
            last_plan = self._last_plan = (steps, family, plan)
        return last_plan[2]


def _is_narrow(*arrays: Array) -> bool:
    """Return whether all arrays are contiguous float32."""
    return all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)
