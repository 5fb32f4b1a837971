"""How much of the transfers lay behind computing: measured, message by message.

What transfers take is what the emulated network charged for them, where there is one;
else it is the time from the start of each to the end of the wait for it, an upper
limit. What of it was not hidden is the time that this rank stood still for it.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from hpcsgd.comm.base import Communicator


class Overlap:
    """Seconds of transfers, and seconds of standing still for them."""

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.transfer = 0.0
        self.waited = 0.0
        self._posted: deque[float] = deque()

    @contextmanager
    def posting(self) -> Iterator[None]:
        """A message is started inside; one that blocks is waited for here."""
        self._posted.append(perf_counter())
        with self._standing():
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For the message that was posted first, of those that are under way."""
        with self._standing():
            yield
        posted = self._posted.popleft()
        if self.replicas.charged is None:
            self.transfer += perf_counter() - posted

    @contextmanager
    def _standing(self) -> Iterator[None]:
        charged, began = self.replicas.charged or 0.0, perf_counter()
        yield
        self.waited += perf_counter() - began
        self.transfer += (self.replicas.charged or 0.0) - charged

    def facts(self) -> dict[str, float | str]:
        """For the report of a run."""
        hidden = max(self.transfer - self.waited, 0.0)
        return {
            "transfer_seconds": self.transfer,
            "hidden_seconds": hidden,
            "hidden_share": hidden / self.transfer if self.transfer else 0.0,
            "transfer_by": "clock" if self.replicas.charged is None else "network",
        }
