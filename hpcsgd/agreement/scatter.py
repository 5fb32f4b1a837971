"""Tiles of the gradient, summed so that each replica gets its own slice of each.

A tile is sent while the next one is computed. Where the gradient is not kept whole, two
tiles are there at a time: one that travels, and one that is written.
"""

import numpy as np

from hpcsgd.agreement.cuts import Cut, Cuts
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.overlap import Overlap
from hpcsgd.agreement.room import Room
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import Array


class Tail:
    """[Σr | rows] of an exchange, which all replicas sum ahead of the gradient."""

    def __init__(self, overlap: Overlap, width: int, sums: bool, dtype: np.dtype):
        self.overlap = overlap
        self.words: Array = np.zeros(width * sums + 1, dtype=dtype)
        self._travels: Pending | None = None

    def clear(self) -> None:
        """Nothing seen yet."""
        self.words[...] = 0.0

    def count_in(self, residuals: Array) -> None:
        """Rows, and their Σr where there is an intercept."""
        self.words[-1] += len(residuals)
        if self.words.size > 1:
            self.words[:-1] += residuals.sum(axis=0, dtype=np.float64)

    def send(self) -> None:
        """It is complete."""
        with self.overlap.posting():
            self._travels = self.overlap.replicas.start_sum(self.words, PURPOSE)

    def total(self) -> Array:
        """Of all replicas; the first to ask waits for it."""
        if self._travels is not None:
            with self.overlap.waiting():
                self._travels.wait()
            self._travels = None
        return self.words


class Scatter:
    """The gradient of one exchange; `whole`: all of it is kept until the step."""

    keeps_slices = True  # apart from tiles, whose room the next ones use

    def __init__(
        self, replicas: Communicator, cuts: Cuts, room: Room, whole: bool, sums: bool
    ) -> None:
        self.replicas, self.cuts, self.room = replicas, cuts, room
        self.overlap = Overlap(replicas)
        self.tail = Tail(self.overlap, cuts.width, sums, room.dtype)
        height, width = (cuts.columns if whole else 0), cuts.width
        self._whole: Array | None = None
        if whole:
            self._whole = self._zeros(height, width)
        stays = whole or len(cuts) == 1 or not self.keeps_slices
        kept = 0 if stays else cuts.height
        self._slices: Array = self._zeros(kept, width)
        self._travelling: list[tuple[int, Pending]] = []
        self._there: dict[int, Array] = {}

    def begin(self) -> None:
        """Nothing summed yet."""
        self.tail.clear()
        self._there.clear()
        if self._whole is not None:
            self._clear(self._whole)

    @property
    def gradient(self) -> Array:
        """Where several batches are summed before any is sent."""
        assert self._whole is not None
        return self._whole

    def tile(self, number: int, cut: Cut) -> Array:
        """Where the sums of a tile go; of a whole gradient some may be there."""
        if self._whole is not None:
            return self._whole[cut.columns]
        if len(self._travelling) == 2:
            self._settle()
        words = self.room.tile(number, cut.height * self.cuts.width)
        self._clear(words)
        return words.reshape(-1, self.cuts.width)

    def send(self, number: int, cut: Cut, tile: Array) -> None:
        """Begin to sum what was just written."""
        words, counts = tile.reshape(-1), cut.counts(self.cuts.width)
        with self.overlap.posting():
            pending = self.replicas.start_sum_parts(words, counts, PURPOSE)
        self._travelling.append((number, pending))

    def own(self, number: int, cut: Cut) -> Array:
        """This replica's slice of a tile, summed over all; waited for."""
        while number not in self._there:
            self._settle()
        return self._there[number]

    def _settle(self) -> None:
        """Wait for the first that travels; its slice moves out of the way."""
        self.tail.total()  # which was posted before
        number, pending = self._travelling.pop(0)
        with self.overlap.waiting():
            own = self._wait(pending).reshape(-1, self.cuts.width)
        if len(self._slices):
            kept = self._slices[self.cuts.all[number].place]
            self._keep(own, kept)
            own = kept
        self._there[number] = own

    def _wait(self, pending: Pending) -> Array:
        """The own part, as soon as it may be looked at."""
        return pending.wait()

    def _zeros(self, height: int, width: int) -> Array:
        return np.zeros((height, width), dtype=self.room.dtype)

    def _clear(self, array: Array) -> None:
        array[...] = 0.0

    def _keep(self, own: Array, kept: Array) -> None:
        kept[...] = own
