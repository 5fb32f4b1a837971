"""The NumPy backend, dense and sparse."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import (
    ColumnDraws,
    ColumnExponents,
    HostPlan,
    LossScale,
    Rows,
    StepBatch,
    StepSequence,
)
from hpcsgd.data.matrix import COLUMN, ByColumns, Csr
from hpcsgd.formats import Array, decode, encode, get_format, round_through, widen_bf16
from hpcsgd.glm.families import Family
from hpcsgd.glm.unrolling import Blocks, ManyUnrolledSteps, UnrolledSteps
from hpcsgd.precision import Precision

# The coefficients of an exchange for several models: each column has its own.


@dataclass(frozen=True)
class ManyPlan(HostPlan):
    """A `HostPlan` for several models, with (m, K) where a `HostPlan` has (m, 1).

    `couple` is not spread over rows: entry j is (j, K), a row for each earlier batch.
    """

    by_column: ClassVar[bool] = True

    def scale(self, step: int, residuals: Array, out: Array) -> None:
        """Compute out ← residuals of earlier steps times their coefficients.

        The coefficients are those in the scores of step number `step`.
        """
        sizes = self.blocks.sizes
        couple = self.couple[step]
        # Only the last batch of an epoch is ragged, and nothing comes after it.
        shape = (step, sizes[0], residuals.shape[1])
        np.multiply(residuals.reshape(shape), couple[:, None], out=out.reshape(shape))

    def apply_transition(self, weights: Array) -> None:
        """Apply weights ← Φ weights: what an exchange makes of them without gradients.

        Φ mixes the states of the update rule (weights, and a velocity), each of which
        has K columns of the array `weights`.
        """
        carry = self.carry.astype(weights.dtype)
        if self.states == 1:
            if (carry != 1.0).any():
                weights *= carry[0, 0]
            return
        parts = weights.reshape(len(weights), self.states, -1)
        mixed = np.einsum("pqk,dqk->dpk", carry, parts)
        weights[...] = mixed.reshape(weights.shape)

    def advance(self, intercept: Array, step: int, residuals: Array) -> None:
        """Advance the intercept by one step: β ← M β + u Σr, for every column."""
        unrolled = self.unrolled
        total = residuals.sum(axis=0, dtype=np.float64)
        moved = np.einsum("pqk,qk->pk", unrolled.free[step], intercept)
        intercept[...] = moved + unrolled.push[step] * total


def plan_many(unrolled: ManyUnrolledSteps, blocks: Blocks, dtype: Any) -> ManyPlan:
    """Return the coefficients of `unrolled` in `dtype`, as a `ManyPlan` of `blocks`.

    `lead` and `gain` are repeated for the rows of each batch.
    """

    def spread(values: Array) -> Array:
        return np.repeat(values, blocks.sizes, axis=0).astype(dtype)

    def leading(lead: Array) -> Array | None:
        return None if (lead == 1.0).all() else spread(lead)

    states = range(len(unrolled.probe))
    return ManyPlan(
        blocks=blocks,
        states=len(states),
        lead=tuple(leading(unrolled.lead[:, k]) for k in states[: unrolled.reads]),
        couple=tuple(couple.astype(dtype) for couple in unrolled.couple),
        gain=tuple(spread(unrolled.gain[:, k]) for k in states),
        carry=unrolled.carry,
        unrolled=unrolled,
    )


# The NumPy backend: the reference with which every other backend is compared.


class HostBackend:
    """The NumPy backend: its recurrence makes one small product per step."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.working = precision.working
        self.inner = get_format(precision.inner).carrier
        self.weights = get_format(precision.weights).carrier
        self.scaling: ColumnExponents | None = None  # of a matrix with few exponents
        self.loss_scale: LossScale | None = None  # of residuals with few exponents
        self.dice: ColumnDraws | None = None  # of weights that are rounded at random
        self._narrow = precision.matrix == "bf16"
        self._marks = Marks()  # threads share no scratch

    def store(self, block: Array) -> Array:
        """Return the values of `block` as stored: in the format `precision.matrix`.

        Columns are scaled first if there is a `scaling`.
        """
        if self.scaling is not None:
            block = self.scaling.up(block)
        return encode(block, self.precision.matrix)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return weights of this shape, all zeros."""
        return np.zeros(shape, dtype=self.weights)

    def prepare(self, unrolled: UnrolledSteps, blocks: Blocks) -> HostPlan:
        """Return the coefficients of `unrolled`, repeated for the rows of `blocks`."""
        if isinstance(unrolled, ManyUnrolledSteps):
            return plan_many(unrolled, blocks, self.inner)
        sizes = blocks.sizes
        couple = [self._spread(c, sizes[:j]) for j, c in enumerate(unrolled.couple)]
        return HostPlan(
            blocks=blocks,
            states=len(unrolled.probe),
            lead=tuple(
                None if (lead == 1.0).all() else self._spread(lead, sizes)
                for lead in unrolled.lead.T
            ),
            couple=tuple(couple),
            gain=tuple(self._spread(gain, sizes) for gain in moving(unrolled.gain)),
            carry=unrolled.carry,
            unrolled=unrolled,
        )

    def _spread(self, values: Array, sizes: tuple[int, ...]) -> Array:
        """Return one value for each batch, as a column over its rows."""
        return np.repeat(values, sizes).astype(self.inner)[:, None]

    def gather(self, matrix: Array, rows: Array, out: Array | None) -> Rows:
        """Return the sampled rows of `matrix`, in the dtype of `out`.

        Without `out` a new array is allocated, in the working format.
        """
        if out is None:
            out = np.empty((len(rows), matrix.shape[1]), self.working)
        if matrix.dtype == out.dtype:
            return DenseRows(np.take(matrix, rows, axis=0, out=out, mode="clip"))
        if self._narrow and out.dtype == np.float32 and compiled_calls.available():
            compiled_calls.widen_rows(matrix, rows, out)
            return DenseRows(out)
        stored = np.take(matrix, rows, axis=0)
        if self._narrow:
            return DenseRows(widen_bf16(stored, out.dtype, out))
        decode(stored, self.precision.matrix, out.dtype, out)
        if self.scaling is not None:
            self.scaling.down(out)
        return DenseRows(out)

    def gather_sparse(self, matrix: Csr, rows: Array) -> Rows:
        """Return the sampled sparse rows, widened to the working format."""
        return self.widen(matrix.take(rows))

    def widen(self, stored: Csr) -> Rows:
        """Return a copy of the stored rows, in the working format, without rounding."""
        data = decode(stored.data, self.precision.matrix, self.working)
        if self.scaling is not None:
            self.scaling.down(data)
        return CsrRows(stored.with_data(data), self._marks)

    def some_columns(self, rows: Rows, part: slice) -> Rows:
        """Return the rows in the columns `part` alone."""
        return rows.part(part)

    def round(self, values: Array, name: str) -> None:
        """Round each value to the nearest number of format `name`, in place."""
        round_values(values, name)

    def scores(self, rows: Rows, weights: Array, out: Array) -> Array:
        """Compute and return out ← Y W for the rows Y and the weights W."""
        rows.margins(weights, out)
        return out

    def strict_gram(self, rows: Rows, blocks: Blocks, out: Array) -> Array:
        """Compute and return out ← the strictly-lower blocks of Y Yᵀ, packed."""
        rows.gram(blocks, out)
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
        """Return the residuals r_j of s exact steps, (m, K).

        r_j is taken at the scores

            t_j = Σ_k lead_jk z_k + Σ_{i<j} couple_ji G_ji r_i + q·β + offset

        Residuals at anchors are subtracted, and sample weights multiply the result. The
        intercept β advances in place.
        """
        panels = block_rows(gram.astype(self.inner, copy=False), plan.blocks)
        anchors = self._anchored(family, batch, intercept)
        residuals = _lead(margins.astype(self.inner, copy=False), plan)
        if batch.offsets is not None:
            residuals += batch.offsets
        scaled = np.empty_like(residuals)
        starts = plan.blocks.starts
        for j, (first, last) in enumerate(pairwise(starts)):
            score = residuals[first:last]
            if j:
                plan.scale(j, residuals[:first], scaled[:first])
                self._correct(score, panels[j - 1], scaled[:first])
            if intercept is not None:
                score += plan.unrolled.probe @ intercept
            self._residual(family, score, batch.targets[first:last])
            if anchors is not None:
                score -= anchors[first:last]
            if batch.weights is not None:
                self._weigh(score, batch.weights[first:last])
            if intercept is not None:
                plan.advance(intercept, j, score)
        return residuals

    def _anchored(
        self, family: Family, batch: StepBatch, intercept: Array | None
    ) -> Array | None:
        """Return the residuals at the scores of the anchor, or None without anchors."""
        if batch.anchors is None:
            return None
        score: Array = batch.anchors.astype(self.inner)
        if batch.offsets is not None:
            score += batch.offsets
        if intercept is not None:
            score += intercept[1]
        self._residual(family, score, batch.targets)
        return score

    def _correct(self, score: Array, panel: Array, scaled: Array) -> None:
        """Compute score ← score + panel · scaled."""
        score += np.dot(panel, scaled)

    def _residual(self, family: Family, score: Array, targets: Array) -> None:
        """Replace the scores `score` by the residuals ∂ℓ/∂t at them, in place."""
        family.residual(score, targets, out=score)

    def _weigh(self, score: Array, weights: Array) -> None:
        """Multiply the residuals `score` by the sample weights, in place."""
        score *= weights

    def apply_update(
        self, weights: Array, rows: Rows, residuals: Array, plan: HostPlan
    ) -> None:
        """Apply all s steps to the weights by one product Yᵀ (gains · residuals)."""
        scaled = [residuals * gain for gain in plan.gain]
        self._move(weights, rows, np.hstack(scaled) if scaled[1:] else scaled[0], plan)

    def _move(self, weights: Array, rows: Rows, scaled: Array, plan: HostPlan) -> None:
        """Compute weights ← Φ weights + Yᵀ scaled."""
        plan.apply_transition(weights)
        rows.add_transposed(scaled, weights)

    def fused_steps(self, weights: Array, plain: StepSequence) -> Array | None:
        """Return None: NumPy takes the steps one by one."""
        return None

    def pipelined_steps(
        self, weights: Array, plain: StepSequence
    ) -> tuple[Callable[..., None], Array] | None:
        """Return None: NumPy takes the steps one by one."""
        return None

    def to_host(self, array: Array) -> Array:
        """Return the array itself, which is on the host."""
        return array

    def synchronize(self) -> None:
        """Do nothing: NumPy is done when it returns."""


def moving(gain: Array) -> list[Array]:
    """Return the gains (s,) of each state, up to the last state with a gain not 0.

    `gain` is (s, S), for S states. The list has at least the first state.
    """
    touched = np.flatnonzero(gain.any(axis=0))
    last = touched[-1] if len(touched) else 0
    return list(gain.T[: last + 1])


def _lead(margins: Array, plan: HostPlan) -> Array:
    """Return Σ_k lead_k z_k for all rows; z_k are the K columns of state k."""
    width = margins.shape[1] // len(plan.lead)
    parts = [margins[:, k * width : (k + 1) * width] for k in range(len(plan.lead))]
    total: Array = parts[0].copy() if plan.lead[0] is None else parts[0] * plan.lead[0]
    for part, lead in zip(parts[1:], plan.lead[1:], strict=True):
        total += part if lead is None else part * lead
    return total


# Sampled rows as NumPy takes them: dense, or CSR.

HALVING_WORK = 2e6  # multiply-adds of a Gram from which squarer products pay


ALL = slice(None)


class DenseRows:
    """Sampled rows as one array, of all columns or of those in which a row has values.

    Columns of zeros contribute to no sum, so that they may be left out.

    Parameters
    ----------
    values : ndarray, (m, columns)
    columns : ndarray, their numbers; or a slice of all
    """

    def __init__(self, values: Array, columns: Array | slice = ALL) -> None:
        self.values = values
        self.columns = columns

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> "DenseRows":
        return DenseRows(self.values[part], self.columns)

    def part(self, columns: slice) -> "DenseRows":
        """Return the rows in `columns`, a view that BLAS takes with its stride."""
        if isinstance(self.columns, slice):
            return DenseRows(self.values[:, columns])
        first, last = np.searchsorted(self.columns, (columns.start, columns.stop))
        numbers = self.columns[first:last] - columns.start
        return DenseRows(self.values[:, first:last], numbers)

    def dense(self) -> tuple[Array, Array | slice]:
        """Return the values, and the numbers of their columns, or a slice of all."""
        return self.values, self.columns

    def margins(self, weights: Array, out: Array) -> None:
        """Compute out ← Y W in the dtype of the rows."""
        point = weights[self.columns].astype(self.values.dtype, copy=False)
        _product(self.values, point, out)

    def gram(self, blocks: Blocks, out: Array) -> None:
        """Compute packed G: whole block rows if they are small, else by halving."""
        rows = self.values
        panels = block_rows(out, blocks)
        if blocks.gram_words * rows.shape[1] >= HALVING_WORK:
            _halve(rows, blocks, panels, 0, len(blocks.sizes))
            return
        turned = rows.T
        for j, panel in enumerate(panels, start=1):
            first = blocks.starts[j]
            last = blocks.starts[j + 1]
            _product(rows[first:last], turned[:, :first], panel)

    def add_transposed(self, scaled: Array, weights: Array) -> None:
        """Add Yᵀ · `scaled` to the first columns of `weights`, in place."""
        scaled = scaled.astype(self.values.dtype, copy=False)
        weights[self.columns, : scaled.shape[1]] += np.dot(self.values.T, scaled)

    def first_not_finite(self) -> tuple[int, int] | None:
        """Return row and column of the first value that is not finite, or None."""
        places = np.argwhere(~np.isfinite(self.values))
        if not len(places):
            return None
        row, place = map(int, places[0])
        column = place if isinstance(self.columns, slice) else self.columns[place]
        return row, int(column)


def _halve(
    rows: Array, blocks: Blocks, panels: list[Array], low: int, high: int
) -> None:
    """Multiply batches low..high−1: second half against first, then each half alone.

    The rectangles are as square as can be, where BLAS is fastest; together they are
    the strictly-lower blocks and nothing else.
    """
    if high - low < 2:
        return
    middle = (low + high) // 2
    first, cut, last = (blocks.starts[j] for j in (low, middle, high))
    square = np.dot(rows[cut:last], rows[first:cut].T)
    for j in range(middle, high):
        part = slice(blocks.starts[j] - cut, blocks.starts[j + 1] - cut)
        panels[j - 1][:, first:cut] = square[part]
    _halve(rows, blocks, panels, low, middle)
    _halve(rows, blocks, panels, middle, high)


def block_rows(packed: Array, blocks: Blocks) -> list[Array]:
    """Return dense panels of packed G: entry j − 1 is block row j, b_j × start_j."""
    return [
        packed[blocks.gram_starts[j] : blocks.gram_starts[j + 1]].reshape(
            blocks.sizes[j], blocks.starts[j]
        )
        for j in range(1, len(blocks.sizes))
    ]


def _product(left: Array, right: Array, out: Array) -> Array:
    """Compute and return out ← left @ right, in the dtype of the factors."""
    if out.dtype == left.dtype:
        return np.dot(left, right, out=out)
    out[...] = np.dot(left, right)
    return out


# Scores and gradients of CSR rows touch stored values alone. The Gram is a sum of two:
# columns that many of the sampled rows share become a dense panel for BLAS, the others
# are multiplied as sparse rows.

# Share of the sampled rows from which BLAS multiplies a column faster; measured by
# benchmarks/bench_sparse.py, part "gram": a multiply-add between sparse rows costs as
# much as several hundred of BLAS.
HEAVY = 0.04
SPLIT_WORK = 5e5  # multiply-adds of a sparse Gram from which halves pay


class Marks:
    """Scratch arrays, as wide as the shard, to find the columns that have values."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Array, Array]] = {}

    def compact(self, indices: Array, width: int) -> tuple[Array, Array]:
        """Return the distinct columns in `indices`, ascending, and where each one is.

        The second result has, for each entry of `indices`, its position among the
        distinct columns.
        """
        if width not in self._seen:
            self._seen[width] = np.zeros(width, dtype=bool), np.empty(width, np.int32)
        seen, place = self._seen[width]
        seen[indices] = True
        touched = np.flatnonzero(seen)
        seen[touched] = False
        place[touched] = np.arange(len(touched), dtype=np.int32)
        return touched, place[indices]


