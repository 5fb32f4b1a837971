"""The NumPy backend, dense and sparse."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import ColumnExponents, HostPlan, StepBatch, StepSequence
from hpcsgd.data.sparse import ByColumns, Csr
from hpcsgd.formats import Array, decode, encode, get_format, round_through, widen_bf16
from hpcsgd.glm.families import Family
from hpcsgd.glm.unrolling import Blocks, ManyUnrolledSteps, UnrolledSteps
from hpcsgd.precision import Precision

# The coefficients of an exchange for several models: each column has its own.


@dataclass(frozen=True)
class ManyPlan(HostPlan):
    """As a `HostPlan`, with (m, K) where that one has (m, 1).

    `couple` is not spread over rows: entry j is (j, K), and meets as many batches.
    """

    def scale(self, step: int, residuals: Array, out: Array) -> None:
        """out ← what earlier residuals count in the scores of `step`."""
        sizes, couple = self.blocks.sizes, self.couple[step]
        # Only the last batch of an epoch is ragged, and nothing comes after it.
        shape = (step, sizes[0], residuals.shape[1])
        np.multiply(residuals.reshape(shape), couple[:, None], out=out.reshape(shape))

    def apply_transition(self, weights: Array) -> None:
        """Apply weights ← Φ weights, where state k owns K columns."""
        carry = self.carry.astype(weights.dtype)
        if self.states == 1:
            if (carry != 1.0).any():
                weights *= carry[0, 0]
            return
        parts = weights.reshape(len(weights), self.states, -1)
        mixed = np.einsum("pqk,dqk->dpk", carry, parts)
        weights[...] = mixed.reshape(weights.shape)

    def advance(self, intercept: Array, step: int, residuals: Array) -> None:
        """β ← M β + u Σr, for every column."""
        unrolled, total = self.unrolled, residuals.sum(axis=0, dtype=np.float64)
        moved = np.einsum("pqk,qk->pk", unrolled.free[step], intercept)
        intercept[...] = moved + unrolled.push[step] * total


def plan_many(unrolled: ManyUnrolledSteps, blocks: Blocks, dtype: Any) -> ManyPlan:
    """The coefficients of `unrolled` over the rows of `blocks`."""

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


# The NumPy backend: the reference every other backend is held against.

HALVING_WORK = 2e6  # multiply-adds of a Gram from which squarer products pay


class HostBackend:
    """Products by BLAS, the recurrence by one small product per step."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.working = precision.working
        self.inner = get_format(precision.inner).carrier
        self.weights = get_format(precision.weights).carrier
        self.scaling: ColumnExponents | None = None  # of a matrix with few exponents
        self._narrow = precision.matrix == "bf16"

    def store(self, block: Array) -> Array:
        """The block rounded into the storage of `precision.matrix`."""
        if self.scaling is not None:
            block = self.scaling.up(block)
        return encode(block, self.precision.matrix)

    def for_sparse(self) -> "HostBackend":
        """The same precision for rows held as CSR."""

        return self._like(SparseHostBackend(self.precision))

    def _like(self, other: "HostBackend") -> "HostBackend":
        """`other`, with all that was set here after the start."""
        other.scaling = self.scaling
        return other

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Weights of this shape."""
        return np.zeros(shape, dtype=self.weights)

    def prepare(self, unrolled: UnrolledSteps, blocks: Blocks) -> HostPlan:
        """Spread the coefficients of `unrolled` over the rows of `blocks`."""
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
        """One value for each batch, as a column over its rows."""
        return np.repeat(values, sizes).astype(self.inner)[:, None]

    def pick(self, matrix: Array, rows: Array) -> Array:
        """The sampled rows as they are stored."""
        return np.take(matrix, rows, axis=0)

    def widen(self, stored: Array, out: Array) -> Array:
        """out ← stored values, exactly."""
        if self._narrow:
            return widen_bf16(stored, out.dtype, out)
        decode(stored, self.precision.matrix, out.dtype, out)
        if self.scaling is not None:
            self.scaling.down(out)
        return out

    def gather(self, matrix: Array, rows: Array, out: Array) -> Array:
        """The sampled rows in the dtype of `out`, in one pass where there is one."""
        if matrix.dtype == out.dtype:
            return np.take(matrix, rows, axis=0, out=out, mode="clip")
        if self._narrow and out.dtype == np.float32 and compiled_calls.available():
            compiled_calls.widen_rows(matrix, rows, out)
            return out
        return self.widen(self.pick(matrix, rows), out)

    def some_columns(self, rows: Any, part: slice) -> Any:
        """A view; BLAS takes it with its stride."""
        return rows[:, part]

    def round(self, values: Array, name: str) -> None:
        """Each value to the nearest that format `name` has, in place."""
        round_through(values, name)

    def scores(self, rows: Array, weights: Array, out: Array) -> Array:
        """out ← Y W, computed in the dtype of `rows`."""
        return _product(rows, weights.astype(rows.dtype, copy=False), out)

    def strict_gram(self, rows: Array, blocks: Blocks, out: Array) -> Array:
        """Packed G: whole block rows where they are small, else by halving."""
        panels = block_rows(out, blocks)
        if blocks.gram_words * rows.shape[1] >= HALVING_WORK:
            _halve(rows, blocks, panels, 0, len(blocks.sizes))
            return out
        turned = rows.T
        for j, panel in enumerate(panels, start=1):
            first, last = blocks.starts[j], blocks.starts[j + 1]
            _product(rows[first:last], turned[:, :first], panel)
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
        """t_j = Σ_k lead z + Σ_{i<j} couple_ji G_ji r_i + β + offset, then r_j."""
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
        """The residuals at the anchors, which no step moves; None without any."""
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
        """score ← score + panel · scaled."""
        score += np.dot(panel, scaled)

    def _residual(self, family: Family, score: Array, targets: Array) -> None:
        """score ← ∂ℓ/∂t at score."""
        family.residual(score, targets, out=score)

    def _weigh(self, score: Array, weights: Array) -> None:
        """score ← score · c."""
        score *= weights

    def apply_update(
        self, weights: Array, rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """One transposed product for every state that moves, and all s steps."""
        scaled = [residuals * gain for gain in plan.gain]
        self._move(weights, rows, np.hstack(scaled) if scaled[1:] else scaled[0], plan)

    def _move(self, weights: Array, rows: Any, scaled: Array, plan: HostPlan) -> None:
        """weights ← Φ weights + Yᵀ scaled."""
        plan.apply_transition(weights)
        self._add_gradient(weights[:, : scaled.shape[1]], rows, scaled)

    def _add_gradient(self, weights: Array, rows: Array, scaled: Array) -> None:
        weights += np.dot(rows.T, scaled.astype(rows.dtype, copy=False))

    def fused_steps(self, weights: Array, plain: StepSequence) -> Array | None:
        """None: NumPy takes the steps one by one."""
        return None

    def pipelined_steps(
        self, weights: Array, plain: StepSequence
    ) -> tuple[Any, Array] | None:
        """None: NumPy takes the steps one by one."""
        return None

    def to_host(self, array: Array) -> Array:
        """The array itself: it is here."""
        return array

    def synchronize(self) -> None:
        """NumPy is done when it returns."""


def moving(gain: Array) -> list[Array]:
    """Of each state but those at the end that gradients never touch; gain (s, S)."""
    touched = np.flatnonzero(gain.any(axis=0))
    last = touched[-1] if len(touched) else 0
    return list(gain.T[: last + 1])


def _halve(
    rows: Array, blocks: Blocks, panels: list[Array], low: int, high: int
) -> None:
    """Batches low..high−1: the second half against the first, then each half alone.

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
    """The dense panels of packed G: entry j − 1 is block row j, b_j × start_j."""
    return [
        packed[blocks.gram_starts[j] : blocks.gram_starts[j + 1]].reshape(
            blocks.sizes[j], blocks.starts[j]
        )
        for j in range(1, len(blocks.sizes))
    ]


