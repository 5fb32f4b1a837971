"""How buckets travel: as they are, summed in place, or by a codec.

A sender is told when the residuals are known (`begin`), when the sums of a tile are
(`send`), and asked for what all replicas said (`receive`), in the order of the tiles.
Where it `wants_norm` all tiles are computed and measured before the first is sent.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from hpcsgd.agreement.buckets import Buffer, Tile
from hpcsgd.agreement.line import PURPOSE, ReplicaLine
from hpcsgd.agreement.overlap import Overlap
from hpcsgd.codecs import Codec, Feedback, Moment
from hpcsgd.codecs.base import Finish
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import Array


class Sender(Protocol):
    """What the gradient agreement asks of it."""

    overlap: Overlap
    codec: str  # what it is called, for people
    wants_norm: bool  # True: `measure` comes between the last sums and the first `send`

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """The tail of the buffer is complete."""

    def measure(self, buffer: Buffer) -> None:
        """So are all tiles: find the norm of this replica's gradient.

        Collective over the members of a replica.
        """

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """So is this tile: begin to say it."""

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Wait for it; the mean gradient is what the tile holds, times this."""

    def tail(self) -> Array:
        """Σ over replicas of [Σr | count], after the first `receive`."""

    def facts(self) -> dict[str, int]:
        """What it counted, for the report of a run."""


class Plain:
    """Sums in place, the tail with the first of them."""

    codec = "identity"
    wants_norm = False

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.overlap = Overlap(replicas)
        self._travelling: list[Pending] = []
        self._tail: Array = np.empty(0)

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Nothing to do: the tail goes along."""
        self._tail = buffer.tail

    def measure(self, buffer: Buffer) -> None:
        """Nothing depends on the norm."""

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Start the sum of what was just written."""
        words = buffer.with_tail(tile)
        with self.overlap.posting():
            self._travelling.append(self.replicas.start_sum(words, PURPOSE))

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """1 / count."""
        self.wait()
        return 1.0 / float(self._tail[-1])

    def wait(self) -> None:
        """For the tile that was sent first."""
        with self.overlap.waiting():
            self._travelling.pop(0).wait()

    def tail(self) -> Array:
        """In the buffer."""
        return self._tail

    def facts(self) -> dict[str, int]:
        """Nothing."""
        return {}


@dataclass
class Coded:
    """A codec for every bucket; rows are counted first, and Σr is never encoded.

    What replica p encodes is R s_p / Σn, whose mean over replicas is the gradient; with
    error feedback, times the rate of this step.
    """

    replicas: Communicator
    codecs: dict[int, Codec]  # by the first column of their tile
    codec: str
    members: Communicator  # who hold the other columns of this replica's gradient
    overlap: Overlap = field(init=False)

    def __post_init__(self) -> None:
        self.wants_norm = any(codec.wants_norm for codec in self.codecs.values())
        self.overlap = Overlap(self.replicas)
        self._lines = {first: ReplicaLine(self.replicas) for first in self.codecs}
        self._finish: list[Finish] = []
        self._moment = Moment(0, 0, 1.0, 1.0)
        self._arrive: Callable[[], Array] = lambda: np.empty(0)
        self._scale: float | None = None

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Start the sum of the tail, which travels while a tile is computed."""
        self._moment, self._scale = moment, None
        tail = buffer.tail.astype(np.float64)
        with self.overlap.posting():
            self._arrive = self.replicas.start_sum(tail, PURPOSE).wait

    def measure(self, buffer: Buffer) -> None:
        """Sum the squares of all tiles over members, one word; R / Σn comes to it."""
        squares = [np.square(tile.flat, dtype=np.float64).sum() for tile in buffer]
        total = self.members.sum(np.array([sum(squares)]), PURPOSE)
        norm = self._scale_of_sums() * float(np.sqrt(total[0]))
        self._moment = replace(self._moment, norm=norm)

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Encode, and send."""
        codec = self._codec(tile)
        part = tile.flat
        part *= self._scale_of_sums() * self._unit(codec)
        line = self._lines[tile.columns.start]
        with self.overlap.posting():
            self._finish.append(codec.start(part, line, self._moment))

    def receive(self, buffer: Buffer, tile: Tile) -> float:
        """Decode, into the tile."""
        with self.overlap.waiting():
            told = self._finish.pop(0)()
        if told.mean is not tile.flat:
            tile.flat[...] = told.mean
        return 1.0 / self._unit(self._codec(tile))

    def tail(self) -> Array:
        """Of float64."""
        return self._arrive()

    def facts(self) -> dict[str, int]:
        """What the codecs of all buckets counted, in sum."""
        total: Counter[str] = Counter()
        for codec in self.codecs.values():
            total.update(codec.facts())
        return dict(total)

    def _scale_of_sums(self) -> float:
        """Return R / Σn, for which the first who asks waits."""
        if self._scale is None:
            with self.overlap.waiting():
                self._scale = self.replicas.size / float(self.tail()[-1])
        return self._scale

    def _codec(self, tile: Tile) -> Codec:
        return self.codecs[tile.columns.start]

    def _unit(self, codec: Codec) -> float:
        """Errors are kept in steps, not in gradients."""
        return self._moment.rate if isinstance(codec, Feedback) else 1.0
