"""Backends that round to formats that the processor does not have."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.base import ColumnDraws, HostPlan, LossScale, StepBatch
from hpcsgd.backends.numpy_rows import HostBackend, Marks, block_rows
from hpcsgd.data.sparse import Csr
from hpcsgd.formats import Array, decode, get_format, round_randomly, round_through
from hpcsgd.glm.families import Family
from hpcsgd.glm.unrolling import Blocks
from hpcsgd.precision import Precision

# Formats that nothing here computes in: emulated, every value rounded in its place.
#
# An accumulator of a narrow format works as those of matrix units do: the products of
# `TOGETHER` terms are summed wide, their total is added, and the sum is rounded. Values
# lie in float32 or float64 meanwhile. Numbers are those of such a machine; times are
# not.

TOGETHER = 16  # products that a matrix unit sums before it rounds


def accumulate(left: Array, right: Array, name: str) -> Array:
    """left @ right with an accumulator of format `name`."""
    form = get_format(name)
    if form.is_wide and form.carrier == left.dtype:
        whole: Array = left @ right
        return whole
    total = np.zeros((left.shape[0], right.shape[1]), dtype=left.dtype)
    for first in range(0, left.shape[1], TOGETHER):
        part = slice(first, first + TOGETHER)
        total += left[:, part] @ right[part]
        round_values(total, name)
    return total


def round_values(values: Array, name: str) -> None:
    """`round_through`, by a kernel where there is one."""
    has = name == "bf16" and values.dtype == np.float32 and values.flags.c_contiguous
    if has and compiled_calls.available():
        compiled_calls.round_bf16(values)
    else:
        round_through(values, name)


class RoundedBackend(HostBackend):
    """The NumPy backend where fields of the precision differ, each one as it says."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(precision)
        self.inner = self.working
        narrow = get_format(precision.residual).wants_scale
        self.loss_scale = LossScale() if narrow else None
        self.dice: ColumnDraws | None = None  # weights are rounded at random
        self._leaves_out = False  # the steps whose residuals were formed last

    def for_sparse(self) -> HostBackend:
        """The same precision for rows held as CSR."""

        other = RoundedSparseBackend(self.precision)
        other.loss_scale, other.dice = self.loss_scale, self.dice
        return self._like(other)

    def scores(self, rows: Array, weights: Array, out: Array) -> Array:
        """out ← Y W."""
        point = weights.astype(self.working, copy=False)
        out[...] = accumulate(rows, point, self.precision.margin_sum)
        return out

    def strict_gram(self, rows: Array, blocks: Blocks, out: Array) -> Array:
        """Packed G; a narrow accumulator goes through the whole square at once."""
        name = self.precision.gram_sum
        if get_format(name).carrier == self.working and get_format(name).is_wide:
            return super().strict_gram(rows, blocks, out)
        square = accumulate(rows, np.ascontiguousarray(rows.T), name)
        for panel, (first, last) in zip(
            block_rows(out, blocks), pairwise(blocks.starts[1:]), strict=True
        ):
            panel[...] = square[first:last, :first]
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
        """As on the host, with G, scaled residuals and scores in `precision.inner`."""
        gram = gram.astype(self.working)
        round_values(gram, self.precision.inner)
        given = margins.astype(self.working)
        before = None if intercept is None else intercept.copy()
        residuals = super().corrected_residuals(
            given, gram, plan, family, batch, intercept
        )
        scale = self.loss_scale
        self._leaves_out = scale is not None and not scale.accepts(residuals)
        if self._leaves_out and intercept is not None and before is not None:
            intercept[...] = before
        return residuals

    def apply_update(
        self, weights: Array, rows: Any, residuals: Array, plan: HostPlan
    ) -> None:
        """Nothing where residuals overflowed: scaled by less, they fit next time."""
        if not self._leaves_out:
            super().apply_update(weights, rows, residuals, plan)

    def _correct(self, score: Array, panel: Array, scaled: Array) -> None:
        """score ← score + panel · scaled."""
        name = self.precision.inner
        round_values(scaled, name)
        score += accumulate(panel, scaled, name)

    def _residual(self, family: Family, score: Array, targets: Array) -> None:
        """score ← ∂ℓ/∂t at the score, both in `precision.residual`."""
        round_values(score, self.precision.inner)
        form = get_format(self.precision.residual)
        given = score.astype(form.carrier)
        round_values(given, form.name)
        score[...] = family.residual(given, targets.astype(form.carrier, copy=False))
        self._round_residual(score)

    def _weigh(self, score: Array, weights: Array) -> None:
        """score ← score · c."""
        score *= weights
        self._round_residual(score)

    def _round_residual(self, score: Array) -> None:
        if self.loss_scale is None:
            round_values(score, self.precision.residual)
            return
        score *= self.loss_scale.value
        round_values(score, self.precision.residual)
        score /= self.loss_scale.value

    def _move(self, weights: Array, rows: Any, scaled: Array, plan: HostPlan) -> None:
        """weights ← Φ weights + Yᵀ scaled, rounded once."""
        moved = weights.astype(self.working)
        plan.apply_transition(moved)
        self._add_gradient(moved[:, : scaled.shape[1]], rows, scaled)
        self._settle(moved)
        weights[...] = moved

    def _add_gradient(self, weights: Array, rows: Array, scaled: Array) -> None:
        weights += accumulate(rows.T, scaled, self.precision.gradient_sum)

    def _settle(self, weights: Array) -> None:
        """To the format in which weights are kept."""
        if self.dice is None:
            round_values(weights, self.precision.weights)
        else:
            round_randomly(
                weights, self.precision.weights, self.dice.draw_uniform(weights)
            )


