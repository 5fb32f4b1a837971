"""Ranks that are threads of one process, and the communicator of a single rank."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm.communicator import (
    Collective,
    Communicator,
    Transfer,
    check_swapped,
)
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.watchdog import PATIENCE
from hpcsgd.errors import TransportError
from hpcsgd.formats import Array

# The messages of ranks that are threads, and the ranks that are left after losses.

LIMIT = 60.0  # seconds that a rank waits for the others by default
SHARE = 0.05  # of a core: a process that uses more has ranks that work


class RankDied(BaseException):
    """Raised in the thread of a rank to end it, as if its process had been killed."""


class LostRank(TransportError):
    """The error of a rank that waits for another rank, which has failed."""


class Census:
    """A count of the dead ranks of a world, and the meeting of all other ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.dead = 0
        self.left: list[int] = []
        self.world: list[Board] = []  # of those that are left, once they have met
        self.changed = threading.Condition()

    def record_death(self) -> None:
        """Count one more dead rank."""
        with self.changed:
            self.dead += 1
            self.changed.notify_all()

    def meet(self, rank: int) -> tuple[int, "list[Board]"]:
        """Wait until all ranks that are left have called this; return (rank, boards).

        Both belong to the new world of these ranks: the number that `rank` of the old
        world has there, and the boards that all of them share.
        """
        with self.changed:
            self.left.append(rank)
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(self.left) + self.dead >= self.size)
            if not self.world:
                self.world.append(Board(len(self.left)))
            return sorted(self.left).index(rank), self.world


class Board:
    """The messages of the ranks of one communicator, in the order of their numbers."""

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
        """Store `item` as message `number` of `rank`."""
        with self.changed:
            self.items.setdefault(number, {})[rank] = item
            self.changed.notify_all()

    def take(self, number: int, waits: Callable[[], str]) -> list[Any]:
        """Return message `number` of all ranks in rank order, once all have put theirs.

        A TransportError after the time limit begins with the text that `waits` returns.
        """
        with self.changed:
            in_time = self._wait_for(
                lambda: len(self.items.get(number, ())) == self.size
            )
            # A complete message is valid, even if a rank has failed since.
            is_complete = len(self.items.get(number, ())) == self.size
            if self.broken and not is_complete:
                raise LostRank("another rank failed; its own error says more")
            if not in_time:
                raise TransportError(f"{waits()}: {self._missing(number)}")
            messages = self.items[number]
            self.taken[number] = self.taken.get(number, 0) + 1
            if self.taken[number] == self.size:
                del self.items[number], self.taken[number]
            return [messages[rank] for rank in range(self.size)]

    def is_complete(self, number: int) -> bool:
        """Return whether all ranks have put message `number`.

        The result is False again once all ranks have taken the message.
        """
        with self.changed:
            return len(self.items.get(number, ())) == self.size

    def send(self, sender: int, receiver: int, item: Any) -> None:
        """Append `item` to the messages from `sender` to `receiver`."""
        with self.changed:
            self.letters.setdefault((sender, receiver), deque()).append(item)
            self.changed.notify_all()

    def receive(self, sender: int, receiver: int, waits: Callable[[], str]) -> Any:
        """Wait for the next message from `sender` to `receiver`, and return it.

        A TransportError after the time limit begins with the text that `waits` returns.
        """
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
        """Wait for a condition or a failure; return whether one of them comes in time.

        The limit is up to ten times as long while the process uses CPU time, since some
        rank then still works. Threads share that clock, which does not show which rank.
        """
        for _ in range(PATIENCE):
            began = time.perf_counter()
            used = time.process_time()
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
        """Make all ranks that wait for a message, now or later, raise LostRank."""
        with self.changed:
            self.broken = True
            self.changed.notify_all()


def newest_world(boards: list[Board]) -> list[Board]:
    """Return the boards of the newest world: that of the ranks left after all losses.

    `boards` are those of an earlier world, or already the newest ones.
    """
    while boards[0].census.world:
        boards = boards[0].census.world
    return boards


# N ranks as threads of one process: real concurrency for tests, no MPI needed.


