"""Pieces of a gradient on the network: as they are, or tiles by a codec."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcsgd.agreement.buckets import MIB, Buffer, Tile
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.scheduled_queue import Piece
from hpcsgd.agreement.senders import Plain, Sender
from hpcsgd.comm.pending import Pending
from hpcsgd.data.partition import split_range
from hpcsgd.products.base import Array

ORDERS = ("forward", "backward", "shuffled")


class Ordered(Buffer):
    """[tail | gradient], its tiles in the order in which scores need them.

    The first tile takes along what all steps need: it is the first to be needed.
    """

    def __init__(self, *sizes: Any, **more: Any) -> None:
        super().__init__(*sizes, **more)
        self.tiles.reverse()

    def _parts(self, words: int) -> tuple[Array, Array]:
        ahead = len(self.flat) - words
        return self.flat[ahead:], self.flat[:ahead]

    def with_tail(self, tile: Tile) -> Array:
        """What is sent of a tile."""
        if tile is not self.tiles[0]:
            return tile.flat
        return self.flat[: len(self.tail) + tile.flat.size]

    def in_order(self, order: str) -> list[int]:
        """The numbers of all tiles in the order in which they are computed."""
        numbers = list(range(len(self.tiles)))
        if order == "backward":
            return numbers[::-1]
        if order == "shuffled":  # alike on all ranks
            return [int(k) for k in np.random.default_rng(0).permutation(numbers)]
        return numbers


def cut(priority: int, words: Array, partition: float) -> Iterator[Piece]:
    """⌈bytes / partition⌉ messages of nearly equal length; `partition` in MiB."""
    most = max(int(min(partition * MIB, words.nbytes)) // words.itemsize, 1)
    count = -(-words.size // most)
    for part in range(count):
        yield Piece(priority, part, words[split_range(words.size, count, part)])


class AsTheyAre:
    """Sums in place, of pieces of any length."""

    can_tell = True

    def __init__(self, sender: Plain) -> None:
        self.sender = sender
        self._travelling: deque[Pending] = deque()

    def pieces(self, buffer: Buffer, tile: Tile, partition: float) -> Sequence[Piece]:
        """Of one tile that is ready."""
        number = buffer.tiles.index(tile)
        return tuple(cut(number, buffer.with_tail(tile), partition))

    def start(self, piece: Piece) -> None:
        """Begin the sum."""
        sender = self.sender
        with sender.overlap.posting():
            pending = sender.replicas.start_sum(piece.words, PURPOSE)
            self._travelling.append(pending)

    def finish(self, piece: Piece) -> None:
        """Wait for it."""
        with self.sender.overlap.waiting():
            self._travelling.popleft().wait()

    def has_arrived(self) -> bool:
        """The oldest."""
        return self._travelling[0].has_arrived()

    def factor(self, number: int) -> float:
        """1 / count."""
        return 1.0 / float(self.sender.tail()[-1])


class Encoded:
    """Tiles by a codec, each whole: what it keeps belongs to a tile."""

    can_tell = False

    def __init__(self, sender: Sender, buffer: Buffer) -> None:
        self.sender = sender
        self.buffer = buffer
        self._factors: dict[int, float] = {}

    def pieces(self, buffer: Buffer, tile: Tile, partition: float) -> Sequence[Piece]:
        """One."""
        return (Piece(buffer.tiles.index(tile), 0, tile.flat),)

    def start(self, piece: Piece) -> None:
        """Encode, and send."""
        self.sender.send(self.buffer, self.buffer.tiles[piece.priority])

    def finish(self, piece: Piece) -> None:
        """Decode."""
        tile = self.buffer.tiles[piece.priority]
        self._factors[piece.priority] = self.sender.receive(self.buffer, tile)

    def has_arrived(self) -> bool:
        """Nobody knows."""
        return False

    def factor(self, number: int) -> float:
        """Of what was decoded last."""
        return self._factors[number]
