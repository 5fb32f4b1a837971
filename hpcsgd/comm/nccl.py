"""Collectives of NCCL on GPU arrays."""

import os
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn, Self
from weakref import WeakSet

import numpy as np

from hpcsgd.comm.communicator import (
    DONE,
    Collective,
    Communicator,
    Pending,
    Transfer,
    check_summable,
)
from hpcsgd.comm.gpu import Carrier, DeviceCommunicator, Layer, StreamGraph, is_half
from hpcsgd.comm.gpu_mpi import rdma_way, version_text
from hpcsgd.comm.ledger import ThreadLocation
from hpcsgd.errors import ConfigError, DeviceLost, TransportError
from hpcsgd.formats import Array

# One communicator of NCCL: its queue, the completion of collectives, and its end.
#
# The host does not wait where it queues a collective. Where it does wait for one later,
# it reports that collective as its place to the watchdog. Every poll of a collective
# also checks NCCL for errors that came up meanwhile.


@dataclass(frozen=True, eq=False)
class QueuedCollective:
    """A collective that was queued, and the event that marks its end."""

    carrier: "NcclQueue"
    what: str
    purpose: str
    number: int
    event: Any

    def __str__(self) -> str:
        return f"the {self.what} for {self.purpose} (collective {self.number})"


class NcclQueue(Carrier):
    """NCCL's queue of collectives, opened by all ranks of the communicator `host`.

    The subclass `Nccl` makes the calls of NCCL.
    """

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        super().__init__(host, layer, stream)
        self.now = ("start", "control", 0)  # the collective at hand, for error messages
        self.under_way: deque[QueuedCollective] = deque()
        self._graphs: WeakSet[StreamGraph] = (
            WeakSet()
        )  # that hold collectives of this one
        self._is_broken = False  # an error came where it could not be ended
        self._comm: Any = None
        if host.size > 1:  # a single rank sends nothing
            self._side = layer.new_stream()
            self._nccl = layer.nccl
            self._comm = self._met()

    def _met(self) -> Any:
        """Make NCCL's communicator with an id that rank 0 creates. Collective."""
        host = self.host
        name = None
        with self._checked():
            if host.rank == 0:
                name = self._nccl.get_unique_id()
        name = host.share_object(name)
        with self._checked():
            return self._nccl.NcclCommunicator(host.size, name, host.rank)

    def follow(self, other: "NcclQueue") -> None:
        """Share the pending collectives of `other`.

        On one stream the collectives of both end in the order of their calls.
        """
        self.under_way = other.under_way

    def limit_pending(self, most: int) -> None:
        """Wait for the oldest pending collectives until at most `most` are left."""
        while len(self.under_way) > most:
            sent = self.under_way.popleft()
            sent.carrier.wait_for(sent)

    def reach(self, sent: QueuedCollective) -> None:
        """Wait for a collective, and for those that were queued before it."""
        while sent in self.under_way:
            self.limit_pending(len(self.under_way) - 1)

    def wait_for(self, sent: QueuedCollective) -> None:
        """Wait for a collective, and check NCCL for errors.

        The watchdog sees the rank in this collective.
        """
        place = self.host.ledger.place
        size = self.host.size
        with (
            place.enter(sent.what, sent.purpose, sent.number, size),
            self._checked(str(sent)),
        ):
            while not self.layer.is_done(sent.event):
                self._comm.check_async_error()

    def abort_pending(self) -> None:
        """Abort this queue's collectives, which may wait on the GPU for lost ranks.

        NCCL's communicator ends, too.
        """
        others = [sent for sent in self.under_way if sent.carrier is not self]
        self.under_way.clear()
        self.under_way.extend(others)
        self._release()
        comm = self._comm
        self._comm = None
        if comm is not None:
            comm.abort()

    def close(self) -> None:
        """End NCCL's communicator after all pending collectives. All ranks call it.

        After an error of NCCL, pending collectives are aborted instead.
        """
        if self._is_broken:
            self.abort_pending()
        self.limit_pending(0)
        self._release()
        comm = self._comm
        self._comm = None
        if comm is not None:
            comm.destroy()

    def record(self, action: Callable[[int], None]) -> None:
        """Record the calls of NCCL in `action` in the graph under capture."""
        self._check_open()
        with self._named():
            self._hand(self.stream, action)

    def adopt(self, graph: StreamGraph) -> None:
        """Note a graph, which is released before NCCL's communicator ends."""
        self._graphs.add(graph)

    def launch(self, graph: StreamGraph) -> None:
        """Queue all that a graph has recorded; it counts as one pending collective."""
        self._check_open()
        self.adopt(graph)
        with self._checked():
            graph()
            self._comm.check_async_error()
        event = self.layer.record(self.stream)
        self.under_way.append(QueuedCollective(self, *self.now, event))

    def _release(self) -> None:
        """Release the graphs that contain collectives of this queue.

        NCCL's communicator would wait for them at its end.
        """
        for graph in list(self._graphs):
            graph.release()

    def _aside(self, action: Callable[[int], None]) -> Transfer:
        """Queue the calls of NCCL in `action` on the second stream.

        They follow all work that is queued on the first stream so far. `wait` makes the
        first stream wait for their end.
        """
        ready = self.layer.record(self.stream)
        self.layer.stream_wait_event(self._side, ready)
        done = self._queue(self._side, action)
        title = self._said()

        def wait() -> None:
            self.layer.stream_wait_event(self.stream, done)
            self._check(title)

        return Transfer(wait)

    def _queue(self, stream: Any, action: Callable[[int], None]) -> Any:
        """Queue the calls of NCCL in `action` as one group.

        Return the event that marks their end.
        """
        self._check_open()
        with self._checked():
            self._hand(stream, action)
            self._comm.check_async_error()
        event = self.layer.record(stream)
        self.under_way.append(QueuedCollective(self, *self.now, event))
        return event

    def _hand(self, stream: Any, action: Callable[[int], None]) -> None:
        self._nccl.groupStart()
        try:
            action(self.layer.handle(stream))
        finally:
            self._nccl.groupEnd()

    def _check_open(self) -> None:
        if self._is_broken:
            self.abort_pending()
        if self._comm is None:
            raise TransportError(
                f"NCCL cannot begin {self._said()}, because NCCL was closed after an"
                " earlier error; start the run again"
            )

    def _said(self) -> str:
        what, purpose, number = self.now
        return f"the {what} for {purpose} (collective {number})"

    def _check(self, said: str) -> None:
        if self._comm is not None:
            with self._checked(said):
                self._comm.check_async_error()

    def _look_at_gpu(self) -> None:
        """Raise DeviceLost if the GPU is lost: NCCL's error only follows from that."""
        try:
            self.layer.is_done(self.layer.record(self.stream))
        except DeviceLost:
            self.under_way.clear()
            raise

    @contextmanager
    def _checked(self, said: str = "") -> Iterator[None]:
        """Return a context that aborts NCCL's communicator after an error of NCCL.

        This releases ranks that wait in a collective. `said` names the collective; ""
        is the present one. After the loss of a GPU, DeviceLost is raised instead.
        """
        try:
            with self._named(said):
                yield
        except DeviceLost:  # no error of NCCL, whose memory is lost, too
            self.under_way.clear()
            raise
        except TransportError:
            self._look_at_gpu()
            self.abort_pending()
            raise

    @contextmanager
    def _named(self, said: str = "") -> Iterator[None]:
        """Return a context that raises TransportError for an error of NCCL.

        NCCL's communicator is ended later: during a capture, its end would wait for the
        graph.
        """
        try:
            yield
        except DeviceLost:
            raise
        except (RuntimeError, KeyError) as error:  # CuPy has no names of newer errors
            self._is_broken = True
            raise TransportError(
                f"NCCL failed in {said or self._said()} ({error}); set NCCL_DEBUG=WARN"
                " for the reason, or use transport = mpi-host, which needs no NCCL"
            ) from error


