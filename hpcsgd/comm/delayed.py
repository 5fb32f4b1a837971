"""A network on a desk: every collective takes as long as a slower network would.

A collective over p ranks is charged α⌈log₂p⌉ plus its wire bytes over the bandwidth,
a swap of two ranks α plus its bytes over it.
Blocking ones wait the charge after the inner collective; non-blocking ones start when
posted; all of a rank queue on one link.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Any, NoReturn

from hpcsgd.comm import wire
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.link import Link
from hpcsgd.comm.network import Network
from hpcsgd.comm.pending import Arrival, has_come_of
from hpcsgd.comm.workspace import Workspace


class Delayed(Communicator):
    """Any communicator behind a network; what it counts is what the inner one would."""

    def __init__(
        self, inner: Communicator, network: Network, link: Link | None = None
    ) -> None:
        super().__init__(inner.rank, inner.size, inner.ledger, inner.reproducible)
        self.inner = inner
        self.transport = f"{inner.transport}, delayed"
        self.network = network
        here = getattr(inner, "processes", inner.size)  # unless it knows better
        owns_a_core = inner.waits_busily and here <= (os.cpu_count() or 1)
        self.link = link or Link(network, inner.rank, spins=owns_a_core)
        # A tree over the emulated ranks, if there are more than there are.
        self.felt = max(network.ranks, inner.size) if inner.size > 1 else 1

    @property
    def mpi_handle(self) -> Any:
        """That of the inner one: reading a file is not delayed."""
        return self.inner.mpi_handle

    @property
    def charged(self) -> float:
        """Of all transfers of this rank, on the link that its groups share."""
        return self.link.charged

    @property
    def copied(self) -> tuple[int, int]:
        """Those of the inner one."""
        return self.inner.copied

    def watch(self, timeout: float) -> None:
        """Watch the inner one: both book in one ledger, and stand in one place."""
        self.inner.watch(timeout)

    def unwatch(self) -> None:
        """No longer."""
        self.inner.unwatch()

    def split(self, color: int, key: int) -> "Delayed":
        """The inner group, on the same link."""
        return Delayed(self.inner.split(color, key), self.network, self.link)

    def close(self) -> None:
        """Close the inner one."""
        self.inner.close()

    def abort(self, code: int = 1) -> NoReturn:
        """Abort the inner one."""
        self.inner.abort(code)

    def share_nodes(self, how: str) -> None:
        """Tell the inner one."""
        self.inner.share_nodes(how)

    def charge(self, wire_bytes: float) -> float:
        """α⌈log₂p⌉ + bytes / bandwidth."""
        hops = ceil(log2(self.felt))
        return self.network.alpha * hops + wire_bytes / self.network.bandwidth

    def _sum(self, buffer: Array) -> None:
        self.inner._sum(buffer)
        self._feel(wire.sum_bytes(buffer.nbytes, self.felt))

    def _workspace(self, words: int, dtype: Any) -> Workspace:
        inner = self.inner._workspace(words, dtype)
        if type(inner) is Workspace:  # an ordinary sum: this group's own
            return Workspace(self, words, dtype)
        return DelayedWorkspace(self, inner)

    def _keep(self, array: Array) -> Array:
        return self.inner._keep(array)

    def _start_sum(self, buffer: Array) -> Callable[[], None]:
        finish = self.inner._start_sum(buffer)
        return self._late(finish, self.charge(wire.sum_bytes(buffer.nbytes, self.felt)))

    def _start_sum_parts(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        finish = self.inner._start_sum_parts(buffer, counts)
        moved = wire.reduce_bytes(buffer.nbytes, self.felt)
        return self._late(finish, self.charge(moved))

    def _late(self, finish: Callable[[], None], seconds: float) -> Callable[[], None]:
        """`finish`, not before what was posted now would be here."""
        done_at = self.link.book(seconds)

        def wait() -> None:
            finish()
            self.link.wait_until(done_at)

        inner = has_come_of(finish)
        if inner is None:
            return wait
        return Arrival(wait, lambda: self.link.is_over(done_at) and inner())

    def _reduce(self, buffer: Array) -> None:
        self.inner._reduce(buffer)
        self._feel(wire.reduce_bytes(buffer.nbytes, self.felt))

    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None:
        self.inner._gather(part, counts, out)
        self._feel(wire.gather_bytes(out.nbytes, self.felt))

    def _start_gather(
        self, part: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        finish = self.inner._start_gather(part, counts, out)
        return self._late(finish, self.charge(wire.gather_bytes(out.nbytes, self.felt)))

    def _exchange(self, pieces: Array, counts: Sequence[int], out: Array) -> None:
        self.inner._exchange(pieces, counts, out)
        self._feel(wire.exchange_bytes(pieces.nbytes, self.felt))

    def _deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
    ) -> None:
        self.inner._deal(pieces, counts, out, received)
        self._feel(wire.exchange_bytes(pieces.nbytes, self.felt))

    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        finish = self.inner._start_exchange(pieces, counts, out)
        return self._late(
            finish, self.charge(wire.exchange_bytes(pieces.nbytes, self.felt))
        )

    def _start_swap(self, array: Array, out: Array, peer: int) -> Callable[[], None]:
        finish = self.inner._start_swap(array, out, peer)
        seconds = self.network.alpha + wire.swap_bytes(array.nbytes) / (
            self.network.bandwidth
        )
        return self._late(finish, seconds)

    def _collect(self, part: Array, counts: Sequence[int], out: Array) -> None:
        self.inner._collect(part, counts, out)
        self._feel(float(part.nbytes))

    def _broadcast(self, buffer: Array, root: int) -> None:
        self.inner._broadcast(buffer, root)
        self._feel(wire.broadcast_bytes(buffer.nbytes, self.felt))

    def _max(self, value: int) -> int:
        largest = self.inner._max(value)
        self._feel(wire.sum_bytes(8, self.felt))
        return largest

    def _objects(self, item: Any) -> list[Any]:
        items = self.inner._objects(item)
        self._feel((self.felt - 1) * len(pickle.dumps(item)))
        return items

    def _feel(self, wire_bytes: float) -> None:
        self.link.wait_until(self.link.book(self.charge(wire_bytes)))


class DelayedWorkspace(Workspace):
    """The inner transport's workspace, each sum as late as the network makes it."""

    def __init__(self, group: Delayed, inner: Workspace) -> None:
        super().__init__(group, 0, inner.array.dtype)
        self.inner = inner
        self._feel = group._feel
        self._wire_bytes = wire.sum_bytes(inner.array.nbytes, group.felt)

    @property
    def array(self) -> Array:
        """That of the inner one."""
        return self.inner.array

    def add(self) -> Array:
        """Σ over ranks, then the wait."""
        total = self.inner.add()
        self._feel(self._wire_bytes)
        return total
