"""Gradients are added inside groups of replicas, and leaders speak for them.

Inside a group (the replicas of a node) words are summed as they are, to its first
replica; only these exchange, by a codec where there is one; each tells its group. With
G groups a codec is one of G replicas, and what crosses between nodes does not grow with
the replicas of a node.
"""

from dataclasses import dataclass

import numpy as np

from hpcsgd.agreement.buckets import Buffer, Tile
from hpcsgd.agreement.hierarchical import places
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.nested import Level, label
from hpcsgd.agreement.overlap import Overlap
from hpcsgd.agreement.senders import Sender
from hpcsgd.codecs import Moment
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.on_device import of_hosts
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array


@dataclass(frozen=True)
class Groups:
    """Of one column block; opened and closed by all of its replicas."""

    inside: Communicator
    leaders: Communicator  # on a leader; on others, all who are none
    count: int

    @property
    def leads(self) -> bool:
        """Whether this replica speaks for its group."""
        return self.inside.rank == 0

    def close(self) -> None:
        """With all others."""
        self.inside.close()
        self.leaders.close()


def open_groups(grid: Grid, of: str) -> Groups:
    """Groups of a place, "node" or "rack", or of so many replicas."""
    grid.meet()
    replicas = grid.replicas
    (first,) = label([Level(of, 1)], places(grid))
    speakers = of_hosts(replicas)
    inside = speakers.split(first[grid.replica], replicas.rank)
    leaders = speakers.split(int(inside.rank > 0), replicas.rank)
    return Groups(inside, leaders, len(set(first)))


def check_groups(of: str) -> None:
    """Refuse what names no groups."""
    if of in ("off", "node", "rack") or of.isdecimal() and int(of) > 0:
        return
    raise ConfigError(
        f"[agreement] hierarchical = {of!r} must be off, node, rack, or how many"
        " replicas a group has"
    )


class ByLeaders:
    """A sender around that of the leaders."""

    def __init__(self, groups: Groups, sender: Sender) -> None:
        self.groups, self.sender = groups, sender
        self.codec = sender.codec
        self.wants_norm = sender.wants_norm
        self.overlap: Overlap = sender.overlap
        self._words = 1  # of the tail

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Rows are counted inside first."""
        self._words = len(buffer.tail)
        self.groups.inside.reduce(buffer.tail, PURPOSE)
        if self.groups.leads:
            self.sender.begin(buffer, moment)

    def measure(self, buffer: Buffer) -> None:
        """Add all tiles inside; the norm is that of the sum of a group."""
        for tile in buffer:
            self.groups.inside.reduce(tile.flat, PURPOSE)
        if self.groups.leads:
            self.sender.measure(buffer)

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Add inside; between groups it travels while the next tile is computed."""
        if not self.wants_norm:  # it was added to be measured
            self.groups.inside.reduce(tile.flat, PURPOSE)
        if self.groups.leads:
            self.sender.send(buffer, tile)

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """The mean itself, told by the leader."""
        if self.groups.leads:
            factor = self.sender.receive(buffer, tile)
            tile.flat[...] *= tile.flat.dtype.type(factor)
        self.groups.inside.broadcast(tile.flat, 0, PURPOSE)
        return 1.0

    def tail(self) -> Array:
        """Told by the leader, too."""
        parts = np.empty(self._words, dtype=np.float64)
        if self.groups.leads:
            parts[...] = self.sender.tail()
        return self.groups.inside.broadcast(parts, 0, PURPOSE)

    def facts(self) -> dict[str, int]:
        """As the leaders' sender has it, and how many they are."""
        return {**self.sender.facts(), "groups": self.groups.count}

    def close(self) -> None:
        """The groups that were split off."""
        self.groups.close()
