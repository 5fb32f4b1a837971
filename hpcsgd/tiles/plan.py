"""Which columns are a tile, and which part of each tile a replica keeps.

Every tile is split over all replicas, so that all drives and all links work on each of
them. A part begins on a page of its file and ends on one: no tail of a few bytes is
left to a write that wants whole blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcsgd.data.partition import split_range
from hpcsgd.errors import ConfigError

PAGE = 4096  # what O_DIRECT wants offsets and lengths to be multiples of
MIB = 2**20


def padded(size: int) -> int:
    """The next multiple of a page."""
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class Plan:
    """Columns in tiles of equal height but for the last, over some replicas."""

    columns: int
    height: int  # columns of a tile
    replicas: int = 1
    replica: int = 0

    @property
    def count(self) -> int:
        """Tiles."""
        return -(-self.columns // self.height)

    def tile(self, number: int) -> slice:
        """The columns of a tile."""
        first = number * self.height
        return slice(first, min(first + self.height, self.columns))

    def part(self, number: int, replica: int | None = None) -> slice:
        """Of these, what a replica keeps, this one if none is named."""
        tile, who = self.tile(number), self.replica if replica is None else replica
        own = split_range(tile.stop - tile.start, self.replicas, who)
        return slice(tile.start + own.start, tile.start + own.stop)

    def within(self, number: int) -> slice:
        """The own part, counted from where its tile begins."""
        own, first = self.part(number), self.tile(number).start
        return slice(own.start - first, own.stop - first)

    def rows(self, number: int) -> int:
        """Columns of the own part."""
        own = self.part(number)
        return int(own.stop - own.start)

    def sizes(self, number: int) -> list[int]:
        """Columns of the parts of all replicas."""
        parts = [self.part(number, replica) for replica in range(self.replicas)]
        return [part.stop - part.start for part in parts]

    @property
    def most(self) -> int:
        """Columns of the largest own part."""
        return self.rows(0) if self.count else 0

    @property
    def total(self) -> int:
        """Columns of all own parts."""
        return sum(self.rows(number) for number in range(self.count))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def columns_for(budget: float, each: int, columns: int) -> int:
    """Columns of a tile so that `each` bytes a column stay within `budget` MiB."""
    fit = int(budget * MIB) // each
    if fit < 1:
        raise ConfigError(
            f"[agreement] tile = {budget:g} MiB holds no column, which takes {each}"
            f" bytes in all buffers; use at least {each / MIB:.3g}"
        )
    return min(fit, max(columns, 1))