class ThreadCommunicator(Communicator):
    """The communicator of a rank that is a thread.

    Sums are in rank order, so that they have the same bits on all ranks.
    """

    def __init__(
        self,
        rank: int,
        board: Board,
        boards: list[Board],
        ledger: Ledger,
        reproducible: bool = False,
    ) -> None:
        super().__init__(rank, board.size, ledger, reproducible)
        self._board = board
        self._boards = boards  # all groups of this world: one failure frees them all
        self._number = 0

    def watch(self, timeout: float) -> None:
        """Set the seconds that ranks of this world wait for one another."""
        super().watch(timeout)
        for board in list(self._boards):
            board.limit = timeout

    def has_lost_ranks(self, error: BaseException) -> bool:
        """Return whether `error` means that this rank has waited for a lost rank."""
        return isinstance(error, LostRank)

    def exit_abruptly(self) -> None:
        """End this rank's thread as if it had been killed."""
        raise RankDied

    def survivors(self) -> "ThreadCommunicator":
        """Return the communicator of the ranks that are left, in order. Collective."""
        for board in list(self._boards):
            board.break_up()  # not every rank has noticed
        rank, boards = self._board.census.meet(self.rank)
        return ThreadCommunicator(rank, boards[0], boards, Ledger(), self.reproducible)

    def split(self, color: int, key: int) -> "ThreadCommunicator":
        """Return the communicator of the ranks with this color, in order of `key`.

        Collective. Its first rank makes the board that all of them share.
        """
        with self.enter("split", "control"):
            return self._split(color, key)

    def _split(self, color: int, key: int) -> "ThreadCommunicator":
        pairs = self._items_of_all((color, key))
        group = sorted((k, r) for r, (c, k) in enumerate(pairs) if c == color)
        ranks = [r for _, r in group]
        board = None
        if ranks[0] == self.rank:
            board = Board(len(ranks), self._board.limit)
            self._boards.append(board)
        boards = self._items_of_all(board)
        return ThreadCommunicator(
            ranks.index(self.rank),
            boards[ranks[0]],
            self._boards,
            self.ledger,
            self.reproducible,
        )

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def abort(self, code: int = 1) -> NoReturn:
        """Release all ranks that wait, then raise TransportError."""
        for board in self._boards:
            board.break_up()
        raise TransportError(
            f"the run was aborted with exit code {code}; the first error message says"
            " why"
        )

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Put the message of this rank on the board, and return the transfer.

        The transfer's `wait` combines the messages of all ranks.
        """
        if collective.kind == "swap":
            return self._begin_swap(collective)
        number = self._put(_message(collective))

        def wait() -> None:
            messages = self._board.take(number, self._waits)
            COMBINE[collective.kind](collective, messages, self.rank)

        return Transfer(wait, lambda: self._board.is_complete(number))

    def _begin_swap(self, swap: Collective) -> Transfer:
        self._board.send(self.rank, swap.peer, swap.send.copy())

        def wait() -> None:
            got = self._board.receive(swap.peer, self.rank, self._waits)
            out = swap.receive
            check_swapped(self.rank, swap.peer, got.nbytes, out.nbytes)
            out[...] = got.reshape(out.shape)

        return Transfer(wait)

    def _items_of_all(self, item: Any) -> list[Any]:
        return self._board.take(self._put(item), self._waits)

    def _keep(self, array: Array) -> Array:
        """Return a read-only copy of the array of rank 0, the same on all ranks."""
        shared_copy: Array | None = None
        if self.rank == 0:
            shared_copy = array.copy()
            shared_copy.flags.writeable = False
        first: Array = self._items_of_all(shared_copy)[0]
        return first

    def _waits(self) -> str:
        spot, _ = self.ledger.place.spot()
        return f"rank {self.rank} of {self.size} waits in {spot}"

    def _put(self, item: Any) -> int:
        number = self._number
        self._number += 1
        self._board.put(number, self.rank, item)
        return number


def _message(c: Collective) -> Any:
    """Return the message of a rank.

    It is the object itself, a list with one piece of a copied array for each rank if
    ranks receive different pieces, else a copy of the array.
    """
    if c.kind == "objects":
        return c.send.value
    if c.kind in ("exchange", "deal", "parts", "ordered_parts"):
        return np.split(c.send.copy(), np.cumsum(c.counts)[:-1])
    return c.send.copy()


# What a rank makes of the messages of all ranks, for each kind of collective.


def _add(c: Collective, messages: list[Array], rank: int) -> None:
    np.copyto(c.receive, messages[0])
    for message in messages[1:]:
        np.add(c.receive, message, out=c.receive)


def _reduce(c: Collective, messages: list[Array], rank: int) -> None:
    if rank == 0:
        _add(c, messages, rank)


def _broadcast(c: Collective, messages: list[Array], rank: int) -> None:
    np.copyto(c.receive, messages[c.root])


def _largest(c: Collective, messages: list[Array], rank: int) -> None:
    c.receive[0] = max(message[0] for message in messages)


def _gather(c: Collective, messages: list[Array], rank: int) -> None:
    _check_counts(messages, c.counts)
    np.concatenate(messages, out=c.receive)


def _collect(c: Collective, messages: list[Array], rank: int) -> None:
    _check_counts(messages, c.counts)
    if rank == 0:
        np.concatenate(messages, out=c.receive)


def _take_pieces(c: Collective, messages: list[list[Array]], rank: int) -> None:
    pieces = [message[rank] for message in messages]
    _check_counts(pieces, c.received or [c.counts[rank]] * len(pieces))
    np.concatenate(pieces, out=c.receive)


def _add_pieces(c: Collective, messages: list[list[Array]], rank: int) -> None:
    pieces = [message[rank] for message in messages]
    _check_counts(pieces, [c.counts[rank]] * len(pieces))
    _add(c, pieces, rank)


def _list_items(c: Collective, messages: list[Any], rank: int) -> None:
    c.receive[:] = messages


COMBINE: dict[str, Callable[[Collective, list[Any], int], None]] = {
    "sum": _add,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "max": _largest,
    "gather": _gather,
    "collect": _collect,
    "exchange": _take_pieces,
    "deal": _take_pieces,
    "parts": _add_pieces,
    "ordered_parts": _add_pieces,
    "objects": _list_items,
}


def _check_counts(parts: Sequence[Array], counts: Sequence[int]) -> None:
    for got, count in zip(parts, counts, strict=True):
        if got.size != count:
            raise TransportError(
                f"a rank sent {got.size} words, not {count}; pass the same counts on"
                " all ranks"
            )


def run_ranks(
    n: int,
    function: Callable[[ThreadCommunicator], Any],
    *,
    reproducible: bool = False,
) -> list[Any]:
    """Run function(world) on n ranks that are threads; return results in rank order.

    The first rank that raises releases the others, and its exception is raised here. A
    rank that raises RankDied is lost: ranks that wait for others raise LostRank.
    """
    boards = [Board(n)]
    results: list[Any] = [None] * n
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        world = ThreadCommunicator(rank, boards[0], boards, Ledger(), reproducible)
        try:
            results[rank] = function(world)
        except BaseException as error:  # whatever it is, the others must not wait
            now = newest_world(boards)
            now[0].census.record_death()
            if not isinstance(error, RankDied):
                failures.append(error)
            for board in list(now):
                board.break_up()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


# One rank: every collective is a shortcut, and `begin` is never reached.


class SerialCommunicator(Communicator):
    """The communicator of a program that was not launched on several ranks."""

    def __init__(
        self, ledger: Ledger | None = None, reproducible: bool = False
    ) -> None:
        super().__init__(0, 1, ledger or Ledger(), reproducible)

    def split(self, color: int, key: int) -> "SerialCommunicator":
        """Return a communicator of this rank alone."""
        return SerialCommunicator(self.ledger, self.reproducible)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def abort(self, code: int = 1) -> NoReturn:
        """Exit the process with `code`."""
        sys.exit(code)

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Raise TransportError: a communicator of one rank sends nothing."""
        raise TransportError(
            "a communicator of one rank cannot send messages; start more ranks with"
            " --ranks"
        )
