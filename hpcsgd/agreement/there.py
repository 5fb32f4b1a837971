"""Gradients that a device sums: how they come to the host, or travel before they do.

The device adds Yᵀr of all batches of an exchange into one array, laid out as the buffer
of the host. Tiles come down to page-locked memory one after the other, and the first is
on its way to other replicas while the next is copied; or replicas sum what is on their
devices, and only what all of them said together comes down.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcsgd.agreement.buckets import Buffer, Tile
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.senders import Plain
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_add import DeviceAdd
from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array, State, Task
from hpcsgd.products.held import HeldState
from hpcsgd.updates.rules import Linear

CHUNK = 4  # words that kernels read at once


class BufferThere(Buffer):
    """A buffer in page-locked memory, and the same words on a device."""

    def __init__(self, device: Device, columns: int, *given: Any, **more: Any) -> None:
        self.device = device
        super().__init__(columns, *given, **more)
        words = -(-self.flat.size // CHUNK) * CHUNK
        self.row = device.zeros((1, words), np.float32)  # of a matrix of one row
        self.there = self.row[0][: self.flat.size]
        self.stays = False  # True: replicas sum what is there
        self.up = self.down = 0  # bytes, since this process began
        self._landed: dict[int, Any] = {}  # first column -> the event behind its copy

    def _room(self, words: int, dtype: np.dtype) -> Array:
        found: Array = self.device.layer.pinned(words, dtype)
        found[...] = 0.0
        return found

    def clear(self) -> None:
        """There; the gradient of the host is what comes down."""
        self.tail[...] = 0.0
        self.device.clear(self.there)

    def say_nothing(self) -> None:
        """No gradient will come down."""
        if not self.stays:
            self.flat[...] = 0.0

    def place(self, tile: Tile, with_tail: bool = False) -> slice:
        """Where a tile lies in the buffer, on either side."""
        first, last = (
            end * self.width for end in (tile.columns.start, tile.columns.stop)
        )
        return slice(first, self.flat.size if with_tail else last)

    def bring(self, tile: Tile, with_tail: bool = False) -> None:
        """Begin to copy it down; `land` waits for it."""
        part, layer, stream = (
            self.place(tile, with_tail),
            self.device.layer,
            self.device.stream,
        )
        layer.to_host(self.there[part], self.here(part), stream)
        self._landed[tile.columns.start] = layer.record(stream)
        self.down += self.here(part).nbytes

    def here(self, part: slice) -> Array:
        """The same words on the host."""
        return self.flat[part]

    def arriving(self, complete: bool) -> "Arriving":
        """What the agreement takes for rows; complete: no batch follows."""
        comes = complete and not self.stays
        for tile in self.going if comes else ():
            self.bring(tile)
        return Arriving(self, comes)

    def land(self, first: int) -> None:
        """Wait for the tile that begins at this column."""
        self.device.layer.wait(self._landed.pop(first))

    def collect(self) -> None:
        """Down, and wait for all of it."""
        for tile in self:
            self.bring(tile)
        for tile in self:
            self.land(tile.columns.start)

    def settle(self) -> None:
        """For whoever looks at a clock."""
        self.device.settle()

    def put_tail(self) -> None:
        """What the host counted, behind the sums of the device."""
        self.device.fill(self.there[len(self.flat) - len(self.tail) :], self.tail)
        self.up += self.tail.nbytes

    @property
    def takes_residuals(self) -> bool:
        """Whether it sums them, for an intercept; else it counts them."""
        return self.sums > 0

    def facts(self) -> dict[str, int]:
        """Bytes between host and device for gradients and weights."""
        return {"device_bytes_up": self.up, "device_bytes_down": self.down}

    def bring_tail(self) -> None:
        """Down, and wait for it."""
        first, device = len(self.flat) - len(self.tail), self.device
        device.layer.to_host(self.there[first:], self.tail, device.stream)
        device.settle()  # collectives that fail are heard of here
        self.down += self.tail.nbytes


@dataclass(frozen=True)
class Arriving:
    """What stands for rows: columns of the sums that a device has made."""

    buffer: Any  # what sums them
    comes: bool  # False: more batches are added to it first, or replicas sum it there
    first: int = 0

    def __len__(self) -> int:
        return 1


class Landing:
    """In the place of a backend: what it adds was added on the device."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Weights, as devices have them."""
        return np.zeros(shape, dtype=np.float32)

    def prepare(self, unrolled: Any, blocks: Any) -> None:
        """Nothing: coefficients are the product's."""

    def some_columns(self, rows: Arriving, columns: slice) -> Arriving:
        """Of a tile."""
        return replace(rows, first=columns.start)

    def descend(
        self, gradient: Array, rows: Arriving, residuals: Array, plan: Any
    ) -> None:
        """Wait until the tile is where it is expected."""
        if rows.comes:
            rows.buffer.land(rows.first)


class PlainThere(Plain):
    """Replicas sum what is on their devices; what all of them said comes down."""

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """The tail goes up, to go along with the first tile."""
        assert isinstance(buffer, BufferThere)
        super().begin(buffer, moment)
        buffer.put_tail()

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Start the sum of what is there."""
        assert isinstance(buffer, BufferThere)
        words = buffer.there[buffer.place(tile, tile is buffer.tiles[0])]
        with self.overlap.posting():
            self._travelling.append(self.replicas.start_sum(words, PURPOSE))

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """All are on their way down before the first is waited for."""
        assert isinstance(buffer, BufferThere)
        with self.overlap.waiting():
            if self._travelling:
                self._bring(buffer)
            buffer.land(tile.columns.start)
        return 1.0 / float(self._tail[-1])

    def finish(self, buffer: BufferThere) -> None:
        """Wait for all of it, and have no more than the tail come down."""
        with self.overlap.waiting():
            for summed in self._travelling:
                summed.wait()
            self._travelling.clear()
            buffer.bring_tail()

    def _bring(self, buffer: BufferThere) -> None:
        for tile, summed in zip(buffer, self._travelling, strict=True):
            summed.wait()
            buffer.bring(tile, tile is buffer.tiles[0])
        self._travelling.clear()
        buffer.device.settle()  # collectives that fail are heard of here


class GradientThere(Gradient):
    """Sums, agreement and linear steps on the device, where the weights stay.

    Of many scores a row plain SGD alone: what momenta keep lies between the scores.
    """

    def prepare(self, state: State) -> None:
        """And the step."""
        super().prepare(state)
        assert isinstance(self.buffer, BufferThere)
        words, states = self.buffer.gradient.size, self.steps.rule.states
        self._add_there = DeviceAdd(self.buffer.device, self.buffer.row, words, states)

    def _step(self, state: State, task: Task | None) -> None:
        """x ← M x + u Σ s / n; weights may be divided by a power of two."""
        assert isinstance(self.buffer, BufferThere) and isinstance(state, HeldState)
        assert isinstance(self.sender, PlainThere)
        self.sender.finish(self.buffer)
        tail, moment, rule = self._tail(), self._moment, self.steps.rule
        assert isinstance(rule, Linear)
        carry = rule.update.transition(moment.rate, self.steps.l2)
        gain = rule.update.gain(moment.rate, 1) / tail[-1] / state.scale
        self._add_there.to(state.on_device("weights"), carry, gain)
        state.wrote("weights")
        if state.intercept is not None:
            self.steps.take_intercept(
                state, tail[: self.buffer.sums] / tail[-1], moment
            )
