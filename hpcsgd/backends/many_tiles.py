"""Products of bf16 rows with many columns of fp32 weights, by AMX tiles.

As in `cpu`: rows are int64 and contiguous, the matrix is bf16 bits whose rows are
contiguous, everything else is contiguous float32.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.call import Call, door_to

Array = NDArray[Any]
INT = ctypes.c_int64
LEAST_ROWS = 16  # of a tile


def available() -> bool:
    """True where this processor has tiles and the system lets us use them."""
    return isa.best()[1] == isa.TILES


class Tiles:
    """The two products, with the scratch that they share."""

    def __init__(self) -> None:
        self._room = np.empty(0, dtype=np.uint32)

    def margins(self, matrix: Array, rows: Array, weights: Array, out: Array) -> None:
        """out ← Y W for the sampled rows Y and weights (d, K)."""
        self._call("hpcsgd_margins_tiles", matrix, rows, weights, out)

    def update(
        self, matrix: Array, rows: Array, residuals: Array, weights: Array
    ) -> None:
        """weights += Yᵀ R for the sampled rows Y and residuals (m, K)."""
        self._call("hpcsgd_update_tiles", matrix, rows, residuals, weights)

    def _call(
        self, name: str, matrix: Array, rows: Array, given: Array, to: Array
    ) -> None:
        sizes = len(rows), matrix.shape[1], given.shape[1]
        library = isa.best()[0]
        words = library.hpcsgd_columns_room
        words.restype, words.argtypes = INT, (INT, INT, INT)
        if words(*sizes) > len(self._room):
            self._room = np.empty(words(*sizes), dtype=np.uint32)
        stride = matrix.strides[0] // matrix.itemsize
        _function(library, name)(matrix, stride, rows, *sizes, given, to, self._room)


@lru_cache(maxsize=4)
def _function(library: Any, name: str) -> Call:
    return door_to(library, name)
