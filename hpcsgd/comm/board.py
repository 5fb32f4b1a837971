"""Where ranks that are threads leave what they say, and who of them is left."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hpcsgd.comm.verdict import PATIENCE
from hpcsgd.errors import TransportError

LIMIT = 60.0  # seconds a rank waits for the others, where nobody says otherwise
SHARE = 0.05  # of a core: a process that uses more has ranks that work


class RankDied(BaseException):
    """Raised by a rank that is to vanish, as if it had been killed."""


class LostRank(TransportError):
    """Another rank is gone."""


class Census:
    """Who is left of a world: counts the dead, and waits until all others are there."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dead = 0
        self.left: list[int] = []
        self.world: list[Board] = []  # of those that are left, once they have met
        self.changed = threading.Condition()

    def bury(self) -> None:
        """One rank less."""
        with self.changed:
            self.dead += 1
            self.changed.notify_all()

    def meet(self, rank: int) -> tuple[int, "list[Board]"]:
        """The new number of `rank` and the new world's board, once all are here."""
        with self.changed:
            self.left.append(rank)
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(self.left) + self.dead >= self.size)
            if not self.world:
                self.world.append(Board(len(self.left)))
            return sorted(self.left).index(rank), self.world


class Board:
    """Where the ranks of a group leave what they say, each message under its number."""

    def __init__(self, size: int, limit: float = LIMIT) -> None:
        self.size = size
        self.limit = limit  # 0 = for ever
        self.items: dict[int, dict[int, Any]] = {}
        self.taken: dict[int, int] = {}
        self.letters: dict[tuple[int, int], deque[Any]] = {}  # by sender and receiver
        self.changed = threading.Condition()
        self.broken = False
        self.census = Census(size)

    def put(self, number: int, rank: int, item: Any) -> None:
        """Say `item` as message `number` of this group."""
        with self.changed:
            self.items.setdefault(number, {})[rank] = item
            self.changed.notify_all()

    def take(self, number: int, waits: Callable[[], str]) -> list[Any]:
        """What all ranks said as message `number`, once all have; who waits where."""
        with self.changed:
            in_time = self._wait_for(
                lambda: len(self.items.get(number, ())) == self.size
            )
            # What everybody said is said, whoever failed after it.
            is_complete = len(self.items.get(number, ())) == self.size
            if self.broken and not is_complete:
                raise LostRank("another rank failed; its own error says more")
            if not in_time:
                raise TransportError(f"{waits()}: {self._missing(number)}")
            said = self.items[number]
            self.taken[number] = self.taken.get(number, 0) + 1
            if self.taken[number] == self.size:
                del self.items[number], self.taken[number]
            return [said[rank] for rank in range(self.size)]

    def is_complete(self, number: int) -> bool:
        """Whether all ranks have said message `number`, which not all have taken."""
        with self.changed:
            return len(self.items.get(number, ())) == self.size

    def send(self, sender: int, receiver: int, item: Any) -> None:
        """Give one rank something, behind what it was given before."""
        with self.changed:
            self.letters.setdefault((sender, receiver), deque()).append(item)
            self.changed.notify_all()

    def receive(self, sender: int, receiver: int, waits: Callable[[], str]) -> Any:
        """The first that `sender` gave and that was not taken yet."""
        with self.changed:
            letters = self.letters.setdefault((sender, receiver), deque())
            in_time = self._wait_for(lambda: bool(letters))
            if letters:
                return letters.popleft()
            if in_time:
                raise LostRank("another rank failed; its own error says more")
            late = f"rank {sender} did not come within {self.limit:g} s"
            raise TransportError(f"{waits()}: {late}")

    def _wait_for(self, is_there: Callable[[], bool]) -> bool:
        """False where the limit has passed; while any rank works, it is ten times that.

        Ranks that are threads share one clock of CPU time: it cannot say who works.
        """
        for _ in range(PATIENCE):
            began, used = time.perf_counter(), time.process_time()
            complete = self.changed.wait_for(
                lambda: self.broken or is_there(),
                timeout=self.limit or None,
            )
            used = time.process_time() - used
            if complete or used < SHARE * (time.perf_counter() - began):
                return complete
        return False

    def _missing(self, number: int) -> str:
        spoken = self.items.get(number, {})
        names = [f"rank {r}" for r in range(self.size) if r not in spoken]
        return f"{', '.join(names)} did not come within {self.limit:g} s"

    def break_up(self) -> None:
        """Release everyone who waits."""
        with self.changed:
            self.broken = True
            self.changed.notify_all()


def newest_world(boards: list[Board]) -> list[Board]:
    """The boards of the world that came of this one, loss by loss."""
    while boards[0].census.world:
        boards = boards[0].census.world
    return boards
