"""Agreements whose arrays are on a GPU."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.buckets import PURPOSE, Buffer, PlainSender, Tile
from hpcsgd.agreements.codecs.base import Moment
from hpcsgd.agreements.gradient import Gradient, GradientParts
from hpcsgd.agreements.more.offload import Offload, PinnedLink
from hpcsgd.agreements.more.scheduled import OrderedTiles, Scheduled
from hpcsgd.agreements.zero import Cut, Cuts, Scatter, ShardedAgreement, TileWorkspace
from hpcsgd.backends.cuda.device import Device
from hpcsgd.backends.cuda.weights import DeviceAdd, DeviceRules, WordRange
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.gpu import DeviceCommunicator
from hpcsgd.comm.grid import Grid
from hpcsgd.formats import Array
from hpcsgd.glm.updates import LinearRule, Turn
from hpcsgd.products.base import Rows, State, Task
from hpcsgd.products.cuda_gradient import DeviceRowViews
from hpcsgd.products.cuda_state import MirroredMemory, MirroredState

# Gradients that a device sums: how they come to the host, or travel before they do.
#
# The device adds Yᵀr of all batches of an exchange into one array, laid out as the
# buffer of the host. Tiles come down to page-locked memory one after the other, and the
# first is on its way to other replicas while the next is copied; or replicas sum what
# is on their devices, and only what all of them said together comes down.

CHUNK = 4  # words that kernels read at once


class DeviceBuffer(Buffer):
    """A buffer in page-locked memory, and the same words on a device."""

    is_on_device: ClassVar[bool] = True

    def __init__(self, device: Device, columns: int, *given: Any, **more: Any) -> None:
        self.device = device
        super().__init__(columns, *given, **more)
        words = -(-self.flat.size // CHUNK) * CHUNK
        self.row = device.zeros((1, words), np.float32)  # of a matrix of one row
        self.device_values = self.row[0][: self.flat.size]
        self.is_summed_on_device = False  # True: replicas sum what is there
        self.up = self.down = 0  # bytes, since this process began
        self._landed: dict[int, Any] = {}  # first column -> the event behind its copy

    def _room(self, words: int, dtype: np.dtype) -> Array:
        found: Array = self.device.layer.pinned(words, dtype)
        found[...] = 0.0
        return found

    def clear(self) -> None:
        """There; the gradient of the host is what comes down."""
        self.tail[...] = 0.0
        self.device.clear(self.device_values)

    def mark_empty(self) -> None:
        """Clear the host's copy: no gradient of the device is copied to it."""
        if not self.is_summed_on_device:
            self.flat[...] = 0.0

    def place(self, tile: Tile, with_tail: bool = False) -> slice:
        """Where a tile lies in the buffer, on either side."""
        first, last = (
            end * self.width for end in (tile.columns.start, tile.columns.stop)
        )
        return slice(first, self.flat.size if with_tail else last)

    def start_copy_to_host(self, tile: Tile, with_tail: bool = False) -> None:
        """Start to copy a tile to the host; `wait_for_copy` waits for it."""
        part, layer, stream = (
            self.place(tile, with_tail),
            self.device.layer,
            self.device.stream,
        )
        layer.to_host(self.device_values[part], self.here(part), stream)
        self._landed[tile.columns.start] = layer.record(stream)
        self.down += self.here(part).nbytes

    def here(self, part: slice) -> Array:
        """The same words on the host."""
        return self.flat[part]

    def gradient_columns(self, complete: bool) -> "ArrivingColumns":
        """Return the columns that the agreement takes for rows; complete: no batch
        follows.
        """
        comes = complete and not self.is_summed_on_device
        for tile in self.send_order if comes else ():
            self.start_copy_to_host(tile)
        return ArrivingColumns(self, comes)

    def wait_for_copy(self, first: int) -> None:
        """Wait for the copy of the tile that begins at this column."""
        self.device.layer.wait(self._landed.pop(first))

    def collect(self) -> None:
        """Down, and wait for all of it."""
        for tile in self:
            self.start_copy_to_host(tile)
        for tile in self:
            self.wait_for_copy(tile.columns.start)

    def settle(self) -> None:
        """For whoever looks at a clock."""
        self.device.settle()

    def put_tail(self) -> None:
        """What the host counted, behind the sums of the device."""
        self.device.fill(
            self.device_values[len(self.flat) - len(self.tail) :], self.tail
        )
        self.up += self.tail.nbytes

    @property
    def takes_residuals(self) -> bool:
        """Whether it sums them, for an intercept; else it counts them."""
        return self.sums > 0

    def facts(self) -> dict[str, int]:
        """Bytes between host and device for gradients and weights."""
        return {"device_bytes_up": self.up, "device_bytes_down": self.down}

    def copy_tail_to_host(self) -> None:
        """Copy the tail to the host and wait for it."""
        first, device = len(self.flat) - len(self.tail), self.device
        device.layer.to_host(self.device_values[first:], self.tail, device.stream)
        device.settle()  # collectives that fail are heard of here
        self.down += self.tail.nbytes


