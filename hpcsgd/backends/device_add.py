"""x ← M x + u g on a device: the kernel of updates, for a matrix of one row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.device_products import DenseProducts, Tiles, Widths
from hpcsgd.schedule import blocks_of

Array = NDArray[Any]
ONE = blocks_of((1,))  # row


class DeviceAdd:
    """Of one g, a row of whole chunks; x has so many states of each word of it."""

    def __init__(self, device: Device, row: Any, words: int, states: int = 1) -> None:
        matrix, tiles = DeviceMatrix(row, "fp32", 1, words), Tiles(device, ONE)
        widths = Widths(1, states)
        self._products = DenseProducts(device, matrix, ONE, tiles, widths)
        self._numbers = sent(device, np.zeros(1, np.int64))
        self._device = device
        self._room = device.empty((states + states**2,), np.float32)
        self._gain, self._carry = self._room[:states], self._room[states:]

    def to(self, target: Any, carry: Array, gain: Array) -> None:
        """target ← carry target + gain g, word by word; (states²), (states)."""
        values = np.concatenate([np.ravel(gain), np.ravel(carry)])
        self._device.fill(self._room, values.astype(np.float32))
        self._products.update(self._numbers, self._gain, self._carry, target)
