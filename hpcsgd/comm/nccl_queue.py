"""One communicator of NCCL: what it is handed, when that is done, how it ends.

A hang would show anywhere or nowhere, so whoever waits for a collective stands in its
place for the watchdog. Every look at one asks NCCL for errors that came up meanwhile.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.carrier import Carrier
from hpcsgd.comm.layer import Graph, Layer
from hpcsgd.errors import DeviceLost, TransportError


@dataclass(frozen=True, eq=False)
class Sent:
    """A collective that was queued, and when it is done."""

    carrier: "NcclQueue"
    what: str
    purpose: str
    number: int
    event: Any

    def __str__(self) -> str:
        return f"the {self.what} for {self.purpose} (collective {self.number})"


class NcclQueue(Carrier):
    """Made by all ranks of the host's group together; what is said stands in `Nccl`."""

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        super().__init__(host, layer, stream)
        self.now = ("start", "control", 0)  # what is being said, for messages
        self.under_way: deque[Sent] = deque()
        self._graphs: WeakSet[Graph] = WeakSet()  # that hold collectives of this one
        self._is_broken = False  # an error came where it could not be ended
        self._comm: Any = None
        if host.size > 1:  # one rank says nothing to itself
            self._side = layer.new_stream()
            self._nccl = layer.nccl
            self._comm = self._met()

    def _met(self) -> Any:
        """The communicator that rank 0 gave a name."""
        host, name = self.host, None
        with self._checked():
            if host.rank == 0:
                name = self._nccl.get_unique_id()
        name = host._objects(name)[0]
        with self._checked():
            return self._nccl.NcclCommunicator(host.size, name, host.rank)

    def follow(self, other: "NcclQueue") -> None:
        """Count what is under way together: on one stream it ends in one order."""
        self.under_way = other.under_way

    def keep_pace(self, most: int) -> None:
        """Wait until no more than so many are under way, the oldest first."""
        while len(self.under_way) > most:
            sent = self.under_way.popleft()
            sent.carrier.wait_for(sent)

    def reach(self, sent: Sent) -> None:
        """Wait for it, and for what was queued before."""
        while sent in self.under_way:
            self.keep_pace(len(self.under_way) - 1)

    def wait_for(self, sent: Sent) -> None:
        """In its place, and with an eye on errors."""
        place, size = self.host.ledger.place, self.host.size
        with (
            place.enter(sent.what, sent.purpose, sent.number, size),
            self._checked(str(sent)),
        ):
            while not self.layer.is_done(sent.event):
                self._comm.check_async_error()

    def give_up(self) -> None:
        """Free the GPU of what waits there for ranks that do not come."""
        others = [sent for sent in self.under_way if sent.carrier is not self]
        self.under_way.clear()
        self.under_way.extend(others)
        self._release()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort()

    def close(self) -> None:
        """After the last collective, with all others."""
        if self._is_broken:
            self.give_up()
        self.keep_pace(0)
        self._release()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.destroy()

    def record(self, action: Callable[[int], None]) -> None:
        """Hand it to NCCL for the graph that the stream is being recorded in."""
        self._check_open()
        with self._named():
            self._hand(self.stream, action)

    def adopt(self, graph: Graph) -> None:
        """Let go of it before this ends."""
        self._graphs.add(graph)

    def launch(self, graph: Graph) -> None:
        """Queue all that was recorded; it counts as one that is under way."""
        self._check_open()
        self.adopt(graph)
        with self._checked():
            graph()
            self._comm.check_async_error()
        event = self.layer.record(self.stream)
        self.under_way.append(Sent(self, *self.now, event))

    def _release(self) -> None:
        """NCCL waits for the end of every graph that holds a collective of it."""
        for graph in list(self._graphs):
            graph.release()

    def _aside(self, action: Callable[[int], None]) -> Callable[[], None]:
        """On the second stream, after what is queued on the first so far."""
        ready = self.layer.record(self.stream)
        self.layer.hold_back(self._side, ready)
        done = self._queue(self._side, action)
        said = self._said()

        def finish() -> None:
            self.layer.hold_back(self.stream, done)
            self._check(said)

        return finish

    def _queue(self, stream: Any, action: Callable[[int], None]) -> Any:
        """Hand it to NCCL as one group; the event that says it is done."""
        self._check_open()
        with self._checked():
            self._hand(stream, action)
            self._comm.check_async_error()
        event = self.layer.record(stream)
        self.under_way.append(Sent(self, *self.now, event))
        return event

    def _hand(self, stream: Any, action: Callable[[int], None]) -> None:
        self._nccl.groupStart()
        try:
            action(self.layer.handle(stream))
        finally:
            self._nccl.groupEnd()

    def _check_open(self) -> None:
        if self._is_broken:
            self.give_up()
        if self._comm is None:
            raise TransportError(
                f"NCCL cannot begin {self._said()}: it was ended after an error; start"
                " the run again"
            )

    def _said(self) -> str:
        what, purpose, number = self.now
        return f"the {what} for {purpose} (collective {number})"

    def _check(self, said: str) -> None:
        if self._comm is not None:
            with self._checked(said):
                self._comm.check_async_error()

    def _look_at_gpu(self) -> None:
        """Raises where the GPU itself is lost: then NCCL only repeats it."""
        try:
            self.layer.is_done(self.layer.record(self.stream))
        except DeviceLost:
            self.under_way.clear()
            raise

    @contextmanager
    def _checked(self, said: str = "") -> Iterator[None]:
        """An error of NCCL ends its communicator, which frees who waits in it."""
        try:
            with self._named(said):
                yield
        except DeviceLost:  # no word of NCCL's; what it holds there is gone, too
            self.under_way.clear()
            raise
        except TransportError:
            self._look_at_gpu()
            self.give_up()
            raise

    @contextmanager
    def _named(self, said: str = "") -> Iterator[None]:
        """The same, ended later: NCCL would wait for the graph under capture."""
        try:
            yield
        except DeviceLost:
            raise
        except (RuntimeError, KeyError) as error:  # CuPy has no names of newer errors
            self._is_broken = True
            raise TransportError(
                f"NCCL failed in {said or self._said()} ({error}); NCCL_DEBUG=WARN says"
                " more, and transport = mpi-host does without it"
            ) from error