@dataclass(frozen=True)
class CsrRows:
    """Sampled CSR rows, widened to the working format, as SciPy multiplies them."""

    csr: Csr
    marks: Marks

    @cached_property
    def matrix(self) -> Any:
        """Return the rows in all columns, as SciPy multiplies them."""
        return self.csr.to_scipy()

    @cached_property
    def compact(self) -> tuple[Any, Any]:
        """Return the columns that have values, and the rows as a matrix of these.

        All columns are returned if the rows store at least as many values as there are
        columns.
        """
        if self.csr.nnz >= self.csr.width:
            return slice(None), self.matrix
        touched, csr = self._touched()
        return touched, csr.to_scipy()

    @cached_property
    def by_columns(self) -> ByColumns:
        """Return the rows sorted by column, for tiles of columns."""
        return ByColumns(self.csr)

    def __len__(self) -> int:
        return len(self.csr)

    def __getitem__(self, part: slice) -> "CsrRows":
        return CsrRows(self.csr[part], self.marks)

    def part(self, columns: slice) -> "CsrRows":
        """Return a copy of the rows in `columns`; the first call sorts by column."""
        return CsrRows(self.by_columns.tile(columns), self.marks)

    def dense(self) -> tuple[Array, Array | slice]:
        """Return a dense copy of the columns that have values, and their numbers."""
        touched, csr = self._touched()
        return csr.to_scipy().toarray(), touched

    def margins(self, weights: Array, out: Array) -> None:
        """Compute out ← Y W over stored values."""
        out[...] = times(self.matrix, weights.astype(self.csr.dtype, copy=False))

    def gram(self, blocks: Blocks, out: Array) -> None:
        """Compute packed G: shared columns by BLAS, the others by sparse products."""
        _, matrix = self.compact
        counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
        heavy = counts > max(HEAVY * len(self), 1.0)
        dtype = self.csr.dtype
        total = out if out.dtype == dtype else np.empty(out.shape, dtype)
        if heavy.any():
            panel, matrix = split(matrix, heavy)
            DenseRows(panel).gram(blocks, total)
        else:
            total[...] = 0.0
        shared = counts[~heavy & (counts > 1)].astype(float)
        if len(shared):
            work = float(shared @ shared)
            _add_light(matrix, blocks, block_rows(total, blocks), work)
        if total is not out:
            out[...] = total

    def add_transposed(self, scaled: Array, weights: Array) -> None:
        """Add Yᵀ · `scaled` to the first columns of `weights`, in place."""
        touched, matrix = self.compact
        total = times(matrix.T, scaled.astype(self.csr.dtype, copy=False))
        weights[touched, : scaled.shape[1]] += total

    def first_not_finite(self) -> tuple[int, int] | None:
        """Return row and column of the first stored value not finite, or None."""
        bad = np.flatnonzero(~np.isfinite(self.csr.data))
        return self.csr.place(int(bad[0])) if len(bad) else None

    def _touched(self) -> tuple[Array, Csr]:
        touched, indices = self.marks.compact(self.csr.indices, self.csr.width)
        return touched, Csr(self.csr.indptr, indices, self.csr.data, len(touched))


