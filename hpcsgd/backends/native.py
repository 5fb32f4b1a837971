"""The compiled backend: kernels that take the sampled rows where they lie.

What the kernels do not cover (several columns of weights, other formats) is done by
NumPy on a copy of the rows, which is made when it is first needed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import columns, cpu, many_tiles, softmax_steps
from hpcsgd.backends.base import Batch, Plain
from hpcsgd.backends.host import HostBackend
from hpcsgd.backends.host_plan import HostPlan
from hpcsgd.backends.many import ManyPlan
from hpcsgd.backends.many_steps import NativeManyPlan
from hpcsgd.backends.many_tiles import LEAST_ROWS, Tiles
from hpcsgd.backends.native_plan import NativePlan, numbered
from hpcsgd.backends.plain import FAMILIES, SOFTMAX, Between, Walk, for_family
from hpcsgd.backends.sampled import Sampled
from hpcsgd.families.base import Family
from hpcsgd.precision import Precision
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import PlainSteps, Unrolled

Array = NDArray[Any]
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
        self._tiles = Tiles()
        self._rooms: dict[Blocks, cpu.PairRoom] = {}
        self._last_walk: tuple[PlainSteps, str, Walk] | None = None

    def prepare(self, unrolled: Unrolled, blocks: Blocks) -> HostPlan:
        """The same plan, with a place for what the kernels want."""
        plan = super().prepare(unrolled, blocks)
        kind = NativeManyPlan if isinstance(plan, ManyPlan) else NativePlan
        return kind(**vars(plan))

    def for_sparse(self) -> HostBackend:
        """The same precision for rows held as CSR."""
        from hpcsgd.backends.native_sparse import NativeSparseBackend

        return self._like(NativeSparseBackend(self.precision))

    def gather(self, matrix: Array, rows: Array, out: Array) -> Any:
        """The rows where they lie; `out` is room for a copy."""
        lies_flat = matrix.strides[1] == matrix.itemsize
        if not self._has_rows or not lies_flat or matrix.dtype.char not in cpu.MATRICES:
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
        if has and values.flags.c_contiguous and cpu.available():
            cpu.round_bf16(values)
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
            columns.margins(rows.matrix, rows.rows, _packed(weights), out)
            return out
        if not isinstance(rows, Sampled) or not _is_one(weights, out):
            return super().scores(self._copy(rows), weights, out)
        cpu.margins(rows.matrix, rows.rows, weights, out)
        return out

    def strict_gram(self, rows: Any, blocks: Blocks, out: Array) -> Array:
        """Packed G straight from the rows, where that is what this processor is for."""
        way = self._way_to_gram(rows, out)
        if way == "numpy":
            return super().strict_gram(self._copy(rows), blocks, out)
        starts = np.array(blocks.starts, dtype=np.int64)
        if way == "pairs":
            room = self._room(blocks)
            cpu.strict_gram_pairs(rows.matrix, rows.rows, starts, out, room)
        else:
            cpu.strict_gram(rows.matrix, rows.rows, starts, out)
        return out

    def corrected_residuals(
        self,
        margins: Array,
        gram: Array,
        plan: Any,
        family: Family,
        batch: Batch,
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
            return softmax_steps.recur(plan.coefficients, *given)
        if not (plain and self._is_for_steps(margins, gram, plan, family)):
            return super().corrected_residuals(
                margins, gram, plan, family, batch, intercept
            )
        residuals = np.empty((len(margins), 1), dtype=self.inner)
        by = plan.recurrence(family, self.inner)
        by(margins, gram, batch, intercept, residuals, np.empty_like(residuals))
        return residuals

    def descend(
        self, weights: Array, rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """One pass over the rows where they lie, where `_takes_columns` for several."""
        is_column = weights.shape[1] == 1 and weights.flags.c_contiguous
        is_column &= not isinstance(plan, ManyPlan)
        if not isinstance(rows, Sampled) or not is_column:
            super().descend(weights, rows, residuals, plan)
            return
        scaled = (residuals * plan.gain[0]).astype(np.float32, copy=False)
        carry = float(plan.carry[0, 0])
        if carry != 1.0:
            weights *= carry
        cpu.update(rows.matrix, rows.rows, scaled, weights)

    def walk(self, weights: Array, plain: Plain) -> Array | None:
        """All steps in one call, with their residuals; None where NumPy has to."""
        rows = plain.rows
        matrix = rows.matrix if isinstance(rows, Sampled) else rows
        numbers = rows.rows if isinstance(rows, Sampled) else np.arange(len(rows))
        if not self._walks_dense(matrix, weights, plain):
            return None
        by = cpu.kernel(for_family("hpcsgd_walk", plain), matrix)
        place = (matrix, cpu.stride_of(matrix), numbers, matrix.shape[1])
        return self._walk(plain, weights).all_at_once(by, place, weights, plain)

    def stepwise(self, weights: Array, plain: Plain) -> tuple[Between, Array] | None:
        """The same for steps that sums over members part; None where NumPy has to."""
        rows = plain.rows
        if not isinstance(rows, Sampled):
            return None
        matrix = rows.matrix
        if not self._walks_dense(matrix, weights, plain):
            return None
        by = cpu.kernel(for_family("hpcsgd_between", plain), matrix)
        place = (matrix, cpu.stride_of(matrix), rows.rows, matrix.shape[1])
        return self._walk(plain, weights).one_at_a_time(by, place, weights, plain)

    def _walk(self, plain: Plain, weights: Array) -> Walk:
        """The coefficients as the kernel wants them; the last ones are remembered."""
        steps, family, known = plain.steps, plain.family, self._last_walk
        if known is None or known[0] is not steps or known[1] != family.name:
            go = Walk(plain, weights.shape[1], self._rounds_margins)
            known = self._last_walk = (steps, family.name, go)
        return known[2]

    def _add_gradient(self, weights: Array, rows: Any, scaled: Array) -> None:
        flat = weights.flags.c_contiguous
        if flat and self._takes_tiles(rows, weights, scaled):
            self._tiles.update(rows.matrix, rows.rows, _packed(scaled), weights)
        elif flat and self._takes_columns(rows, weights, scaled):
            columns.update(rows.matrix, rows.rows, _packed(scaled), weights)
        else:
            super()._add_gradient(weights, self._copy(rows), scaled)

    def _takes_tiles(self, rows: Any, weights: Array, other: Array) -> bool:
        """True for so many columns that tiles beat BLAS on a copy."""
        if not isinstance(rows, Sampled) or weights.shape[1] <= MOST_COLUMNS:
            return False
        is_narrow = weights.dtype == other.dtype == np.float32
        fits = rows.matrix.dtype == np.uint16 and len(rows) >= LEAST_ROWS
        return is_narrow and fits and many_tiles.available()

    def _takes_columns(self, rows: Any, weights: Array, other: Array) -> bool:
        """True for several columns, where no copy is made for the Gram and it pays."""
        if not isinstance(rows, Sampled) or not 1 < weights.shape[1] <= MOST_COLUMNS:
            return False
        m, width = len(rows), rows.matrix.shape[1]
        is_narrow = weights.dtype == other.dtype == np.float32
        pays = m >= MANY_ROWS and width >= MANY_COLUMNS
        return is_narrow and pays and self._way_to_gram(rows, other) != "numpy"

    def _walks(self, weights: Array, plain: Plain) -> bool:
        """True for one score a row."""
        fits = self._fits(weights, plain) and plain.family.name in FAMILIES
        return fits and weights.shape[1] == plain.steps.states

    def _walks_dense(self, matrix: Array, weights: Array, plain: Plain) -> bool:
        """True for K scores a row too, where the rows are dense."""
        is_softmax = plain.family.name == SOFTMAX and self._fits(weights, plain)
        fits = is_softmax or self._walks(weights, plain)
        return fits and matrix.dtype.char in cpu.MATRICES

    def _fits(self, weights: Array, plain: Plain) -> bool:
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
        if rows.matrix.dtype == np.uint16 and m >= PAIRS_FROM and cpu.has_pairs():
            return "pairs"
        fits = width >= DOTS_FROM and m <= DOTS_TO[rows.matrix.dtype.name]
        return "dots" if fits and cpu.instructions() != "portable" else "numpy"

    def _room(self, blocks: Blocks) -> cpu.PairRoom:
        found = self._rooms.get(blocks)
        if found is None:
            found = self._rooms[blocks] = cpu.PairRoom(blocks.rows, len(blocks.sizes))
        return found

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
