"""Compiled products with several columns of weights.

As in `cpu`: rows are int64 and contiguous, matrices float32 or bf16 bits whose rows are
contiguous, everything else is contiguous float32.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.call import Call, door_to
from hpcsgd.backends.cpu import MATRICES

Array = NDArray[Any]


@lru_cache(maxsize=1)
def _functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by name."""
    return {
        name + kind: door_to(library, f"hpcsgd_{name}_columns{kind}")
        for name in ("margins", "update")
        for kind in MATRICES.values()
    }


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
    _functions(isa.best()[0])[name + MATRICES[matrix.dtype.char]](
        *(matrix, stride, rows, len(rows), matrix.shape[1], wide),
        *(one, other, scratch),
    )
