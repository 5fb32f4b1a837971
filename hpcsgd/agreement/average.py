"""Local SGD: replicas average their state every τ exchanges.

With s = 1 this is local SGD, with s > 1 the 2-D hybrid. Both change the iterates;
CA-SGD inside one replica does not.
"""

from hpcsgd.agreement.base import Agreement
from hpcsgd.products.base import Array, State


class Average(Agreement):
    """x ← Σ_r (n_r / n) x_r, momentum and intercept included, in one message."""

    def agree(self, state: State, purpose: str) -> None:
        """Average the whole state by the rows of each replica."""
        replicas = self.grid.replicas
        if replicas.size == 1:
            return
        buffer = state.portion(self.share, replicas)
        replicas.sum(buffer, purpose)
        intercept = state.become(buffer)
        if intercept is not None:
            self._share_intercept(intercept, purpose)

    def _share_intercept(self, intercept: Array, purpose: str) -> None:
        # Each column block summed its own copy; with three or more replicas the
        # order of that sum may differ in the last bit, and members must not.
        if self.grid.replicas.size > 2 and self.grid.members.size > 1:
            self.grid.members.broadcast(intercept, 0, purpose)