@dataclass(frozen=True)
class ArrivingColumns:
    """What stands for rows: columns of the sums that a device has made."""

    buffer: Any  # what sums them
    comes: bool  # False: more batches are added to it first, or replicas sum it there
    first: int = 0

    def __len__(self) -> int:
        return 1


class DeviceAddBackend:
    """In the place of a backend: what it adds was added on the device."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Weights, as devices have them."""
        return np.zeros(shape, dtype=np.float32)

    def prepare(self, unrolled: Any, blocks: Any) -> None:
        """Nothing: coefficients are the product's."""

    def some_columns(self, rows: ArrivingColumns, columns: slice) -> ArrivingColumns:
        """Of a tile."""
        return replace(rows, first=columns.start)

    def apply_update(
        self, gradient: Array, rows: ArrivingColumns, residuals: Array, plan: Any
    ) -> None:
        """Wait until the tile has been copied to the host."""
        if rows.comes:
            rows.buffer.wait_for_copy(rows.first)


class DevicePlainSender(PlainSender):
    """Replicas sum what is on their devices; what all of them said comes down."""

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """The tail goes up, to go along with the first tile."""
        assert isinstance(buffer, DeviceBuffer)
        super().begin(buffer, moment)
        buffer.put_tail()

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Start the sum of what is there."""
        assert isinstance(buffer, DeviceBuffer)
        words = buffer.device_values[buffer.place(tile, tile is buffer.tiles[0])]
        with self.overlap.posting():
            self._travelling.append(self.replicas.start_sum(words, PURPOSE))

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """All are on their way down before the first is waited for."""
        assert isinstance(buffer, DeviceBuffer)
        with self.overlap.waiting():
            if self._travelling:
                self._bring(buffer)
            buffer.wait_for_copy(tile.columns.start)
        return 1.0 / float(self._tail[-1])

    def finish(self, buffer: DeviceBuffer) -> None:
        """Wait for all of it, and have no more than the tail come down."""
        with self.overlap.waiting():
            for summed in self._travelling:
                summed.wait()
            self._travelling.clear()
            buffer.copy_tail_to_host()

    def _bring(self, buffer: DeviceBuffer) -> None:
        for tile, summed in zip(buffer, self._travelling, strict=True):
            summed.wait()
            buffer.start_copy_to_host(tile, tile is buffer.tiles[0])
        self._travelling.clear()
        buffer.device.settle()  # collectives that fail are heard of here


def sum_on_device(buffer: Buffer, replicas: Communicator) -> DevicePlainSender:
    """Return the sender of a buffer whose sums over replicas stay on the device."""
    assert isinstance(buffer, DeviceBuffer)
    buffer.is_summed_on_device = True
    return DevicePlainSender(replicas)


class DeviceGradientAgreement(Gradient):
    """Sums, agreement and linear steps on the device, where the weights stay.

    Of many scores a row plain SGD alone: what momenta keep lies between the scores.
    """

    def prepare(self, state: State) -> None:
        """And the step."""
        super().prepare(state)
        assert isinstance(self.buffer, DeviceBuffer)
        words, states = self.buffer.gradient.size, self.steps.rule.states
        self._add_there = DeviceAdd(self.buffer.device, self.buffer.row, words, states)

    def _step(self, state: State, task: Task | None) -> None:
        """x ← M x + u Σ s / n; weights may be divided by a power of two."""
        assert isinstance(self.buffer, DeviceBuffer) and isinstance(
            state, MirroredState
        )
        assert isinstance(self.sender, DevicePlainSender)
        self.sender.finish(self.buffer)
        tail, moment, rule = self._tail(), self._moment, self.steps.rule
        assert isinstance(rule, LinearRule)
        carry = rule.update.transition(moment.rate, self.steps.l2)
        gain = rule.update.gain(moment.rate, 1) / tail[-1] / state.scale
        self._add_there.to(state.on_device("weights"), carry, gain)
        state.mark_written("weights")
        if state.intercept is not None:
            self.steps.take_intercept(
                state, tail[: self.buffer.sums] / tail[-1], moment
            )


# ZeRO on devices: sums, slices of state, steps and gathers are where the rows are.
#
# Tiles begin where rows have whole chunks; slices of them begin anywhere, since the
# kernels that step them take a word a thread. Nothing as large as a slice crosses to
# the host but for what somebody looks at, and gradients that are shaped before the
# step.


class RowsBackend(DeviceAddBackend):
    """In the place of a backend: rows of a device, and arrays that are there."""

    def some_columns(self, rows: DeviceRowViews, columns: slice) -> DeviceRowViews:  # type: ignore[override]
        """Of a tile."""
        return rows.part(columns)

    def apply_update(  # type: ignore[override]
        self, gradient: Any, rows: DeviceRowViews, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr to the gradient on the device."""
        rows.add_gradient(gradient)


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
        replicas: Communicator,
        cuts: Cuts,
        room: DeviceTileWorkspace,
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
        given = self.rules, self.replicas, self.cuts, self.tile_room
        return DeviceTileScatter(*given, whole, sums)

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
        up, down = scatter.up, scatter.down
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
        replicas: Communicator,
        cuts: Cuts,
        room: TileWorkspace,
        sums: bool,
    ) -> None:
        super().__init__(replicas, cuts, room, whole=False, sums=sums)
        self.device = device
        self.device_values = device.zeros((cuts.columns * cuts.width,), np.float32)
        self.up = self.down = 0  # bytes beside those of slices
        self._begun: list[Any] = []

    @property
    def takes_residuals(self) -> bool:
        """Whether it sums them, for an intercept; else it counts them."""
        return self.tail.words.size > 1

    @property
    def gradient(self) -> Any:
        """All of it, where batches are added up."""
        return self.device_values

    def gradient_columns(self, complete: bool) -> ArrivingColumns:
        """Return the columns that the agreement takes for rows: none is copied before
        the sum.
        """
        return ArrivingColumns(self, False)

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
        given = self.device, self.replicas, self.cuts, self.workspace
        return OffloadDeviceScatter(*given, sums)

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
        up, down = self.replicas.copied  # to be carried, where hosts do that
        return super().facts() | {
            "device_bytes_up": link.up_bytes + scatter.up + up,
            "device_bytes_down": link.down_bytes + scatter.down + down,
        }


