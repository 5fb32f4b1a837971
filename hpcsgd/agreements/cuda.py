"""Agreements whose arrays are on a GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcsgd.agreements.buckets import PURPOSE, SummedColumns
from hpcsgd.agreements.gradient import Gradient, GradientParts
from hpcsgd.agreements.more.offload import Offload, PinnedLink
from hpcsgd.agreements.zero import Cut, Cuts, Scatter, ShardedAgreement, TileWorkspace
from hpcsgd.backends.base import Memory
from hpcsgd.backends.cuda.device import Device
from hpcsgd.backends.cuda.weights import DeviceRules, WordRange
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.gpu import DeviceCommunicator
from hpcsgd.comm.grid import Grid
from hpcsgd.formats import Array
from hpcsgd.glm.updates import Turn
from hpcsgd.products.base import Rows, State, Task
from hpcsgd.products.cuda_state import MirroredMemory, MirroredState

# ZeRO on devices: sums, slices of state, steps and gathers are where the rows are.
#
# Tiles begin where rows have whole chunks; slices of them begin anywhere, since the
# kernels that step them take a word a thread. Nothing as large as a slice crosses to
# the host but for what somebody looks at, and gradients that are shaped before the
# step.


class DeviceTileWorkspace(TileWorkspace):
    """Tiles of a device."""

    def __init__(self, device: Device, words: int, tiles: int) -> None:
        super().__init__(words, tiles, np.dtype(np.float32))
        self.device = device

    def _make(self) -> Any:
        return self.device.empty((self.words,), np.float32)


class DeviceTileScatter(Scatter):
    """A gradient on a device, all of it or two tiles and the own slices."""

    def __init__(
        self,
        rules: DeviceRules,
        memory: Memory,
        replicas: Communicator,
        cuts: Cuts,
        room: DeviceTileWorkspace,
        whole: bool,
        sums: bool,
    ) -> None:
        self.rules, self.device, self.memory = rules, rules.device, memory
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

    def keep_slice(self, own: Any, kept: Any) -> None:
        """Copy the own slice out of a tile, on the device."""
        self.rules.add(own, kept, is_first=True)


class DeviceSharded(ShardedAgreement):
    """The slices of one replica on its device."""

    def __init__(
        self, grid: Grid, share: float, means: GradientParts, device: Device
    ) -> None:
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
        assert isinstance(state, MirroredState)
        device, cuts = self.device, self.cuts
        self.rules = DeviceRules(device, self.steps.rule, self.steps.l2, state.scale)
        self.tile_room = DeviceTileWorkspace(device, cuts.largest, len(cuts))
        self.stepped_room = DeviceTileWorkspace(device, self._widest_slice(), len(cuts))
        super().prepare(state)
        state.memory = MirroredMemory(device, state.memory, self._sliced())
        if self.means.shapers:
            self.link = PinnedLink(device.layer, device.stream)
            shape = cuts.height, self.columns
            self.incoming = self.link.allocate(shape, np.dtype(np.float32))

    def device_bytes(self, columns: int) -> int:
        """Return the bytes on the device for so many columns: weights and all other
        arrays.
        """
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

    def _make_scatter(self, whole: bool, sums: bool) -> DeviceTileScatter:
        given = self.rules, self.means.memory
        return DeviceTileScatter(
            *given, self.replicas, self.cuts, self.tile_room, whole, sums
        )

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
        assert isinstance(state, MirroredState)
        return state.on_device("weights")

    def _tiles_of(self, own: Any) -> Iterator[tuple[Cut, Any]]:
        if self.replicas.size == 1:  # all of them, in one tile
            return iter([(self.cuts.all[0], own)])
        return self.joining.tiles(own, PURPOSE, self.tile_room)

    def _step(self, state: State, task: Task | None) -> None:
        super()._step(state, task)
        assert isinstance(state, MirroredState) and isinstance(
            state.memory, MirroredMemory
        )
        state.mark_written("weights")
        for name in self._sliced():
            state.memory.mark_written(name)

    def _spread(self, own: Any, cut: Cut, tile: Any) -> None:
        if self.replicas.size > 1:  # else it is in its place
            super()._spread(own, cut, tile)

    def _advance(self, state: State, cut: Cut, gradient: Any, factor: float) -> Any:
        """In place where nobody else reads it, else in a room that it is sent from."""
        assert isinstance(state.memory, MirroredMemory)
        memory, held = state.memory, self._weights(state)
        own = to = held[cut.place if self.stage == 3 else cut.own]
        if self.stage < 3 and self.replicas.size > 1:
            self._turn += 1
            room = self.stepped_room.tile(self._turn, own.size)
            to = room.reshape(-1, self.columns)
        kept = {name: memory.on_device(name)[cut.place] for name in self._sliced()}
        turn = Turn(self._moment.number, self._moment.rate)
        self.rules.step(WordRange(own, to, kept), gradient, factor, turn)
        return to

    def _shape_slices(self, factor: float) -> None:
        """By the host: its slices of the gradient come down, and go up again."""
        assert self.link is not None
        arriving = self.incoming
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
        assert isinstance(scatter, DeviceTileScatter)
        up, down = self.means.memory.facts().values()
        if self.link is not None:
            up, down = up + self.link.up_bytes, down + self.link.down_bytes
        return super().facts() | {"device_bytes_up": up, "device_bytes_down": down}


# ZeRO-Offload with a GPU: it holds w and sums gradients, the host keeps all states.
#
# Replicas sum on their devices, each its slices of every tile; the own slices come down
# to page-locked memory, and what the host has stepped goes up and to all replicas, on
# their devices, too. D/R words a step cross between host and device, each way.


class OffloadDeviceScatter(Scatter):
    """A gradient that a device adds up, whole, and its tiles, which replicas sum."""

    keeps_slices = False

    def __init__(
        self,
        device: Device,
        memory: Memory,
        replicas: Communicator,
        cuts: Cuts,
        room: TileWorkspace,
        sums: bool,
    ) -> None:
        super().__init__(replicas, cuts, room, whole=False, sums=sums)
        self.device = device
        self.memory = memory  # counts the bytes beside those of slices
        self.device_values = device.zeros((cuts.columns * cuts.width,), np.float32)
        self._begun: list[Any] = []

    @property
    def takes_residuals(self) -> bool:
        """Whether it sums them, for an intercept; else it counts them."""
        return self.tail.words.size > 1

    @property
    def gradient(self) -> Any:
        """All of it, where batches are added up."""
        return self.device_values

    def gradient_columns(self, complete: bool) -> SummedColumns:
        """Return what stands for rows: no tile is copied before the sum."""
        return SummedColumns(None)

    def begin(self) -> None:
        """Nothing summed yet, on either side."""
        super().begin()
        self._begun.clear()
        self.device.clear(self.device_values)

    def tile(self, number: int, cut: Cut) -> Any:
        """Where the device has added it up."""
        width = self.cuts.width
        first, last = (end * width for end in (cut.columns.start, cut.columns.stop))
        return self.device_values[first:last].reshape(-1, width)

    def send(self, number: int, cut: Cut, tile: Any) -> None:
        """And what is to be waited for before the host may look at it."""
        super().send(number, cut, tile)
        if isinstance(self.replicas, DeviceCommunicator):
            self._begun.append(self.replicas.newest)

    def wait_for(self, pending: Pending) -> Any:
        """Return the own part; the host waits, and a failed collective raises."""
        own = pending.wait()
        if isinstance(self.replicas, DeviceCommunicator):
            self.replicas.reach(self._begun.pop(0))
        return own


class DeviceOffload(Offload):
    """The slices of one replica, between its host and its device."""

    takes_at_once = False  # the device holds a gradient whole

    def __init__(
        self, grid: Grid, share: float, means: GradientParts, device: Device
    ) -> None:
        super().__init__(grid, share, means)
        self.device = device
        self.link: PinnedLink = PinnedLink(device.layer, device.stream)

    @property
    def sums(self) -> Any:
        """A whole gradient, of which slices come down."""
        return self.scatter

    def prepare(self, state: State) -> None:
        """And room for slices on their way up, on both sides."""
        super().prepare(state)
        shape = self.cuts.height, self.columns
        self.rising = self.link.allocate(shape, self.master.dtype)
        if self.replicas.size > 1:
            self._own_there = self.device.empty(shape, np.float32)

    def _make_scatter(self, whole: bool, sums: bool) -> OffloadDeviceScatter:
        given = self.device, self.means.memory, self.replicas
        return OffloadDeviceScatter(*given, self.cuts, self.workspace, sums)

    def send_up(self, state: State, cut: Cut) -> None:
        """Send a stepped slice from a copy: the host may step on while it travels.

        Weights are divided by what rows are stored times. The copy is free again when
        the next gradient is there: that came down behind what goes up here.
        """
        assert isinstance(state, MirroredState)
        rising, weights = self.rising[cut.place], state.on_device("weights")
        np.divide(self.master[cut.place], state.scale, out=rising)
        tile = weights[cut.columns]
        if self.replicas.size == 1:
            self.link.up(rising, tile)
        else:
            own = self._own_there[cut.place]
            self.link.up(rising, own)
            self.joining.start(own, cut, tile, PURPOSE)
        state.mark_written("weights")

    def settle(self, state: State, exchanges: int) -> None:
        """No gradient has come down since the last slices went up: wait for these."""
        if self.late is not None:
            self.device.settle()
        super().settle(state, exchanges)

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        scatter, link = self.scatter, self.link
        assert isinstance(scatter, OffloadDeviceScatter)
        carried = self.replicas.copied  # to be carried, where hosts do that
        up, down = scatter.memory.facts().values()
        return super().facts() | {
            "device_bytes_up": link.up_bytes + up + carried[0],
            "device_bytes_down": link.down_bytes + down + carried[1],
        }


# Which class serves an agreement on a device, and what it works with there.

CLASSES: dict[type[Gradient], type[Any]] = {
    Offload: DeviceOffload,
    ShardedAgreement: DeviceSharded,
}
