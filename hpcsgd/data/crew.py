"""Ranks that share the work on a file in rounds; rank 0 takes what they make.

A round gives some tasks to every rank, and rank 0 takes in the order of the tasks. What
goes wrong on any rank, and a wish to stop, is told to all: the first fault in that
order is raised on every rank, the same one however many share the work.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.packing import Parts, pack, unpack
from hpcsgd.data.rounds import Pace, Watch, own_part
from hpcsgd.errors import HpcsgdError

Array = NDArray[Any]
Task = TypeVar("Task")
Made = TypeVar("Made")
Fault = HpcsgdError | KeyboardInterrupt
BEAT = 2.0  # seconds after which those that only wait hear from rank 0


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

    def working(self, what: str) -> AbstractContextManager[None]:
        """`with` it around what others wait for although it looks idle: slow disks."""


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

    def working(self, what: str) -> AbstractContextManager[None]:
        """Nobody waits for it."""
        return nullcontext()


class Crew:
    """All ranks; only rank 0 has results."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.is_root = ranks.rank == 0
        self.size = ranks.size
        self.at_once = False  # rank 0 works and nobody is in a collective with it
        self.is_asked_to_stop = False
        self._beats_at: float | None = None  # when it last told the others, if it does

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
            with self._alone():
                made, fault = _attempt(action)
        given: Made = self.agree(fault, made)[0]
        return given

    def on_root_for_long(self, action: Callable[[], Made]) -> Made:
        """As `on_root`, while the others hear every `beat`: none waits in vain."""
        if not self.is_root:
            while not (word := self.agree(None)[0])[0]:
                continue
            return word[1]  # type: ignore[no-any-return]
        self._beats_at = monotonic()
        with self._alone():
            made, fault = _attempt(action)
        is_told, self._beats_at = self._beats_at is None, None
        if is_told and fault is not None:
            raise fault
        given: Made = self.agree(fault, (True, made))[0][1]
        return given

    def beat(self) -> None:
        """Rank 0 is still at it; what goes wrong elsewhere is raised here too."""
        if self._beats_at is None or monotonic() - self._beats_at < BEAT:
            return
        self._beats_at, self.at_once = None, False
        self.agree(None, (False, None))
        self._beats_at, self.at_once = monotonic(), True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Rank 0 works and the others wait for it."""
        self.at_once = True
        try:
            with self.ranks.working("work that only rank 0 does"):
                yield
        finally:
            self.at_once = False

    def everywhere(self, action: Callable[[], Made]) -> Made:
        """What each rank makes for itself; the fault of one is everybody's."""
        made, fault = _attempt(action)
        self.agree(fault)
        return made  # type: ignore[return-value]

    def share(
        self,
        tasks: Iterable[Task],
        work: Callable[[Task], Made],
        take: Callable[[Parts], None],
        pace: Pace,
        finish: Callable[[list[Made], list[Any]], list[Parts]],
        say: Callable[[Made], Any] = lambda made: None,
    ) -> None:
        """`take` on rank 0 what `finish` gives of all that was made, in their order.

        `finish` is given all that this rank made in a round, and what the workers of
        the round `say` of what they made.
        """
        fault: Fault | None = None
        left = iter(tasks)
        while dealt := list(islice(left, sum(pace.shares))):
            own = own_part(dealt, pace.shares, self.ranks.rank)
            made, fault = ([], fault) if fault else self._made(own, work, pace.making)
            words = self.agree(fault, (pace.advise(), [say(one) for one in made]))
            pace.of_root = words[0][0]
            heard = [word for _, said in words for word in said]
            for part in self._collected(finish(made, heard)):
                if fault is None:
                    with pace.taking, self.ranks.working("writing"):
                        _, fault = _attempt(partial(take, part))
        self.agree(fault)

    def _made(
        self, tasks: Sequence[Task], work: Callable[[Task], Made], watch: Watch
    ) -> tuple[list[Made], Fault | None]:
        """What comes of these tasks, up to the first that goes wrong."""
        made: list[Made] = []
        for task in tasks:
            if self.is_asked_to_stop and self.size > 1:
                break
            with watch:
                one, fault = _attempt(partial(work, task))
            if fault is not None:
                return made, fault
            made.append(one)  # type: ignore[arg-type]
        return made, None

    def _collected(self, sent: list[Parts]) -> Iterator[Parts]:
        """What all ranks sent, on rank 0."""
        if self.size == 1:
            yield from sent
            return
        packed = [] if self.is_root else [pack(parts) for parts in sent]
        sizes = self.ranks.exchange_objects([len(one) for one in packed])
        content = np.concatenate(packed) if packed else np.empty(0, dtype=np.uint8)
        whole = self.ranks.collect(content, [sum(of) for of in sizes], "control")
        if whole is None:
            return
        yield from sent
        at = 0
        for size in chain.from_iterable(sizes):
            yield unpack(whole[at : at + size])
            at += size


def _attempt(action: Callable[[], Made]) -> tuple[Made | None, Fault | None]:
    """(what it made, or what it raised that all ranks have to hear of)."""
    try:
        return action(), None
    except (HpcsgdError, KeyboardInterrupt) as raised:
        return None, raised
