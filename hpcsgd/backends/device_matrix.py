"""A member's block as a device holds it: rows of whole 16-byte chunks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.device import Device
from hpcsgd.errors import ConfigError

Array = NDArray[Any]
CHUNK = 16  # bytes that a thread reads at once
PIECE = 64 * 2**20  # bytes that are sent together
ELEMENTS = ("fp32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2")


@dataclass(frozen=True)
class DeviceMatrix:
    """Rows with a stride, in the format that the host stores them in."""

    values: Any  # (n, stride)
    element: str
    height: int
    width: int
    scale: float = 1.0  # what values are stored times: a power of two

    @property
    def stride(self) -> np.int64:
        """Elements from one row to the next, as kernels take it."""
        return np.int64(self.values.shape[1])


def put_matrix(
    device: Device, matrix: Array, element: str, scale: float = 1.0
) -> DeviceMatrix:
    """A copy, piece by piece; what lies behind a row's end is zero."""
    if element not in ELEMENTS:
        raise ConfigError(
            f"a GPU does not compute with a matrix in {element}; use --precision fp32"
            " or c, or --device cpu"
        )
    item = matrix.dtype.itemsize
    height, width = matrix.shape
    stride = -(-width * item // CHUNK) * CHUNK // item
    held = device.zeros((height, stride), matrix.dtype)
    step = max(PIECE // (stride * item), 1)
    for first in range(0, height, step):
        piece = matrix[first : first + step]
        padded = np.zeros((len(piece), stride), dtype=matrix.dtype)
        padded[:, :width] = piece
        device.fill(held[first : first + step], padded)
    return DeviceMatrix(held, element, height, width, scale)