def times(matrix: Any, right: Array) -> Array:
    """Return matrix @ right, (m, K); one column is faster as a vector."""
    if right.shape[1] == 1:
        column: Array = matrix @ right[:, 0]
        return column[:, None]
    columns: Array = matrix @ right
    return columns


def split(matrix: Any, heavy: Array) -> tuple[Array, Any]:
    """Return the columns marked in `heavy` as an array, and a matrix of the others."""
    if heavy.all():
        return matrix.toarray(), _chosen(matrix, np.zeros_like(matrix.indices, bool))
    is_heavy = heavy[matrix.indices]
    panel = _chosen(matrix, is_heavy)
    rest = _chosen(matrix, ~is_heavy)
    # Heavy columns side by side; the light ones may keep their numbers.
    place = np.cumsum(heavy, dtype=np.int32) - np.int32(1)
    columns = Csr(panel.indptr, place[panel.indices], panel.data, int(place[-1]) + 1)
    return columns.to_scipy().toarray(), rest


def _chosen(matrix: Any, values: Array) -> Any:
    """Return the matrix with only the stored values that the mask `values` selects."""
    before = np.concatenate([[0], np.cumsum(values)])
    indptr = before[matrix.indptr]
    parts = indptr, matrix.indices[values], matrix.data[values]
    return Csr(*parts, matrix.shape[1]).to_scipy()