# The calls of NCCL for each kind of collective.

# ncclDataType_t of NumPy's type letters; bf16 is stored as uint16.
KINDS = {"f": 7, "d": 8, "e": 6, "H": 9}
BYTES = 1  # ncclUint8: for what is moved and not added
SUM = 0


class Nccl(NcclQueue):
    """Collectives as calls of NCCL, queued on a stream, or recorded for a graph."""

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Queue the collective on the stream, or on the second one if not `blocking`.

        An exchange is always queued on the first. The host does not wait for the end.
        """
        action = self.calls(collective)
        if blocking or collective.kind == "exchange":
            self._queue(self.stream, action)
            return DONE  # what follows on the stream comes after it
        return self._aside(action)

    def calls(self, collective: Collective) -> Callable[[int], None]:
        """Return a function that makes the calls of NCCL on a stream, its argument."""
        calls: Callable[[int], None] = CALLS[collective.kind](self, collective)
        return calls

    def _sum(self, c: Collective) -> Callable[[int], None]:
        def action(to: int) -> None:
            at = self.layer.address(c.send)
            kind = KINDS[c.send.dtype.char]
            self._comm.allReduce(at, at, c.send.size, kind, SUM, to)

        return action

    def _reduce(self, c: Collective) -> Callable[[int], None]:
        at = self.layer.address(c.send)
        kind = KINDS[c.send.dtype.char]
        return lambda to: self._comm.reduce(at, at, c.send.size, kind, SUM, 0, to)

    def _broadcast(self, c: Collective) -> Callable[[int], None]:
        at = self.layer.address(c.send)
        size = c.send.nbytes
        return lambda to: self._comm.broadcast(at, at, size, BYTES, c.root, to)

    def _parts(self, c: Collective) -> Callable[[int], None]:
        """Return a function that makes the calls of NCCL for a sum of parts.

        They are a reduce-scatter if all parts have one length, else a group of
        reductions.
        """
        at = self.layer.address(c.send)
        kind = KINDS[c.send.dtype.char]
        item = c.send.dtype.itemsize
        own_words = c.counts[self.host.rank]
        sizes = [count * item for count in c.counts]

        def scatter(to: int) -> None:
            own_address = at + self.host.rank * own_words * item
            self._comm.reduceScatter(at, own_address, own_words, kind, SUM, to)

        def reduce(to: int) -> None:
            for root, (start, size) in enumerate(_places(at, sizes)):
                if size:
                    words = size // item
                    self._comm.reduce(start, start, words, kind, SUM, root, to)

        return scatter if len(set(c.counts)) == 1 else reduce

    def _gather(self, c: Collective) -> Callable[[int], None]:
        """Return a function that makes an all-gather.

        It is one of NCCL if all parts have one length, else a group of broadcasts.
        """
        sent, at = self.layer.address(c.send), self.layer.address(c.receive)
        sizes = [count * c.receive.dtype.itemsize for count in c.counts]

        def gather(to: int) -> None:
            self._comm.allGather(sent, at, sizes[0], BYTES, to)

        def broadcasts(to: int) -> None:
            for root, (start, size) in enumerate(_places(at, sizes)):
                source = sent if root == self.host.rank else start
                if size:
                    self._comm.broadcast(source, start, size, BYTES, root, to)

        return gather if len(set(sizes)) == 1 and sizes[0] else broadcasts

    def _exchange(self, c: Collective) -> Callable[[int], None]:
        """Return a function that sends and receives all pieces as one group."""
        own_bytes = c.counts[self.host.rank] * c.receive.dtype.itemsize
        sizes = [count * c.send.dtype.itemsize for count in c.counts]
        sent, received = self.layer.address(c.send), self.layer.address(c.receive)

        def action(to: int) -> None:
            for peer, (start, size) in enumerate(_places(sent, sizes)):
                if size:
                    self._comm.send(start, size, BYTES, peer, to)
                if own_bytes:
                    self._comm.recv(
                        received + peer * own_bytes, own_bytes, BYTES, peer, to
                    )

        return action


CALLS = {
    "sum": Nccl._sum,
    "reduce": Nccl._reduce,
    "broadcast": Nccl._broadcast,
    "gather": Nccl._gather,
    "exchange": Nccl._exchange,
    "parts": Nccl._parts,
    # In reproducible runs, the settings of NCCL's order are pinned.
    "ordered_parts": Nccl._parts,
}


def _places(start: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return (address, bytes) of each piece of consecutive pieces from `start` on."""
    starts = accumulate(sizes[:-1], initial=start)
    return zip(starts, sizes, strict=True)


