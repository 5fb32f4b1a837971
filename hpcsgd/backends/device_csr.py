"""Sparse rows as a device holds them, and their products in an exchange."""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import launch_steps
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import TF32, check_element
from hpcsgd.backends.device_products import Tiles, Widths, check_wide
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.backends.launch_steps import Launch
from hpcsgd.backends.uploads import PIECE
from hpcsgd.csr import Csr
from hpcsgd.schedule import Blocks

Array = NDArray[Any]


@dataclass(frozen=True)
class DeviceCsr:
    """`Csr` on a device, in the format that the host stores its values in."""

    indptr: Any  # (rows + 1,) int64
    indices: Any  # (nnz,) int32 or int64
    data: Any  # (nnz,)
    element: str
    width: int
    scale: float = 1.0  # what values are stored times: a power of two
    first: int = 0  # of the columns that are seen

    def part(self, columns: slice) -> "DeviceCsr":
        """Some columns of all rows, where they lie."""
        width = columns.stop - columns.start
        return replace(self, first=self.first + columns.start, width=width)

    @property
    def suffix(self) -> str:
        """Of the names of kernels that take such column numbers."""
        return "_64" if self.indices.dtype == np.int64 else ""


def put_csr(device: Device, matrix: Csr, element: str, scale: float = 1.0) -> DeviceCsr:
    """A copy, piece by piece."""
    check_element(element)
    parts = matrix.indptr, matrix.indices, matrix.data
    indptr, indices, data = (_put(device, part) for part in parts)
    stored = "fp32" if element == TF32 else element
    return DeviceCsr(indptr, indices, data, stored, matrix.width, scale)


def _put(device: Device, values: Array) -> Any:
    held = device.empty(values.shape, values.dtype)
    step = PIECE // values.itemsize
    for first in range(0, len(values), step):
        device.fill(held[first : first + step], values[first : first + step])
    return held


class SparseProducts:
    """What `Products` are, of rows that hold stored values alone."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceCsr,
        blocks: Blocks,
        tiles: Tiles,
        widths: Widths,
    ) -> None:
        check_wide(widths.weights)
        self.device, self.matrix, self.tiles = device, matrix, tiles
        self.widths, self.count = widths, blocks.rows
        numbers = np.arange(len(blocks.sizes), dtype=np.int32)
        self._batches = sent(device, np.repeat(numbers, blocks.sizes))
        self._seen = np.int64(0), np.int64(0)  # all columns

    def part(self, columns: slice) -> "SparseProducts":
        """Of some columns, which rows are searched for."""
        part = copy(self)
        part.matrix = self.matrix.part(columns)
        part._seen = np.int64(part.matrix.first), np.int64(part.matrix.width)
        return part

    def gram(self, numbers: Any, out: Any) -> None:
        """Tiles of Y Yᵀ."""
        shape = launch_steps.csr_gram(self.tiles.count, self.tiles.side)
        self._launch("csr_gram", shape, numbers, self._batches, self.tiles.numbers, out)

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """One behind the other: sparse rows are read in no common order."""
        if self.tiles.count:
            self.gram(numbers, gram)
        self.margins(numbers, weights, margins)

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Y W."""
        wide = self.widths.margins
        shape = launch_steps.csr_margin(self.count, wide)
        if wide == 1:
            self._launch("csr_margin", shape, numbers, *self._seen, weights, out)
            return
        across = np.int32(launch_steps.csr_across(wide))
        sizes = *self._seen, np.int32(wide), across
        self._launch("csr_margins_columns", shape, numbers, *sizes, weights, out)

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """W ← W carryᵀ + Yᵀ factors."""
        wide, cols = self.widths.weights, self.matrix.width
        shape = launch_steps.csr_update(cols, wide)
        span = np.int32(launch_steps.csr_span(cols, wide))
        sizes = np.int64(self.matrix.first), np.int64(cols), span
        rest = factors, carry, weights
        if wide == 1:
            self._launch("csr_update", shape, numbers, *sizes, *rest)
            return
        across = launch_steps.csr_across(wide)
        more = np.int32(wide), np.int32(self.widths.states), np.int32(across)
        self._launch("csr_update_columns", shape, numbers, *sizes, *more, *rest)

    def _launch(self, kernel: str, shape: Launch, numbers: Any, *rest: Any) -> None:
        matrix = self.matrix
        build = build_of(kernel + matrix.suffix, matrix.element, self.device.arch)
        rows = matrix.indptr, matrix.indices, matrix.data, numbers
        arguments = (*rows, np.int32(self.count), *rest)
        self.device.kernel(build)(
            shape.grid, shape.block, arguments, shared=shape.shared
        )
