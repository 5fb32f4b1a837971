"""The Gram of long exchanges by cuBLAS, in the very tiles that our own kernel makes.

Rows are gathered, multiplied in block columns from the diagonal down, and packed: what
the recurrence reads, and what members send to each other, is laid out as ever.
"""

from typing import Any

import numpy as np

from hpcsgd.backends import launch_gram, launch_steps
from hpcsgd.backends.device_products import DenseProducts
from hpcsgd.backends.device_room import rows_bytes
from hpcsgd.backends.other_gram import OtherGram

ELEMENT = "bf16"  # of a matrix that it can multiply


def cublas_bytes(rows: int, width: int, side: int) -> int:
    """What it works in: rows of `width` numbers, and their square."""
    square = 4 * rows * launch_gram.pitch_of(rows, side)
    return rows_bytes(rows, width, 2) + square


class CublasGram(OtherGram):
    """Products of rows, of which `own` makes all but the Gram; that in some parts."""

    def __init__(
        self, own: DenseProducts, parts: int = 1, like: "CublasGram | None" = None
    ) -> None:
        """`like`: another one of the same products, whose room serves this one, too."""
        super().__init__(own)
        self.strips = launch_gram.strips_of(own.count, parts, own.tiles.side)
        self._rows, self._square = self._room() if like is None else like.room

    @property
    def room(self) -> tuple[Any, Any]:
        """Of the rows that are gathered, and of their square."""
        return self._rows, self._square

    def _room(self) -> tuple[Any, Any]:
        own, stride = self.own, int(self.own.matrix.stride)
        pitch = launch_gram.pitch_of(own.count, own.tiles.side)
        rows = self.device.empty((own.count, stride), np.uint16)
        return rows, self.device.empty((own.count, pitch), np.float32)

    def gram(self, numbers: Any, out: Any) -> None:
        """Tiles of Y Yᵀ."""
        matrix, tiles, m = self.own.matrix, self.own.tiles, np.int32(self.count)
        rows, square = self._rows, self._square
        place = matrix.stride, numbers, m, np.int32(matrix.width)
        shape = launch_steps.gather_rows(self.count)[:2]
        arguments = (matrix.values, *place, rows, matrix.stride)
        self._launch("gather_rows", ELEMENT, shape, arguments)
        for first, last in self.strips:
            part = square[first:, first:last]
            self.device.gemm_bf16(part, rows[first:], rows[first:last])
        given = square, np.int64(square.shape[1]), m, tiles.shift, tiles.numbers, out
        self._launch("pack_tiles", "fp32", launch_gram.pack(tiles.count), given)
