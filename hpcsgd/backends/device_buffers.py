"""What one exchange of certain sizes needs on a device, made once for all of them."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.device import Device
from hpcsgd.backends.launch_recurrence import coefficients
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]
PROBE = 4  # its place among coefficients


class Order:
    """The rows of an epoch in their order, and what belongs to each, on the device.

    Where the next exchange begins is kept there, too: it costs no copy.
    """

    def __init__(
        self,
        device: Device,
        targets: Array,
        weights: Array | None,
        offsets: Array | None,
    ) -> None:
        self._device = device
        self.columns = [
            None if column is None else sent(device, column[:, 0].astype(np.float32))
            for column in (targets, weights, offsets)
        ]
        self.rows = device.empty((len(targets),), np.int64)
        self.position = device.empty((1,), np.int64)
        self._there: Array | None = None  # the order that was sent
        self._next = -1

    @classmethod
    def of(cls, device: Device, sampled: "Sampled") -> "Order":
        """The same of rows that were sampled, by their places there."""
        order = cls.__new__(cls)
        order._device = device
        order.columns = [sampled.targets, sampled.weights, sampled.offsets]
        order.rows = device.empty(sampled.numbers.shape, np.int64)
        order.position = device.empty((1,), np.int64)
        order._there, order._next = None, -1
        return order

    def seek(self, order: Array, first: int, count: int) -> None:
        """The next `count` rows begin at row `first` of `order`."""
        if order is not self._there:
            self._device.fill(self.rows, order)
            self._there = order
        if first != self._next:
            self._device.fill(self.position, np.array([first], dtype=np.int64))
        self._next = first + count


class Sampled:
    """Numbers of the rows of an exchange, and what belongs to them."""

    def __init__(self, device: Device, order: Order, rows: int) -> None:
        self.order = order
        self.numbers = device.empty((rows,), np.int64)
        self.targets, self._weights, self._offsets = (
            device.empty((rows,), np.float32) for _ in range(3)
        )
        _, weights, offsets = order.columns
        self.weights = None if weights is None else self._weights
        self.offsets = None if offsets is None else self._offsets

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of the kernel that fills them."""
        order, own = self.order, (self.targets, self._weights, self._offsets)
        count = np.int32(len(self.numbers))
        return (order.rows, order.position, count, *order.columns, self.numbers, *own)


def sent(device: Device, values: Array) -> Any:
    """A copy of an array of the host."""
    array = device.empty(values.shape, values.dtype)
    device.fill(array, values)
    return array


class Coefficients:
    """Those of an exchange, in device arrays: launches stay the same."""

    def __init__(self, device: Device, blocks: Blocks, scale: float = 1.0) -> None:
        self._device = device
        # G is of rows times `scale`, factors are for rows times it and weights
        # divided by it: a power of two, so that nothing is rounded otherwise.
        self._down = np.float32(1.0 / scale**2)
        self._loaded: Unrolled | None = None
        self._room: Any = None
        self._values: Array | None = None  # what is there
        self._places: list[slice] = []
        self.starts = device.empty((len(blocks.sizes) + 1,), np.int32)
        device.fill(self.starts, np.asarray(blocks.starts, dtype=np.int32))

    def load(self, unrolled: Unrolled) -> None:
        """These from now on; a constant rate sends them once."""
        if unrolled is self._loaded:
            return
        self._loaded = unrolled
        own = coefficients(unrolled)
        own = replace(own, couple=own.couple * self._down, gain=own.gain * self._down)
        carry = np.ravel(unrolled.carry).astype(np.float32)
        given = [np.ravel(part) for part in (*own.arrays, carry)]
        if self._room is None:
            ends = np.cumsum([0, *map(len, given)]).tolist()
            self._places = [slice(*pair) for pair in pairwise(ends)]
            self._room = self._device.empty((ends[-1],), np.float32)
        values = np.concatenate(given)
        if self._values is None or not np.array_equal(values, self._values):
            self._device.fill(self._room, values)
            self._values = values

    @property
    def arrays(self) -> list[Any]:
        """In the order of the recurrence's parameters."""
        return [self._room[place] for place in self._places[:-1]]

    @property
    def probe(self) -> Any:
        """Where scores are read."""
        return self.arrays[PROBE]

    @property
    def carry(self) -> Any:
        """What the weights are multiplied by."""
        return self._room[self._places[-1]]
