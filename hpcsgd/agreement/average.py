"""Local SGD: replicas average their state every τ exchanges.

With s = 1 this is local SGD, with s > 1 the 2-D hybrid. Both change the iterates;
CA-SGD inside one replica does not.
"""

from hpcsgd.agreement.base import Agreement
from hpcsgd.agreement.terms import Terms
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, State

BUFFERS = ("average", "keep", "reset")  # what becomes of momentum when replicas agree


class Average(Agreement):
    """x ← Σ_r (n_r / n) x_r in one message.

    `momentum` says what becomes of the momentum, the columns of the state behind the
    first `classes`: averaged as the weights are, kept by every replica, or set to zero.
    """

    def __init__(
        self,
        grid: Grid,
        share: float,
        period: int,
        momentum: str = "average",
        classes: int = 0,
    ) -> None:
        super().__init__(grid, share, period)
        self.momentum = momentum
        self.classes = classes

    @classmethod
    def of(cls, terms: Terms) -> "Average":
        """Every τ exchanges."""
        return cls(terms.grid, terms.share, terms.period, *cls.buffers(terms))

    @staticmethod
    def buffers(terms: Terms) -> tuple[str, int]:
        """What becomes of momentum, and where in the state it begins."""
        return terms.settings.momentum, terms.classes

    def agree(self, state: State, purpose: str) -> None:
        """Average over all replicas by the rows of each."""
        self.average(state, self.share, self.grid.replicas, purpose)

    def weight(self, exchanges: int) -> float:
        """How much this replica counts where all agree after so many exchanges."""
        return self.share

    def keeps_own(self, state: State) -> bool:
        """Kept momentum is a replica's own, too."""
        if self.momentum == "keep" and not self._has_no_momentum(state):
            return True
        return super().keeps_own(state)

    def _has_no_momentum(self, state: State) -> bool:
        return bool(state.look_at("weights").shape[1] <= self.classes)

    def average(
        self, state: State, share: float, group: Communicator, purpose: str
    ) -> None:
        """x ← Σ share · x over the group, whose shares add up to 1."""
        if self.momentum == "average" or self._has_no_momentum(state):
            self._average_all(state, share, group, purpose)
            return
        own = positions(state, self.classes)
        self._average_all(own, share, group, purpose)
        put_positions(state, own, self.classes)
        if self.momentum == "reset":
            clear_momentum(state, self.classes)

    def _average_all(
        self, state: State, share: float, group: Communicator, purpose: str
    ) -> None:
        if group.size == 1:
            return
        buffer = state.portion(share, group)
        group.sum(buffer, purpose)
        intercept = state.become(buffer)
        # Each column block summed its own copy; with three or more replicas the
        # order of that sum may differ in the last bit, and members must not.
        if intercept is not None and group.size > 2 and self.grid.members.size > 1:
            self.grid.members.broadcast(intercept, 0, purpose)


def positions(state: State, classes: int) -> State:
    """A copy of the weights and the intercept alone, without momentum."""
    seen = state.glance()
    intercept: Array | None = seen.intercept
    return State(
        weights=seen.weights[:, :classes].copy(),
        intercept=None if intercept is None else intercept[:1].copy(),
    )


def put_positions(state: State, own: State, classes: int) -> None:
    """What `positions` gave, back into the state."""
    state.weights[:, :classes] = own.weights
    if state.intercept is not None:
        state.intercept[:1] = own.intercept


def clear_momentum(state: State, classes: int) -> None:
    """Steps begin from rest."""
    state.weights[:, classes:] = 0.0
    if state.intercept is not None:
        state.intercept[1:] = 0.0
