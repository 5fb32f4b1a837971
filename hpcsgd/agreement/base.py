"""The protocol of an agreement."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from hpcsgd.agreement.terms import Terms
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, State


class Agreement(ABC):
    """How replicas agree; `share` is the part of all rows that this one holds."""

    def __init__(self, grid: Grid, share: float, period: int) -> None:
        self.grid = grid
        self.share = share
        self.period = period

    @classmethod
    def of(cls, terms: Terms) -> "Agreement":
        """One that takes what it needs of what is known where a run is built."""
        return cls(terms.grid, terms.share, terms.period)

    @property
    def workers(self) -> int:
        """Replicas that train in an exchange."""
        return self.grid.replicas.size

    @property
    def circle_sizes(self) -> list[int]:
        """Replicas of the groups that this one averages in, where they are nested."""
        return []

    def trains(self, number: int) -> bool:
        """Whether this replica takes part in exchange `number`, from 1."""
        return True

    def shape(self, columns: int, width: int) -> tuple[int, int]:
        """Of the weights held here; so many columns, so many words each, if whole."""
        return columns, width

    def whole(self, state: State) -> Array:
        """The weights of all columns held, and their states; with all ranks."""
        return state.weights

    def put_whole(self, state: State, whole: Array) -> None:
        """The reverse; a local call."""
        state.weights[...] = whole

    def width(self, state: State) -> int:
        """Words a column of that."""
        return int(state.weights.shape[1])

    def joined(self, held: Array) -> Array:
        """All columns of what is held as the weights are; with all ranks."""
        return held

    def parted(self, whole: Array) -> Array:
        """The reverse; a local call."""
        return whole

    def prepare(self, state: State) -> None:  # noqa: B027
        """Put the arrays that are kept between calls into `state.memory`."""

    def start(self, state: State, exchanges: int) -> None:  # noqa: B027
        """The state that the run goes on from, after so many exchanges, is in place."""

    def plan_in_words(self, state: State) -> dict[str, str]:
        """What decides its messages, in words; replicas compare it before the first."""
        return {
            "agreement": type(self).__name__,
            "period": repr(self.period),
            "workers": repr(self.workers),
            "columns held": repr(state.weights.shape),
            "format of the weights": str(state.weights.dtype),
        }

    def is_whole(self, exchanges: int) -> bool:
        """Whether all replicas agree right after exchange number `exchanges`."""
        return exchanges % self.period == 0

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Agree when `exchanges`, the number done so far, says it is due."""
        if self.is_whole(exchanges):
            self.conclude(state, exchanges, "agreement")

    def arrive(self, state: State) -> None:  # noqa: B027
        """Wait for what is under way, before anybody else reads or saves the state.

        Called by all ranks at the same time; training goes on from there as it would
        have done.
        """

    def settle(self, state: State, exchanges: int) -> None:
        """Agree at the end of a run, unless the last exchange just did."""
        if not self.is_whole(exchanges):
            self.conclude(state, exchanges, "agreement")

    def consensus(self, state: State, exchanges: int) -> State:
        """What an agreement would give now, with the state left as it is."""
        if self.is_whole(exchanges):
            return state
        seen = state.glance()
        intercept = None if seen.intercept is None else seen.intercept.copy()
        copy = replace(seen, weights=seen.weights.copy(), intercept=intercept)
        self.conclude(copy, exchanges, "evaluate")
        return copy

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """True where all replicas hold the same just now, so that one copy says all."""
        if self.grid.replicas.size == 1:
            return True
        return self.is_whole(exchanges) and not self.keeps_own(state)

    def keeps_own(self, state: State) -> bool:
        """Whether replicas hold something of their own even when they agree."""
        return bool(state.memory)

    def memory(self, state: State) -> dict[str, Array]:
        """What is kept, one row a column held; all ranks ask at the same time."""
        return state.memory

    def widths(self, state: State) -> dict[str, int]:
        """Words a column of each array that `memory` gives; a local call."""
        return {name: kept.shape[1] for name, kept in state.memory.items()}

    def remember(self, state: State, name: str, kept: Array) -> None:
        """Put back one array that `memory` gave; a local call."""
        state.memory[name][...] = kept

    def inherit(self, state: State, name: str, kept: Array) -> None:  # noqa: B027
        """Take over what another grid has kept and this one does not; a local call."""

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Make all replicas one after so many exchanges; booked under `purpose`."""
        self.agree(state, purpose)

    def visited(self, dealt: int) -> int:
        """Rows of all replicas in an exchange that dealt so many to this one."""
        return dealt * self.workers

    def logs(self) -> dict[str, Array]:
        """What is written down of all exchanges so far, the same on all ranks."""
        return {}

    def recall(self, name: str, log: Array) -> None:  # noqa: B027
        """Go on with one array that `logs` gave; a local call, before `start`."""

    def updates(self, batches: int) -> int:
        """Steps that an exchange of so many batches takes."""
        return batches

    def steps_taken(self, planned: int) -> int:
        """Steps so far, of which `planned` are those that a schedule alone knows."""
        return planned

    def facts(self) -> dict[str, Any]:
        """What it has to say in the report of a run."""
        return {}

    @abstractmethod
    def agree(self, state: State, purpose: str) -> None:
        """Make the replicas' weights one; booked under `purpose`."""

    def release(self) -> None:  # noqa: B027
        """Let go of files and threads, however the run ended; a local call."""

    def close(self) -> None:  # noqa: B027
        """Let go of the groups that it opened, with all ranks."""
