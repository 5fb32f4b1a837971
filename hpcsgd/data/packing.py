"""Numbers and arrays by name as one run of bytes, and back without a copy."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parts = dict[str, Any]  # name -> an array, a number, or None
ALIGNED = 8  # bytes that arrays begin at multiples of
HEAD = 8  # bytes that say how long the description is


def pack(parts: Parts) -> Array:
    """A description in JSON, then the arrays."""
    arrays = {k: np.ascontiguousarray(v) for k, v in parts.items() if _is_array(v)}
    others = {k: v for k, v in parts.items() if k not in arrays}
    shapes = {k: [a.dtype.str, list(a.shape)] for k, a in arrays.items()}
    text = json.dumps([others, shapes]).encode()
    size = HEAD + _aligned(len(text)) + sum(_aligned(a.nbytes) for a in arrays.values())
    whole = np.empty(size, dtype=np.uint8)
    whole[:HEAD] = np.array([len(text)], dtype="<i8").view(np.uint8)
    whole[HEAD : HEAD + len(text)] = np.frombuffer(text, dtype=np.uint8)
    at = HEAD + _aligned(len(text))
    for array in arrays.values():
        whole[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        at += _aligned(array.nbytes)
    return whole


def unpack(whole: Array) -> Parts:
    """What was packed; its arrays are views of `whole`."""
    length = int(whole[:HEAD].view("<i8")[0])
    others, shapes = json.loads(whole[HEAD : HEAD + length].tobytes())
    parts: Parts = dict(others)
    at = HEAD + _aligned(length)
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        parts[name] = whole[at : at + size].view(dtype).reshape(shape)
        at += _aligned(size)
    return parts


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
