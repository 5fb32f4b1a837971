"""Number formats: what each can hold, and how the host stores it."""

from dataclasses import dataclass
from math import frexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, MissingPackage

Array = NDArray[Any]  # of any format, and of integers


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    An integer format is described in the same way, with `fraction` = `least`. All
    numbers below its largest power of two, 2**least, then count as subnormal, and the
    distance of any two neighbours is 1.
    """

    name: str
    fraction: int  # bits of the fraction that are stored
    least: int  # exponent of the smallest normal number
    largest: float
    has_infinity: bool
    storage: str  # NumPy dtype; bf16 and fp8 are held as bits, as the kernels hold them

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next larger number."""
        return 2.0 ** -(self.fraction + 1)

    @property
    def tiny(self) -> float:
        """The smallest positive number, which is subnormal."""
        return float(2.0 ** (self.least - self.fraction))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an array stored in this format."""
        return np.dtype(self.storage)

    @property
    def carrier(self) -> np.dtype[Any]:
        """The dtype in which the host computes with values of this format."""
        return np.dtype("float64" if self.name == "fp64" else "float32")

    @property
    def is_wide(self) -> bool:
        """True for fp64 and fp32, in which NumPy and MPI compute without emulation."""
        return self.name in WIDE

    @property
    def wants_scale(self) -> bool:
        """True if its range of exponents is smaller than that of fp32.

        Data may then lie outside the range unless they are scaled.
        """
        return self.least > -126


WIDE = ("fp64", "fp32")
FORMATS = {
    "fp64": Format("fp64", 52, -1022, float(np.finfo("f8").max), True, "float64"),
    "fp32": Format("fp32", 23, -126, float(np.finfo("f4").max), True, "float32"),
    "tf32": Format("tf32", 10, -126, (2 - 2.0**-10) * 2.0**127, True, "float32"),
    "bf16": Format("bf16", 7, -126, (2 - 2.0**-7) * 2.0**127, True, "uint16"),
    "fp16": Format("fp16", 10, -14, 65504.0, True, "float16"),
    "fp8-e4m3": Format("fp8-e4m3", 3, -6, 448.0, False, "uint8"),
    "fp8-e5m2": Format("fp8-e5m2", 2, -14, 57344.0, True, "uint8"),
    "int8": Format("int8", 6, 6, 127.0, False, "int8"),
}

FOR_MATRICES = ("int8",)  # no other field: it has no NaN to show a failure


def formats_of(field: str) -> list[str]:
    """Return the names of the formats that a field of [precision] may have."""
    return [n for n in FORMATS if field == "matrix" or n not in FOR_MATRICES]


def get_format(name: str) -> Format:
    """Return the format called `name`; raise ConfigError if there is none."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; known: {sorted(FORMATS)}")
    return FORMATS[name]


def wider(first: str, second: str) -> str:
    """Return the name of that of two formats which has the smaller unit roundoff."""
    return min(first, second, key=lambda name: get_format(name).unit_roundoff)


# Rounding to a format while values stay in float32 or float64.
#
# Done with the bits of the values, by operators that every array library has: the same
# text serves NumPy and CuPy. Nothing is rounded twice, whatever the format.

# of a carrier: unsigned integers of its size, bits of its fraction, smallest exponent
BITS = {"float32": ("uint32", 23, -126), "float64": ("uint64", 52, -1022)}
LEAST_EXPONENT = -126  # 2^126 is the largest power of two that divides nothing away


def round_through(values: Array, name: str) -> None:
    """Round `values` in place to the nearest numbers of format `name`, ties to even.

    A value that rounds beyond the largest number becomes infinite, or NaN if the format
    has no infinity. Zeros keep their sign, and NaN stays NaN. Nothing changes if the
    dtype of `values` has no number that the format lacks.
    """
    form = get_format(name)
    if form.carrier.itemsize > values.dtype.itemsize or form.name == "fp64":
        return  # a wider format holds every value there is
    if form.is_wide:
        if form.dtype != values.dtype:
            values[...] = values.astype(form.dtype)
        return
    rounded = _nearest(values, form)
    over = np.abs(rounded) > form.largest
    infinite = np.copysign(np.inf, rounded[over])
    rounded[over] = infinite if form.has_infinity else np.nan
    values[...] = rounded


def round_randomly(values: Array, name: str, draws: Array) -> None:
    """Round `values` in place up or down at random to numbers of format `name`.

    The nearer number is the more probable one, such that the mean over draws is the
    value. `draws` are uniform in [0, 1), one for each value. A number that the format
    has does not change; a value beyond its largest number becomes that number.
    """
    form = get_format(name)
    if form.is_wide and form.carrier.itemsize >= values.dtype.itemsize:
        return
    low = _towards_zero(values, form)
    distance = values - low
    step = _spacing(low, form)
    up = np.abs(distance) > draws * step
    moved = np.where(up, low + np.copysign(step, values), low)
    over = np.abs(moved) > form.largest
    moved[over] = np.copysign(form.largest, moved[over])
    values[...] = moved


def count_lost(values: Array, name: str) -> tuple[int, int]:
    """Return how many values the format `name` cannot represent, as two counts.

    The first counts values whose size exceeds the largest number of the format, the
    second values other than 0 that it rounds to 0.
    """
    form = get_format(name)
    size = np.abs(values)
    beyond = size > form.largest
    flushed = (size > 0) & (size <= form.tiny / 2)
    return int(beyond.sum()), int(flushed.sum())


def _nearest(values: Array, form: Format) -> Array:
    """Return `values` rounded to the fraction of `form`, ties to even.

    Exponents that are too large for the format are kept.
    """
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
    """Return `values` rounded to multiples of the format's smallest number.

    Subnormal numbers are such multiples. Zeros keep their sign.
    """
    fraction = BITS[values.dtype.name][1]
    magic = values.dtype.type(1.5 * 2.0 ** (form.least - form.fraction + fraction))
    multiples: Array = np.copysign((values + magic) - magic, values)
    return multiples


