"""Runs of bytes of a file put straight where the rows of a matrix lie in memory.

The system writes each row to its place (`preadv`): nothing is copied a second time,
and the interpreter's lock is free meanwhile.
"""

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.compiled import load

Array = NDArray[Any]
# Where it begins in the file; where in the array, in bytes; rows; bytes of each; bytes
# of the file before and after each that are passed over.
Run = tuple[int, int, int, int, int, int]
MOST_PIECES = 1024  # of one call, on every system that has it (IOV_MAX)


def can_scatter() -> bool:
    """True where the system's library offers `preadv`."""
    return _preadv() is not None


def read_runs(file: int, runs: list[Run], out: Array) -> int:
    """Fill parts of the rows of `out` from runs of bytes of a file.

    Returns 0, or the byte at which the file ended too early.
    """
    compiled = _compiled()
    if compiled is None:
        one_by_one = (_read_run(file, run, out) for run in runs)
        return next((byte for byte in one_by_one if byte), 0)
    table = np.array(runs, dtype=np.int64)
    passed = np.empty(int(table[:, 4:].max()), dtype=np.uint8)
    ended = int(
        compiled(
            file,
            table.ctypes.data,
            len(table),
            out.ctypes.data,
            out.strides[0],
            passed.ctypes.data,
        )
    )
    if ended < 0:
        raise OSError(-ended, os.strerror(-ended))
    return ended


def _read_run(file: int, run: Run, out: Array) -> int:
    """One of them: 0, or where the file ended."""
    offset, place, height, width, before, after = run
    address, stride = out.ctypes.data + place, out.strides[0]
    row_bytes = before + width + after
    if stride == row_bytes == width:
        # Rows that lie behind one another in memory too are one piece.
        whole = np.array([(address, height * width)], dtype=np.uint64)
        done = _read_all(file, offset, whole)
    else:
        passed = np.empty(max(before, after), dtype=np.uint8)
        rows = address + np.arange(height, dtype=np.int64) * stride
        done = _read_all(file, offset, _pieces(rows, width, passed, before, after))
    return 0 if done == height * row_bytes else offset + done


def _pieces(rows: Array, width: int, passed: Array, before: int, after: int) -> Array:
    """(address, bytes) of every piece, in the order of the file."""
    table = np.empty((len(rows), 3, 2), dtype=np.uint64)
    table[:, 1, 0], table[:, 1, 1] = rows, width
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
def _compiled() -> Any:
    """The loop in C, or None: then the table of pieces is made here."""
    library, _ = load(Path(__file__).parent, "_scatter", "Python")
    if library is None:
        return None
    read = library.hpcsgd_read_runs
    long, place = ctypes.c_int64, ctypes.c_void_p
    read.restype = long
    read.argtypes = (ctypes.c_int, place, long, place, long, place)
    return read


@cache
def _preadv() -> Any:
    call = getattr(ctypes.CDLL(None, use_errno=True), "preadv", None)
    if call is not None:
        call.restype = ctypes.c_ssize_t
        call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    return call
