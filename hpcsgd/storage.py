"""How values are stored in a format: the bits that memory, files and wires hold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import MissingPackage
from hpcsgd.formats import FOR_MATRICES, get_format
from hpcsgd.rounding import round_through

Array = NDArray[Any]
ENCODED = 2**20  # bytes rounded together: what rounding takes beside them stays small

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
    """`values` rounded to nearest even into the storage of format `name`.

    Many values are rounded a megabyte at a time: rounding takes several times their
    bytes.
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
    """The same of a few rows, in a format narrower than float32."""
    form = get_format(name)
    if name == "tf32" or values.dtype == np.float64:
        values = values.astype(values.dtype, order="C")  # a copy to round, once
        round_through(values, name)
    if name in FOR_MATRICES:  # whole numbers already, but for float32 that came so
        values = np.rint(values)
    with np.errstate(invalid="ignore"):  # not-a-number stays what it is
        held = values.astype(_narrow(name) if name in NARROW else form.dtype)
    return np.ascontiguousarray(held).view(form.dtype)


def decode(stored: Array, name: str, dtype: Any, out: Array | None = None) -> Array:
    """The values of an array in storage `name`, exactly, as `dtype`."""
    if name == "bf16":
        return widen_bf16(stored, dtype, out)
    held = stored.view(_narrow(name)) if name in NARROW else stored
    if out is None:
        return held.astype(dtype, copy=False)
    np.copyto(out, held.astype(out.dtype, copy=False))
    return out


def widen_bf16(stored: Array, dtype: Any, out: Array | None = None) -> Array:
    """bf16 bits to float32 or float64: a 16-bit shift, exact."""
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
    """`values` / `scale` rounded to nearest even, as the bits that a file holds."""
    if scale != 1.0:
        values = values / scale
    rounded = values.astype(_narrow(name) if name in NARROW else stored, copy=False)
    return np.ascontiguousarray(rounded).view(stored)


def decode_element(stored: Array, name: str, scale: float) -> Array:
    """The values of a file's elements: float64 of fp64, else float32."""
    if name == "bf16":
        values = widen_bf16(stored, np.float32)
    else:
        held = stored.view(_narrow(name)) if name in NARROW else stored
        wide = np.float64 if name == "fp64" else np.float32
        values = held.astype(wide, copy=False)
    return values if scale == 1.0 else values * values.dtype.type(scale)
