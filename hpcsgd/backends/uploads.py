"""From the host to a device through pinned memory: nobody waits for a copy.

Small arrays take turns in a ring of buffers, large ones go in pieces through two of
them: while one travels, the next is written. A buffer is written again once the event
behind its last copy has happened, which in a steady state was long ago.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Write = Callable[[Array], None]
PIECE = 16 * 2**20  # bytes that are sent together
SMALL = 64 * 2**10  # bytes up to which the ring serves
RING = 16  # larger = the host runs further ahead of its GPU


class Slots:
    """Pinned buffers that take turns; each grows to what it was asked for at most."""

    def __init__(self, layer: Any, stream: Any, count: int) -> None:
        self._layer, self._stream = layer, stream
        self._buffers: list[Array | None] = [None] * count
        self._copies: list[Any] = [None] * count  # the event behind each last copy
        self._turn = 0

    def send(self, array: Any, write: Write) -> None:
        """array ← what `write` puts into a buffer of its shape and type."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._buffers)
        if self._copies[turn] is not None:
            self._layer.wait(self._copies[turn])
        room = self._room(turn, array.nbytes)
        host = room[: array.nbytes].view(array.dtype)
        write(host.reshape(array.shape))
        self._layer.to_device(host, array, self._stream)
        self._copies[turn] = self._layer.record(self._stream)

    def _room(self, turn: int, size: int) -> Array:
        held = self._buffers[turn]
        if held is None or held.size < size:
            held = self._layer.pinned(1 << max(size - 1, 1023).bit_length(), np.uint8)
            self._buffers[turn] = held
        return held


class Uploads:
    """All that one stream is sent."""

    def __init__(self, layer: Any, stream: Any) -> None:
        self._small = Slots(layer, stream, RING)
        self._large = Slots(layer, stream, 2)

    def fill(self, array: Any, values: Array) -> None:
        """array ← values, which may change at once."""
        values = np.asarray(values)
        assert values.shape == tuple(array.shape) and values.dtype == array.dtype
        if array.nbytes <= PIECE:
            self.put(array, _copying(values))
            return
        flat, given = array.reshape(-1), np.ascontiguousarray(values).reshape(-1)
        step = PIECE // given.itemsize
        for first in range(0, given.size, step):
            part = given[first : first + step]
            self.put(flat[first : first + step], _copying(part))

    def put(self, array: Any, write: Write) -> None:
        """array ← what `write` makes of pinned memory of its shape; not too large."""
        if array.nbytes == 0:
            return
        slots = self._small if array.nbytes <= SMALL else self._large
        slots.send(array, write)


def _copying(values: Array) -> Write:
    return lambda host: np.copyto(host, values)
