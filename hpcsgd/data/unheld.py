"""A matrix that stays in its file: read in pieces, for whoever holds it elsewhere."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.direct import DirectReader, has_gds
from hpcsgd.errors import DataError, MissingPackage

Array = NDArray[Any]
log = logging.getLogger(__name__)
PIECE = 64 * 2**20  # bytes that are read together past the host


class Unheld:
    """Local rows as they are stored.

    Parameters
    ----------
    read_into : puts a range of local rows where they are wanted, in the host's memory
    shape : rows and columns of this rank
    dtype : of the stored elements
    place : (file, first row, columns) of a dataset of these very elements, or None
    read_some : local rows and columns as they are stored, where a tile is wanted
    """

    def __init__(
        self,
        read_into: Callable[[slice, Array], None],
        shape: tuple[int, int],
        dtype: Any,
        place: tuple[Any, int, slice] | None = None,
        read_some: Callable[[slice, slice], Array] | None = None,
    ) -> None:
        self.read_some = read_some
        self.read_into = read_into
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.place = place

    def some(self, rows: Array, columns: slice) -> Array:
        """Some columns of these rows; neighbours in the file are read together."""
        assert self.read_some is not None
        out = np.empty((len(rows), columns.stop - columns.start), dtype=self.dtype)
        order = np.argsort(rows, kind="stable")
        for run in np.split(order, 1 + np.flatnonzero(np.diff(rows[order]) != 1)):
            first = int(rows[run[0]])
            out[run] = self.read_some(slice(first, first + len(run)), columns)
        return out

    def close(self) -> None:
        """Nothing of it is held."""

    def straight(self, held: Any, wait: Callable[[], None]) -> bool:
        """Whether all rows went from the drive into `held`, an array on a GPU.

        Only where the system has GPUDirect Storage, rows are stored as they lie there
        (`held` is as wide as they are), and whole: elsewhere it is no gain. What is
        read so was looked at before, when the file was gone through.
        """
        if self.place is None or tuple(held.shape) != self.shape or not has_gds():
            return False
        path, first, columns = self.place
        try:
            reader = DirectReader(path, wait)
        except (DataError, MissingPackage) as error:
            log.info("%s; rows go by way of the host", error)
            return False
        try:
            return reader.reads_in_place(columns) and self._read(reader, held)
        except DataError as error:
            log.warning("%s; rows go by way of the host", error)
            return False
        finally:
            reader.close()

    def _read(self, reader: DirectReader, held: Any) -> bool:
        assert self.place is not None
        _, first, columns = self.place
        height, width = self.shape
        step = max(PIECE // (width * self.dtype.itemsize), 1)
        for row in range(0, height, step):
            last = min(row + step, height)
            reader.read_into(held[row:last], slice(first + row, first + last), columns)
        return True
