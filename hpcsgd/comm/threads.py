"""N ranks as threads of one process: real concurrency for tests, no MPI needed."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm import sizes
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.board import Board, LostRank, RankDied, newest_world
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.pending import Arrival
from hpcsgd.errors import TransportError


class ThreadCommunicator(Communicator):
    """A rank that is a thread. Sums are in rank order: the same bits everywhere."""

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
        """The limit of every board of this world."""
        super().watch(timeout)
        for board in list(self._boards):
            board.limit = timeout

    def has_lost_ranks(self, error: BaseException) -> bool:
        """What those hear who wait for a rank that vanished."""
        return isinstance(error, LostRank)

    def vanish(self) -> None:
        """As if it had been killed."""
        raise RankDied

    def survivors(self) -> "ThreadCommunicator":
        """Those that are left, in the order they had."""
        for board in list(self._boards):
            board.break_up()  # not everybody has noticed
        rank, boards = self._board.census.meet(self.rank)
        return ThreadCommunicator(rank, boards[0], boards, Ledger(), self.reproducible)

    def split(self, color: int, key: int) -> "ThreadCommunicator":
        """Ranks of one color; the first of them brings the new board."""
        with self._inside("split", "control"):
            return self._split(color, key)

    def _split(self, color: int, key: int) -> "ThreadCommunicator":
        said = self._objects((color, key))
        group = sorted((k, r) for r, (c, k) in enumerate(said) if c == color)
        ranks = [r for _, r in group]
        board = None
        if ranks[0] == self.rank:
            board = Board(len(ranks), self._board.limit)
            self._boards.append(board)
        boards = self._objects(board)
        return ThreadCommunicator(
            ranks.index(self.rank),
            boards[ranks[0]],
            self._boards,
            self.ledger,
            self.reproducible,
        )

    def close(self) -> None:
        """Nothing is held."""

    def abort(self, code: int = 1) -> NoReturn:
        """Release all others, then fail."""
        for board in self._boards:
            board.break_up()
        raise TransportError(
            f"the run was ended with code {code}; the first report says why"
        )

    def _sum(self, buffer: Array) -> None:
        self._start_sum(buffer)()

    def _start_sum(self, buffer: Array) -> Callable[[], None]:
        number = self._say(buffer.copy())

        def finish() -> None:
            parts = self._board.take(number, self._waits)
            np.copyto(buffer, parts[0])
            for part in parts[1:]:
                np.add(buffer, part, out=buffer)

        return Arrival(finish, lambda: self._board.is_complete(number))

    def _reduce(self, buffer: Array) -> None:
        parts = self._objects(buffer.copy())
        if self.rank == 0:
            for part in parts[1:]:
                buffer += part

    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None:
        parts = self._objects(part.copy())
        _check_counts(parts, counts)
        np.concatenate(parts, out=out)

    def _start_gather(
        self, part: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        number = self._say(part.copy())

        def finish() -> None:
            parts = self._board.take(number, self._waits)
            _check_counts(parts, counts)
            np.concatenate(parts, out=out)

        return finish

    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        number = self._say(np.split(pieces.copy(), np.cumsum(counts)[:-1]))

        def finish() -> None:
            said = self._board.take(number, self._waits)
            own = [parts[self.rank] for parts in said]
            _check_counts(own, [counts[self.rank]] * self.size)
            np.concatenate(own, out=out)

        return finish

    def _start_swap(self, array: Array, out: Array, peer: int) -> Callable[[], None]:
        self._board.send(self.rank, peer, array.copy())

        def finish() -> None:
            got = self._board.receive(peer, self.rank, self._waits)
            sizes.check_swapped(self.rank, peer, got.nbytes, out.nbytes)
            out[...] = got.reshape(out.shape)

        return finish

    def _broadcast(self, buffer: Array, root: int) -> None:
        np.copyto(buffer, self._objects(buffer.copy())[root])

    def _max(self, value: int) -> int:
        return int(max(self._objects(value)))

    def _objects(self, item: Any) -> list[Any]:
        return self._board.take(self._say(item), self._waits)

    def _waits(self) -> str:
        spot, _ = self.ledger.place.spot()
        return f"rank {self.rank} of {self.size} waits in {spot}"

    def _say(self, item: Any) -> int:
        number = self._number
        self._number += 1
        self._board.put(number, self.rank, item)
        return number


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
    """function(world) on n thread ranks; their results in rank order.

    The first rank that raises frees the others, and its exception is raised here;
    one that raises RankDied just vanishes.
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
            now[0].census.bury()
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
