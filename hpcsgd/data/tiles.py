"""Blocks of an HDF5 dataset read by the system alone, without HDF5 and its lock.

h5py holds the interpreter's lock while it reads, so a thread that reads ahead through
it stops the training beside it. Tiles that are stored as they are (no filter) lie at
known places of the file: `preadv` takes them from there and lets others work.
"""

import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.scatter import Run, can_scatter, read_runs

Array = NDArray[Any]


class Tiles:
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


def open_tiles(path: Path, dataset: Any) -> Tiles | None:
    """The tiles of a dataset, or None where HDF5 itself has to read it."""
    if not is_plain(dataset):
        return None
    if not can_scatter():
        return None
    try:
        return Tiles(path, dataset)
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
