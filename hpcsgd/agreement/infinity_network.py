"""Tiles of weights and of gradients between replicas: one travels while one is used.

    forward     gather tile i + 1  |  scores of tile i
    backward    sum of tile i      |  Yᵀr of tile i + 1, then the step of tile i

Two tiles of each are there at a time, where there are others to send them to.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from hpcsgd.agreement.overlap import Overlap
from hpcsgd.agreement.room import Room
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import Array

PURPOSE = "agreement"
ALONE, TOGETHER = 2, 5  # tiles of w and G that are there at a time, own parts of w too
Owned = Iterable[tuple[int, Array]]
Sizes = Callable[[int], Sequence[int]]  # tile -> words of all replicas


class Between:
    """The messages of one rank, in the order of tiles on all of them."""

    def __init__(
        self, replicas: Communicator, height: int, width: int, dtype: np.dtype
    ) -> None:
        self.replicas = replicas
        self.overlap = Overlap(replicas)
        self._whole, self._sums = (Room(height * width, 2, dtype) for _ in range(2))
        self._own = Room(-(-height // replicas.size) * width, 2, dtype)
        self._travelling: list[Pending] = []
        self._begun = 0  # tiles of G in this exchange

    def gathered(
        self, parts: Owned, sizes: Sizes, purpose: str
    ) -> Iterator[tuple[int, Array]]:
        """Flat words of every tile, from the own parts; good until the next one."""
        last = -1
        for number, own in parts:
            self._gather(number, own, sizes(number), purpose)
            if last >= 0:
                yield last, self._arrived()
            last = number
        if last >= 0:
            yield last, self._arrived()

    def restart(self) -> None:
        """The gradient of another exchange."""
        self._begun = 0

    def sums(self, number: int, count: int, sizes: Sizes, add: "Add") -> Array:
        """The own part of Σ_p G of this tile; the next one is on its way then."""
        if self.replicas.size == 1:
            return self._added(number, sum(sizes(number)), add)
        while self._begun <= min(number + 1, count - 1):
            self._send_sums(self._begun, sizes(self._begun), add)
            self._begun += 1
        return self._arrived()

    def _gather(
        self, number: int, own: Array, counts: Sequence[int], purpose: str
    ) -> None:
        """From a copy: the buffer it lies in is read into again."""
        part = self._own.tile(number, own.size)
        part.reshape(own.shape)[...] = own
        out = self._whole.tile(number, sum(counts))
        with self.overlap.posting():
            pending = self.replicas.start_gather(part, counts, out, purpose)
        self._travelling.append(pending)

    def _send_sums(self, number: int, counts: Sequence[int], add: "Add") -> None:
        flat = self._added(number, sum(counts), add)
        with self.overlap.posting():
            pending = self.replicas.start_sum_parts(flat, counts, PURPOSE)
        self._travelling.append(pending)

    def _added(self, number: int, words: int, add: "Add") -> Array:
        flat = self._sums.tile(number, words)
        flat[...] = 0.0
        add(number, flat)
        return flat

    def _arrived(self) -> Array:
        """The first that was sent."""
        with self.overlap.waiting():
            return self._travelling.pop(0).wait()


Add = Callable[[int, Array], None]  # adds Yᵀr of a tile to its flat words
