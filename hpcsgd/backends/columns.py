"""Compiled products with several columns of weights, through ctypes.

As in `cpu`: rows are int64 and contiguous, matrices float32 or bf16 bits whose rows are
contiguous, everything else is contiguous float32.
"""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.cpu import MATRICES, address

Array = NDArray[Any]
POINTER, INT = ctypes.c_void_p, ctypes.c_int64
# matrix, row stride, rows, count, columns, columns of weights, one, other, scratch
ARGUMENTS = (POINTER, INT, POINTER, INT, INT, INT, POINTER, POINTER, POINTER)


@lru_cache(maxsize=1)
def _functions(library: Any) -> dict[str, Any]:
    """The kernels of a library by name."""
    found = {}
    for name in ("margins", "update"):
        for kind in MATRICES.values():
            found[name + kind] = getattr(library, f"hpcsgd_{name}_columns{kind}")
            found[name + kind].restype = None
            found[name + kind].argtypes = ARGUMENTS
    return found


def margins(matrix: Array, rows: Array, weights: Array, out: Array) -> None:
    """out ← Y W for the sampled rows Y and weights (d, K)."""
    _call("margins", matrix, rows, weights.shape[1], weights, out)


def update(matrix: Array, rows: Array, residuals: Array, weights: Array) -> None:
    """weights += Yᵀ R for the sampled rows Y and residuals (m, K)."""
    _call("update", matrix, rows, weights.shape[1], residuals, weights)


def _call(
    name: str, matrix: Array, rows: Array, wide: int, one: Array, other: Array
) -> None:
    scratch = np.empty(matrix.shape[1] * wide, dtype=np.float32)
    stride = matrix.strides[0] // matrix.itemsize
    _functions(isa.best()[0])[name + MATRICES[matrix.dtype.name]](
        address(matrix),
        stride,
        *(address(rows), len(rows), matrix.shape[1], wide),
        *(address(one), address(other), address(scratch)),
    )