# transport = nccl: sums of device arrays by NCCL, queued on a stream.
#
# A sum returns when it is queued, not when it is done: what follows on the stream comes
# after it. No more than AHEAD of them are ever under way. A graph that holds sums is
# recorded once and launched again and again; every launch is booked as its sums are.

AHEAD = 16  # larger = the host runs further ahead of its GPU, and gets errors later
# One algorithm for every message; NVLS adds in another order each time.
PINNED = {"NCCL_NVLS_ENABLE": ("0",), "NCCL_ALGO": ("Ring", "Tree")}
PINNED["NCCL_PROTO"] = ("Simple",)
# Buffers of graphs that NCCL has registered have hung without a word between nodes
# (github.com/NVIDIA/nccl/issues/2389); a value that the user sets stays.
SAFER = {"NCCL_GRAPH_REGISTER": "0"}


def pin(environment: MutableMapping[str, str]) -> None:
    """Set the variables that make NCCL add in one order.

    ConfigError is raised if one of them already has a value that does not. A value that
    excludes others only, as ^LL128, becomes the first of those that do. NCCL reads them
    once, before its first communicator.
    """
    for name, allowed in PINNED.items():
        value = environment.setdefault(name, allowed[0])
        if value[:1] == "^" and allowed[0] not in value[1:].split(","):
            value = environment[name] = allowed[0]
        if value not in allowed:
            raise ConfigError(
                f"{name}={value} is not reproducible; unset it or set it to"
                f" {' or '.join(allowed)}, or run without --reproducible"
            )


