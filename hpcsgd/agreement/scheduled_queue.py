"""Which piece of the gradient travels next: priorities, and credit in bytes.

A piece that is ready waits here until there is credit: it starts where credit is above
zero, however large it is, so that less than credit + one piece is under way. Nothing
that has started is broken off. Collectives have to begin in one order on all ranks. So
the order may depend on what this program has said and waited for so far, and never on a
clock: where pieces get ready in the order of their priorities it is that order anyhow,
and credit comes back as soon as a transfer is seen to be over; otherwise it comes back
where all ranks wait for the same piece.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from hpcsgd.products.base import Array


@dataclass(frozen=True, order=True)
class Piece:
    """A part of a tile that travels as one message; the least priority goes first."""

    priority: int  # of its tile in the next forward pass, 0 = needed first
    part: int  # of the tile, in the order of its words
    words: Array = field(compare=False)

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.words.nbytes)


class Wire(Protocol):
    """Who starts transfers and waits for them, in the order in which they started."""

    can_tell: bool  # False: whether something has arrived is known by waiting alone

    def start(self, piece: Piece) -> None:
        """Begin to say it."""

    def finish(self, piece: Piece) -> None:
        """Wait for the oldest, which is this one."""

    def has_arrived(self) -> bool:
        """Whether the oldest would not be waited for."""


class Queue:
    """Pieces that wait, and those that travel."""

    # Told of everything that happens, by tests and by whoever draws time lines.
    watchers: ClassVar[list[Callable[[str, Piece], None]]] = []

    def __init__(self, wire: Wire, credit: float, polls: bool) -> None:
        self.wire = wire
        self.polls = polls and wire.can_tell
        self.messages = 0
        self.most = 0  # bytes under way at a time
        self._waiting: list[Piece] = []
        self._travelling: deque[Piece] = deque()
        self._open: Counter[int] = Counter()  # pieces of a tile that have not arrived
        self.allow(credit)

    def allow(self, credit: float) -> None:
        """From now on so many bytes; nothing may be under way."""
        self.limit = self.credit = credit

    @property
    def in_flight(self) -> int:
        """Bytes."""
        return sum(piece.size for piece in self._travelling)

    def push(self, piece: Piece) -> None:
        """It is ready."""
        self._tell("ready", piece)
        self._open[piece.priority] += 1
        heapq.heappush(self._waiting, piece)

    def pump(self) -> None:
        """Start what there is credit for."""
        while self.polls and self._travelling and self.wire.has_arrived():
            self._finish()
        while self._waiting and self.credit > 0:
            self._start(heapq.heappop(self._waiting))

    def take(self, priority: int) -> None:
        """Wait until all of a tile is here; others start meanwhile."""
        self.pump()
        while self._open[priority]:
            self._finish()
            self.pump()

    def _start(self, piece: Piece) -> None:
        self._tell("start", piece)
        self.credit -= piece.size
        self._travelling.append(piece)
        self.messages += 1
        self.most = max(self.most, self.in_flight)
        self.wire.start(piece)

    def _finish(self) -> None:
        piece = self._travelling.popleft()
        self.wire.finish(piece)
        self.credit = min(self.credit + piece.size, self.limit)
        self._open[piece.priority] -= 1
        self._tell("finish", piece)

    def _tell(self, event: str, piece: Piece) -> None:
        for watch in self.watchers:
            watch(event, piece)
