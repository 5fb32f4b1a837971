"""The Gram of long exchanges by cuBLAS, in the very tiles that our own kernel makes.

Rows are gathered, multiplied in block columns from the diagonal down, and packed: what
the recurrence reads, and what members send to each other, is laid out as ever.
"""

from typing import Any, Protocol

import numpy as np

from hpcsgd.backends import launch_gram, launch_steps
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.kernel_table import build_of

ELEMENT = "bf16"  # of a matrix that it can multiply
ROWS_A_BLOCK, THREADS = 8, 256  # of margin


class SomeTiles(Protocol):
    """Tiles of the Gram, as `DenseProducts` has them."""

    count: int
    numbers: Any  # I << 16 | J of each, on the device


class CublasGram:
    """Tiles and margins of `count` rows; the square is multiplied in so many parts."""

    def __init__(
        self,
        device: Device,
        matrix: DeviceMatrix,
        tiles: SomeTiles,
        count: int,
        parts: int = 1,
    ) -> None:
        self.device, self.matrix, self.tiles, self.count = device, matrix, tiles, count
        self.strips = launch_gram.strips_of(count, parts)
        self._rows = device.empty((count, int(matrix.stride)), np.uint16)
        self._square = device.empty((count, launch_gram.pitch_of(count)), np.float32)

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """gram ← tiles of Y Yᵀ, margins ← Y w; without weights the first alone."""
        self.gram(numbers, gram)
        if weights is None:
            return
        matrix, m = self.matrix, np.int32(self.count)
        rows = matrix.values, matrix.stride, numbers, m, np.int32(matrix.width)
        grid = -(-self.count // ROWS_A_BLOCK)
        self._launch("margin", ELEMENT, (grid, THREADS), (*rows, weights, margins))

    def gram(self, numbers: Any, out: Any) -> None:
        """Tiles of Y Yᵀ."""
        matrix, m, rows, square = (
            *(self.matrix, np.int32(self.count)),
            *(self._rows, self._square),
        )
        place = matrix.stride, numbers, m, np.int32(matrix.width)
        shape = launch_steps.gather_rows(self.count)[:2]
        arguments = (matrix.values, *place, rows, matrix.stride)
        self._launch("gather_rows", ELEMENT, shape, arguments)
        for first, last in self.strips:
            part = square[first:, first:last]
            self.device.gemm_bf16(part, rows[first:], rows[first:last])
        given = square, np.int64(square.shape[1]), m, self.tiles.numbers, out
        self._launch("pack_tiles", "fp32", launch_gram.pack(self.tiles.count), given)

    def _launch(self, kernel: str, element: str, shape: Any, arguments: Any) -> None:
        build = build_of(kernel, element, self.device.arch)
        self.device.kernel(build)(*shape, arguments)
