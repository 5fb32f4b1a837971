"""How buckets travel: as they are, summed in place, or by a codec.

A sender is told when the residuals are known (`begin`), when the sums of a tile are
(`send`), and asked for what all replicas said (`receive`), in the order of the tiles.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
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

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """The tail of the buffer is complete."""

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

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.overlap = Overlap(replicas)
        self._travelling: list[Pending] = []
        self._tail: Array = np.empty(0)

    def begin(self, buffer: Buffer, moment: Moment) -> None:
        """Nothing to do: the tail goes along."""
        self._tail = buffer.tail

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
    overlap: Overlap = field(init=False)

    def __post_init__(self) -> None:
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

    def send(self, buffer: Buffer, tile: Tile) -> None:
        """Encode, and send."""
        codec = self._codec(tile)
        if self._scale is None:
            with self.overlap.waiting():
                self._scale = self.replicas.size / float(self.tail()[-1])
        part = tile.flat
        part *= self._scale * self._unit(codec)
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

    def _codec(self, tile: Tile) -> Codec:
        return self.codecs[tile.columns.start]

    def _unit(self, codec: Codec) -> float:
        """Errors are kept in steps, not in gradients."""
        return self._moment.rate if isinstance(codec, Feedback) else 1.0
