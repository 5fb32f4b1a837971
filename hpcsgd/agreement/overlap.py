"""How much of the transfers lay behind computing: measured, message by message.

What a transfer takes is what the emulated network charged for it, where there is one;
else it is the time from its start to the end of the wait for it, an upper limit. What
of it was not hidden is the time that this rank stood still for it, be it for another
rank that was late: the hidden part is a lower limit.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from hpcsgd.comm.base import Communicator


@dataclass
class Travelling:
    """One message: when it was posted, and what it has cost so far."""

    posted: float
    stood: float = 0.0  # seconds of standing still for it
    charged: float = 0.0  # seconds that the network takes, where that is known


class Overlap:
    """Seconds of transfers, and how many of them were hidden."""

    def __init__(
        self, replicas: Communicator, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.replicas = replicas
        self.clock = clock
        self.transfer = 0.0
        self.hidden = 0.0
        self._under_way: deque[Travelling] = deque()

    @contextmanager
    def posting(self) -> Iterator[None]:
        """A message is started inside; one that blocks is waited for here."""
        message = Travelling(self.clock())
        self._under_way.append(message)
        with self._standing(message):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For the message that was posted first, of those that are under way."""
        if self.replicas.ledger.gives_way is not None:
            self.replicas.ledger.gives_way()
        message = self._under_way.popleft()
        with self._standing(message):
            yield
        took = message.charged
        if self.replicas.charged is None:
            took = self.clock() - message.posted
        self.transfer += took
        self.hidden += max(took - message.stood, 0.0)

    @contextmanager
    def _standing(self, message: Travelling) -> Iterator[None]:
        charged, began = self.replicas.charged or 0.0, self.clock()
        yield
        message.stood += self.clock() - began
        message.charged += (self.replicas.charged or 0.0) - charged

    def facts(self) -> dict[str, float | str]:
        """For the report of a run."""
        return {
            "transfer_seconds": self.transfer,
            "hidden_seconds": self.hidden,
            "hidden_share": self.hidden / self.transfer if self.transfer else 0.0,
            "transfer_by": "clock" if self.replicas.charged is None else "network",
        }
