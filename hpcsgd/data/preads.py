"""Tiles of HDF5 data sets that are read directly with `pread`."""

import ctypes
import errno
import os
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.files import load_kernels
from hpcsgd.formats import Array

# Runs of bytes of a file put straight where the rows of a matrix lie in memory.
#
# The system writes each row to its place (`preadv`): nothing is copied a second time,
# and the interpreter's lock is free meanwhile.

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
    signatures = {"hpcsgd_read_runs": ("l", "iplplp")}
    folder = Path(__file__).parent
    library, _ = load_kernels(folder, "_scatter", "Python", signatures)
    return None if library is None else library.hpcsgd_read_runs


@cache
def _preadv() -> Any:
    call = getattr(ctypes.CDLL(None, use_errno=True), "preadv", None)
    if call is not None:
        call.restype = ctypes.c_ssize_t
        call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
    return call


# Blocks of an HDF5 dataset read by the system alone, without HDF5 and its lock.
#
# h5py holds the interpreter's lock while it reads, so a thread that reads ahead through
# it stops the training beside it. Tiles that are stored as they are (no filter) lie at
# known places of the file: `preadv` takes them from there and lets others work.


class DatasetTiles:
    """Where the tiles of one dataset lie; `read` may be called from any thread."""

    def __init__(self, path: Path, dataset: Any) -> None:
        self.shape, self.dtype = dataset.shape, dataset.dtype
        self.tile, self.offsets = places_of(dataset)
        self.path = path
        self._file = os.open(path, os.O_RDONLY)

    def read(self, rows: slice, cols: slice) -> Array:
        """A dense block, as the dataset itself would give it."""
        out = np.empty((rows.stop - rows.start, cols.stop - cols.start), self.dtype)
        self.read_into(rows, cols, out)
        return out

    def read_into(self, rows: slice, cols: slice, out: Array) -> None:
        """A dense block, written where it is wanted: `out` is of the dataset's dtype.

        The elements of a row of `out` lie side by side; its rows may be far apart.
        """
        if out.size == 0:
            return
        (height, width) = self.tile
        places = product(
            range(rows.start // height, -(-rows.stop // height)),
            range(cols.start // width, -(-cols.stop // width)),
        )
        runs = [self._run(i, j, rows, cols, out.strides[0]) for i, j in places]
        ended = read_runs(self._file, runs, out)
        if ended:
            raise OSError(f"{self.path} ends at byte {ended}")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _run(self, i: int, j: int, rows: slice, cols: slice, stride: int) -> Run:
        """The part of tile (i, j) that lies in the block."""
        height, width = self.tile
        top, left = i * height, j * width
        first, last = max(rows.start, top), min(rows.stop, top + height)
        near, far = max(cols.start, left), min(cols.stop, left + width)
        size = self.dtype.itemsize
        return (
            # Whole rows of the tile lie behind one another in the file.
            int(self.offsets[i, j]) + (first - top) * width * size,
            (first - rows.start) * stride + (near - cols.start) * size,
            last - first,
            (far - near) * size,
            (near - left) * size,
            (left + width - far) * size,
        )


def open_tiles(path: Path, dataset: Any) -> DatasetTiles | None:
    """The tiles of a dataset, or None where HDF5 itself has to read it."""
    if not is_plain(dataset):
        return None
    if not can_scatter():
        return None
    try:
        return DatasetTiles(path, dataset)
    except (LookupError, OSError, ValueError):
        return None  # tiles that were never written, a file that moved: HDF5 knows


def is_plain(dataset: Any) -> bool:
    """True where the bytes of the file are those of the numbers."""
    created = dataset.id.get_create_plist()
    native = dataset.dtype.isnative and dataset.dtype.kind in "fiu"
    changed = created.get_nfilters() or dataset.is_virtual or dataset.external
    return bool(native and not changed)


def places_of(dataset: Any) -> tuple[tuple[int, int], Array]:
    """Shape of a tile, and the byte at which each one begins."""
    rows, cols = dataset.shape
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is None:
            raise LookupError("nothing was written")
        return (rows, cols), np.array([[start]], dtype=np.int64)
    height, width = dataset.chunks
    grid = (-(-rows // height), -(-cols // width))
    offsets = np.full(grid, -1, dtype=np.int64)
    for number in range(dataset.id.get_num_chunks()):
        found = dataset.id.get_chunk_info(number)
        i, j = found.chunk_offset
        offsets[i // height, j // width] = found.byte_offset
    if (offsets < 0).any():
        raise LookupError("some tiles were never written")
    return (height, width), offsets
