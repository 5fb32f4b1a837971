"""Columns cut into tiles, and every tile over all replicas.

Each replica owns a slice *inside* each tile, so that all of them have a part in every
message. Its slices lie one behind the other in arrays of its own, in the order of the
columns. Where a tile does not divide, slices differ by one column, and the odd ones go
round, so that replicas own as many columns each, give or take one: nothing is padded.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcsgd.data.partition import split_range
from hpcsgd.products.base import Array


@dataclass(frozen=True)
class Cut:
    """One tile, and whose its columns are."""

    columns: slice  # of those this member holds
    own: slice  # this replica's, of those this member holds
    place: slice  # where these lie in its own arrays
    heights: tuple[int, ...]  # columns of every replica

    @property
    def height(self) -> int:
        """Columns of the tile."""
        return sum(self.heights)

    def counts(self, width: int) -> list[int]:
        """Words of every replica, where a column has so many."""
        return [height * width for height in self.heights]


class Cuts:
    """All tiles of one column block, as one of its replicas sees them."""

    def __init__(
        self,
        columns: int,
        width: int,
        tiles: int,
        replicas: int,
        replica: int,
        unit: int = 1,
    ) -> None:
        """Tiles begin at multiples of `unit` columns: there may be fewer then."""
        self.columns, self.width = columns, width
        self.all: list[Cut] = []
        first = turn = 0
        for tile in _tiles(columns, tiles, unit):
            heights = dealt(tile.stop - tile.start, replicas, turn)
            turn += (tile.stop - tile.start) % replicas
            self.all.append(_cut(tile, heights, replica, first))
            first += heights[replica]
        self.height = first  # columns that this replica owns
        self.leaves_some_without = columns < replicas

    def __iter__(self) -> Iterator[Cut]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def largest(self) -> int:
        """Words of the largest tile."""
        return max(cut.height for cut in self.all) * self.width

    @property
    def numbers(self) -> Array:
        """Of the columns that this replica owns, in the order of its arrays."""
        parts = [np.arange(cut.own.start, cut.own.stop) for cut in self.all]
        return np.concatenate(parts)

    def of(self, whole: Array) -> Array:
        """This replica's rows of an array with one row a column held; a copy."""
        return np.concatenate([whole[cut.own] for cut in self.all])


def _tiles(columns: int, tiles: int, unit: int) -> Iterator[slice]:
    """Alike, give or take a unit."""
    units = -(-columns // unit)
    tiles = max(min(tiles, units), 1)
    for number in range(tiles):
        part = split_range(units, tiles, number)
        yield slice(part.start * unit, min(part.stop * unit, columns))


def dealt(columns: int, replicas: int, turn: int) -> tuple[int, ...]:
    """Columns of each replica; those left over go to replica `turn` and on from it."""
    size, extra = divmod(columns, replicas)
    return tuple(size + ((r - turn) % replicas < extra) for r in range(replicas))


def _cut(tile: slice, heights: tuple[int, ...], replica: int, first: int) -> Cut:
    start = tile.start + sum(heights[:replica])
    height = heights[replica]
    return Cut(
        columns=tile,
        own=slice(start, start + height),
        place=slice(first, first + height),
        heights=heights,
    )
