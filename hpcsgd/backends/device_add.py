"""y ← a y + b x on a device: the kernel of updates, for a matrix of one row."""

from typing import Any

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.device_products import DenseProducts, Tiles, Widths
from hpcsgd.schedule import blocks_of

ONE = blocks_of((1,))  # row


class DeviceAdd:
    """Of one x, a row of whole chunks; a and b change."""

    def __init__(self, device: Device, row: Any, words: int) -> None:
        matrix = DeviceMatrix(row, "fp32", 1, words)
        self._products = DenseProducts(
            device, matrix, ONE, Tiles(device, ONE), Widths()
        )
        self._numbers = sent(device, np.zeros(1, np.int64))
        self._device, self._room = device, device.empty((2,), np.float32)

    def to(self, target: Any, kept: float, times: float) -> None:
        """target ← kept · target + times · x."""
        self._device.fill(self._room, np.array([kept, times], dtype=np.float32))
        times_there, kept_there = self._room[1:], self._room[:1]
        self._products.update(self._numbers, times_there, kept_there, target)
