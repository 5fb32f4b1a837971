"""Local SGD: replicas average their state every τ exchanges.

With s = 1 this is local SGD, with s > 1 the 2-D hybrid. Both change the iterates;
CA-SGD inside one replica does not.
"""

import numpy as np

from hpcsgd.agreement.base import Agreement
from hpcsgd.products.base import State


class Average(Agreement):
    """x ← Σ_r (n_r / n) x_r, momentum and intercept included, in one message."""

    def agree(self, state: State, purpose: str) -> None:
        """Average the whole state by the rows of each replica."""
        if self.grid.replicas.size == 1:
            return
        weights = state.weights
        buffer = self._pack(state)
        self.grid.replicas.sum(buffer, purpose)
        weights[...] = buffer[: weights.size].reshape(weights.shape)
        if state.intercept is not None:
            averaged = buffer[weights.size :].reshape(state.intercept.shape)
            state.intercept[...] = averaged
            self._share_intercept(state.intercept, purpose)

    def _pack(self, state: State) -> np.ndarray:
        parts = [state.weights.reshape(-1)]
        if state.intercept is not None:
            parts.append(state.intercept.reshape(-1).astype(state.weights.dtype))
        buffer: np.ndarray = np.concatenate(parts)
        buffer *= self.share
        return buffer

    def _share_intercept(self, intercept: np.ndarray, purpose: str) -> None:
        # Each column block summed its own copy; with three or more replicas the
        # order of that sum may differ in the last bit, and members must not.
        if self.grid.replicas.size > 2 and self.grid.members.size > 1:
            self.grid.members.broadcast(intercept, 0, purpose)
