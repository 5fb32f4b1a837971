"""transport = mpi-host: device arrays travel through pinned memory of the host.

A large sum goes in chunks through two buffers: while MPI adds one, the GPU copies the
next. It is one collective for the ledger, whatever the number of chunks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.carrier import Carrier
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.layer import Layer
from hpcsgd.comm.on_device import OnDevice

CHUNK = 4 * 2**20  # bytes; the copies of one are some hundred microseconds


class Pinned:
    """Buffers of pinned memory, lent again once the GPU is done with them."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self._free: dict[tuple[int, str], list[tuple[Array, Any]]] = {}

    def take(self, words: int, dtype: np.dtype[Any]) -> Array:
        """One that nobody uses; to pin memory takes long, so they are kept."""
        free = self._free.setdefault((words, dtype.str), [])
        if not free:
            return self.layer.pinned(words, dtype)
        buffer, last_copy = free.pop()
        self.layer.wait(last_copy)
        return buffer

    def give(self, buffer: Array, stream: Any) -> None:
        """Back, with copies of it still queued on the stream."""
        free = self._free.setdefault((buffer.size, buffer.dtype.str), [])
        free.append((buffer, self.layer.record(stream)))


class Staged(Carrier):
    """Down, through the host's communicator, and up again."""

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        super().__init__(host, layer, stream)
        self.pinned = Pinned(layer)

    def _sum(self, buffer: Any) -> None:
        self._in_chunks(buffer, self.host._sum)

    def _reduce(self, buffer: Any) -> None:
        self._in_chunks(buffer, self.host._reduce)

    def _broadcast(self, buffer: Any, root: int) -> None:
        self._in_chunks(buffer, lambda chunk: self.host._broadcast(chunk, root))

    def _start_sum(self, buffer: Any) -> Callable[[], None]:
        host = self._down(buffer)
        arrived = self.host._start_sum(host)
        return lambda: self._up(arrived, host, buffer, ())

    def _gather(self, part: Any, counts: Sequence[int], out: Any) -> None:
        sent, received = self._down(part), self.pinned.take(out.size, out.dtype)
        self.host._gather(sent, counts, received)
        self._up(lambda: None, received, out, (sent,))

    def _start_sum_parts(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]:
        return self._in_parts(self.host._start_sum_parts, buffer, counts)

    def _start_parts_in_order(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]:
        return self._in_parts(self.host._start_parts_in_order, buffer, counts)

    def _in_parts(
        self, start: Callable[..., Any], buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]:
        """All of it goes down, and the part of this rank up again."""
        below = self._down(buffer)
        arrived = start(below, counts)
        here, there = (one._own_part for one in (self.host, self))
        own, out = here(below, counts), there(buffer, counts)

        def finish() -> None:
            arrived()
            self._to_device(own, out)
            self.pinned.give(below, self.stream)

        return finish

    def _start_gather(
        self, part: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        sent, received = self._down(part), self.pinned.take(out.size, out.dtype)
        arrived = self.host._start_gather(sent, counts, received)
        return lambda: self._up(arrived, received, out, (sent,))

    def _start_exchange(
        self, pieces: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        sent, received = self._down(pieces), self.pinned.take(out.size, out.dtype)
        arrived = self.host._start_exchange(sent, counts, received)
        return lambda: self._up(arrived, received, out, (sent,))

    def _down(self, array: Any) -> Array:
        host, stream = self.pinned.take(array.size, array.dtype), self.stream
        self._to_host(array, host)
        self.layer.wait(self.layer.record(stream))
        return host

    def _up(
        self,
        arrived: Callable[[], None],
        host: Array,
        array: Any,
        sent: Sequence[Array],
    ) -> None:
        arrived()
        stream = self.stream
        self._to_device(host, array)
        for buffer in (host, *sent):
            self.pinned.give(buffer, stream)

    def _in_chunks(self, buffer: Any, action: Callable[[Array], None]) -> None:
        """The same chunks on all ranks; within a stream nothing overtakes."""
        layer, stream, flat = self.layer, self.stream, buffer.reshape(-1)
        chunks = chunks_of(flat.size, flat.dtype.itemsize)
        longest = max(chunk.stop - chunk.start for chunk in chunks)
        slots = [self.pinned.take(longest, flat.dtype) for _ in chunks[:2]]

        def descend(number: int) -> tuple[Array, Any]:
            chunk = flat[chunks[number]]
            host = slots[number % 2][: chunk.size]
            self._to_host(chunk, host)
            return host, layer.record(stream)

        below = descend(0)
        for number, chunk in enumerate(chunks):
            host, copied = below
            if number + 1 < len(chunks):
                below = descend(number + 1)
            layer.wait(copied)
            action(host)
            self._to_device(host, flat[chunk])
        for slot in slots:
            self.pinned.give(slot, stream)


def chunks_of(words: int, itemsize: int) -> list[slice]:
    """Ranges of at most CHUNK bytes, at least one."""
    step = CHUNK // itemsize
    return [slice(i, min(i + step, words)) for i in range(0, max(words, 1), step)]


class StagedCommunicator(OnDevice):
    """Works wherever MPI does; GPUs may be shared by ranks."""

    kind = "mpi-host"
    remedy = "check this GPU and the MPI between these ranks, or use --device cpu"

    def _open(self) -> Staged:
        return Staged(self.host, self.layer, self._stream)
