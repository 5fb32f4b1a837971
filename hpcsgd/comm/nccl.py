"""transport = nccl: sums of device arrays by NCCL, queued on a stream.

A sum returns when it is queued, not when it is done: what follows on the stream comes
after it. A hang would show anywhere or nowhere, so no more than AHEAD collectives are
ever under way, and whoever waits for one stands in its place for the watchdog. Every
look at one asks NCCL for errors that came up meanwhile.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm import wire
from hpcsgd.comm.base import Array, Communicator
from hpcsgd.comm.layer import Layer, is_half
from hpcsgd.comm.on_device import Carrier, OnDevice
from hpcsgd.comm.pending import Pending
from hpcsgd.comm.place import Place
from hpcsgd.errors import ConfigError, DeviceLost, TransportError

AHEAD = 16  # larger = the host runs further ahead of its GPU, and hears later of errors
# What ncclDataType_t calls them, by NumPy's letters; bf16 is held as uint16.
KINDS = {"f": 7, "d": 8, "e": 6, "H": 9}
BYTES = 1  # ncclUint8: for what is moved and not added
SUM = 0
# One algorithm for every message; NVLS adds in an order of its own each time.
PINNED = {"NCCL_NVLS_ENABLE": ("0",), "NCCL_ALGO": ("Ring", "Tree")}
PINNED["NCCL_PROTO"] = ("Simple",)


@dataclass(frozen=True)
class Sent:
    """A collective that was queued, and when it is done."""

    what: str
    purpose: str
    number: int
    event: Any

    def __str__(self) -> str:
        return f"the {self.what} for {self.purpose} (collective {self.number})"


def pin(environment: MutableMapping[str, str]) -> None:
    """Make NCCL add in one order; it reads this once, before its first group."""
    for name, allowed in PINNED.items():
        asked = environment.setdefault(name, allowed[0])
        if asked not in allowed:
            raise ConfigError(
                f"{name}={asked} is not reproducible; unset it or set it to"
                f" {' or '.join(allowed)}, or run without --reproducible"
            )


class Nccl(Carrier):
    """One communicator of NCCL, made by all ranks of the host's group together."""

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        super().__init__(host, layer, stream)
        self.now = ("start", "control", 0)  # what is being said, for messages
        self.under_way: deque[Sent] = deque()
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

    def keep_pace(self, most: int) -> None:
        """Wait until no more than so many are under way, the oldest first."""
        while len(self.under_way) > most:
            sent = self.under_way.popleft()
            place, size = self.host.ledger.place, self.host.size
            with (
                place.enter(sent.what, sent.purpose, sent.number, size),
                self._checked(str(sent)),
            ):
                while not self.layer.is_done(sent.event):
                    self._comm.check_async_error()

    def give_up(self) -> None:
        """Free the GPU of what waits there for ranks that do not come."""
        self.under_way.clear()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.abort()

    def close(self) -> None:
        """After the last collective, with all others."""
        self.keep_pace(0)
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.destroy()

    def _sum(self, buffer: Any) -> None:
        self._queue(self.stream, lambda to: self._add(buffer, to))

    def _start_sum(self, buffer: Any) -> Callable[[], None]:
        """On the second stream, after what is queued on the first so far."""
        ready = self.layer.record(self.stream)
        self.layer.hold_back(self._side, ready)
        done = self._queue(self._side, lambda to: self._add(buffer, to))
        said = self._said()

        def finish() -> None:
            self.layer.hold_back(self.stream, done)
            self._check(said)

        return finish

    def _reduce(self, buffer: Any) -> None:
        at, kind = self.layer.address(buffer), KINDS[buffer.dtype.char]
        self._queue(
            self.stream,
            lambda to: self._comm.reduce(at, at, buffer.size, kind, SUM, 0, to),
        )

    def _broadcast(self, buffer: Any, root: int) -> None:
        at, size = self.layer.address(buffer), buffer.nbytes
        self._queue(
            self.stream, lambda to: self._comm.broadcast(at, at, size, BYTES, root, to)
        )

    def _gather(self, part: Any, counts: Sequence[int], out: Any) -> None:
        """Everybody's part to everybody, as one group of broadcasts."""
        sent, at = self.layer.address(part), self.layer.address(out)
        sizes = [count * out.dtype.itemsize for count in counts]

        def action(to: int) -> None:
            for root, (start, size) in enumerate(_places(at, sizes)):
                source = sent if root == self.host.rank else start
                if size:
                    self._comm.broadcast(source, start, size, BYTES, root, to)

        self._queue(self.stream, action)

    def _start_exchange(
        self, pieces: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        """One group of sends and receipts; the stream comes after it by itself."""
        own = counts[self.host.rank] * out.dtype.itemsize
        sizes = [count * pieces.dtype.itemsize for count in counts]
        sent, received = self.layer.address(pieces), self.layer.address(out)

        def action(to: int) -> None:
            for peer, (start, size) in enumerate(_places(sent, sizes)):
                if size:
                    self._comm.send(start, size, BYTES, peer, to)
                if own:
                    self._comm.recv(received + peer * own, own, BYTES, peer, to)

        self._queue(self.stream, action)
        return lambda: None

    def _add(self, buffer: Any, to: int) -> None:
        at, kind = self.layer.address(buffer), KINDS[buffer.dtype.char]
        self._comm.allReduce(at, at, buffer.size, kind, SUM, to)

    def _queue(self, stream: Any, action: Callable[[int], None]) -> Any:
        """Hand it to NCCL as one group; the event that says it is done."""
        if self._comm is None:
            raise TransportError(
                f"NCCL cannot begin {self._said()}: it was ended after an error; start"
                " the run again"
            )
        with self._checked():
            self._nccl.groupStart()
            try:
                action(self.layer.handle(stream))
            finally:
                self._nccl.groupEnd()
            self._comm.check_async_error()
        event = self.layer.record(stream)
        self.under_way.append(Sent(*self.now, event))
        return event

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
            yield
        except DeviceLost:  # no word of NCCL's; what it holds there is gone, too
            self.under_way.clear()
            raise
        except (RuntimeError, KeyError) as error:  # CuPy has no names of newer errors
            self._look_at_gpu()
            self.give_up()
            raise TransportError(
                f"NCCL failed in {said or self._said()} ({error}); NCCL_DEBUG=WARN says"
                " more, and transport = mpi-host does without it"
            ) from error


class NcclCommunicator(OnDevice):
    """Device arrays by NCCL, all else by the host's communicator."""

    kind = "nccl"
    remedy = "set NCCL_DEBUG=WARN to see why, or use transport = mpi-host"
    carrier: Nccl

    def _open(self) -> Nccl:
        if self.reproducible:
            pin(os.environ)
        with self._inside("start of NCCL", "control"):
            return Nccl(self.host, self.layer, self._stream)

    def sum(self, buffer: Array, purpose: str) -> Array:
        """As everywhere; NCCL adds 16-bit floats, too, bf16 as the bits it is held in.

        Those are one collective also where all is reproducible: every rank has the
        same bits anyway.
        """
        if not self._adds_halves(buffer):
            return super().sum(buffer, purpose)
        began = perf_counter()
        with self._inside("sum", purpose):
            self._sum(buffer)
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        return buffer

    def start_sum(self, buffer: Array, purpose: str) -> Pending:
        """On a second stream; `wait` makes the first one wait, not the host."""
        if not self._adds_halves(buffer):
            return super().start_sum(buffer, purpose)
        began = perf_counter()
        with self._inside("start of the sum", purpose):
            finish = self._start_sum(buffer)
        number = self.begun
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        return Pending(buffer, lambda: self._wait(finish, purpose, number))

    def settle(self) -> None:
        """Wait for the collectives, each in its place, then for the stream."""
        self.carrier.keep_pace(0)
        super().settle()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks; NCCL is not asked to, it could wait for the others."""
        self.carrier.under_way.clear()
        super().abort(code)

    def _adds_halves(self, buffer: Array) -> bool:
        is_device = self.size > 1 and self.layer.owns(buffer)
        return is_device and is_half(np.dtype(buffer.dtype))

    def _inside(self, what: str, purpose: str) -> Place:
        carrier = getattr(self, "carrier", None)  # none while it is opened
        if carrier is not None:
            carrier.keep_pace(AHEAD)
        place = super()._inside(what, purpose)
        if carrier is not None:
            carrier.now = (what, purpose, self.begun)
        return place


def _places(start: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of pieces one after the other."""
    starts = accumulate(sizes[:-1], initial=start)
    return zip(starts, sizes, strict=True)
