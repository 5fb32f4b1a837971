"""What ranks can say to each other.

The public methods shortcut groups of one, time and book every collective; what a
transport has to supply are the hooks behind them (`hpcsgd.comm.hooks`).
"""

import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm import wire
from hpcsgd.comm.address import Address
from hpcsgd.comm.hooks import Hooks
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.pending import Pending, has_come_of
from hpcsgd.comm.place import Place
from hpcsgd.comm.workspace import Workspace
from hpcsgd.errors import HpcsgdError, TransportError

Array = NDArray[Any]
T = TypeVar("T")


class Communicator(Hooks):
    """A group of ranks. Every collective is called by all of them, in one order."""

    transport = "one process"  # what carries the words
    waits_busily = False  # True: its ranks spin in collectives and own a core each
    is_patient = False  # True: they sleep where they exchange objects, and are slower
    timeout = 0.0  # seconds that a rank waits for one that does nothing; 0 = for ever
    node_sharing = "auto"  # whether ranks of a node share memory: auto, on or off
    serves_threads = True  # False: one thread of a rank alone may call it
    address: Address | None = None  # of this rank, where it is not what the system says

    def __init__(
        self, rank: int, size: int, ledger: Ledger, reproducible: bool = False
    ) -> None:
        self.rank, self.size = rank, size
        self.ledger = ledger
        self.reproducible = reproducible
        self.begun = 0  # collectives of this group so far

    def sum(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, in place.

        Reproducible groups reduce to rank 0 and broadcast, so that every rank holds
        the same bits: two collectives, booked as two.
        """
        if self.size == 1:
            return buffer
        if self.reproducible:
            return self._sum_in_one_place(buffer, purpose)
        wire.check_summable(buffer.dtype)
        began = perf_counter()
        with self._inside("sum", purpose):
            self._sum(buffer)
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        return buffer

    def reduce(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, on rank 0 alone; the others' keep what they held."""
        if self.size == 1:
            return buffer
        wire.check_summable(buffer.dtype)
        began = perf_counter()
        with self._inside("reduction", purpose):
            self._reduce(buffer)
        self._book(purpose, buffer, wire.reduce_bytes(buffer.nbytes, self.size), began)
        return buffer

    def workspace(self, words: int, dtype: Any) -> Workspace:
        """A message that is summed again and again, by the fastest way there is.

        Asked for by all ranks in one order, as collectives are; so is `keep`.
        """
        if self.size == 1:
            return Workspace(self, words, dtype)
        wire.check_summable(np.dtype(dtype))
        if self.reproducible:
            return Workspace(self, words, dtype)
        with self._inside("opening of a workspace", "control"):
            return self._workspace(words, dtype)

    def sum_workspace(self, workspace: Workspace, purpose: str) -> Array:
        """Σ over ranks of what they wrote into the workspace; booked as `sum` is."""
        written = workspace.array
        if self.size == 1 or self.reproducible:
            return self.sum(written, purpose)
        began = perf_counter()
        with self._inside("sum", purpose):
            total = workspace.add()
        self._book(purpose, written, wire.sum_bytes(written.nbytes, self.size), began)
        return total

    def keep(self, array: Array) -> Array:
        """A lasting copy of what all ranks hold alike; ranks of a node may share it."""
        if self.size == 1:
            return array.copy()
        with self._inside("copy for the node", "control"):
            return self._keep(array)

    def share_nodes(self, how: str) -> None:
        """Say whether ranks of a node share memory; groups split later inherit it."""
        self.node_sharing = how

    def start_sum(self, buffer: Array, purpose: str) -> Pending:
        """Begin a sum; the buffer belongs to it until `wait`."""
        if self.size == 1:
            return Pending(buffer)
        if self.reproducible:
            return Pending(self._sum_in_one_place(buffer, purpose))
        wire.check_summable(buffer.dtype)
        began = perf_counter()
        with self._inside("start of the sum", purpose):
            finish = self._start_sum(buffer)
        number = self.begun
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        wait = lambda: self._wait(finish, purpose, number)  # noqa: E731
        return Pending(buffer, wait, has_come_of(finish))

    def gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """out ← the flat parts of all ranks in rank order, counts[r] elements each."""
        if self.size == 1:
            out[...] = part
            return out
        self._check_parts(part, counts, out)
        began = perf_counter()
        with self._inside("gather", purpose):
            self._gather(part, counts, out)
        self._book(purpose, part, wire.gather_bytes(out.nbytes, self.size), began)
        return out

    def start_gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if self.size == 1:
            return Pending(self.gather(part, counts, out, purpose))
        self._check_parts(part, counts, out)
        began = perf_counter()
        with self._inside("start of the gather", purpose):
            finish = self._start_gather(part, counts, out)
        number = self.begun
        self._book(purpose, part, wire.gather_bytes(out.nbytes, self.size), began)
        return Pending(out, lambda: self._wait(finish, purpose, number, "gather"))

    def exchange_pieces(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """Piece r of every rank goes to rank r, counts[r] elements each.

        out ← in rank order, what all ranks have for this one.
        """
        if self.size == 1:
            out[...] = pieces
            return out
        self._check_pieces(pieces, counts, out)
        began = perf_counter()
        with self._inside("exchange of pieces", purpose):
            self._exchange(pieces, counts, out)
        moved = wire.exchange_bytes(pieces.nbytes, self.size)
        self._book(purpose, pieces, moved, began)
        return out

    def start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if self.size == 1:
            return Pending(self.exchange_pieces(pieces, counts, out, purpose))
        self._check_pieces(pieces, counts, out)
        began = perf_counter()
        with self._inside("start of the exchange of pieces", purpose):
            finish = self._start_exchange(pieces, counts, out)
        number = self.begun
        moved = wire.exchange_bytes(pieces.nbytes, self.size)
        self._book(purpose, pieces, moved, began)
        what = "exchange of pieces"
        return Pending(out, lambda: self._wait(finish, purpose, number, what))

    def start_sum_parts(
        self, buffer: Array, counts: Sequence[int], purpose: str
    ) -> Pending:
        """Begin a sum of which each rank gets its part alone, counts[r] elements.

        In place: `wait` gives that part, a view that arrays of the host begin with; the
        rest of the buffer is then nobody's. Reproducible groups add in rank order.
        """
        self._check_cut(buffer, counts)
        own = self._own_part(buffer, counts)
        if self.size == 1:
            return Pending(own)
        began = perf_counter()
        with self._inside("start of the sum of parts", purpose):
            if self.reproducible:
                finish = self._start_parts_in_order(buffer, counts)
            else:
                finish = self._start_sum_parts(buffer, counts)
        number = self.begun
        self._book(purpose, buffer, wire.reduce_bytes(buffer.nbytes, self.size), began)
        what = "sum of parts"
        return Pending(own, lambda: self._wait(finish, purpose, number, what))

    def swap(self, array: Array, out: Array, peer: int, purpose: str) -> Array:
        """out ← what rank `peer` gives this one, which gives it `array`.

        Both call it for each other; pairs need not wait for other pairs. With oneself
        nothing is sent. Swaps of the same two are in the order of their calls.
        """
        return self.start_swap(array, out, peer, purpose).wait()

    def start_swap(self, array: Array, out: Array, peer: int, purpose: str) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if peer == self.rank:
            np.copyto(out, array)
            return Pending(out)
        self._check_swap(array, out, peer)
        began, what = perf_counter(), f"swap with rank {peer}"
        with self._inside(f"start of the {what}", purpose):
            finish = self._start_swap(array, out, peer)
        number = self.begun
        self._book(purpose, array, wire.swap_bytes(array.nbytes), began)
        return Pending(out, lambda: self._wait(finish, purpose, number, what))

    def deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
        purpose: str,
    ) -> Array:
        """Piece r goes to rank r, counts[r] elements; others may have other counts.

        out ← in rank order, what all ranks have for this one: received[r] of rank r.
        """
        if pieces.size != sum(counts) or out.size != sum(received):
            raise TransportError(
                f"rank {self.rank} deals {pieces.size} words by counts of"
                f" {sum(counts)} and takes {out.size} by counts of {sum(received)};"
                " plan both once, from what all ranks have"
            )
        if self.size == 1:
            out[...] = pieces
            return out
        began = perf_counter()
        with self._inside("deal of pieces", purpose):
            self._deal(pieces, counts, out, received)
        itself = counts[self.rank] * pieces.itemsize
        self._book(purpose, pieces, float(pieces.nbytes - itself), began)
        return out

    def collect(
        self, part: Array, counts: Sequence[int], purpose: str = "control"
    ) -> Array | None:
        """The flat parts of all ranks in rank order, on rank 0; None elsewhere."""
        if self.size == 1:
            return part
        if part.size != counts[self.rank]:
            raise TransportError(
                f"rank {self.rank} gives {part.size} words and the counts are"
                f" {list(counts)}; pass the same counts on all ranks"
            )
        out = np.empty(sum(counts) if self.rank == 0 else 0, dtype=part.dtype)
        began = perf_counter()
        with self._inside("collection", purpose):
            self._collect(part, counts, out)
        self._book(purpose, part, float(part.nbytes) if self.rank else 0.0, began)
        return out if self.rank == 0 else None

    def broadcast(
        self, buffer: Array, root: int = 0, purpose: str = "control"
    ) -> Array:
        """buffer ← that of `root`."""
        if self.size == 1:
            return buffer
        began = perf_counter()
        with self._inside("broadcast", purpose):
            self._broadcast(buffer, root)
        self._book(
            purpose, buffer, wire.broadcast_bytes(buffer.nbytes, self.size), began
        )
        return buffer

    def max_flag(self, value: int, purpose: str = "control") -> int:
        """The largest value that any rank gave."""
        if self.size == 1:
            return value
        began = perf_counter()
        with self._inside("largest flag", purpose):
            largest = self._max(value)
        self.ledger.record(
            purpose, 1, 8, wire.sum_bytes(8, self.size), perf_counter() - began
        )
        return largest

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """The items of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [item]
        began = perf_counter()
        size = len(pickle.dumps(item))
        with self._inside("exchange of objects", purpose):
            items = self._objects(item)
        self.ledger.record(
            purpose, size, size, (self.size - 1) * size, perf_counter() - began
        )
        return items

    def together(self, action: Callable[[], T]) -> T:
        """Run `action`; an error of this package on any rank is raised on every rank.

        Other exceptions are not waited for: they end the job where they happen. One of
        these may lie within another: a rank that fails before the inner one is heard
        of there.
        """
        result, error = None, None
        try:
            result = action()
        except HpcsgdError as raised:
            if raised.was_told:
                raise
            error = raised
        found = [e for e in self.exchange_objects(error) if e is not None]
        if found:
            found[0].on_all_ranks = found[0].was_told = True
            raise found[0]
        return result  # type: ignore[return-value]

    def working(self, what: str) -> AbstractContextManager[None]:
        """`with` it around what others wait for although it looks idle: slow disks."""
        return self.ledger.place.working(what)

    def watch(self, timeout: float) -> None:
        """From now on no rank waits longer than that for one that does nothing.

        Called by all ranks; 0 = wait for ever.
        """
        self.timeout = timeout

    @property
    def charged(self) -> float | None:
        """Seconds that an emulated network took so far; None where there is none."""
        return None

    def survivors(self) -> "Communicator":
        """Those that are left; called by all of them, after such an error."""
        raise TransportError(
            f"{self.transport} cannot go on without a rank; use --on-failure stop"
        )

    def unwatch(self) -> None:
        """The end of `watch`, on all ranks."""
        self.timeout = 0.0

    @abstractmethod
    def split(self, color: int, key: int) -> "Communicator":
        """The ranks that gave the same color, ordered by key; shares the ledger."""

    def _workspace(self, words: int, dtype: Any) -> Workspace:
        """The transport's own kind of it."""
        return Workspace(self, words, dtype)

    def _book(self, purpose: str, sent: Array, wire_bytes: float, began: float) -> None:
        elapsed = perf_counter() - began
        self.ledger.record(purpose, sent.size, sent.nbytes, wire_bytes, elapsed)

    def _check_parts(self, part: Array, counts: Sequence[int], out: Array) -> None:
        if part.size != counts[self.rank] or out.size != sum(counts):
            raise TransportError(
                f"rank {self.rank} gathers {part.size} words into {out.size} and the"
                f" counts are {list(counts)}; partition once, and pass the same counts"
            )

    def _check_cut(self, buffer: Array, counts: Sequence[int]) -> None:
        wire.check_summable(buffer.dtype)
        if buffer.size != sum(counts) or len(counts) != self.size:
            raise TransportError(
                f"rank {self.rank} sums {buffer.size} words in parts of {list(counts)}"
                f" on {self.size} ranks; pass the same counts on all ranks"
            )

    def _check_pieces(self, pieces: Array, counts: Sequence[int], out: Array) -> None:
        received = self.size * counts[self.rank]
        if pieces.size != sum(counts) or out.size != received:
            raise TransportError(
                f"rank {self.rank} exchanges {pieces.size} words for {out.size} and the"
                f" counts are {list(counts)}; pass the same counts on all ranks"
            )

    def _check_swap(self, array: Array, out: Array, peer: int) -> None:
        if not 0 <= peer < self.size:
            raise TransportError(
                f"rank {self.rank} would swap with rank {peer} of {self.size}; name a"
                " rank of the group"
            )
        if array.dtype != out.dtype:
            raise TransportError(
                f"rank {self.rank} gives words of {array.dtype} and takes {out.dtype};"
                " swap words of one type"
            )

    def _sum_in_one_place(self, buffer: Array, purpose: str) -> Array:
        return self.broadcast(self.reduce(buffer, purpose), 0, purpose)

    def _inside(self, what: str, purpose: str) -> Place:
        """`with` it around whatever may wait for others: the watchdog looks there."""
        self.begun += 1
        return self.ledger.place.enter(what, purpose, self.begun, self.size)

    def _wait(
        self, finish: Callable[[], None], purpose: str, number: int, what: str = "sum"
    ) -> None:
        began = perf_counter()
        with self.ledger.place.enter(what, purpose, number, self.size):
            finish()
        self.ledger.wait(purpose, perf_counter() - began)
