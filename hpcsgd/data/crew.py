"""Ranks that share the work on a file in rounds; rank 0 takes what they make.

A round gives one task to every worker, and rank 0 takes in the order of the tasks. What
goes wrong on any rank, and a wish to stop, is told to all: the first fault in that
order is raised on every rank, the same one however many share the work.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.packing import Parts, pack, unpack
from hpcsgd.errors import HpcsgdError

Array = NDArray[Any]
Task = TypeVar("Task")
Made = TypeVar("Made")
Fault = HpcsgdError | KeyboardInterrupt


class Ranks(Protocol):
    """What a crew needs of a communicator."""

    rank: int
    size: int

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """The items of all ranks, on every rank."""

    def collect(
        self, part: Array, counts: Sequence[int], purpose: str = "control"
    ) -> Array | None:
        """The parts of all ranks one after the other, on rank 0."""


class Alone:
    """One rank that has nobody to talk to."""

    rank, size = 0, 1

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """What it says itself."""
        return [item]

    def collect(
        self, part: Array, counts: Sequence[int], purpose: str = "control"
    ) -> Array | None:
        """Its own part."""
        return part


class Crew:
    """All ranks; only rank 0 has results."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.is_root = ranks.rank == 0
        self.size = ranks.size
        self.at_once = False  # rank 0 works and nobody is in a collective with it
        self.is_asked_to_stop = False

    def interrupt(self) -> None:
        """Ctrl-C: at once where nobody waits for this rank in a round, else soon."""
        self.is_asked_to_stop = True
        if self.at_once:
            raise KeyboardInterrupt

    def agree(self, fault: Fault | None, word: Any = None) -> list[Any]:
        """The words of all ranks; or the fault of the lowest rank, raised on all."""
        if self.is_asked_to_stop and self.size > 1:
            fault = fault or KeyboardInterrupt()
        said = self.ranks.exchange_objects((fault, word))
        found = next((r for r, (e, _) in enumerate(said) if e is not None), None)
        if found is None:
            return [word for _, word in said]
        # Ours has a cause and a traceback, which do not travel.
        raised: Fault = fault if found == self.ranks.rank and fault else said[found][0]
        if isinstance(raised, HpcsgdError):
            raised.on_all_ranks = True
        raise raised

    def on_root(self, action: Callable[[], Made]) -> Made:
        """What rank 0 makes, on all ranks; its fault is everybody's."""
        made, fault = None, None
        if self.is_root:
            self.at_once = True
            try:
                made, fault = _attempt(action)
            finally:
                self.at_once = False
        given: Made = self.agree(fault, made)[0]
        return given

    def everywhere(self, action: Callable[[], Made]) -> Made:
        """What each rank makes for itself; the fault of one is everybody's."""
        made, fault = _attempt(action)
        self.agree(fault)
        return made  # type: ignore[return-value]

    def share(
        self,
        workers: Sequence[int],
        tasks: Iterable[Task],
        work: Callable[[Task], Made],
        finish: Callable[[Made, list[Any]], Parts | None],
        take: Callable[[Parts | None], None],
        say: Callable[[Made], Any] = lambda made: None,
    ) -> None:
        """take(finish(work(task))) for all tasks: `take` on rank 0 and in their order.

        `finish` is given what all workers of this round `say` of what they made.
        """
        fault: Fault | None = None
        for dealt in _rounds(tasks, len(workers)):
            place = _place(self.ranks.rank, workers, len(dealt))
            made = None
            if place is not None and fault is None:
                made, fault = _attempt(partial(work, dealt[place]))
            said = self.agree(fault, None if made is None else say(made))
            said = [said[rank] for rank in workers[: len(dealt)]]
            sent = None if made is None else finish(made, said)
            for part in self._collected(workers[: len(dealt)], sent):
                if fault is None:
                    _, fault = _attempt(partial(take, part))
        self.agree(fault)

    def _collected(
        self, workers: Sequence[int], sent: Parts | None
    ) -> Iterator[Parts | None]:
        """What these workers sent, on rank 0."""
        if self.size == 1:
            yield sent
            return
        packed = pack(None if self.is_root else sent)
        sizes = self.ranks.exchange_objects(len(packed))
        whole = self.ranks.collect(packed, sizes, "control")
        if whole is None:
            return
        ends = np.cumsum(sizes)
        for rank in workers:
            content = whole[ends[rank] - sizes[rank] : ends[rank]]
            yield sent if rank == 0 else unpack(content)


def _attempt(action: Callable[[], Made]) -> tuple[Made | None, Fault | None]:
    """(what it made, or what it raised that all ranks have to hear of)."""
    try:
        return action(), None
    except (HpcsgdError, KeyboardInterrupt) as raised:
        return None, raised


def _rounds(tasks: Iterable[Task], width: int) -> Iterator[list[Task]]:
    """The tasks, as many at a time as there are workers."""
    left = iter(tasks)
    while dealt := list(islice(left, width)):
        yield dealt


def _place(rank: int, workers: Sequence[int], count: int) -> int | None:
    """Which of the `count` tasks of a round is this rank's."""
    if rank not in workers[:count]:
        return None
    return workers.index(rank)
