"""A group of ranks whose arrays may be on GPUs.

Arrays of the host, flags and objects go the way of the host's communicator; arrays of
the device go through a carrier, which has the same hooks for them. Both are booked in
one ledger by the same lines, so no transport can count in a way of its own.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.carrier import Carrier
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.layer import Graph, Layer, fetched
from hpcsgd.comm.workspace import Workspace
from hpcsgd.errors import TransportError


class OnDevice(Communicator):
    """Wraps the host's communicator, which stays usable; owns it when closed."""

    kind = ""  # as a configuration names it
    remedy = ""  # what else may work where it does not
    by_host = True  # whether the host's communicator carries device arrays
    captures = False  # whether sums may be part of a graph that the GPU repeats

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        super().__init__(host.rank, host.size, host.ledger, host.reproducible)
        self.host, self.layer, self._stream = host, layer, stream
        self.waits_busily = host.waits_busily
        self.node_sharing = host.node_sharing
        self.carrier = self._open()
        self.transport = f"{self._described()} beside {host.transport}"

    @abstractmethod
    def _open(self) -> Carrier:
        """What device arrays go through; called by all ranks."""

    def _described(self) -> str:
        """For reports: which one it is, and what is known of its way."""
        return self.kind

    @property
    def mpi_handle(self) -> Any:
        """That of the host."""
        return self.host.mpi_handle

    @property
    def stream(self) -> Any:
        """The stream that device arrays are written and read on."""
        given = self._stream
        return self.layer.current_stream() if given is None else given

    @property
    def charged(self) -> float | None:
        """What the host's network took, where device arrays go that way."""
        return self.host.charged if self.by_host else None

    @property
    def copied(self) -> tuple[int, int]:
        """By the carrier."""
        return self.carrier.up, self.carrier.down

    def has_lost_ranks(self, error: BaseException) -> bool:
        """As the host sees it."""
        return self.host.has_lost_ranks(error)

    def survivors(self) -> "OnDevice":
        """Those that are left, each on the GPU that it had."""
        self.carrier.give_up()
        return type(self)(self.host.survivors(), self.layer, self._stream)

    def watch(self, timeout: float) -> None:
        """Watch the host's: both book in one ledger, and stand in one place."""
        super().watch(timeout)
        self.host.watch(timeout)

    def unwatch(self) -> None:
        """No longer."""
        super().unwatch()
        self.host.unwatch()

    def share_nodes(self, how: str) -> None:
        """Tell the host's, too."""
        super().share_nodes(how)
        self.host.share_nodes(how)

    def settle(self) -> None:
        """Wait for the stream; `synchronize` of a backend belongs here.

        Transports that only queue their collectives see here how they ended.
        """
        self.layer.synchronize(self.stream)

    @property
    def newest(self) -> Any:
        """What was begun last, for `reach`."""
        return None

    def reach(self, begun: Any) -> None:  # noqa: B027
        """The host waits for it, where `wait` makes no more than the stream wait."""

    def queue_sum(self, buffer: Any) -> None:
        """What `sum` of it asks of the GPU, into the graph that is being recorded."""
        raise self._no_graphs()

    def adopt(self, graph: Graph) -> None:  # noqa: B027
        """A graph with such sums, once it is recorded: it ends before this does."""

    def replay(self, graph: Graph, buffers: Sequence[Any], purpose: str) -> None:
        """Launch a graph that holds the sums of these buffers, in this order.

        Called by all ranks, as `sum` is, and booked as those sums are.
        """
        raise self._no_graphs()

    def _no_graphs(self) -> TransportError:
        return TransportError(
            f"transport {self.kind} has no sums within a graph; use transport = nccl"
        )

    def split(self, color: int, key: int) -> "OnDevice":
        """The same way to the GPU, in a part of the ranks."""
        self.host.reproducible = self.reproducible  # may have been lent a new one
        return type(self)(self.host.split(color, key), self.layer, self._stream)

    def close(self) -> None:
        """The carrier's end, then the host's."""
        self.carrier.close()
        self.host.close()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks now; NCCL's own end could wait for those that are gone."""
        self.host.abort(code)

    def _way(self, array: Any) -> Any:
        """Who carries it: the same question, and so the same answer, on all ranks."""
        if not self.layer.owns(array):
            return self.host
        if not array.flags.c_contiguous:
            raise TransportError(
                "a device array with gaps cannot be sent; send a contiguous copy"
            )
        return self.carrier

    def _workspace(self, words: int, dtype: Any) -> Workspace:
        inner = self.host._workspace(words, dtype)
        return Workspace(self, words, dtype) if type(inner) is Workspace else inner

    def _keep(self, array: Array) -> Array:
        if not self.layer.owns(array):
            return self.host._keep(array)
        with self.stream:  # CuPy copies on the current one, which no other waits for
            return array.copy()

    def _sum(self, buffer: Array) -> None:
        self._way(buffer)._sum(buffer)

    def _start_sum(self, buffer: Array) -> Callable[[], None]:
        finish: Callable[[], None] = self._way(buffer)._start_sum(buffer)
        return finish

    def _reduce(self, buffer: Array) -> None:
        self._way(buffer)._reduce(buffer)

    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None:
        self._way(part)._gather(part, counts, out)

    def _start_gather(
        self, part: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        finish: Callable[[], None] = self._way(part)._start_gather(part, counts, out)
        return finish

    def _own_part(self, buffer: Array, counts: Sequence[int]) -> Array:
        own: Array = self._way(buffer)._own_part(buffer, counts)
        return own

    def _start_sum_parts(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        way = self._way(buffer)
        finish: Callable[[], None] = way._start_sum_parts(buffer, counts)
        return finish

    def _start_parts_in_order(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        way = self._way(buffer)
        finish: Callable[[], None] = way._start_parts_in_order(buffer, counts)
        return finish

    def _exchange(self, pieces: Array, counts: Sequence[int], out: Array) -> None:
        self._way(pieces)._exchange(pieces, counts, out)

    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        way = self._way(pieces)
        finish: Callable[[], None] = way._start_exchange(pieces, counts, out)
        return finish

    def _start_swap(self, array: Array, out: Array, peer: int) -> Callable[[], None]:
        if self.layer.owns(array):
            raise TransportError(
                f"transport {self.kind} swaps no arrays of a GPU; swap those of the"
                " host"
            )
        return self.host._start_swap(array, out, peer)

    def _deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
    ) -> None:
        self.host._deal(pieces, counts, out, received)

    def _collect(self, part: Array, counts: Sequence[int], out: Array) -> None:
        """Into the host's memory: rank 0 writes it down."""
        if self.layer.owns(part):
            part = fetched(self.layer, part, self.stream)
        self.host._collect(part, counts, out)

    def _broadcast(self, buffer: Array, root: int) -> None:
        self._way(buffer)._broadcast(buffer, root)

    def _max(self, value: int) -> int:
        return self.host._max(value)

    def _objects(self, item: Any) -> list[Any]:
        return self.host._objects(item)


def of_hosts(group: Communicator) -> Communicator:
    """The same ranks, who say nothing that is on a GPU: a part of them opens none."""
    if not isinstance(group, OnDevice):
        return group
    group.host.reproducible = group.reproducible  # may have been lent a new one
    return group.host
