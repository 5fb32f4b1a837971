"""One run of bytes of a file put straight where the rows of a matrix lie in memory.

The system writes each row to its place (`preadv`): nothing is copied a second time,
and the interpreter's lock is free meanwhile.
"""

import ctypes
import errno
import os
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_PIECES = 1024  # of one call, on every system that has it (IOV_MAX)


def can_scatter() -> bool:
    """True where the system's library offers `preadv`."""
    return _preadv() is not None


def read_rows(file: int, offset: int, out: Array, before: int, after: int) -> int:
    """Fill the rows of `out` from bytes that lie behind one another in a file.

    `before` and `after` are the bytes of the file beside each row that are passed over.
    Returns how many bytes of the file were there, which is fewer where it ends early.
    """
    height, width = out.shape
    row_bytes = before + width * out.itemsize + after
    passed = np.empty(max(before, after), dtype=np.uint8)
    if out.strides[0] == row_bytes and not before and not after:
        # Rows that lie behind one another in memory too are one piece.
        return _read_all(file, offset, _pieces(out[:1], passed, 0, 0, height))
    return _read_all(file, offset, _pieces(out, passed, before, after, 1))


def _pieces(out: Array, passed: Array, before: int, after: int, times: int) -> Array:
    """(address, bytes) of every piece, in the order of the file."""
    height, width = out.shape
    table = np.empty((height, 3, 2), dtype=np.uint64)
    rows = out.ctypes.data + np.arange(height, dtype=np.int64) * out.strides[0]
    table[:, 1, 0], table[:, 1, 1] = rows, width * out.itemsize * times
    table[:, (0, 2), 0] = passed.ctypes.data
    table[:, 0, 1], table[:, 2, 1] = before, after
    flat = table.reshape(-1, 2)
    return flat[flat[:, 1] > 0]


def _read_all(file: int, offset: int, pieces: Array) -> int:
    done = 0
    while len(pieces):
        now = np.ascontiguousarray(pieces[:MOST_PIECES])
        got = _call(file, now, offset + done)
        if got == 0:
            return done
        done += got
        pieces = _rest(pieces, got)
    return done


def _rest(pieces: Array, got: int) -> Array:
    """What is left of the pieces after the first `got` bytes of them."""
    ends = np.cumsum(pieces[:, 1])
    first = int(np.searchsorted(ends, got, side="right"))
    left = pieces[first:]
    if len(left):
        begun = np.uint64(got) - (ends[first] - pieces[first, 1])
        if begun:
            left = left.copy()
            left[0] += np.array((begun, 0), dtype=np.uint64)
            left[0, 1] -= begun
    return left


def _call(file: int, pieces: Array, offset: int) -> int:
    while True:
        got = int(
            _preadv()(file, ctypes.c_void_p(pieces.ctypes.data), len(pieces), offset)
        )
        if got >= 0:
            return got
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _preadv() -> Any:
    call = getattr(ctypes.CDLL(None, use_errno=True), "preadv", None)
    if call is not None:
        call.restype = ctypes.c_ssize_t
        call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    return call
