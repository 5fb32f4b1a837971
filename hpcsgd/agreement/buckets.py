"""One flat buffer [gradient | Σr | count], and its tiles of columns.

Everything is written where it will be sent from: a bucket is a view, and what replicas
sum in place is the gradient that the step reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from hpcsgd.data.partition import split_range
from hpcsgd.products.base import Array

MIB = 2**20


def bucket_count(columns: int, width: int, itemsize: int, cap: float) -> int:
    """⌈bytes of the gradient / cap⌉ buckets, no more than there are columns."""
    size = columns * width * itemsize
    return max(min(ceil(size / (cap * MIB)), columns), 1)


@dataclass(frozen=True)
class Tile:
    """One bucket: some columns of the gradient, and where it lies in the buffer."""

    columns: slice  # of those this member holds
    gradient: Array  # (columns, K), a view
    flat: Array  # the same words in one row

    @property
    def height(self) -> int:
        """Columns."""
        return int(self.columns.stop - self.columns.start)


class Buffer:
    """What a replica says in an exchange: sums and a count, never means of means."""

    def __init__(
        self,
        columns: int,
        width: int,
        dtype: np.dtype,
        count: int,
        intercept: bool,
        unit: int = 1,
        flagged: bool = False,
    ) -> None:
        """Tiles begin at multiples of `unit` columns; a flag lies before the count."""
        words, self.width = columns * width, width
        self.sums = width if intercept else 0
        self.flat = self._room(words + self.sums + flagged + 1, dtype)
        gradient, self.tail = self._parts(words)
        self.gradient = gradient.reshape(columns, width)
        # The last columns first: what follows them in the buffer goes with them.
        units = -(-columns // unit)
        parts = [split_range(units, count, k) for k in range(count)]
        cuts = [(part.start * unit, min(part.stop * unit, columns)) for part in parts]
        self.tiles = [self._tile(slice(*cut)) for cut in cuts if cut[0] < cut[1]]
        self.tiles.reverse()
        self.going = self.tiles  # in the order in which they are sent

    def _room(self, words: int, dtype: np.dtype) -> Array:
        return np.zeros(words, dtype=dtype)

    def _parts(self, words: int) -> tuple[Array, Array]:
        """The gradient and the tail."""
        return self.flat[:words], self.flat[words:]

    def _tile(self, part: slice) -> Tile:
        gradient = self.gradient[part]
        return Tile(part, gradient, gradient.reshape(-1))

    def with_tail(self, tile: Tile) -> Array:
        """What is sent of a tile: the first to go takes the tail along."""
        if tile is not self.tiles[0]:
            return tile.flat
        return self.flat[tile.columns.start * self.width :]

    def clear(self) -> None:
        """Nothing summed yet."""
        self.flat[...] = 0.0

    def say_nothing(self) -> None:
        """This replica has no rows: what is there is zero, and stays so."""

    def count_in(self, residuals: Array) -> None:
        """Rows, and their Σr where there is an intercept."""
        self.tail[-1] += len(residuals)
        if self.sums and not self.is_flagged:
            self.tail[: self.sums] += residuals.sum(axis=0, dtype=np.float64)

    @property
    def is_flagged(self) -> bool:
        """Whether this replica says that the exchange must not count."""
        return len(self.tail) > self.sums + 1 and bool(self.tail[-2])

    def flag(self) -> None:
        """Say so."""
        self.tail[-2] = 1.0

    def settle(self) -> None:
        """Wait until everything that was given to be added is."""

    def collect(self) -> None:
        """Have the gradient here, wherever it was summed."""

    def facts(self) -> dict[str, int]:
        """For the report of a run."""
        return {}

    def __iter__(self) -> Iterator[Tile]:
        return iter(self.tiles)
