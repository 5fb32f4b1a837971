"""What is looked at while data are read, by kernels where they fit: one fast pass."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import cpu

Array = NDArray[Any]


def all_finite(block: Array) -> bool:
    """Whether no value of it is infinite or no number."""
    if _fits(block, np.float32):
        return not cpu.has_bad(block)
    # A sum is finite only if all terms are: one pass without a mask in the good case.
    with np.errstate(all="ignore"):
        total = block.sum(dtype=np.float64)
    return bool(np.isfinite(total)) or bool(np.isfinite(block).all())


def weigh(bits: Array, rows: Array, columns: Array) -> np.uint64:
    """Σ rows_i columns_j bits_ij mod 2⁶⁴, of the numbers as they are stored."""
    if _fits(bits, np.uint32):
        return cpu.fingerprint(bits, rows, columns)
    with np.errstate(over="ignore"):
        total: np.uint64 = np.einsum("i,i->", rows, np.einsum("ij,j->i", bits, columns))
    return total


def _fits(block: Array, kind: Any) -> bool:
    """Words of 32 bits whose rows are contiguous, and kernels to look at them."""
    return (
        block.dtype == kind
        and block.size > 0
        and block.strides[1] == block.itemsize
        and block.strides[0] >= 0
        and cpu.available()
    )
