"""The compiled recurrence of softmax: K scores a row."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import isa
from hpcsgd.backends.base import Batch
from hpcsgd.backends.call import Call, door_to
from hpcsgd.backends.cpu import REALS, Recurrence

Array = NDArray[Any]


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
    function = _functions(isa.best()[0])[REALS[margins.dtype.char]]
    function(
        *(coefficients.pointer, classes, margins, gram, batch.targets),
        *(*sides, residuals, scratch),
    )
    return residuals


@lru_cache(maxsize=1)
def _functions(library: Any) -> dict[str, Call]:
    """The kernels of a library by the kind of real."""
    return {
        kind: door_to(library, f"hpcsgd_recur_softmax{kind}") for kind in REALS.values()
    }
