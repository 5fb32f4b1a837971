"""Sampled rows on their way between members: packed, and put side by side."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hpcsgd.backends import launch_steps
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import CHUNK, DeviceMatrix
from hpcsgd.backends.kernel_table import build_of


def stride_of(width: int, item: int) -> int:
    """Elements of a row of whole chunks."""
    return -(-width * item // CHUNK) * CHUNK // item


def whole_matrix(
    device: Device, own: DeviceMatrix, height: int, width: int
) -> DeviceMatrix:
    """Room for rows of all columns, stored as `own` is; nothing is in it yet."""
    kind = own.values.dtype
    values = device.empty((height, stride_of(width, kind.itemsize)), kind)
    return DeviceMatrix(values, own.element, height, width, own.scale)


class Pieces:
    """So many rows of members that have `widths` columns each."""

    def __init__(
        self, device: Device, own: DeviceMatrix, rows: int, widths: Sequence[int]
    ) -> None:
        self.device, self.own, self.rows = device, own, rows
        self.counts = [rows * width for width in widths]
        kind = own.values.dtype
        self.packed = device.empty((rows * own.width,), kind)
        self.flat = device.empty((sum(self.counts),), kind)
        edges = np.array([0, *accumulate(widths)], dtype=np.int32)
        self._edges = sent(device, edges)
        self._members = np.int32(len(widths))

    def pack(self, numbers: Any) -> None:
        """Own columns of these rows, as they are sent."""
        count, own = np.int32(self.rows), self.own
        columns = np.int32(own.width)
        given = (own.values, own.stride, numbers, count, columns, self.packed)
        self._launch("pack_rows", given)

    def join(self, whole: DeviceMatrix, numbers: Any = None) -> None:
        """What all have sent, as rows of `whole`: in order, or at their numbers."""
        head = (self.flat, self._edges, self._members, np.int32(self.rows), numbers)
        self._launch("join_rows", (*head, whole.values, whole.stride))

    def _launch(self, kernel: str, arguments: Any) -> None:
        shape = launch_steps.gather_rows(self.rows)
        build = build_of(kernel, self.own.element, self.device.arch)
        self.device.kernel(build)(shape.grid, shape.block, arguments)
