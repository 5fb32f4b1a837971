"""The compiled backend: C kernels for dense and sparse rows."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls, many_models
from hpcsgd.backends.base import HostPlan, StepBatch, StepSequence
from hpcsgd.backends.compiled_calls import (
    FAMILIES,
    REALS,
    SOFTMAX,
    Between,
    Call,
    PlainStepsPlan,
    RecurrencePlan,
    door_to,
    for_family,
)
from hpcsgd.backends.many_models import LEAST_ROWS, NativeManyPlan, TileProducts
from hpcsgd.backends.numpy_rows import (
    HostBackend,
    ManyPlan,
    SparseHostBackend,
    SparseRows,
)
from hpcsgd.data.sparse import ByColumns, Csr
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family, exp_bound
from hpcsgd.glm.unrolling import Blocks, PlainSteps, UnrolledSteps
from hpcsgd.precision import Precision

# The coefficients of an exchange as NumPy takes them, and as the kernels do.


@dataclass(frozen=True)
class NativePlan(HostPlan):
    """Coefficients as NumPy takes them, and as the kernels do."""

    kept: dict[str, compiled_calls.RecurrencePlan] = field(default_factory=dict)

    @cached_property
    def starts(self) -> Array:
        """Where each batch begins, for the kernels."""
        return np.array(self.blocks.starts, dtype=np.int64)

    @cached_property
    def coefficients(self) -> compiled_calls.RecurrencePlan:
        """What no family changes."""
        return compiled_calls.RecurrencePlan(self.unrolled, self.starts, 0, 0.0)

    def recurrence(self, family: Family, dtype: Any) -> compiled_calls.RecurrencePlan:
        """Made for the first exchange of this plan, used by all."""
        found = self.kept.get(family.name)
        if found is None:
            own = numbered(family, dtype)
            found = compiled_calls.RecurrencePlan(self.unrolled, self.starts, *own)
            self.kept[family.name] = found
        return found


def numbered(family: Family, dtype: Any) -> tuple[int, float]:
    """The number of a family in the kernels, and the setting that it has."""
    setting = getattr(family, "delta", exp_bound(dtype))
    return FAMILIES.index(family.name), float(setting)


# The compiled recurrence of softmax: K scores a row.


def recur_softmax(
    coefficients: RecurrencePlan,
    margins: Array,
    gram: Array,
    batch: StepBatch,
    intercept: Array | None,
    states: int,
) -> Array:
    """Residuals (m, K) of all steps; the intercept advances in place."""
    m, classes = len(margins), margins.shape[1] // states
    residuals: Array = np.empty((m, classes), dtype=margins.dtype)
    scratch = np.empty_like(residuals)
    sides = (batch.weights, batch.offsets, intercept)
    function = _functions(compiled_calls.best()[0])[REALS[margins.dtype.char]]
    function(
        *(coefficients.pointer, classes, margins, gram, batch.targets),
        *(*sides, residuals, scratch),
    )
    return residuals


@lru_cache(maxsize=1)
def _functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by the kind of real."""
    return {
        kind: door_to(library, f"hpcsgd_recur_softmax{kind}") for kind in REALS.values()
    }


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
DOTS_TO = {"float32": 512, "uint16": 64}  # rows from which BLAS on a copy is faster


