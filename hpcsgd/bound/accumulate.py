"""How far sums may be off: the constants of rounding error analysis.

`partial_sums` is for accumulators whose order is known, as the emulated ones are;
`gamma` holds for every order.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.formats import Format

Array = NDArray[Any]


def gamma(count: float, unit: float) -> float:
    """γ_k(u) = k u / (1 − k u); no bound where k u reaches 1."""
    return count * unit / (1.0 - count * unit) if count * unit < 1.0 else math.inf


def rounded(values: Array, form: Format) -> Array:
    """What u times is at least |fl(v) − v|: |v|, or the smallest normal number."""
    size = np.abs(values)
    return np.where(size > 0, np.maximum(size, 2.0**form.least), 0.0)


def sent(values: Array, form: Format, loudest: float) -> Array:
    """The same in a message that is divided until `loudest` fits, or multiplied.

    Its largest value comes to lie in the upper half of the format's range.
    """
    factor = 2.0 * loudest / form.largest if form.wants_scale else 1.0
    size = np.abs(values)
    return np.where(size > 0, np.maximum(size, factor * 2.0**form.least), 0.0)


def binade(values: Array, form: Format) -> Array:
    """The same for values that are known: the power of two at or below |v|."""
    _, exponent = np.frexp(values)
    size = np.ldexp(1.0, np.maximum(exponent - 1, form.least))
    return np.where(values != 0, size, 0.0)


def partial_sums(parts: Iterable[Array], form: Format) -> Array:
    """The error of Σ parts, where every addition is rounded to `form`.

    With s_k the exact sum of the first k parts, and ŝ_k = fl(ŝ_{k−1} + p_k),

        |ŝ_k − s_k| ≤ |ŝ_{k−1} − s_{k−1}| + min(u |ŝ_{k−1} + p_k|, |p_k|):

    the nearest number is no further than ŝ_{k−1}, which is one.
    """
    unit = form.unit_roundoff
    total = error = np.zeros(1)
    for part in parts:
        total = total + part
        last = unit * (rounded(total, form) + error)
        error = error + np.minimum(last, np.abs(part))
    return error


def chunks(columns: slice, width: int) -> Iterator[slice]:
    """`columns` cut into pieces of `width`, the last one shorter."""
    for first in range(columns.start, columns.stop, width):
        yield slice(first, min(first + width, columns.stop))
