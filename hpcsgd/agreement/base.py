"""The protocol of an agreement."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import State


class Agreement(ABC):
    """How replicas agree; `share` is the part of all rows that this one holds."""

    def __init__(self, grid: Grid, share: float, period: int) -> None:
        self.grid = grid
        self.share = share
        self.period = period

    def prepare(self, state: State) -> None:  # noqa: B027
        """Put the arrays that are kept between calls into `state.memory`."""

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

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """True where all replicas hold the same just now, so that one copy says all."""
        if self.grid.replicas.size == 1:
            return True
        return not state.memory and exchanges % self.period == 0

    def updates(self, batches: int) -> int:
        """Steps that an exchange of so many batches takes."""
        return batches

    def facts(self) -> dict[str, Any]:
        """What it has to say in the report of a run."""
        return {}

    @abstractmethod
    def agree(self, state: State, purpose: str) -> None:
        """Make the replicas' weights one; booked under `purpose`."""
