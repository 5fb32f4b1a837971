"""The compiled recurrence of softmax, through ctypes: K scores a row."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.base import Batch
from hpcsgd.backends.cpu import REALS, Recurrence, address

Array = NDArray[Any]
ARGUMENTS = (ctypes.c_void_p, ctypes.c_int64, *(ctypes.c_void_p,) * 8)


def recur(
    coefficients: Recurrence,
    margins: Array,
    gram: Array,
    batch: Batch,
    intercept: Array | None,
    states: int,
) -> Array:
    """Residuals (m, K) of all steps; the intercept advances in place."""
    m, classes = len(margins), margins.shape[1] // states
    residuals: Array = np.empty((m, classes), dtype=margins.dtype)
    scratch = np.empty_like(residuals)
    sides = (batch.weights, batch.offsets, intercept)
    function = getattr(
        isa.best()[0], f"hpcsgd_recur_softmax{REALS[margins.dtype.name]}"
    )
    function.restype, function.argtypes = None, ARGUMENTS
    function(
        coefficients.pointer,
        classes,
        *(address(margins), address(gram), address(batch.targets)),
        *(None if side is None else address(side) for side in sides),
        *(address(residuals), address(scratch)),
    )
    return residuals