def _towards_zero(values: Array, form: Format) -> Array:
    """Return `values` rounded towards zero to numbers of the format."""
    step = _spacing(values, form)
    cut = np.trunc(values / step) * step
    numbers: Array = np.where(np.isfinite(values), np.copysign(cut, values), values)
    return numbers


def _spacing(values: Array, form: Format) -> Array:
    """Return the distance of the format's numbers around each value, a power of two."""
    _, exponent = np.frexp(values)
    exponent = np.maximum(exponent - 1, form.least) - form.fraction
    spacing: Array = np.ldexp(np.ones_like(values), exponent)
    return spacing


def exponent_for(size: float, form: Format) -> int:
    """Return the least e ≥ `LEAST_EXPONENT` with size / 2^e at most `form.largest`.

    It is 0 if `size` is 0.
    """
    if size == 0.0:
        return 0
    part, power = frexp(size)
    largest, top = frexp(form.largest)
    return max(power - top + (part > largest), LEAST_EXPONENT)


# How values are stored in a format: the bits that memory, files and wires hold.

ENCODED = 2**20  # bytes rounded together: what rounding takes beside them stays small
ROUNDING = 8 * ENCODED  # bytes that rounding takes, several arrays of those

# formats that NumPy itself does not have, as ml_dtypes calls them
NARROW = {
    "bf16": "bfloat16",
    "fp8-e4m3": "float8_e4m3fn",
    "fp8-e5m2": "float8_e5m2",
}


def _narrow(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError as missing:
        raise MissingPackage(
            f"{name} needs the package ml_dtypes; install it with:"
            " pip install ml_dtypes"
        ) from missing
    return getattr(ml_dtypes, NARROW[name])


def encode(values: Array, name: str) -> Array:
    """Return `values` rounded to nearest even, in the storage dtype of format `name`.

    Many values are rounded a megabyte at a time, since rounding takes several times
    their bytes.
    """
    form = get_format(name)
    if form.is_wide:
        whole = np.ascontiguousarray(values, dtype=form.dtype)
        # Kernels and BLAS sum rows in another order, or not at all, where an array that
        # came out of a stream of bytes lies between the addresses of its words.
        return whole if whole.flags.aligned else whole.copy()
    if values.nbytes <= ENCODED or values.ndim == 0:
        return _encode(values, name)
    if values.ndim > 1 and values.flags.c_contiguous:  # rows may be long
        return encode(values.reshape(-1), name).reshape(values.shape)
    step = max(ENCODED * len(values) // values.nbytes, 1)
    encoded = np.empty(values.shape, dtype=form.dtype)
    for first in range(0, len(values), step):
        part = slice(first, first + step)
        encoded[part] = _encode(values[part], name)
    return encoded


def _encode(values: Array, name: str) -> Array:
    """Return a few `values` as `encode` does, in a format narrower than float32."""
    form = get_format(name)
    if name == "tf32" or values.dtype == np.float64:
        values = values.astype(values.dtype, order="C")  # a copy to round, once
        round_through(values, name)
    if name in FOR_MATRICES:  # float32 is not yet rounded to whole numbers
        values = np.rint(values)
    with np.errstate(invalid="ignore"):  # not-a-number stays what it is
        elements = values.astype(_narrow(name) if name in NARROW else form.dtype)
    return np.ascontiguousarray(elements).view(form.dtype)


def decode(stored: Array, name: str, dtype: Any, out: Array | None = None) -> Array:
    """Return the values of an array that is stored in format `name`.

    They are written into `out` if it is given; otherwise the result has the dtype
    `dtype`. They are exact if that dtype is at least as wide as the format.
    """
    if name == "bf16":
        return widen_bf16(stored, dtype, out)
    elements = stored.view(_narrow(name)) if name in NARROW else stored
    if out is None:
        return elements.astype(dtype, copy=False)
    np.copyto(out, elements.astype(out.dtype, copy=False))
    return out


def widen_bf16(stored: Array, dtype: Any, out: Array | None = None) -> Array:
    """Return the values of bf16 bits, exactly, by a shift of 16 bits.

    They are written into `out`, float32 or float64, if it is given; otherwise the
    result has the dtype `dtype`.
    """
    direct = out if out is not None and out.dtype == np.float32 else None
    if direct is None:
        direct = np.empty(stored.shape, dtype=np.float32)
    np.left_shift(stored, np.uint32(16), out=direct.view(np.uint32), dtype=np.uint32)
    if out is None:
        return direct.astype(dtype, copy=False)
    if out is not direct:
        np.copyto(out, direct)
    return out


def encode_element(values: Array, name: str, stored: Any, scale: float) -> Array:
    """Return `values` / `scale`, rounded to nearest even, as a data file stores them.

    `name` is the format, `stored` the dtype of the elements in the file.
    """
    if scale != 1.0:
        values = values / scale
    rounded = values.astype(_narrow(name) if name in NARROW else stored, copy=False)
    return np.ascontiguousarray(rounded).view(stored)


def decode_element(stored: Array, name: str, scale: float) -> Array:
    """Return `scale` times the values of the elements of a data file.

    `name` is their format. The result is float64 for fp64, else float32.
    """
    if name == "bf16":
        values = widen_bf16(stored, np.float32)
    else:
        elements = stored.view(_narrow(name)) if name in NARROW else stored
        wide = np.float64 if name == "fp64" else np.float32
        values = elements.astype(wide, copy=False)
    return values if scale == 1.0 else values * values.dtype.type(scale)
