"""Compiled CPU kernels through ctypes; NumPy does their work where they are missing."""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.compiled import load

Array = NDArray[Any]


@lru_cache(maxsize=1)
def _load() -> tuple[Any, str]:
    """(library or None, why)."""
    library, why = load(Path(__file__).parent, "_rows", "the NumPy path")
    if library is not None:
        library.hpcsgd_widen_rows_bf16.restype = None
        library.hpcsgd_widen_rows_bf16.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]
    return library, why


def available() -> bool:
    """True where the compiled kernels are in use."""
    return _load()[0] is not None


def why() -> str:
    """What is in use, or why nothing is."""
    return _load()[1]


def widen_rows(matrix: Array, rows: Array, out: Array) -> None:
    """out[i] ← matrix[rows[i]], bf16 bits to float32; NumPy-checked arguments only.

    `matrix` is (n, d) uint16 with contiguous rows, `rows` int64 within 0..n−1,
    `out` (len(rows), d) float32, C-contiguous.
    """
    _load()[0].hpcsgd_widen_rows_bf16(
        matrix.ctypes.data,
        matrix.strides[0] // 2,
        np.ascontiguousarray(rows, dtype=np.int64).ctypes.data,
        len(rows),
        matrix.shape[1],
        out.ctypes.data,
    )
