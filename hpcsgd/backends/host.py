"""The NumPy backend: the reference every other backend is held against."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import cpu
from hpcsgd.backends.base import Batch, Plain
from hpcsgd.backends.host_plan import HostPlan
from hpcsgd.backends.many import plan_many
from hpcsgd.backends.scaling import Scaling
from hpcsgd.families.base import Family
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.rounding import round_through
from hpcsgd.schedule import Blocks
from hpcsgd.storage import decode, encode, widen_bf16
from hpcsgd.updates.many import ManyUnrolled
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]
HALVING_WORK = 2e6  # multiply-adds of a Gram from which squarer products pay


class HostBackend:
    """Products by BLAS, the recurrence by one small product per step."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.working = precision.working
        self.inner = get_format(precision.inner).carrier
        self.weights = get_format(precision.weights).carrier
        self.scaling: Scaling | None = None  # of a matrix with few exponents
        self._narrow = precision.matrix == "bf16"

    def store(self, block: Array) -> Array:
        """The block rounded into the storage of `precision.matrix`."""
        if self.scaling is not None:
            block = self.scaling.up(block)
        return encode(block, self.precision.matrix)

    def for_sparse(self) -> "HostBackend":
        """The same precision for rows held as CSR."""
        from hpcsgd.backends.sparse import SparseHostBackend

        return self._like(SparseHostBackend(self.precision))

    def _like(self, other: "HostBackend") -> "HostBackend":
        """`other`, with all that was set here after the start."""
        other.scaling = self.scaling
        return other

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Weights of this shape."""
        return np.zeros(shape, dtype=self.weights)

    def prepare(self, unrolled: Unrolled, blocks: Blocks) -> HostPlan:
        """Spread the coefficients of `unrolled` over the rows of `blocks`."""
        if isinstance(unrolled, ManyUnrolled):
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
        if self._narrow and out.dtype == np.float32 and cpu.available():
            cpu.widen_rows(matrix, rows, out)
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
        batch: Batch,
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
        self, family: Family, batch: Batch, intercept: Array | None
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

    def descend(
        self, weights: Array, rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """One transposed product for every state that moves, and all s steps."""
        scaled = [residuals * gain for gain in plan.gain]
        self._move(weights, rows, np.hstack(scaled) if scaled[1:] else scaled[0], plan)

    def _move(self, weights: Array, rows: Any, scaled: Array, plan: HostPlan) -> None:
        """weights ← Φ weights + Yᵀ scaled."""
        plan.carry_on(weights)
        self._add_gradient(weights[:, : scaled.shape[1]], rows, scaled)

    def _add_gradient(self, weights: Array, rows: Array, scaled: Array) -> None:
        weights += np.dot(rows.T, scaled.astype(rows.dtype, copy=False))

    def walk(self, weights: Array, plain: Plain) -> Array | None:
        """None: NumPy takes the steps one by one."""
        return None

    def stepwise(self, weights: Array, plain: Plain) -> tuple[Any, Array] | None:
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
