"""Scores in float64 of whatever rows are stored as: what a reported loss is made of."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import cpu

Array = NDArray[Any]


def exact_scores(rows: Any, weights: Array) -> Array:
    """rows @ weights in float64; `rows` are an array, or sparse ones that multiply."""
    if not _is_for_kernel(rows, weights):
        scores: Array = rows.astype(np.float64, copy=False) @ weights
        return scores
    out = np.empty((len(rows), 1))
    cpu.exact_scores(rows, weights, out)
    return out


def _is_for_kernel(rows: Any, weights: Array) -> bool:
    """One column of weights, and float32 rows that lie one behind the other."""
    return (
        isinstance(rows, np.ndarray)
        and rows.dtype == np.float32
        and rows.ndim == 2
        and (rows.strides[1] == rows.itemsize or rows.shape[1] == 1)
        and rows.strides[0] >= 0
        and weights.shape[1:] == (1,)
        and weights.dtype == np.float64
        and weights.flags.c_contiguous
        and cpu.available()
    )
