"""ZeRO on devices: sums, slices of state, steps and gathers are where the rows are.

Tiles begin where rows have whole chunks; slices of them begin anywhere, since the
kernels that step them take a word a thread. Nothing as large as a slice crosses to the
host but for what somebody looks at, and gradients that are shaped before the step.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcsgd.agreement.cuts import Cut, Cuts
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.means import Means
from hpcsgd.agreement.offload_link import PinnedLink
from hpcsgd.agreement.room import Room
from hpcsgd.agreement.scatter import Scatter
from hpcsgd.agreement.sharded import Sharded
from hpcsgd.agreement.there import Landing
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_rules import DeviceRules, Piece
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, Rows, State, Task
from hpcsgd.products.device_slices import RowsThere
from hpcsgd.products.held import HeldMemory, HeldState
from hpcsgd.updates import Turn


class RowsBackend(Landing):
    """In the place of a backend: rows of a device, and arrays that are there."""

    def some_columns(self, rows: RowsThere, columns: slice) -> RowsThere:  # type: ignore[override]
        """Of a tile."""
        return rows.part(columns)

    def descend(  # type: ignore[override]
        self, gradient: Any, rows: RowsThere, residuals: Array, plan: Any
    ) -> None:
        """gradient ← gradient + Yᵀr."""
        rows.add_gradient(gradient)


class RoomThere(Room):
    """Tiles of a device."""

    def __init__(self, device: Device, words: int, tiles: int) -> None:
        super().__init__(words, tiles, np.dtype(np.float32))
        self.device = device

    def _make(self) -> Any:
        return self.device.empty((self.words,), np.float32)


class TilesThere(Scatter):
    """A gradient on a device, all of it or two tiles and the own slices."""

    def __init__(
        self,
        rules: DeviceRules,
        replicas: Communicator,
        cuts: Cuts,
        room: RoomThere,
        whole: bool,
        sums: bool,
    ) -> None:
        self.rules, self.device = rules, rules.device
        self.up = self.down = 0  # bytes between host and device
        super().__init__(replicas, cuts, room, whole, sums)

    @property
    def takes_residuals(self) -> bool:
        """Whether it sums them, for an intercept; else it counts them."""
        return self.tail.words.size > 1

    def _zeros(self, height: int, width: int) -> Any:
        if not height:  # nothing is kept there
            return np.zeros((0, width), np.float32)
        return self.device.zeros((height, width), np.float32)

    def _clear(self, array: Any) -> None:
        self.device.clear(array)

    def _keep(self, own: Any, kept: Any) -> None:
        self.rules.add(own, kept, is_first=True)


class ShardedThere(Sharded):
    """The slices of one replica on its device."""

    def __init__(self, grid: Grid, share: float, means: Means, device: Device) -> None:
        super().__init__(grid, share, means)
        self.device = device
        self.link: PinnedLink | None = None  # of gradients that the host shapes
        self._turn = 0  # of rooms for slices that were stepped
        self._parts: dict[int, Any] = {}  # scores of a tile, by how many

    @property
    def sums(self) -> Any:
        """Where bytes are counted."""
        return self.scatter

    def prepare(self, state: State) -> None:
        """What the rule keeps is on the device, and room for tiles and slices."""
        assert isinstance(state, HeldState)
        device, cuts = self.device, self.cuts
        self.rules = DeviceRules(device, self.steps.rule, self.steps.l2, state.scale)
        self.tile_room = RoomThere(device, cuts.largest, len(cuts))
        self.stepped_room = RoomThere(device, self._widest_slice(), len(cuts))
        super().prepare(state)
        state.memory = HeldMemory(device, state.memory, self._sliced())
        if self.means.shapers:
            self.link = PinnedLink(device.layer, device.stream)
            shape = cuts.height, self.columns
            self.arriving = self.link.room(shape, np.dtype(np.float32))

    def bytes_there(self, columns: int) -> int:
        """Of the device, for so many columns: weights and all that lies beside them."""
        self.shape(columns, self.columns)
        cuts, alone = self.cuts, self.replicas.size == 1
        own, tiles = cuts.height * self.columns, min(len(cuts), 2)
        words = own if self.stage == 3 else columns * self.columns
        words += own * len(self._sliced())
        if self.stage == 1 or alone:
            words += columns * self.columns
        else:
            words += tiles * cuts.largest + own * (tiles > 1)
        if self.stage < 3 and not alone:
            words += tiles * self._widest_slice()
        return 4 * words

    def _widest_slice(self) -> int:
        """Words of it."""
        rank = self.replicas.rank
        return max(cut.heights[rank] for cut in self.cuts) * self.columns

    def _make_scatter(self, whole: bool, sums: bool) -> TilesThere:
        given = self.rules, self.replicas, self.cuts, self.tile_room
        return TilesThere(*given, whole, sums)

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """out ← Σ over tiles of Y w, of weights in slices."""
        there: Any = rows
        for number, (cut, tile) in enumerate(self._tiles_of(point)):
            part = self._part(out) if number else out
            self._of_tile(there, cut).scores(tile, part)
            if number:
                self.rules.add(part, out, is_first=False)

    def _part(self, out: Any) -> Any:
        if out.size not in self._parts:
            self._parts[out.size] = self.device.empty((out.size,), np.float32)
        return self._parts[out.size]

    def _weights(self, state: State) -> Any:
        assert isinstance(state, HeldState)
        return state.on_device("weights")

    def _tiles_of(self, own: Any) -> Iterator[tuple[Cut, Any]]:
        if self.replicas.size == 1:  # all of them, in one tile
            return iter([(self.cuts.all[0], own)])
        return self.joining.tiles(own, PURPOSE, self.tile_room)

    def _step(self, state: State, task: Task | None) -> None:
        super()._step(state, task)
        assert isinstance(state, HeldState) and isinstance(state.memory, HeldMemory)
        state.wrote("weights")
        for name in self._sliced():
            state.memory.wrote(name)

    def _spread(self, own: Any, cut: Cut, tile: Any) -> None:
        if self.replicas.size > 1:  # else it is in its place
            super()._spread(own, cut, tile)

    def _advance(self, state: State, cut: Cut, gradient: Any, factor: float) -> Any:
        """In place where nobody else reads it, else in a room that it is sent from."""
        assert isinstance(state.memory, HeldMemory)
        memory, held = state.memory, self._weights(state)
        own = to = held[cut.place if self.stage == 3 else cut.own]
        if self.stage < 3 and self.replicas.size > 1:
            self._turn += 1
            room = self.stepped_room.tile(self._turn, own.size)
            to = room.reshape(-1, self.columns)
        kept = {name: memory.on_device(name)[cut.place] for name in self._sliced()}
        turn = Turn(self._moment.number, self._moment.rate)
        self.rules.step(Piece(own, to, kept), gradient, factor, turn)
        return to

    def _shape_slices(self, factor: float) -> None:
        """By the host: its slices of the gradient come down, and go up again."""
        assert self.link is not None
        arriving = self.arriving
        found = [self.scatter.own(k, cut) for k, cut in enumerate(self.cuts)]
        for own, cut in zip(found, self.cuts, strict=True):
            self.link.down(own, arriving[cut.place])()
        arriving *= arriving.dtype.type(factor)
        self._shape_mean(arriving)
        for own, cut in zip(found, self.cuts, strict=True):
            self.link.up(arriving[cut.place], own)

    def _check(self, state: State, exchanges: int) -> None:
        """Nobody looks at weights that are not to be compared."""
        if self.check.is_due(exchanges):
            super()._check(state, exchanges)

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        scatter = self.scatter
        assert isinstance(scatter, TilesThere)
        up, down = scatter.up, scatter.down
        if self.link is not None:
            up, down = up + self.link.up_bytes, down + self.link.down_bytes
        return super().facts() | {"device_bytes_up": up, "device_bytes_down": down}
