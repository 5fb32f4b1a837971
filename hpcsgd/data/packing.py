"""Numbers and arrays by name as one run of bytes, and back without a copy."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parts = dict[str, Any]  # name -> an array, a number, or None
ALIGNED = 8  # bytes that arrays begin at multiples of
PADDING = np.zeros(ALIGNED, dtype=np.uint8)
HEAD = 8  # bytes that say how long the description is


def pack(parts: Parts) -> Array:
    """Return a description in JSON and then the arrays, in one array of bytes."""
    size, runs = packed(parts)
    whole, at = np.empty(size, dtype=np.uint8), 0
    for run in runs:
        whole[at : at + len(run)] = run
        at += len(run)
    return whole


def packed(parts: Parts) -> tuple[int, list[Array]]:
    """Return how many bytes `pack` makes, and these in several arrays, not copied."""
    arrays = {k: np.ascontiguousarray(v) for k, v in parts.items() if _is_array(v)}
    others = {k: v for k, v in parts.items() if k not in arrays}
    shapes = {k: [a.dtype.str, list(a.shape)] for k, a in arrays.items()}
    text = json.dumps([others, shapes]).encode()
    runs = [np.array([len(text)], dtype="<i8"), np.frombuffer(text, dtype=np.uint8)]
    padded = list[Array]()
    for run in [*runs, *arrays.values()]:
        padded += [run.reshape(-1).view(np.uint8), PADDING[: -run.nbytes % ALIGNED]]
    return sum(len(run) for run in padded), padded


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
