"""Rounding to a format while values stay in float32 or float64.

Done with the bits of the values, by operators that every array library has: the same
text serves NumPy and CuPy. Nothing is rounded twice, whatever the format.
"""

from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.formats import Format, get_format

Array = NDArray[Any]
# of a carrier: unsigned integers of its size, bits of its fraction, smallest exponent
BITS = {"float32": ("uint32", 23, -126), "float64": ("uint64", 52, -1022)}
LEAST_EXPONENT = -126  # 2^126 is the largest power of two that divides nothing away


def round_through(values: Array, name: str, saturate: bool = False) -> None:
    """Round `values` in place to the nearest that format `name` has, ties to even.

    Beyond the largest number lies infinity, or NaN where the format has none;
    `saturate` stops there instead. Zeros keep their sign and NaN stays NaN.
    """
    form = get_format(name)
    if form.carrier.itemsize > values.dtype.itemsize or form.name == "fp64":
        return  # a wider format holds every value there is
    if form.is_wide:
        if form.dtype != values.dtype:
            values[...] = values.astype(form.dtype)
        return
    rounded = _nearest(values, form)
    _limit(rounded, form, saturate)
    values[...] = rounded


def round_randomly(values: Array, name: str, draws: Array) -> None:
    """Round `values` in place up or down, the nearer one being the likelier.

    `draws` are uniform in [0, 1), one a value: the mean over draws is the value. What
    the format has is not changed; beyond its largest number it saturates.
    """
    form = get_format(name)
    if form.is_wide and form.carrier.itemsize >= values.dtype.itemsize:
        return
    low = _towards_zero(values, form)
    distance = values - low
    step = _spacing(low, form)
    up = np.abs(distance) > draws * step
    moved = np.where(up, low + np.copysign(step, values), low)
    _limit(moved, form, saturate=True)
    values[...] = moved


def count_lost(values: Array, name: str) -> tuple[int, int]:
    """How many values lie beyond the largest of the format, and how many become 0."""
    form = get_format(name)
    size = np.abs(values)
    beyond = size > form.largest
    flushed = (size > 0) & (size <= form.tiny / 2)
    return int(beyond.sum()), int(flushed.sum())


def _nearest(values: Array, form: Format) -> Array:
    """To the fraction of the format; exponents above its largest are kept."""
    kind, fraction, least = BITS[values.dtype.name]
    drop = fraction - form.fraction
    bits: Array = values.view(kind)
    unit = np.dtype(kind).type
    half = unit((1 << (drop - 1)) - 1)
    odd: Array = (bits >> unit(drop)) & unit(1)
    # A carry out of the fraction is what it should be: the next power of two.
    moved = (bits + half + odd) & ~unit((1 << drop) - 1)
    rounded: Array = np.where(np.isfinite(values), moved, bits).view(values.dtype)
    if form.least > least:
        small = np.abs(values) < 2.0**form.least
        rounded = np.where(small, _to_multiples(values, form), rounded)
    return rounded


def _to_multiples(values: Array, form: Format) -> Array:
    """Subnormal numbers lie at multiples of the smallest: an addition rounds to them.

    Zeros keep their sign.
    """
    fraction = BITS[values.dtype.name][1]
    magic = values.dtype.type(1.5 * 2.0 ** (form.least - form.fraction + fraction))
    multiples: Array = np.copysign((values + magic) - magic, values)
    return multiples


def _towards_zero(values: Array, form: Format) -> Array:
    """The neighbour in the format that is not larger in size."""
    step = _spacing(values, form)
    cut = np.trunc(values / step) * step
    kept: Array = np.where(np.isfinite(values), np.copysign(cut, values), values)
    return kept


def _spacing(values: Array, form: Format) -> Array:
    """The distance of the format's numbers around each value, as a power of two."""
    _, exponent = np.frexp(values)
    exponent = np.maximum(exponent - 1, form.least) - form.fraction
    spacing: Array = np.ldexp(np.ones_like(values), exponent)
    return spacing


def _limit(rounded: Array, form: Format, saturate: bool) -> None:
    """What lies beyond the largest number."""
    over = np.abs(rounded) > form.largest
    if saturate:
        over &= np.isfinite(rounded) | np.isinf(rounded)
        rounded[over] = np.copysign(form.largest, rounded[over])
    elif form.has_infinity:
        rounded[over] = np.copysign(np.inf, rounded[over])
    else:
        rounded[over] = np.nan


def exponent_for(size: float, form: Format) -> int:
    """The least e for which size / 2^e is no more than the format's largest number."""
    if size == 0.0:
        return 0
    part, power = frexp(size)
    largest, top = frexp(form.largest)
    return max(power - top + (part > largest), LEAST_EXPONENT)
