"""Values to the bits that a message holds and back, compiled where that can be."""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.compiled import load
from hpcsgd.formats import get_format
from hpcsgd.storage import decode, encode

Array = NDArray[Any]
# In the order of the numbers that kernels/cpu/casts.c gives.
KINDS = ("bf16", "fp16", "fp8-e4m3", "fp8-e5m2")
_pointer, _count, _real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_CAST = [_pointer, _pointer, _count, ctypes.c_int]


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled casts, or None."""
    found, _ = load(Path(__file__).parent, "_casts", "NumPy")
    if found is not None:
        found.hpcsgd_encode.argtypes = [*_CAST, _real]
        found.hpcsgd_decode.argtypes = _CAST
        found.hpcsgd_encode.restype = found.hpcsgd_decode.restype = None
        found.hpcsgd_largest.argtypes = [_pointer, _count]
        found.hpcsgd_largest.restype = _real
    return found


def held_dtype(name: str) -> np.dtype[Any]:
    """The unsigned integers that a message in format `name` is made of."""
    return np.dtype(f"u{get_format(name).dtype.itemsize}")


def narrow(values: Array, name: str, factor: float, out: Array) -> None:
    """out ← the bits of values · factor, float32 rounded to nearest even."""
    assert values.size == out.size
    compiled = library()
    if compiled is not None:
        ends = values.ctypes.data, out.ctypes.data
        compiled.hpcsgd_encode(*ends, values.size, KINDS.index(name), factor)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values if factor == 1.0 else values * np.float32(factor)
        out[...] = encode(scaled, name).view(out.dtype)


def widen(held: Array, name: str, out: Array) -> None:
    """out ← the float32 values of bits."""
    assert held.size == out.size
    compiled = library()
    if compiled is not None:
        ends = held.ctypes.data, out.ctypes.data
        compiled.hpcsgd_decode(*ends, held.size, KINDS.index(name))
        return
    decode(held.view(get_format(name).dtype), name, np.float32, out)


def largest_finite(values: Array) -> float:
    """The largest size among values that are finite; 0 where none is."""
    compiled = library()
    if compiled is not None:
        return float(compiled.hpcsgd_largest(values.ctypes.data, values.size))
    sizes = np.abs(values[np.isfinite(values)])
    return float(sizes.max(initial=0))
