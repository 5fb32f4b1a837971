"""Matrices larger than memory, read from their file during training."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from hpcsgd.data.gpudirect import DirectReader, has_gds
from hpcsgd.data.matrix import Gathered, RowGatherer
from hpcsgd.data.sampling import Sampler
from hpcsgd.errors import DataError, MissingPackage
from hpcsgd.formats import Array

# A matrix that remains in its file and is read in chunks, for example to a GPU.

log = logging.getLogger(__name__)
PIECE = 64 * 2**20  # bytes of one read from the drive to a GPU


class RowDevice(Protocol):
    """A GPU on which all rows of a matrix are stored."""

    def wait(self) -> None:
        """Wait until all work of the GPU is done."""

    def put_rows(self, held: Any, block: Any) -> None:
        """Copy a block of rows in GPU memory into the array `held` of all rows."""


class Unheld:
    """A matrix of local rows that is read from its file, as it is stored.

    Parameters
    ----------
    read_into : function (rows, out) that reads local rows into an array on the host
    shape : rows and columns of this rank
    dtype : of the stored elements
    place : (file, first row, columns) of a dataset with the same elements, or None
    read_some : function (rows, columns) that returns a block as it is stored, or None
    """

    is_sparse: ClassVar[Literal[False]] = False
    is_in_memory: ClassVar[Literal[False]] = False

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
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.place = place

    def some(self, rows: Array, columns: slice) -> Array:
        """Return some columns of these rows; consecutive rows are read together."""
        assert self.read_some is not None
        out = np.empty((len(rows), columns.stop - columns.start), dtype=self.dtype)
        order = np.argsort(rows, kind="stable")
        for run in np.split(order, 1 + np.flatnonzero(np.diff(rows[order]) != 1)):
            first = int(rows[run[0]])
            out[run] = self.read_some(slice(first, first + len(run)), columns)
        return out

    def take(self, rows: Array) -> Array:
        """Return these rows as they are stored, read from the file."""
        return self.some(rows, slice(0, self.shape[1]))

    def gather(
        self, backend: RowGatherer[Gathered], rows: Array, room: Array | None
    ) -> Gathered:
        """Return these rows as `backend` computes with them.

        `room` is memory for them, which the backend may use.
        """
        stored = self.take(rows)
        return backend.gather(stored, np.arange(len(stored)), room)

    def gather_columns(
        self, backend: RowGatherer[Gathered], rows: Array, columns: slice, room: Array
    ) -> Gathered:
        """Return some columns of these rows as `backend` computes with them."""
        stored = self.some(rows, columns)
        return backend.gather(stored, np.arange(len(stored)), room)

    def operand(self, rows: slice) -> Array:
        """Return neighbouring rows as NumPy multiplies them, read from the file."""
        out = np.empty((rows.stop - rows.start, self.shape[1]), dtype=self.dtype)
        self.read_into(rows, out)
        return out

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def straight(self, held: Any, device: RowDevice) -> bool:
        """Read all rows from the drive into `held`, an array on a GPU; return success.

        Return False without a `place` or GPUDirect Storage, if `held` has another shape
        than the rows, if these columns are not those of exactly one tile of the file,
        or if the read fails. The rows are not checked here: they were checked when the
        file was read before.
        """
        if self.place is None or tuple(held.shape) != self.shape or not has_gds():
            return False
        path, first, columns = self.place
        try:
            reader = DirectReader(path, device.wait)
        except (DataError, MissingPackage) as error:
            log.info("rows are copied to the GPU through host memory: %s", error)
            return False
        try:
            return reader.reads_in_place(columns) and self._read(reader, held)
        except DataError as error:
            log.warning("rows are copied to the GPU through host memory: %s", error)
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


# Rows that do not fit into memory: blocks of them are read ahead of their use.
#
# Epochs go through windows of blocks in a random order (`Sampler` with mode "blocks").
# Four windows are in memory: the one that the feed has reached, the two before it, in
# which the group in use may begin (the feed is one group ahead), and the next, which a
# thread reads meanwhile.

WINDOWS = 4


def bytes_of_windows(block: int, window: int, row: int) -> int:
    """Return the bytes of all windows in memory.

    A window has `window` blocks of `block` rows, and a row has `row` bytes.
    """
    return WINDOWS * block * window * row


@dataclass(frozen=True)
class Route:
    """The order in which blocks are read: windows, numbered over all epochs."""

    sampler: Sampler
    epochs: int
    _known: dict[int, tuple[list[Array], Array]] = field(default_factory=dict)

    @property
    def per_epoch(self) -> int:
        """Return the number of windows of an epoch."""
        return -(-self.sampler.blocks // self.sampler.window)

    def blocks(self, window: int) -> Array:
        """Return the numbers of the blocks in window number `window` of the run."""
        epoch, place = divmod(window, self.per_epoch)
        return self._epoch(epoch)[0][place]

    def window_of(self, epoch: int, position: int) -> int:
        """Return the number, in the run, of the window with a row of an epoch.

        The row is at `position` of the epoch's order.
        """
        place = int(np.searchsorted(self._epoch(epoch)[1], position, side="right"))
        return epoch * self.per_epoch + place

    def _epoch(self, epoch: int) -> tuple[list[Array], Array]:
        """Return the windows of an epoch, and the end of each in the row order."""
        order = self._known.get(epoch)
        if order is None:
            windows = self.sampler.windows(epoch)
            sizes = [
                sum(self.sampler.block_rows(int(b)) for b in blocks)
                for blocks in windows
            ]
            order = self._known[epoch] = (windows, np.cumsum(sizes))
            self._known.pop(epoch - 2, None)  # earlier epochs are not needed again
        return order


class StreamedMatrix(Unheld):
    """A matrix in a file; a thread reads the rows of the next batches ahead."""

    def __init__(
        self,
        fill: Callable[[slice, Array], None],
        shape: tuple[int, int],
        dtype: Any,
        route: Route,
    ) -> None:
        super().__init__(fill, shape, dtype)
        self.route = route
        block = route.sampler.block
        window = route.sampler.window
        self.slot_rows = block * window
        self.buffer = np.empty((WINDOWS * self.slot_rows, shape[1]), dtype=dtype)
        self._place = np.full(route.sampler.blocks, -1, dtype=np.int64)
        self._changed = threading.Condition()
        self._wanted = -1  # the window that training has reached
        self._error: BaseException | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def follow(self, epoch: int, first: int, count: int) -> None:
        """Announce that rows first .. first + count − 1 of an epoch's order come next.

        The first call starts the thread that reads.
        """
        window = self.route.window_of(epoch, first + count - 1)
        if window > self._wanted:  # else the reader need not wake up
            with self._changed:
                self._wanted = window
                self._changed.notify_all()
        if self._thread is None:
            begin = self.route.window_of(epoch, first)
            self._thread = threading.Thread(
                target=self._run, args=(begin,), name="stream", daemon=True
            )
            self._thread.start()

    def locate(self, rows: Array) -> tuple[Array, Array]:
        """Wait until these rows are read; return the buffer, and their places in it."""
        block, within = np.divmod(rows, self.route.sampler.block)
        place = self._place[block]
        if (place < 0).any():
            place = self._wait_for(block)
        # These rows stay in place until `follow` has advanced by two windows.
        return self.buffer, place + within

    def take(self, rows: Array) -> Array:
        """Return a copy of these rows as they are stored; wait until they are read."""
        buffer, places = self.locate(rows)
        return np.take(buffer, places, axis=0)

    def gather(
        self, backend: RowGatherer[Gathered], rows: Array, room: Array | None
    ) -> Gathered:
        """Return these rows as `backend` computes with them.

        If they are not in memory yet, wait until the reading thread has read them.
        """
        buffer, places = self.locate(rows)
        return backend.gather(buffer, places, room)

    def _wait_for(self, block: Array) -> Array:
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or (self._place[block] >= 0).all()
            )
            if self._error is not None:
                raise self._error
            return self._place[block]

    def close(self) -> None:
        """Stop the thread that reads."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self, window: int) -> None:
        last = self.route.epochs * self.route.per_epoch
        try:
            while window < last and self._may_read(window):
                self._load(window)
                window += 1
        except BaseException as error:  # raised by the thread that waits
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_read(self, window: int) -> bool:
        """Wait until a window may replace one in memory; False: `close` was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or window <= self._wanted + 1)
            return not self._stopped

    def _load(self, window: int) -> None:
        first = window % WINDOWS * self.slot_rows
        with self._changed:
            in_slot = (self._place >= first) & (self._place < first + self.slot_rows)
            self._place[in_slot] = -1
        for block in self.route.blocks(window):
            rows = self.route.sampler.rows_of(int(block))
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            self.read_into(part, self.buffer[first : first + len(rows)])
            with self._changed:
                self._place[block] = first
                self._changed.notify_all()
            first += self.route.sampler.block
