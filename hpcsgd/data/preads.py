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

# Runs of bytes of a file, read directly into the rows of a matrix in memory.
#
# The system writes each row to its place (`preadv`), without a second copy and without
# the interpreter's lock.

# (offset in the file, offset in the array, rows, bytes per row, bytes of the file that
# are skipped before each row and after it); offsets are in bytes.
Run = tuple[int, int, int, int, int, int]
MOST_PIECES = 1024  # of one call, on every system that has it (IOV_MAX)


def can_scatter() -> bool:
    """Return whether the system's C library has `preadv`."""
    return _preadv() is not None


def read_runs(file: int, runs: list[Run], out: Array) -> int:
    """Fill parts of the rows of `out` from runs of bytes of a file.

    Return 0, or the offset in the file of the first byte of a run that is beyond the
    end of the file.
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
    """Read one run with `preadv`; return 0, or its first byte beyond the file's end."""
    offset, place, height, width, before, after = run
    address = out.ctypes.data + place
    stride = out.strides[0]
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
    """Return (address, bytes) of every part of a run, in the order of the file.

    Bytes to skip go to the array `passed`.
    """
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
    """Return the (address, bytes) that remain after the first `got` bytes are read."""
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
    """Return the compiled loop over runs, or None if it is not available."""
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
# h5py holds the interpreter's lock while it reads, so that a thread that reads ahead
# with it stops the training. Tiles without a filter are at known offsets of the file,
# from which `preadv` reads them without the lock.


class DatasetTiles:
    """The offsets of the tiles of one dataset; any thread may call `read`."""

    def __init__(self, path: Path, dataset: Any) -> None:
        self.shape = dataset.shape
        self.dtype = dataset.dtype
        self.tile, self.offsets = places_of(dataset)
        self.path = path
        self._file = os.open(path, os.O_RDONLY)

    def read(self, rows: slice, cols: slice) -> Array:
        """Return the block of these rows and columns, in the dtype of the dataset."""
        out = np.empty((rows.stop - rows.start, cols.stop - cols.start), self.dtype)
        self.read_into(rows, cols, out)
        return out

    def read_into(self, rows: slice, cols: slice, out: Array) -> None:
        """Read a dense block into `out`, an array of the dataset's dtype.

        The elements of a row of `out` are contiguous; its rows need not be.
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
            raise OSError(
                f"{self.path} is truncated: it has no byte {ended}; write or copy it"
                " again"
            )

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _run(self, i: int, j: int, rows: slice, cols: slice, stride: int) -> Run:
        """Return the part of tile (i, j) that is in the block, as a run of bytes."""
        height, width = self.tile
        top = i * height
        left = j * width
        first = max(rows.start, top)
        last = min(rows.stop, top + height)
        near = max(cols.start, left)
        far = min(cols.stop, left + width)
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
    """Return the tiles of a dataset, or None if HDF5 itself must read it."""
    if not is_plain(dataset):
        return None
    if not can_scatter():
        return None
    try:
        return DatasetTiles(path, dataset)
    except (LookupError, OSError, ValueError):
        return None  # tiles never written, or a moved file: HDF5 handles them


def is_plain(dataset: Any) -> bool:
    """Return whether the file stores the numbers as native bytes without filters."""
    created = dataset.id.get_create_plist()
    native = dataset.dtype.isnative and dataset.dtype.kind in "fiu"
    changed = created.get_nfilters() or dataset.is_virtual or dataset.external
    return bool(native and not changed)


def places_of(dataset: Any) -> tuple[tuple[int, int], Array]:
    """Return the shape of a tile and the byte offsets of all tiles, int64."""
    rows, cols = dataset.shape
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is None:
            raise LookupError("the data set is empty: no value was written into it")
        return (rows, cols), np.array([[start]], dtype=np.int64)
    height, width = dataset.chunks
    grid = (-(-rows // height), -(-cols // width))
    offsets = np.full(grid, -1, dtype=np.int64)
    for number in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(number)
        i, j = chunk.chunk_offset
        offsets[i // height, j // width] = chunk.byte_offset
    if (offsets < 0).any():
        raise LookupError("some tiles of the data set were never written")
    return (height, width), offsets