# Gradients that a device sums, for transfers with priorities.


class DeviceOrderedTiles(DeviceBuffer, OrderedTiles):
    """The tail lies ahead on the host, and nowhere on the device: the host sums it."""

    def here(self, part: slice) -> Array:
        """The same words of the gradient."""
        return self.gradient.reshape(-1)[part]


# Which class serves an agreement on a device, and what it works with there.

CLASSES: dict[type[Gradient], type[Any]] = {
    Offload: DeviceOffload,
    ShardedAgreement: DeviceSharded,
}


def make_on_device(
    kind: type[Gradient],
    grid: Grid,
    share: float,
    means: GradientParts,
    device: Device,
    chunk: int,
    sums: bool,
) -> Gradient:
    """Make an agreement whose gradients a device sums.

    Parameters
    ----------
    kind : type
        The class that serves it on a host.
    grid, share, means
        What that class is made of.
    device : Device
        The device of this rank.
    chunk : int
        Columns of dense rows that the device reads at once; 1 for sparse rows.
    sums : bool
        Whether sums over the replicas stay on the device.

    Returns
    -------
    Gradient
    """
    slices = kind is ShardedAgreement
    buffer = DeviceOrderedTiles if issubclass(kind, Scheduled) else DeviceBuffer
    made: Any = partial(buffer, device)
    means = replace(
        means,
        backend=RowsBackend() if slices else DeviceAddBackend(),  # type: ignore[arg-type]
        buffer=made,
        unit=chunk if slices else 1,
    )
    if kind in CLASSES:
        found: Gradient = CLASSES[kind](grid, share, means, device=device)
        return found
    rule = means.steps.rule
    is_linear = isinstance(rule, LinearRule) and (
        rule.states == 1 or means.columns == 1
    )
    takes = vars(kind).get("steps_on_devices") and is_linear and not means.shapers
    return (DeviceGradientAgreement if takes and sums else kind)(grid, share, means)