class NcclCommunicator(DeviceCommunicator):
    """A communicator that sends device arrays by NCCL, and all else by the host."""

    kind = "nccl"
    remedy = "set NCCL_DEBUG=WARN to see why, or use transport = mpi-host"
    by_host = False
    captures = True
    carrier: Nccl

    def _open(self) -> Nccl:
        if self.reproducible:
            pin(os.environ)
        for name, value in SAFER.items():
            os.environ.setdefault(name, value)
        with super().enter("start of NCCL", "control"):  # there is no carrier yet
            return Nccl(self.host, self.layer, self._stream)

    def _described(self) -> str:
        if self.size == 1:
            return self.kind
        version = version_text(self.layer.nccl.get_version())
        rdma = rdma_way(Path("/"), os.environ)
        return f"{self.kind} {version}, GPUDirect RDMA {rdma},"

    def sum(self, buffer: Array, purpose: str) -> Array:
        """Return Σ over ranks in `buffer`; it may be of fp16, or of bf16 as bits, too.

        Sums of 16-bit floats are one collective also in reproducible groups: every rank
        has the same bits anyway.
        """
        if not self._adds_halves(buffer):
            return super().sum(buffer, purpose)
        self._run(Collective("sum", buffer, buffer), purpose)
        return buffer

    def start_sum(self, buffer: Array, purpose: str) -> Pending:
        """Start a sum in place; for device arrays, on a second stream.

        `wait` then makes the first stream wait, not the host. Reproducible groups
        perform sums of float32 and float64 at once instead.
        """
        if not self._adds_halves(buffer):
            return super().start_sum(buffer, purpose)
        return self._start(Collective("sum", buffer, buffer), purpose)

    def split(self, color: int, key: int) -> Self:
        """Return the group of the ranks with this color. Collective.

        Its pending collectives and those of this group are in one queue.
        """
        part = super().split(color, key)
        part.carrier.follow(self.carrier)
        return part

    def queue_sum(self, buffer: Any) -> None:
        """Record a sum of `buffer` in the graph that the stream captures.

        `replay` books it, and checks for errors.
        """
        if self.size == 1:
            return
        self.carrier.now = ("capture of a sum", "a graph", self.begun)
        for collective in self._collectives(buffer):
            self.carrier.record(self.carrier.calls(collective))

    def adopt(self, graph: StreamGraph) -> None:
        """Note a graph, to release it before NCCL's communicator ends.

        NCCL would wait for the graph for ever.
        """
        self.carrier.adopt(graph)

    def replay(self, graph: StreamGraph, buffers: Sequence[Any], purpose: str) -> None:
        """Launch the graph once, and book all its sums; `buffers` are their arrays.

        The watchdog sees the graph under the number of its first collective.
        """
        if self.size == 1 or not buffers:
            graph()
            return
        began = perf_counter()
        collectives = [each for buffer in buffers for each in self._collectives(buffer)]
        alone = len(collectives) == 1
        what = (
            collectives[0].title
            if alone
            else f"graph of {len(collectives)} collectives"
        )
        with self.enter(what, purpose):
            self.carrier.launch(graph)
        self.begun += len(collectives) - 1
        for collective in collectives:
            self._book(collective, purpose, began)
            began = perf_counter()

    def _collectives(self, buffer: Any) -> list[Collective]:
        """Return the collectives that `sum` performs on the buffer, in order."""
        halves = self._adds_halves(buffer)
        if not halves:
            check_summable(buffer.dtype)
        kinds = ("sum",) if halves or not self.reproducible else ("reduce", "broadcast")
        return [Collective(kind, buffer, buffer) for kind in kinds]

    @property
    def newest(self) -> Any:
        """Return the newest pending collective of this rank's groups, or None."""
        under_way = self.carrier.under_way
        return under_way[-1] if under_way else None

    def reach(self, begun: Any) -> None:
        """Wait for all collectives up to `begun`, and check NCCL for errors.

        The watchdog sees the rank in each collective that it waits for.
        """
        if begun is not None:
            self.carrier.reach(begun)

    def settle(self) -> None:
        """Wait for all pending collectives, then for the stream.

        The watchdog sees the rank in each collective that it waits for.
        """
        self.carrier.limit_pending(0)
        super().settle()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks, without closing NCCL, which could wait for other ranks."""
        self.carrier.under_way.clear()
        super().abort(code)

    def _adds_halves(self, buffer: Array) -> bool:
        is_device = self.size > 1 and self.layer.owns(buffer)
        return is_device and is_half(np.dtype(buffer.dtype))

    def enter(self, what: str, purpose: str) -> ThreadLocation:
        """Wait until at most `AHEAD` collectives are pending; enter the next one."""
        self.carrier.limit_pending(AHEAD)
        place = super().enter(what, purpose)
        self.carrier.now = (what, purpose, self.begun)
        return place
