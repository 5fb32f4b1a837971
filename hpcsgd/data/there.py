"""Rows that a caller has in the memory of a GPU, as CuPy has them.

They stay there: the host sees blocks of them, for their checksum, values that are no
numbers, and losses. CuPy itself is not named here: arrays know what is asked of them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.memory import MemoryReader, real_dtype
from hpcsgd.data.unheld import Unheld

Array = NDArray[Any]
AS_THEY_ARE = ("fp32", "tf32")  # formats that float32 rows are stored in


class ThereReader(MemoryReader):
    """A dense matrix on a GPU, with targets of the host."""

    is_in_memory = False  # of the host
    is_there = True
    best_piece = 64 * 2**20  # bytes: a block crosses the bus

    def _matrix(self, X: Any) -> Any:
        return X.astype(real_dtype(X.dtype, X.shape), copy=False)

    def read(self, rows: slice, cols: slice) -> Array:
        """A copy of the block in the host's memory."""
        block: Array = self.X[rows, cols].get()
        return block

    def block_there(self, rows: slice, cols: slice, element: str) -> Any:
        """The block on the GPU, where it is stored as it is; else None."""
        if element not in AS_THEY_ARE or self.X.dtype != np.float32:
            return None
        return self.X[rows, cols]


class There(Unheld):
    """A block that is on the GPU already."""

    def __init__(self, unheld: Unheld, block: Any) -> None:
        super().__init__(unheld.read_into, unheld.shape, unheld.dtype)
        self.block = block


def is_there(X: Any) -> bool:
    """Whether it is an array in the memory of a GPU."""
    return hasattr(X, "__cuda_array_interface__")
