"""A work item of tick-tock: its own buffer, sender and communicator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hpcsgd.agreement.buckets import Buffer, Tile
from hpcsgd.agreement.senders import Plain
from hpcsgd.codecs import Moment
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import duplicate
from hpcsgd.comm.on_device import of_hosts


@dataclass
class Item:
    """Tick (0) or tock (1)."""

    name: int
    buffer: Buffer
    sender: Plain

    # Told of what begins and ends, by tests and by whoever draws time lines.
    watchers: ClassVar[list[Callable[[str, int], None]]] = []

    def begin(self) -> None:
        """Its batches are computed from now on."""
        self.tell("computes")
        self.buffer.clear()

    def send(self, tile: Tile) -> None:
        """A tile is there."""
        if tile is self.buffer.tiles[0]:
            self.sender.begin(self.buffer, Moment(0, 0, 1.0, 1.0))
        self.sender.send(self.buffer, tile)
        if tile is self.buffer.tiles[-1]:
            self.tell("sent")

    def receive(self, tile: Tile) -> None:
        """Wait for its sum; that of the first tile brings the tail."""
        self.sender.wait()
        if tile is self.buffer.tiles[-1]:
            self.tell("arrived")

    def tell(self, event: str) -> None:
        """To whoever wants to know."""
        for watch in self.watchers:
            watch(event, self.name)


def make_items(
    buffers: tuple[Buffer, Buffer], replicas: Communicator
) -> tuple[Item, Item]:
    """Both, each with a duplicate of the communicator; called by all replicas."""
    tick, tock = (Plain(duplicate(of_hosts(replicas))) for _ in buffers)
    return Item(0, buffers[0], tick), Item(1, buffers[1], tock)
