"""A member's block as a device holds it: rows of whole 16-byte chunks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.device import Device
from hpcsgd.backends.uploads import PIECE
from hpcsgd.errors import ConfigError

Array = NDArray[Any]
CHUNK = 16  # bytes that a thread reads at once
ELEMENTS = ("fp32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "tf32")
TF32 = "tf32"  # values in fp32, of which a product of tensor cores loses nothing


@dataclass(frozen=True)
class DeviceMatrix:
    """Rows with a stride, in the format that the host stores them in."""

    values: Any  # (n, stride)
    element: str
    height: int
    width: int
    scale: float = 1.0  # what values are stored times: a power of two
    multiplied: str = "gram"  # by which kernel, where tensor cores round what they get
    pitch: int = 0  # elements of a whole row, where some columns of it are seen

    def part(self, columns: slice) -> "DeviceMatrix":
        """Some columns of all rows, where they lie; they begin with a chunk."""
        assert columns.start % (CHUNK // self.values.dtype.itemsize) == 0
        return replace(
            self,
            values=self.values[:, columns.start :],
            width=columns.stop - columns.start,
            pitch=int(self.stride),
        )

    @property
    def stride(self) -> np.int64:
        """Elements from one row to the next, as kernels take it."""
        return np.int64(self.pitch or self.values.shape[1])


def put_matrix(
    device: Device, matrix: Any, element: str, scale: float = 1.0
) -> DeviceMatrix:
    """A copy, piece by piece; what lies behind a row's end is zero.

    An array of the host, or what reads one: while a piece travels, the next is read.
    """
    check_element(element)
    item = matrix.dtype.itemsize
    height, width = matrix.shape
    stride = -(-width * item // CHUNK) * CHUNK // item
    held = device.empty((height, stride), matrix.dtype)
    there, straight = (getattr(matrix, name, None) for name in ("block", "straight"))
    if there is not None:
        device.put_rows(held, there)
    elif straight is None or not straight(held, device.wait):
        _send(device, held, width, getattr(matrix, "read_into", _copied(matrix)))
    if element == TF32:
        return DeviceMatrix(held, "fp32", height, width, scale, "gram-tf32")
    return DeviceMatrix(held, element, height, width, scale)


def _send(
    device: Device, held: Any, width: int, read: Callable[[slice, Array], None]
) -> None:
    """Through pinned memory, where rows get their ends."""
    height, stride = held.shape
    step = max(PIECE // (stride * held.dtype.itemsize), 1)
    for first in range(0, height, step):
        part = slice(first, min(first + step, height))

        def write(padded: Array, part: slice = part) -> None:
            read(part, padded[:, :width])
            padded[:, width:] = 0

        device.upload(held[part], write)


def _copied(matrix: Any) -> Callable[[slice, Array], None]:
    return lambda part, out: np.copyto(out, matrix[part])


def check_element(element: str) -> None:
    """Refuse a format that kernels do not read."""
    if element not in ELEMENTS:
        raise ConfigError(
            f"a GPU does not compute with a matrix in {element}; use --precision fp32"
            " or c, or --device cpu"
        )
