"""One member's part of an exchange on a device: kernels, their buffers, in order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends.base import Batch
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import Coefficients, Sampled
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.families.base import Family
from hpcsgd.precision import Precision
from hpcsgd.schedule import Blocks
from hpcsgd.updates.unroll import Unrolled

Array = NDArray[Any]
THREADS = 256  # of margin, update and round
ROWS_A_BLOCK = 8  # of margin: a warp a row
CHUNKS_A_BLOCK = 8  # of update, 16 bytes each


class DeviceExchange:
    """Exchanges of the sizes `blocks`: buffers stay, what is in them changes."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix,
        blocks: Blocks,
        family: Family,
        precision: Precision,
    ) -> None:
        self.device, self.matrix, self.blocks = device, matrix, blocks
        self.family, self.precision = family, precision
        self.sampled = Sampled(device, blocks.rows)
        self.coefficients = Coefficients(device, blocks)
        self.residuals = device.empty((blocks.rows,), np.float32)
        self.factors = device.empty((blocks.rows,), np.float32)
        self.message = device.empty((blocks.rows,), np.float32)
        self.gram, self.margins = self.message[:0], self.message

    def load(self, rows: Array, batch: Batch, unrolled: Unrolled) -> None:
        """The group that comes next."""
        self.sampled.load(rows, batch)
        self.coefficients.load(unrolled)

    def products(self, weights: Any) -> None:
        """Tiles of this member's Gram, and its margins."""
        m = self.blocks.rows
        self._launch(
            "margin",
            -(-m // ROWS_A_BLOCK),
            (*self._rows(), np.int32(self.matrix.width), weights, self.margins),
        )

    def descend(self, weights: Any) -> None:
        """weights ← carry weights + Yᵀ factors."""
        matrix = self.matrix
        chunk = 16 // matrix.values.dtype.itemsize
        wide = CHUNKS_A_BLOCK * chunk
        self._launch(
            "update",
            -(-matrix.width // wide),
            (
                *(*self._rows(), np.int32(matrix.width)),
                *(self.factors, self.coefficients["carry"], weights),
            ),
            shared=4 * 32 * (wide + 1),
        )

    def _rows(self) -> tuple[Any, ...]:
        numbers, m = self.sampled.numbers, self.blocks.rows
        return self.matrix.values, self.matrix.stride, numbers, np.int32(m)

    def _launch(
        self, kernel: str, grid: int, arguments: Any, element: str = "", **more: Any
    ) -> None:
        build = build_of(kernel, element or self.matrix.element, self.device.arch)
        self.device.kernel(build)(grid, THREADS, arguments, **more)
