"""Where every collective is watched, timed and booked, whatever it says."""

from collections.abc import Callable
from time import perf_counter

from hpcsgd.comm.hooks import Array, Hooks
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.place import Place


class Booked(Hooks):
    """A group of ranks and the ledger that its collectives are written into."""

    def __init__(
        self, rank: int, size: int, ledger: Ledger, reproducible: bool = False
    ) -> None:
        self.rank, self.size = rank, size
        self.ledger = ledger
        self.reproducible = reproducible
        self.begun = 0  # collectives of this group so far

    def _inside(self, what: str, purpose: str) -> Place:
        """`with` it around whatever may wait for others: the watchdog looks there."""
        self.begun += 1
        return self.ledger.place.enter(what, purpose, self.begun, self.size)

    def _wait(
        self, finish: Callable[[], None], purpose: str, number: int, what: str = "sum"
    ) -> None:
        began = perf_counter()
        with self.ledger.place.enter(what, purpose, number, self.size):
            finish()
        self.ledger.wait(purpose, perf_counter() - began)

    def _book(self, purpose: str, sent: Array, wire_bytes: float, began: float) -> None:
        elapsed = perf_counter() - began
        self.ledger.record(purpose, sent.size, sent.nbytes, wire_bytes, elapsed)
