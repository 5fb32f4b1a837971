"""The backend that rounds to number formats that the processor does not have."""

from itertools import pairwise

import numpy as np

from hpcsgd.backends.base import (
    HostPlan,
    LossScale,
    Rows,
    StepBatch,
)
from hpcsgd.backends.numpy_rows import DenseRows, HostBackend, block_rows, round_values
from hpcsgd.data.matrix import Csr
from hpcsgd.formats import Array, get_format, round_randomly
from hpcsgd.glm.families import Family
from hpcsgd.glm.unrolling import Blocks
from hpcsgd.precision import Precision

# Emulation of formats that the host does not compute in: every value is rounded.
#
# An accumulator of a narrow format works as those of matrix units do: the products of
# `TOGETHER` terms are summed wide, their total is added, and the sum is rounded. Values
# are stored in float32 or float64 meanwhile. Numbers are those of a machine with the
# formats; times are not.

TOGETHER = 16  # products that a matrix unit sums before it rounds


def accumulate(left: Array, right: Array, name: str) -> Array:
    """Return left @ right, as an accumulator of format `name` would sum it.

    The sum is rounded after each `TOGETHER` products; a wide format that the arrays
    already have needs no emulation.
    """
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


class RoundedBackend(HostBackend):
    """A NumPy backend that rounds values to the format of each field of a precision."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(precision)
        self.inner = self.working
        narrow = get_format(precision.residual).wants_scale
        self.loss_scale = LossScale() if narrow else None
        self._leaves_out = False  # whether the last s steps are left out

    def widen(self, stored: Csr) -> DenseRows:
        """Return sparse rows as a dense array of the columns that occur in them."""
        return DenseRows(*super().widen(stored).dense())

    def scores(self, rows: Rows, weights: Array, out: Array) -> Array:
        """Compute and return out ← Y W, summed in the format `precision.margin_sum`."""
        values, columns = rows.dense()
        point = weights[columns].astype(self.working, copy=False)
        out[...] = accumulate(values, point, self.precision.margin_sum)
        return out

    def strict_gram(self, rows: Rows, blocks: Blocks, out: Array) -> Array:
        """Compute and return out ← the strictly-lower blocks of Y Yᵀ, packed.

        With an emulated accumulator the whole square Y Yᵀ is computed first.
        """
        name = self.precision.gram_sum
        if get_format(name).carrier == self.working and get_format(name).is_wide:
            return super().strict_gram(rows, blocks, out)
        values, _ = rows.dense()
        square = accumulate(values, np.ascontiguousarray(values.T), name)
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
        """Return the residuals (m, K), with G and scores rounded to `precision.inner`.

        The intercept stays unchanged if the loss scale rejects residuals that
        overflowed.
        """
        gram = gram.astype(self.working)
        round_values(gram, self.precision.inner)
        working_margins = margins.astype(self.working)
        before = None if intercept is None else intercept.copy()
        residuals = super().corrected_residuals(
            working_margins, gram, plan, family, batch, intercept
        )
        scale = self.loss_scale
        self._leaves_out = scale is not None and not scale.accepts(residuals)
        if self._leaves_out and intercept is not None and before is not None:
            intercept[...] = before
        return residuals

    def apply_update(
        self, weights: Array, rows: Rows, residuals: Array, plan: HostPlan
    ) -> None:
        """Apply the update, unless the loss scale rejected the last residuals."""
        if not self._leaves_out:
            super().apply_update(weights, rows, residuals, plan)

    def _correct(self, score: Array, panel: Array, scaled: Array) -> None:
        """Compute score ← score + panel · scaled, rounded to `precision.inner`."""
        name = self.precision.inner
        round_values(scaled, name)
        score += accumulate(panel, scaled, name)

    def _residual(self, family: Family, score: Array, targets: Array) -> None:
        """Compute score ← ∂ℓ/∂t at the score, both in `precision.residual`."""
        round_values(score, self.precision.inner)
        form = get_format(self.precision.residual)
        rounded_score = score.astype(form.carrier)
        round_values(rounded_score, form.name)
        score[...] = family.residual(
            rounded_score, targets.astype(form.carrier, copy=False)
        )
        self._round_residual(score)

    def _weigh(self, score: Array, weights: Array) -> None:
        """Compute score ← score · weights (sample weights), rounded as residuals."""
        score *= weights
        self._round_residual(score)

    def _round_residual(self, score: Array) -> None:
        if self.loss_scale is None:
            round_values(score, self.precision.residual)
            return
        score *= self.loss_scale.value
        round_values(score, self.precision.residual)
        score /= self.loss_scale.value

    def _move(self, weights: Array, rows: Rows, scaled: Array, plan: HostPlan) -> None:
        """Compute weights ← Φ weights + Yᵀ scaled, rounded once to their format.

        Φ is the transition of `plan`, which applies momentum and the penalty of all
        steps.
        """
        moved = weights.astype(self.working)
        plan.apply_transition(moved)
        values, columns = rows.dense()
        total = accumulate(values.T, scaled, self.precision.gradient_sum)
        moved[columns, : scaled.shape[1]] += total
        self._settle(moved)
        weights[...] = moved

    def _settle(self, weights: Array) -> None:
        """Round weights to the format in which they are stored, in place.

        They are rounded at random if the backend has `dice`, else to nearest.
        """
        if self.dice is None:
            round_values(weights, self.precision.weights)
        else:
            round_randomly(
                weights, self.precision.weights, self.dice.draw_uniform(weights)
            )