def _add_light(matrix: Any, blocks: Blocks, panels: list[Array], work: float) -> None:
    """Add the strictly-lower blocks of matrix · matrixᵀ to `panels`.

    `work` is the number of multiply-adds of the whole product.
    """

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
            block = square[blocks.starts[j] - cut : blocks.starts[j + 1] - cut]
            stop = cut if middle > low else blocks.starts[j]
            panels[j - 1][:, first:stop] += block[:, : stop - first]
        if middle > low:
            part(low, middle, work / 4)
            part(middle, high, work / 4)

    part(0, len(blocks.sizes), work)


# The workspace of a Gram while it is computed.

# Arrays of m x m words while a Gram is rounded sum by sum, and with a kernel that
# rounds in place.
ROUNDED = 6
ROUNDED_IN_PLACE = 3


def dense_gram_workspace(rows: int, precision: Precision, on_gpu: bool) -> int:
    """Return the bytes of workspace to compute a Gram of dense rows.

    The Gram itself is not counted. It is computed by halves, squares of m/2, m/4, ...
    rows, or by a kernel for bf16 that has scratch of its own. An emulated accumulator
    goes through all m x m words at once, and the Gram is then rounded in a copy.

    Parameters
    ----------
    rows : int
        m, the rows of the Gram.
    precision : Precision
        The number formats.
    on_gpu : bool
        Whether the kernels of a GPU multiply.
    """
    wide = precision.working.itemsize
    if precision.is_uniform:
        is_for_pairs = precision.matrix == "bf16" and precision.working == np.float32
        pairs = is_for_pairs and not on_gpu
        workspace = compiled_calls.pair_room_bytes(rows) if pairs else 0
        return max(rows * rows * wide // 3, workspace)
    in_place = precision.gram_sum == "bf16" and compiled_calls.available()
    arrays = ROUNDED_IN_PLACE if in_place else ROUNDED
    return arrays * rows * rows * wide


def sparse_gram_workspace(
    rows: int, columns: int, density: float, precision: Precision, on_gpu: bool
) -> int:
    """Return the bytes of workspace to compute a Gram of sparse rows.

    The Gram itself is not counted. Columns that many rows share become a dense panel.
    The others are multiplied as sparse rows: one square of m x m words where they share
    little, else halves, each as a sparse array and as a dense one. Compiled kernels
    multiply the rows where they are stored, and need no workspace.

    Parameters
    ----------
    rows : int
        m, the rows of the Gram.
    columns : int
        Columns of this member.
    density : float
        Share of the values that the rows store.
    precision : Precision
        The number formats.
    on_gpu : bool
        Whether the kernels of a GPU multiply.
    """
    wide = precision.working.itemsize
    is_narrow = precision.working == np.float32 and precision.is_uniform
    has_kernels = is_narrow and precision.matrix in ("fp32", "bf16")
    if has_kernels and compiled_calls.available():
        return 0
    # A heavy column has at least HEAVY·m values, which bounds how many there are.
    stored = int(rows * columns * density)
    panel = rows * columns
    if HEAVY:
        panel = min(int(stored / HEAVY), panel)
    light = max(rows * rows * wide, rows * rows * (2 * wide + COLUMN) // 3)
    return panel * wide + max(dense_gram_workspace(rows, precision, on_gpu), light)


# Passes over blocks of rows, by a kernel where one takes them and by NumPy elsewhere.

REAL_TYPES = (np.float32, np.float64)


def exact_scores(rows: Any, weights: Array) -> Array:
    """Return rows @ weights in float64; `rows` are dense, or a SciPy sparse matrix."""
    columns = weights.shape[1]
    call: Callable[[Any, Array, Array], None]
    if _has_csr_kernel(rows):
        call = compiled_calls.csr_scores
    elif _has_wide_kernel(rows, columns):
        call = compiled_calls.wide_scores
    elif columns == 1 and _has_kernel(rows, np.float32):
        call = compiled_calls.exact_scores
    else:
        scores: Array = rows.astype(np.float64, copy=False) @ weights
        return scores
    out = np.empty((rows.shape[0], columns))
    call(rows, _plain(weights), out)
    return out


def add_moments(rows: Any, h: Array, first: Array, second: Array) -> None:
    """Add Σ h a and Σ h a² of the rows a to `first` and `second`, (d, k), in float64.

    `rows` are dense or sparse, and `h` are their weights, (m, k).
    """
    if _has_csr_kernel(rows):
        compiled_calls.csr_moments(rows, _plain(h), first, second)
        return
    if h.shape[1] == 1 and any(_has_kernel(rows, dtype) for dtype in REAL_TYPES):
        compiled_calls.add_moments(rows, np.ascontiguousarray(h), first, second)
        return
    first += rows.T @ h
    for part in _cached_parts(rows):
        second += _squares(rows[part]).T @ h[part]


def add_combined(rows: Any, factors: Array, out: Array) -> None:
    """Add rowsᵀ factors to `out`, (d, k), in float64; `rows` are dense or sparse.

    `out` is contiguous. A library would widen rows of float32 first, which takes longer
    than to multiply.
    """
    columns = factors.shape[1]
    if _has_csr_kernel(rows):
        compiled_calls.csr_combine(rows, _plain(factors), out)
        return
    call: Callable[[Any, Array, Array], None]
    if _has_wide_kernel(rows, columns):
        call = compiled_calls.wide_combine
    elif columns == 1 and _has_kernel(rows, np.float32):
        call = compiled_calls.combine_rows
    else:
        out += rows.T @ factors
        return
    combined = np.zeros(out.shape)
    call(rows, _plain(factors), combined)
    out += combined


CACHED_VALUES = 2**15  # of float64, which stay in the cache between two uses


def _cached_parts(block: Any) -> Iterator[slice]:
    """Yield slices of the rows of a dense block whose values fit in the cache.

    A sparse block is one slice.
    """
    height, width = block.shape
    step = height
    if isinstance(block, np.ndarray):
        step = max(CACHED_VALUES // max(width, 1), 1)
    for start in range(0, height, max(step, 1)):
        yield slice(start, min(start + step, height))


def _squares(block: Any) -> Any:
    """Return a² of all values, in float64.

    Values of float32 may be so large that their squares are not in its range.
    """
    wide = block.astype(np.float64, copy=False)
    return np.square(wide) if isinstance(wide, np.ndarray) else wide.power(2)


def all_finite(block: Array) -> bool:
    """Return whether no value of the block is infinite or NaN."""
    if any(_has_kernel(block, dtype) for dtype in REAL_TYPES):
        return not compiled_calls.has_bad(block)
    # A sum is finite only if all terms are: one pass without a mask in the good case.
    with np.errstate(all="ignore"):
        total = block.sum(dtype=np.float64)
    return bool(np.isfinite(total)) or bool(np.isfinite(block).all())


def weigh(bits: Array, rows: Array, columns: Array) -> np.uint64:
    """Return the checksum Σ rows_i columns_j bits_ij mod 2⁶⁴ of a block of values.

    `bits` has the stored values as integers. `rows` and `columns` contain a factor for
    each row and for each column.
    """
    if _has_kernel(bits, np.uint32) or _has_kernel(bits, np.uint64):
        return compiled_calls.fingerprint(bits, rows, columns)
    with np.errstate(over="ignore"):
        total: np.uint64 = np.einsum("i,i->", rows, np.einsum("ij,j->i", bits, columns))
    return total


def _has_kernel(block: Any, dtype: Any) -> bool:
    """Return whether kernels take `block`: of this dtype, with contiguous rows.

    It is False if no kernels are compiled.
    """
    return (
        isinstance(block, np.ndarray)
        and block.dtype == dtype
        and block.ndim == 2
        and block.size > 0
        and (block.strides[1] == block.itemsize or block.shape[1] == 1)
        and block.strides[0] >= 0
        and compiled_calls.available()
    )


def _has_csr_kernel(block: Any) -> bool:
    """Return whether kernels take `block`: a CSR array of SciPy, of float32 or float64.

    It is False if no kernels are compiled.
    """
    return (
        getattr(block, "format", "") == "csr"
        and block.data.dtype in REAL_TYPES
        and compiled_calls.available()
    )


def _has_wide_kernel(block: Any, columns: int) -> bool:
    """Return whether kernels multiply `block` with `columns` columns of weights."""
    is_real = any(_has_kernel(block, dtype) for dtype in REAL_TYPES)
    return is_real and compiled_calls.takes_wide(block, columns)


def _plain(values: Array) -> Array:
    """Return the values in contiguous float64, as kernels take them."""
    return np.ascontiguousarray(values, dtype=np.float64)


def round_values(values: Array, name: str) -> None:
    """Round values to format `name` in place, with a kernel if there is one."""
    has = name == "bf16" and values.dtype == np.float32 and values.flags.c_contiguous
    if has and compiled_calls.available():
        compiled_calls.round_bf16(values)
    else:
        round_through(values, name)
