"""Communicators: collectives on the ranks of a group, timed, watched and counted."""

import os
import pickle
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np

from hpcsgd.comm.ledger import Ledger, ThreadLocation
from hpcsgd.errors import HpcsgdError, TransportError
from hpcsgd.formats import Array

# What a transport has to supply: nothing here is timed, booked or shortcut.


class TransportHooks(ABC):
    """Collectives of a group of two ranks or more, each called by all of them.

    Swaps alone are of two ranks, whatever the others do.
    """

    rank: int
    size: int

    @property
    def mpi_handle(self) -> Any:
        """The communicator of mpi4py beneath, for libraries that want one, or None."""
        return None

    def has_lost_ranks(self, error: BaseException) -> bool:
        """True where `error` says that other ranks are gone and we may go on."""
        return False

    def exit_abruptly(self) -> None:
        """Leave the other ranks, which may continue; return where the transport cannot.

        What they see is what a rank that was killed leaves behind.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Let go of what the transport holds."""

    @abstractmethod
    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks now."""

    @abstractmethod
    def _sum(self, buffer: Array) -> None: ...

    @abstractmethod
    def _start_sum(self, buffer: Array) -> Callable[[], None]: ...

    def _keep(self, array: Array) -> Array:
        """The transport's own kind of a lasting copy."""
        return array.copy()

    @abstractmethod
    def _reduce(self, buffer: Array) -> None:
        """Sum into the buffer of rank 0; the others' keep what they held."""

    @abstractmethod
    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None: ...

    def _start_gather(
        self, part: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        """Begin it; a transport that cannot has done it when this returns."""
        self._gather(part, counts, out)
        return lambda: None

    @abstractmethod
    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]: ...

    @abstractmethod
    def _start_swap(
        self, array: Array, out: Array, peer: int
    ) -> Callable[[], None]: ...

    def _exchange(self, pieces: Array, counts: Sequence[int], out: Array) -> None:
        """The same at once; a transport may have a shorter way."""
        self._start_exchange(pieces, counts, out)()

    def _own_part(self, buffer: Array, counts: Sequence[int]) -> Array:
        """Where a sum of parts leaves that of this rank."""
        return buffer[: counts[self.rank]]

    def _start_sum_parts(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        """Begin it; a transport that knows no better adds in rank order."""
        return self._start_parts_in_order(buffer, counts)

    def _start_parts_in_order(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        """By an exchange of pieces, which each rank then adds."""
        own = counts[self.rank]
        parts = np.empty((self.size, own), dtype=buffer.dtype)
        arrive = self._start_exchange(buffer, counts, parts.reshape(-1))

        def finish() -> None:
            arrive()
            total = buffer[:own]
            total[...] = parts[0]
            for part in parts[1:]:
                total += part

        return finish

    def _deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
    ) -> None:
        """Pieces of any sizes; a transport may know better than telling everybody."""
        ends = np.cumsum([0, *counts])
        own = [pieces[a:b].copy() for a, b in zip(ends, ends[1:], strict=False)]
        parts = [said[self.rank] for said in self._objects(own)]
        np.concatenate(parts, out=out)

    def _collect(self, part: Array, counts: Sequence[int], out: Array) -> None:
        """Into `out` of rank 0; a transport may know better than telling everybody."""
        everything = out if self.rank == 0 else np.empty(sum(counts), part.dtype)
        self._gather(part, counts, everything)

    @abstractmethod
    def _broadcast(self, buffer: Array, root: int) -> None: ...

    @abstractmethod
    def _max(self, value: int) -> int: ...

    @abstractmethod
    def _objects(self, item: Any) -> list[Any]: ...


# Where every collective is watched, timed and booked, whatever it says.


class LedgerGroup(TransportHooks):
    """A group of ranks and the ledger that its collectives are written into."""

    def __init__(
        self, rank: int, size: int, ledger: Ledger, reproducible: bool = False
    ) -> None:
        self.rank, self.size = rank, size
        self.ledger = ledger
        self.reproducible = reproducible
        self.begun = 0  # collectives of this group so far

    def enter(self, what: str, purpose: str) -> ThreadLocation:
        """Enter the next collective of this group; `with` leaves it.

        Whatever may wait for other ranks is done inside: the watchdog reads from the
        returned location where a rank is.
        """
        self.begun += 1
        return self.ledger.place.enter(what, purpose, self.begun, self.size)

    def _wait(
        self, finish: Callable[[], None], purpose: str, number: int, what: str = "sum"
    ) -> None:
        began = perf_counter()
        with self.ledger.place.enter(what, purpose, number, self.size):
            finish()
        self.ledger.wait(purpose, perf_counter() - began)

    def _book(self, purpose: str, sent: Array, wire_bytes: float, began: float) -> None:
        elapsed = perf_counter() - began
        self.ledger.record(purpose, sent.size, sent.nbytes, wire_bytes, elapsed)


# Whether the arrays of a collective fit together, each said in one sentence.


def check_summable(dtype: np.dtype[Any]) -> None:
    """MPI has no 16-bit float, and a sum of integers that hold some is nonsense."""
    if dtype.char not in "fdg":
        raise TransportError(
            f"a buffer of {dtype} cannot be summed over ranks; sum float32 or float64"
        )


def check_parts(rank: int, part: Array, counts: Sequence[int], out: Array) -> None:
    """A part of every rank, and all of them."""
    if part.size != counts[rank] or out.size != sum(counts):
        raise TransportError(
            f"rank {rank} gathers {part.size} words into {out.size} and the"
            f" counts are {list(counts)}; partition once, and pass the same counts"
        )


def check_part(rank: int, part: Array, counts: Sequence[int]) -> None:
    """A part of every rank, where one rank alone gets all of them."""
    if part.size != counts[rank]:
        raise TransportError(
            f"rank {rank} gives {part.size} words and the counts are"
            f" {list(counts)}; pass the same counts on all ranks"
        )


def check_cut(rank: int, ranks: int, buffer: Array, counts: Sequence[int]) -> None:
    """What is summed in parts, one of each rank."""
    check_summable(buffer.dtype)
    if buffer.size != sum(counts) or len(counts) != ranks:
        raise TransportError(
            f"rank {rank} sums {buffer.size} words in parts of {list(counts)}"
            f" on {ranks} ranks; pass the same counts on all ranks"
        )


def check_pieces(
    rank: int, ranks: int, pieces: Array, counts: Sequence[int], out: Array
) -> None:
    """A piece for every rank, and as many of one size."""
    if pieces.size != sum(counts) or out.size != ranks * counts[rank]:
        raise TransportError(
            f"rank {rank} exchanges {pieces.size} words for {out.size} and the"
            f" counts are {list(counts)}; pass the same counts on all ranks"
        )


def check_dealt(
    rank: int,
    pieces: Array,
    counts: Sequence[int],
    out: Array,
    received: Sequence[int],
) -> None:
    """Pieces of any sizes, and what comes."""
    if pieces.size != sum(counts) or out.size != sum(received):
        raise TransportError(
            f"rank {rank} deals {pieces.size} words by counts of"
            f" {sum(counts)} and takes {out.size} by counts of {sum(received)};"
            " plan both once, from what all ranks have"
        )


def check_swap(rank: int, ranks: int, array: Array, out: Array, peer: int) -> None:
    """What two ranks give each other."""
    if not 0 <= peer < ranks:
        raise TransportError(
            f"rank {rank} would swap with rank {peer} of {ranks}; name a"
            " rank of the group"
        )
    if array.dtype != out.dtype:
        raise TransportError(
            f"rank {rank} gives words of {array.dtype} and takes {out.dtype};"
            " swap words of one type"
        )


def check_swapped(rank: int, peer: int, got: int, wanted: int) -> None:
    """A peer that says less than there is room for would leave old words in it."""
    if got != wanted:
        raise TransportError(
            f"rank {peer} gave rank {rank} {got} bytes in a swap, not {wanted}; both"
            " must know what the other gives"
        )


# Bytes a ring moves for each collective, per rank: the model behind `wire_bytes`.


def sum_bytes(payload: int, ranks: int) -> float:
    """All-reduce: 2 (p−1)/p of the payload."""
    return 2.0 * (ranks - 1) / ranks * payload


def reduce_bytes(payload: int, ranks: int) -> float:
    """Reduce to one rank: (p−1)/p of the payload, as the first half of a ring."""
    return (ranks - 1) / ranks * payload


def broadcast_bytes(payload: int, ranks: int) -> float:
    """Pipelined broadcast: the payload once."""
    return float(payload) if ranks > 1 else 0.0


def gather_bytes(total: int, ranks: int) -> float:
    """All-gather of `total` bytes over all ranks: (p−1)/p of them, on average."""
    return (ranks - 1) / ranks * total


def exchange_bytes(payload: int, ranks: int) -> float:
    """Exchange of pieces: all but the own one, (p−1)/p of the payload."""
    return (ranks - 1) / ranks * payload


def swap_bytes(payload: int) -> float:
    """Sent to one peer, straight."""
    return float(payload)


# What ranks say to each other and wait for until it is said.


class BlockingCollectives(LedgerGroup):
    """Collectives that are over when they return; groups of one have none."""

    def sum(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, in place.

        Reproducible groups reduce to rank 0 and broadcast, so that every rank holds
        the same bits: two collectives, booked as two.
        """
        if self.size == 1:
            return buffer
        if self.reproducible:
            return self._sum_in_one_place(buffer, purpose)
        check_summable(buffer.dtype)
        began = perf_counter()
        with self.enter("sum", purpose):
            self._sum(buffer)
        self._book(purpose, buffer, sum_bytes(buffer.nbytes, self.size), began)
        return buffer

    def reduce(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, on rank 0 alone; the others' keep what they held."""
        if self.size == 1:
            return buffer
        check_summable(buffer.dtype)
        began = perf_counter()
        with self.enter("reduction", purpose):
            self._reduce(buffer)
        self._book(purpose, buffer, reduce_bytes(buffer.nbytes, self.size), began)
        return buffer

    def gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """out ← the flat parts of all ranks in rank order, counts[r] elements each."""
        if self.size == 1:
            out[...] = part
            return out
        check_parts(self.rank, part, counts, out)
        began = perf_counter()
        with self.enter("gather", purpose):
            self._gather(part, counts, out)
        self._book(purpose, part, gather_bytes(out.nbytes, self.size), began)
        return out

    def exchange_pieces(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """Piece r of every rank goes to rank r, counts[r] elements each.

        out ← in rank order, what all ranks have for this one.
        """
        if self.size == 1:
            out[...] = pieces
            return out
        check_pieces(self.rank, self.size, pieces, counts, out)
        began = perf_counter()
        with self.enter("exchange of pieces", purpose):
            self._exchange(pieces, counts, out)
        moved = exchange_bytes(pieces.nbytes, self.size)
        self._book(purpose, pieces, moved, began)
        return out

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
        check_dealt(self.rank, pieces, counts, out, received)
        if self.size == 1:
            out[...] = pieces
            return out
        began = perf_counter()
        with self.enter("deal of pieces", purpose):
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
        check_part(self.rank, part, counts)
        out = np.empty(sum(counts) if self.rank == 0 else 0, dtype=part.dtype)
        began = perf_counter()
        with self.enter("collection", purpose):
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
        with self.enter("broadcast", purpose):
            self._broadcast(buffer, root)
        self._book(purpose, buffer, broadcast_bytes(buffer.nbytes, self.size), began)
        return buffer

    def max_flag(self, value: int, purpose: str = "control") -> int:
        """The largest value that any rank gave."""
        if self.size == 1:
            return value
        began = perf_counter()
        with self.enter("largest flag", purpose):
            largest = self._max(value)
        self.ledger.record(
            purpose, 1, 8, sum_bytes(8, self.size), perf_counter() - began
        )
        return largest

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """The items of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [item]
        began = perf_counter()
        size = len(pickle.dumps(item))
        with self.enter("exchange of objects", purpose):
            items = self._objects(item)
        self.ledger.record(
            purpose, size, size, (self.size - 1) * size, perf_counter() - began
        )
        return items

    def _sum_in_one_place(self, buffer: Array, purpose: str) -> Array:
        return self.broadcast(self.reduce(buffer, purpose), 0, purpose)


# A sum that was started and is not waited for yet.


@dataclass(frozen=True)
class Arrival:
    """The finish of a transfer that can be asked whether it would have to wait."""

    wait: Callable[[], Any]
    has_come: Callable[[], bool]

    def __call__(self) -> None:
        """Block until it is here."""
        self.wait()


class Pending:
    """A sum under way; `wait` gives the buffer back, as often as it is asked."""

    def __init__(
        self,
        buffer: Array,
        finish: Callable[[], None] | None = None,
        has_come: Callable[[], bool] | None = None,
    ) -> None:
        self.buffer = buffer
        self._finish = finish
        self._has_come = has_come

    @property
    def is_under_way(self) -> bool:
        """Whether nobody has waited for it yet."""
        return self._finish is not None

    def wait(self) -> Array:
        """Block until the sum is in the buffer."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return self.buffer

    def has_arrived(self) -> bool:
        """Whether `wait` would return at once; False where nobody can tell.

        Ranks hear of it at different times: what they say next must not depend on it.
        """
        if self._finish is None:
            return True
        return self._has_come is not None and self._has_come()


def completion_test(finish: Callable[[], None]) -> Callable[[], bool] | None:
    """Return the function that tests whether a transfer is complete, None where the
    transport has none.
    """
    return finish.has_come if isinstance(finish, Arrival) else None


# The same, begun now and waited for later: work goes on in between.


class StartedCollectives(BlockingCollectives):
    """Collectives that give a `Pending`; their arrays belong to it until `wait`."""

    def start_sum(self, buffer: Array, purpose: str) -> Pending:
        """Begin a sum; the buffer belongs to it until `wait`."""
        if self.size == 1:
            return Pending(buffer)
        if self.reproducible:
            return Pending(self._sum_in_one_place(buffer, purpose))
        check_summable(buffer.dtype)
        began = perf_counter()
        with self.enter("start of the sum", purpose):
            finish = self._start_sum(buffer)
        number = self.begun
        self._book(purpose, buffer, sum_bytes(buffer.nbytes, self.size), began)
        wait = lambda: self._wait(finish, purpose, number)  # noqa: E731
        return Pending(buffer, wait, completion_test(finish))

    def start_gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if self.size == 1:
            return Pending(self.gather(part, counts, out, purpose))
        check_parts(self.rank, part, counts, out)
        began = perf_counter()
        with self.enter("start of the gather", purpose):
            finish = self._start_gather(part, counts, out)
        number = self.begun
        self._book(purpose, part, gather_bytes(out.nbytes, self.size), began)
        return Pending(out, lambda: self._wait(finish, purpose, number, "gather"))

    def start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if self.size == 1:
            return Pending(self.exchange_pieces(pieces, counts, out, purpose))
        check_pieces(self.rank, self.size, pieces, counts, out)
        began = perf_counter()
        with self.enter("start of the exchange of pieces", purpose):
            finish = self._start_exchange(pieces, counts, out)
        number = self.begun
        moved = exchange_bytes(pieces.nbytes, self.size)
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
        check_cut(self.rank, self.size, buffer, counts)
        own = self._own_part(buffer, counts)
        if self.size == 1:
            return Pending(own)
        began = perf_counter()
        with self.enter("start of the sum of parts", purpose):
            if self.reproducible:
                finish = self._start_parts_in_order(buffer, counts)
            else:
                finish = self._start_sum_parts(buffer, counts)
        number = self.begun
        self._book(purpose, buffer, reduce_bytes(buffer.nbytes, self.size), began)
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
        check_swap(self.rank, self.size, array, out, peer)
        began, what = perf_counter(), f"swap with rank {peer}"
        with self.enter(f"start of the {what}", purpose):
            finish = self._start_swap(array, out, peer)
        number = self.begun
        self._book(purpose, array, swap_bytes(array.nbytes), began)
        return Pending(out, lambda: self._wait(finish, purpose, number, what))


# Where a rank stands: its node, and the rack of that where somebody says so.


class Address(NamedTuple):
    """Equal where two ranks share the thing; an empty rack is not known."""

    rack: str
    node: str


def own_address(environ: Mapping[str, str] = os.environ) -> Address:
    """HPCSGD_RACK, or the switches that Slurm names in front of the node."""
    switches, _, _ = environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")
    return Address(environ.get("HPCSGD_RACK", switches), socket.gethostname())


# A message that is summed again and again: written, summed, read, written again.


class Message(Protocol):
    """What a product writes into and sums, in whatever format it travels."""

    @property
    def array(self) -> Array:
        """Where this rank's part of the next sum goes, as float32 or float64."""

    def sum(self, purpose: str) -> Array:
        """Σ over ranks of what was written, good until the next sum."""

    def start(self, purpose: str) -> Pending:
        """Begin the sum; `array` belongs to it until `wait`, which gives the total."""


class Workspace:
    """Write all of `array`, then `sum`; what that returns is good until the next one.

    `array` may be another one after each sum, and the total may be an array that
    several ranks read in place: it is then read-only.
    """

    def __init__(self, group: "Communicator", words: int, dtype: Any) -> None:
        self.group = group
        self._array: Array = np.empty(words, dtype=dtype)

    @property
    def array(self) -> Array:
        """Where this rank's part of the next sum goes."""
        return self._array

    def sum(self, purpose: str) -> Array:
        """Σ over ranks of what was written."""
        return self.group.sum_workspace(self, purpose)

    def start(self, purpose: str) -> Pending:
        """Begin the sum, in place."""
        return self.group.start_sum(self.array, purpose)

    def add(self) -> Array:
        """Σ over ranks, not booked: the part that transports replace."""
        self.group._sum(self._array)
        return self._array


# What ranks can say to each other.
#
# The public methods shortcut groups of one, time and book every collective
# (`BlockingCollectives`, `StartedCollectives`); what a transport has to supply are
# the hooks behind them (`hpcsgd.comm.communicator`).

T = TypeVar("T")


class Communicator(StartedCollectives):
    """A group of ranks. Every collective is called by all of them, in one order."""

    transport = "one process"  # what carries the words
    waits_busily = False  # True: its ranks spin in collectives and own a core each
    is_patient = False  # True: they sleep where they exchange objects, and are slower
    timeout = 0.0  # seconds that a rank waits for one that does nothing; 0 = for ever
    node_sharing = "auto"  # whether ranks of a node share memory: auto, on or off
    serves_threads = True  # False: one thread of a rank alone may call it
    address: Address | None = None  # of this rank, where it is not what the system says

    def workspace(self, words: int, dtype: Any) -> Workspace:
        """A message that is summed again and again, by the fastest way there is.

        Asked for by all ranks in one order, as collectives are; so is `keep`.
        """
        if self.size == 1:
            return Workspace(self, words, dtype)
        check_summable(np.dtype(dtype))
        if self.reproducible:
            return Workspace(self, words, dtype)
        with self.enter("opening of a workspace", "control"):
            return self._workspace(words, dtype)

    def sum_workspace(self, workspace: Workspace, purpose: str) -> Array:
        """Σ over ranks of what they wrote into the workspace; booked as `sum` is."""
        written = workspace.array
        if self.size == 1 or self.reproducible:
            return self.sum(written, purpose)
        began = perf_counter()
        with self.enter("sum", purpose):
            total = workspace.add()
        self._book(purpose, written, sum_bytes(written.nbytes, self.size), began)
        return total

    def keep(self, array: Array) -> Array:
        """A lasting copy of what all ranks hold alike; ranks of a node may share it."""
        if self.size == 1:
            return array.copy()
        with self.enter("copy for the node", "control"):
            return self._keep(array)

    def share_nodes(self, how: str) -> None:
        """Say whether ranks of a node share memory; groups split later inherit it."""
        self.node_sharing = how

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

    def unwatch(self) -> None:
        """The end of `watch`, on all ranks."""
        self.timeout = 0.0

    @property
    def charged(self) -> float | None:
        """Seconds that an emulated network took so far; None where there is none."""
        return None

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes that went (up, down) between GPU and host to be carried, so far."""
        return 0, 0

    def survivors(self) -> "Communicator":
        """Those that are left; called by all of them, after such an error."""
        raise TransportError(
            f"{self.transport} cannot go on without a rank; use --on-failure stop"
        )

    @abstractmethod
    def split(self, color: int, key: int) -> "Communicator":
        """The ranks that gave the same color, ordered by key; shares the ledger."""

    def _workspace(self, words: int, dtype: Any) -> Workspace:
        """The transport's own kind of it."""
        return Workspace(self, words, dtype)