# Emulated formats for rows held as CSR: the columns that occur, as a dense array.


@dataclass(frozen=True)
class Compact:
    """Sampled rows without the columns in which none of them has a value.

    Zeros change no sum, and leaving them out changes no bound.
    """

    dense: Array  # (m, touched)
    touched: Array  # their numbers in the shard

    def __len__(self) -> int:
        return len(self.dense)

    def __getitem__(self, part: slice) -> "Compact":
        return Compact(self.dense[part], self.touched)


class RoundedSparseBackend(RoundedBackend):
    """The emulation on `Csr` where that one takes arrays."""

    marks: Marks

    def pick(self, matrix: Csr, rows: Array) -> Csr:  # type: ignore[override]
        """The sampled rows as they are stored."""
        return matrix.take(rows)

    def widen(self, stored: Csr, out: Array | None) -> Compact:  # type: ignore[override]
        """Stored rows for the products; `out` is for dense ones."""
        data = decode(stored.data, self.precision.matrix, self.working)
        if self.scaling is not None:
            self.scaling.down(data)
        if not hasattr(self, "marks"):
            self.marks = Marks()
        touched, indices = self.marks.compact(stored.indices, stored.width)
        parts = stored.indptr, indices, data, len(touched)
        return Compact(Csr(*parts).to_scipy().toarray(), touched)

    def gather(self, matrix: Csr, rows: Array, out: Array | None) -> Compact:  # type: ignore[override]
        """The sampled rows, widened."""
        return self.widen(self.pick(matrix, rows), out)

    def some_columns(self, rows: Compact, part: slice) -> Compact:
        """Those of them that occur."""
        first, last = np.searchsorted(rows.touched, (part.start, part.stop))
        touched = rows.touched[first:last] - part.start
        return Compact(rows.dense[:, first:last], touched)

    def scores(self, rows: Compact, weights: Array, out: Array) -> Array:  # type: ignore[override]
        """out ← Y W."""
        return super().scores(rows.dense, weights[rows.touched], out)

    def strict_gram(self, rows: Compact, blocks: Blocks, out: Array) -> Array:  # type: ignore[override]
        """Packed G."""
        return super().strict_gram(rows.dense, blocks, out)

    def _add_gradient(self, weights: Array, rows: Compact, scaled: Array) -> None:  # type: ignore[override]
        part = weights[rows.touched]
        super()._add_gradient(part, rows.dense, scaled)
        weights[rows.touched] = part
