"""The coefficients of an exchange for several models: each column has its own."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.host_plan import HostPlan
from hpcsgd.schedule import Blocks
from hpcsgd.updates.many import ManyUnrolled

Array = NDArray[Any]


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

    def carry_on(self, weights: Array) -> None:
        """weights ← Φ weights, where state k owns K columns."""
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


def plan_many(unrolled: ManyUnrolled, blocks: Blocks, dtype: Any) -> ManyPlan:
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
