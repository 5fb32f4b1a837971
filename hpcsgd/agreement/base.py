"""The protocol of an agreement."""

from abc import ABC, abstractmethod
from dataclasses import replace

from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import State


class Agreement(ABC):
    """How replicas agree; `share` is the part of all rows that this one holds."""

    def __init__(self, grid: Grid, share: float, period: int) -> None:
        self.grid = grid
        self.share = share
        self.period = period

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Agree when `exchanges`, the number done so far, says it is due."""
        if exchanges % self.period == 0:
            self.agree(state, "agreement")

    def settle(self, state: State, exchanges: int) -> None:
        """Agree at the end of a run, unless the last exchange just did."""
        if exchanges % self.period:
            self.agree(state, "agreement")

    def consensus(self, state: State, exchanges: int) -> State:
        """What an agreement would give now, with the state left as it is."""
        if exchanges % self.period == 0:
            return state
        intercept = None if state.intercept is None else state.intercept.copy()
        copy = replace(state, weights=state.weights.copy(), intercept=intercept)
        self.agree(copy, "evaluate")
        return copy

    @abstractmethod
    def agree(self, state: State, purpose: str) -> None:
        """Make the replicas' weights one; booked under `purpose`."""
