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
        self, columns: int, width: int, dtype: np.dtype, count: int, intercept: bool
    ) -> None:
        words, self.width = columns * width, width
        self.sums = width if intercept else 0
        self.flat: Array = np.zeros(words + self.sums + 1, dtype=dtype)
        self.gradient = self.flat[:words].reshape(columns, width)
        self.tail = self.flat[words:]
        # The last columns first: what follows them in the buffer goes with them.
        self.tiles = [self._tile(split_range(columns, count, k)) for k in range(count)]
        self.tiles.reverse()

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

    def count_in(self, residuals: Array) -> None:
        """Rows, and their Σr where there is an intercept."""
        self.tail[-1] += len(residuals)
        if self.sums:
            self.tail[:-1] += residuals.sum(axis=0, dtype=np.float64)

    def __iter__(self) -> Iterator[Tile]:
        return iter(self.tiles)
