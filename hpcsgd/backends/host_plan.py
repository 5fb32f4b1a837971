"""The coefficients of an exchange as NumPy takes them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]


@dataclass(frozen=True)
class HostPlan:
    """Coefficients spread over the rows they multiply.

    Whatever does not depend on an earlier residual is then one call for all s steps.
    """

    blocks: Blocks
    states: int
    lead: tuple[Array | None, ...]  # [state]: (m, 1); None where it is all ones
    couple: tuple[Array, ...]  # [step]: (start_j, 1)
    gain: tuple[Array, ...]  # [state]: (m, 1); of the first states, which move
    carry: Array  # (states, states)
    unrolled: Unrolled

    def carry_on(self, weights: Array) -> None:
        """weights ← Φ weights, where state k owns K columns."""
        carry = self.carry
        if self.states == 1:
            if carry[0, 0] != 1.0:
                weights *= float(carry[0, 0])
            return
        parts = weights.reshape(len(weights), len(carry), -1)
        mixed = np.einsum("pq,dqk->dpk", carry.astype(weights.dtype), parts)
        weights[...] = mixed.reshape(weights.shape)

    def advance(self, intercept: Array, step: int, residuals: Array) -> None:
        """β ← M β + u Σr: the state of the weights without the penalty."""
        unrolled, total = self.unrolled, residuals.sum(axis=0, dtype=np.float64)
        push = np.multiply.outer(unrolled.push[step], total)
        intercept[...] = unrolled.free[step] @ intercept + push

    def scale(self, step: int, residuals: Array, out: Array) -> None:
        """out ← what earlier residuals count in the scores of `step`."""
        np.multiply(residuals, self.couple[step], out=out)
