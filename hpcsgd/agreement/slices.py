"""What a replica holds in slices, and how all of them make one state.

stage 1, 2    what the rule keeps
stage 3       and the weights, of which a look gathers tile by tile
"""

from collections.abc import Iterator

import numpy as np

from hpcsgd.agreement.cuts import Cuts
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.joining import Joining
from hpcsgd.agreement.means import Means
from hpcsgd.agreement.room import Room
from hpcsgd.comm.grid import Grid
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array, State

VELOCITY = "velocity"  # of linear rules that have one: beside the weights elsewhere


class Sliced(Gradient):
    """The state of one replica; what it says and how it steps stand in `Sharded`."""

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, means)
        self.stage = int(means.settings.stage)
        self.states = self.steps.rule.states
        self.replicas = grid.replicas

    def shape(self, columns: int, width: int) -> tuple[int, int]:
        """Velocities are kept apart; from stage 3 on there are slices alone."""
        replicas, dtype = self.replicas, self.backend.zeros((0, 1)).dtype
        tiles = self.means.buckets(columns, dtype.itemsize)
        own = (replicas.size, replicas.rank)
        self.cuts = Cuts(columns, self.columns, tiles, *own, unit=self.means.unit)
        self.room = Room(self.cuts.largest, len(self.cuts), dtype)
        self.joining = Joining(replicas, self.cuts, self.room)
        return (self.cuts.height if self.stage == 3 else columns), self.columns

    def start(self, state: State, exchanges: int) -> None:
        """Refused alike on all ranks where others keep something beside no columns."""
        if self.stage < 3 or not self.cuts.leaves_some_without:
            return
        if set(state.memory) > set(self._sliced()):
            error = ConfigError(
                f"[agreement] stage = 3 leaves some of {self.replicas.size} replicas"
                f" without any of {self.cuts.columns} columns, and [average] or rows"
                " that are held out keep something beside each; use agreement.stage = 2"
            )
            error.on_all_ranks = True
            raise error

    def _sliced(self) -> tuple[str, ...]:
        """Names in the memory that are slices in every stage."""
        return (*self.steps.rule.kept, *((VELOCITY,) if self.states > 1 else ()))

    def whole(self, state: State) -> Array:
        """[w | v] of all columns held, as if nothing were sliced."""
        parts = [self.joined(state.weights)]
        if self.states > 1:
            parts.append(self.joining.join(state.memory[VELOCITY], "control"))
        return np.hstack(parts) if len(parts) > 1 else parts[0]

    def put_whole(self, state: State, whole: Array) -> None:
        """The reverse."""
        state.weights[...] = self.parted(whole)
        if self.states > 1:
            state.memory[VELOCITY][...] = self.cuts.of(whole[:, self.columns :])

    def width(self, state: State) -> int:
        """Words a column of that."""
        return self.columns * self.states

    def joined(self, held: Array) -> Array:
        """Whole columns of what is held as the weights are."""
        return held if self.stage < 3 else self.joining.join(held, "control")

    def parted(self, whole: Array) -> Array:
        """The reverse."""
        own = whole[:, : self.columns]
        return own if self.stage < 3 else self.cuts.of(own)

    def memory(self, state: State) -> dict[str, Array]:
        """All columns held of what is kept in slices."""
        return {
            name: self.joining.join(kept, "control") if self._is_sliced(name) else kept
            for name, kept in state.memory.items()
            if name in self.widths(state)
        }

    def remember(self, state: State, name: str, kept: Array) -> None:
        """The own slices of it."""
        own = self.cuts.of(kept) if self._is_sliced(name) else kept
        state.memory[name][...] = own

    def widths(self, state: State) -> dict[str, int]:
        """Velocities lie beside the weights there."""
        found = super().widths(state)
        found.pop(VELOCITY, None)
        return found

    def _is_sliced(self, name: str) -> bool:
        return self.stage == 3 or name in self._sliced()

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """What is put together is the same everywhere."""
        return True

    def tiles(self, held: Array) -> Iterator[tuple[slice, Array]]:
        """Of slices, for a look at the objective."""
        for cut, tile in self.joining.tiles(held, "evaluate"):
            yield cut.columns, tile