def _product(left: Array, right: Array, out: Array) -> Array:
    """out ← left @ right, computed in the dtype of the factors."""
    if out.dtype == left.dtype:
        return np.dot(left, right, out=out)
    out[...] = np.dot(left, right)
    return out


def _lead(margins: Array, plan: HostPlan) -> Array:
    """Σ_k lead_k z_k for all rows, z_k the K columns that belong to state k."""
    width = margins.shape[1] // len(plan.lead)
    parts = [margins[:, k * width : (k + 1) * width] for k in range(len(plan.lead))]
    total: Array = parts[0].copy() if plan.lead[0] is None else parts[0] * plan.lead[0]
    for part, lead in zip(parts[1:], plan.lead[1:], strict=True):
        total += part if lead is None else part * lead
    return total


# The NumPy backend for rows held as CSR.
#
# Scores and gradients touch stored values alone. The Gram is a sum of two: columns that
# many of the sampled rows share are made a dense panel for BLAS, the others are
# multiplied as they are.

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


# Scores in float64 of whatever rows are stored as: what a reported loss is made of.


def exact_scores(rows: Any, weights: Array) -> Array:
    """rows @ weights in float64; `rows` are an array, or sparse ones that multiply."""
    if not _is_for_kernel(rows, weights):
        scores: Array = rows.astype(np.float64, copy=False) @ weights
        return scores
    out = np.empty((len(rows), 1))
    compiled_calls.exact_scores(rows, weights, out)
    return out


def _is_for_kernel(rows: Any, weights: Array) -> bool:
    """One column of weights, and float32 rows that lie one behind the other."""
    return (
        isinstance(rows, np.ndarray)
        and rows.dtype == np.float32
        and rows.ndim == 2
        and (rows.strides[1] == rows.itemsize or rows.shape[1] == 1)
        and rows.strides[0] >= 0
        and weights.shape[1:] == (1,)
        and weights.dtype == np.float64
        and weights.flags.c_contiguous
        and compiled_calls.available()
    )


# What is looked at while data are read, by kernels where they fit: one fast pass.


def all_finite(block: Array) -> bool:
    """Whether no value of it is infinite or no number."""
    if _fits(block, np.float32):
        return not compiled_calls.has_bad(block)
    # A sum is finite only if all terms are: one pass without a mask in the good case.
    with np.errstate(all="ignore"):
        total = block.sum(dtype=np.float64)
    return bool(np.isfinite(total)) or bool(np.isfinite(block).all())


def weigh(bits: Array, rows: Array, columns: Array) -> np.uint64:
    """Σ rows_i columns_j bits_ij mod 2⁶⁴, of the numbers as they are stored."""
    if _fits(bits, np.uint32):
        return compiled_calls.fingerprint(bits, rows, columns)
    with np.errstate(over="ignore"):
        total: np.uint64 = np.einsum("i,i->", rows, np.einsum("ij,j->i", bits, columns))
    return total


def _fits(block: Array, kind: Any) -> bool:
    """Words of 32 bits whose rows are contiguous, and kernels to look at them."""
    return (
        block.dtype == kind
        and block.size > 0
        and block.strides[1] == block.itemsize
        and block.strides[0] >= 0
        and compiled_calls.available()
    )
