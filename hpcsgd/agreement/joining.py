"""Slices of all replicas put together, tile by tile.

The next tile is gathered while one is used, so that two are there at a time.
"""

from collections.abc import Iterator

import numpy as np

from hpcsgd.agreement.cuts import Cut, Cuts
from hpcsgd.agreement.overlap import Overlap
from hpcsgd.agreement.room import Room
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import Array


class Joining:
    """What replicas own in slices, as whoever needs the columns sees it."""

    def __init__(self, replicas: Communicator, cuts: Cuts, room: Room) -> None:
        self.replicas, self.cuts, self.room = replicas, cuts, room
        self.overlap = Overlap(replicas)
        self._travelling: list[tuple[Pending, Array]] = []

    def tiles(
        self, own: Array, purpose: str, room: Room | None = None
    ) -> Iterator[tuple[Cut, Array]]:
        """Each tile with its columns; it is there until the next one is asked for.

        `room`: for two of them, where that is not of the host.
        """
        width, room = own.shape[1], room or self.room
        if own.dtype != room.dtype or width != self.cuts.width:
            words = self.cuts.largest // self.cuts.width * width
            room = Room(words, len(self.cuts), own.dtype)
        later: list[tuple[Cut, Array]] = []
        for number, cut in enumerate(self.cuts):
            tile = room.tile(number, cut.height * width).reshape(-1, width)
            self.start(own[cut.place], cut, tile, purpose)
            later.append((cut, tile))
            if number:
                self.wait()
                yield later.pop(0)
        self.wait()
        yield later.pop(0)

    def join(self, own: Array, purpose: str) -> Array:
        """All columns held, of arrays with any number of words a column."""
        whole = np.empty((self.cuts.columns, own.shape[1]), dtype=own.dtype)
        for cut in self.cuts:
            self.start(own[cut.place], cut, whole[cut.columns], purpose)
            self.wait(behind=1)
        self.wait()
        return whole

    def start(self, own: Array, cut: Cut, tile: Array, purpose: str) -> None:
        """Begin to put one tile together; both arrays belong to it until `wait`."""
        whole = own if own.flags.c_contiguous else np.ascontiguousarray(own)
        part = whole.reshape(-1)  # of a host or of a device
        out = tile.reshape(-1)
        counts = cut.counts(own.shape[1])
        with self.overlap.posting():
            pending = self.replicas.start_gather(part, counts, out, purpose)
        self._travelling.append((pending, part))

    def wait(self, behind: int = -1) -> None:
        """For the first that was started; `behind`: while more than so many travel."""
        while self._travelling and len(self._travelling) > max(behind, 0):
            pending, _ = self._travelling.pop(0)
            with self.overlap.waiting():
                pending.wait()
            if behind < 0:
                return
