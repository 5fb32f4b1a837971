"""Tiles on their way: read(j + 1) | step(j) | write(j − 1), checksum(j − 1).

One thread reads, one writes, one sums up, and the step is between them; a ring of
buffers is all that is ever held. What fails is kept until it is asked for: ranks that
are in the middle of a step finish it together, and leave together.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from hpcsgd.errors import DataError
from hpcsgd.tiles.files import StateFile, room
from hpcsgd.tiles.traffic import Traffic

Array = NDArray[Any]
Words = dict[str, Array]  # of a tile, by state
AHEAD = 1  # tiles that are read before they are wanted
RING = AHEAD + 2  # and the one in use, and the one that is written


@dataclass
class Travelling:
    """A tile in its buffers, which belong to a thread until `done`."""

    number: int
    buffers: Words
    done: Future[None]
    traffic: Traffic  # where it is counted


class Pipeline:
    """The buffers of some states, and the threads that fill and empty them."""

    def __init__(self, files: dict[str, StateFile]) -> None:
        self.files = files
        self.failure: DataError | None = None
        self._ring = deque(
            {name: room(file.each) for name, file in files.items()} for _ in range(RING)
        )
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tiles-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tiles-write")
        self._summer = ThreadPoolExecutor(1, thread_name_prefix="tiles-sum")
        self._writing: deque[Travelling] = deque()

    @property
    def held(self) -> int:
        """Bytes of all buffers, while none of them travels."""
        return sum(buffer.nbytes for one in self._ring for buffer in one.values())

    def read(
        self, half: int, numbers: Iterable[int], names: list[str], traffic: Traffic
    ) -> Iterator[tuple[int, Words]]:
        """Each tile with the words of its states, good until the next is asked for."""
        for number, buffers in self.raw(half, numbers, names, traffic):
            yield number, self._words(number, buffers, names)

    def raw(
        self, half: int, numbers: Iterable[int], names: list[str], traffic: Traffic
    ) -> Iterator[tuple[int, Words]]:
        """The same as bytes, with their padding."""
        for one in self._coming(half, numbers, names, traffic):
            try:
                yield one.number, one.buffers
            finally:
                self._ring.append(one.buffers)

    def update(
        self,
        half: int,
        numbers: Iterable[int],
        step: Callable[[int, Words], None],
        traffic: Traffic,
    ) -> None:
        """Every tile of `half` through `step` into the other half."""
        names = list(self.files)
        for one in self._coming(half, numbers, names, traffic):
            step(one.number, self._words(one.number, one.buffers, names))
            place = (1 - half, one.number, one.buffers, names, traffic)
            summed = self._summer.submit(self._sum_up, *place)
            call = self._writer.submit(self._write, *place, summed)
            self._writing.append(replace(one, done=call))
        while self._writing:
            self._take_back()

    def check(self) -> None:
        """Raise what has failed since the last time."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """What fails is kept for `check`; after that nothing more is touched."""
        if self.failure is not None:
            return
        try:
            action(*arguments)
        except DataError as error:
            self.failure = error

    def close(self) -> None:
        """Let go of the threads."""
        self._reader.shutdown()
        self._writer.shutdown()
        self._summer.shutdown()

    def _coming(
        self, half: int, numbers: Iterable[int], names: list[str], traffic: Traffic
    ) -> Iterator[Travelling]:
        """Tiles in their order, one of them always read ahead."""
        coming: deque[Travelling] = deque()
        try:
            for number in numbers:
                coming.append(self._start(half, number, names, traffic))
                if len(coming) > AHEAD:
                    yield self._arrived(coming.popleft())
            while coming:
                yield self._arrived(coming.popleft())
        finally:  # whoever asked has had enough
            for one in coming:
                self._ring.append(self._arrived(one).buffers)

    def _start(
        self, half: int, number: int, names: list[str], traffic: Traffic
    ) -> Travelling:
        while not self._ring:
            self._take_back()
        buffers = self._ring.popleft()
        place = (half, number, buffers, names, traffic)
        call = self._reader.submit(self._read, *place)
        return Travelling(number, buffers, call, traffic)

    def _arrived(self, one: Travelling) -> Travelling:
        began = perf_counter()
        one.done.result()
        one.traffic.stood += perf_counter() - began
        return one

    def _take_back(self) -> None:
        """The buffers of the oldest write, once it is done."""
        self._ring.append(self._arrived(self._writing.popleft()).buffers)

    def _words(self, number: int, buffers: Words, names: list[str]) -> Words:
        return {name: self.files[name].view(buffers[name], number) for name in names}

    def _read(
        self,
        half: int,
        number: int,
        buffers: Words,
        names: list[str],
        traffic: Traffic,
    ) -> None:
        for name in names:
            self.attempt(self.files[name].read, half, number, buffers[name], traffic)

    def _write(
        self,
        half: int,
        number: int,
        buffers: Words,
        names: list[str],
        traffic: Traffic,
        summed: Future[None],
    ) -> None:
        for name in names:
            self.attempt(self.files[name].write, half, number, buffers[name], traffic)
        summed.result()  # the buffers are of both

    def _sum_up(
        self,
        half: int,
        number: int,
        buffers: Words,
        names: list[str],
        traffic: Traffic,
    ) -> None:
        for name in names:
            self.files[name].sum_up(half, number, buffers[name], traffic)