class NativeBackend(HostBackend):
    """The NumPy backend with the kernels in place of what they are faster at."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(precision)
        narrow = np.dtype(np.float32)
        self._has_rows = precision.working == narrow and self.weights == narrow
        self._rounds_margins = precision.margin == "bf16"
        self._tiles = TileProducts()
        self._pair_room: compiled_calls.PairRoom | None = None
        self._last_walk: tuple[PlainSteps, str, PlainStepsPlan] | None = None

    def prepare(self, unrolled: UnrolledSteps, blocks: Blocks) -> HostPlan:
        """The same plan, with a place for what the kernels want."""
        plan = super().prepare(unrolled, blocks)
        kind = NativeManyPlan if isinstance(plan, ManyPlan) else NativePlan
        return kind(**vars(plan))

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
            self._tiles.margins(rows.matrix, rows.rows, _packed(weights), out)
            return out
        if self._takes_columns(rows, weights, out):
            many_models.margins(rows.matrix, rows.rows, _packed(weights), out)
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
            room = self._room(blocks)
            compiled_calls.strict_gram_pairs(rows.matrix, rows.rows, starts, out, room)
        else:
            compiled_calls.strict_gram(rows.matrix, rows.rows, starts, out)
        return out

    def corrected_residuals(
        self,
        margins: Array,
        gram: Array,
        plan: Any,
        family: Family,
        batch: StepBatch,
        intercept: Array | None,
    ) -> Array:
        """All s steps in one call, for families with one score a row."""
        plain = batch.anchors is None
        if isinstance(plan, NativeManyPlan):
            fits = plain and self._fits_many(margins, gram, plan)
            if fits and family.name in FAMILIES:
                number, setting = numbered(family, self.inner)
                recur = plan.recurrence(number, setting, self.inner)
                found: Array = recur(margins, gram, batch, intercept)
                return found
        elif plain and self._is_softmax(margins, gram, plan, family):
            given = (margins, gram, batch, intercept, plan.states)
            return recur_softmax(plan.coefficients, *given)
        if not (plain and self._is_for_steps(margins, gram, plan, family)):
            return super().corrected_residuals(
                margins, gram, plan, family, batch, intercept
            )
        residuals = np.empty((len(margins), 1), dtype=self.inner)
        by = plan.recurrence(family, self.inner)
        by(margins, gram, batch, intercept, residuals, np.empty_like(residuals))
        return residuals

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
        by = compiled_calls.kernel(for_family("hpcsgd_walk", plain), matrix)
        place = (matrix, compiled_calls.stride_of(matrix), numbers, matrix.shape[1])
        return self._walk(plain, weights).all_at_once(by, place, weights, plain)

    def pipelined_steps(
        self, weights: Array, plain: StepSequence
    ) -> tuple[Between, Array] | None:
        """The same for steps that sums over members part; None where NumPy has to."""
        rows = plain.rows
        if not isinstance(rows, Sampled):
            return None
        matrix = rows.matrix
        if not self._walks_dense(matrix, weights, plain):
            return None
        by = compiled_calls.kernel(for_family("hpcsgd_between", plain), matrix)
        place = (matrix, compiled_calls.stride_of(matrix), rows.rows, matrix.shape[1])
        return self._walk(plain, weights).one_at_a_time(by, place, weights, plain)

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
            self._tiles.update(rows.matrix, rows.rows, _packed(scaled), weights)
        elif flat and self._takes_columns(rows, weights, scaled):
            many_models.update(rows.matrix, rows.rows, _packed(scaled), weights)
        else:
            super()._add_gradient(weights, self._copy(rows), scaled)

    def _takes_tiles(self, rows: Any, weights: Array, other: Array) -> bool:
        """True for so many columns that tiles beat BLAS on a copy."""
        if not isinstance(rows, Sampled) or weights.shape[1] <= MOST_COLUMNS:
            return False
        is_narrow = weights.dtype == other.dtype == np.float32
        fits = rows.matrix.dtype == np.uint16 and len(rows) >= LEAST_ROWS
        return is_narrow and fits and many_models.available()

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

    def _room(self, blocks: Blocks) -> compiled_calls.PairRoom:
        """Return scratch; an exchange of fewer rows uses that of the others."""
        room, batches = self._pair_room, len(blocks.sizes)
        if room is None or not room.holds(blocks.rows, batches):
            room = self._pair_room = compiled_calls.PairRoom(blocks.rows, batches)
        return room

    def _is_softmax(
        self, margins: Array, gram: Array, plan: HostPlan, family: Family
    ) -> bool:
        return family.name == SOFTMAX and self._is_one_call(margins, gram, plan)

    def _is_for_steps(
        self, margins: Array, gram: Array, plan: HostPlan, family: Family
    ) -> bool:
        return (
            self._is_one_call(margins, gram, plan)
            and margins.shape[1] == plan.states
            and family.name in FAMILIES
        )

    def _fits_many(self, margins: Array, gram: Array, plan: ManyPlan) -> bool:
        """True where scores come state by state, in the format of the recurrence."""
        alike = margins.dtype == gram.dtype == self.inner
        return alike and len(plan.lead) == plan.states <= MOST_STATES

    def _is_one_call(self, margins: Array, gram: Array, plan: HostPlan) -> bool:
        return (
            not isinstance(plan, ManyPlan)
            and margins.dtype == gram.dtype == self.inner
            # Scores of one step may come as they are read, not state by state.
            and len(plan.lead) == plan.states <= MOST_STATES
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
        self._gram_room = compiled_calls.GramRoom()

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
            rows.stored, rows.rows, starts, out, self._gram_room
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
        go = self._walk(plain, weights)
        return compiled_calls.csr_fused_steps(
            go, rows.stored, rows.rows, weights, plain
        )

    def _is_for_kernels(self, stored: Csr) -> bool:
        return self._has_rows and stored.dtype.name in compiled_calls.VALUES


def _is_narrow(*arrays: Array) -> bool:
    """True for contiguous float32."""
    return all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays)
