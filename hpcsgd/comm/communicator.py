"""Collectives as values, what a transport supplies for them, and communicators."""

import os
import pickle
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np

from hpcsgd.comm.ledger import Ledger, ThreadLocation
from hpcsgd.errors import HpcsgdError, TransportError
from hpcsgd.formats import Array

# Bytes that a ring moves for each collective, per rank: the model behind `wire_bytes`.


def sum_bytes(payload: int, ranks: int) -> float:
    """Return the bytes a rank sends in a ring all-reduce: 2 (p−1)/p of the payload.

    p is the number of ranks.
    """
    return 2.0 * (ranks - 1) / ranks * payload


def reduce_bytes(payload: int, ranks: int) -> float:
    """Return the bytes a rank sends in a reduction to one rank: (p−1)/p of the payload.

    It is the first half of a ring; p is the number of ranks.
    """
    return (ranks - 1) / ranks * payload


def broadcast_bytes(payload: int, ranks: int) -> float:
    """Return the bytes a rank sends in a pipelined broadcast: the payload once.

    A single rank sends nothing.
    """
    return float(payload) if ranks > 1 else 0.0


def gather_bytes(total: int, ranks: int) -> float:
    """Return the mean bytes a rank sends in an all-gather: (p−1)/p of `total`.

    `total` are the bytes of all ranks together; p is the number of ranks.
    """
    return (ranks - 1) / ranks * total


def exchange_bytes(payload: int, ranks: int) -> float:
    """Return the bytes a rank sends in an all-to-all: (p−1)/p of the payload.

    It sends all pieces except its own, all taken to be of equal size; p is the number
    of ranks.
    """
    return (ranks - 1) / ranks * payload


# A collective is a value: its kind, what this rank sends, where the result goes.


class SentObject:
    """A Python object that a rank sends; its size is the length of its pickle."""

    __slots__ = ("nbytes", "size", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.size = self.nbytes = len(pickle.dumps(value))


class Collective(NamedTuple):
    """One collective of a group of ranks, as each rank of the group calls it.

    ============= =============================================================
    kind          result in `receive`, on all ranks unless the row says otherwise
    ============= =============================================================
    sum           Σ over ranks, in place
    reduce        Σ over ranks, in place, on rank 0; other ranks keep their values
    broadcast     the buffer of rank `root`, in place
    max           the largest word of all ranks, in place
    gather        the parts of all ranks in rank order, counts[q] words from rank q
    collect       as gather, on rank 0; `receive` of other ranks is empty
    exchange      the pieces for this rank, in rank order: `send` of every rank holds
                  counts[q] words for rank q
    deal          as exchange, but `counts` differ between ranks: received[q] words
                  come from rank q
    parts         Σ over ranks of the piece for this rank, as in exchange; `receive`
                  is a view of `send`, whose other words become undefined
    ordered_parts as parts, added in rank order
    swap          the array that rank `peer` sends to this rank
    objects       the values of all ranks in rank order
    ============= =============================================================

    In place means that `send` and `receive` are one array. All arrays are contiguous.
    """

    kind: str
    send: Any  # array that this rank sends; a `SentObject` for objects
    receive: Any  # array for the result; a list for objects
    counts: Sequence[int] = ()
    received: Sequence[int] = ()
    root: int = 0
    peer: int = -1  # of a swap alone

    @property
    def title(self) -> str:
        """The name of the collective in reports of the watchdog."""
        title = _KINDS[self.kind].title
        return title if self.peer < 0 else f"{title} with rank {self.peer}"

    def wire_bytes(self, ranks: int, rank: int | None = None) -> float:
        """Return the bytes that a rank sends over the network, by the model of a ring.

        The group has `ranks` ranks. Only collect and deal depend on `rank`: if it is
        None, collect returns the bytes of a rank other than 0, and deal takes all
        pieces to be of equal size.
        """
        return _KINDS[self.kind].wire_bytes(self, ranks, rank)

    def check(self, rank: int, ranks: int) -> None:
        """Raise `TransportError` if arrays, counts or peer are not valid on `rank`."""
        check = _KINDS[self.kind].check
        if check is not None:
            check(self, rank, ranks)

    def with_arrays(self, send: Any, receive: Any) -> "Collective":
        """Return this collective with other arrays, such as copies on the host."""
        return self._replace(send=send, receive=receive)


def check_summable(dtype: np.dtype[Any]) -> None:
    """Raise `TransportError` unless `dtype` is a float of 32 bits or more.

    MPI has no 16-bit floats, and an array of integers may contain such floats as bits.
    """
    if dtype.char not in "fdg":
        raise TransportError(
            f"a buffer of {dtype} cannot be summed over ranks; sum float32 or float64"
        )


def _check_sum(c: Collective, rank: int, ranks: int) -> None:
    check_summable(c.send.dtype)


def _check_gather(c: Collective, rank: int, ranks: int) -> None:
    if c.send.size != c.counts[rank] or c.receive.size != sum(c.counts):
        raise TransportError(
            f"gather: rank {rank} passes arrays of {c.send.size} words to send and"
            f" {c.receive.size} to receive, which do not fit counts = {list(c.counts)};"
            " pass the same counts on all ranks, and arrays of these sizes"
        )


def _check_collect(c: Collective, rank: int, ranks: int) -> None:
    if c.send.size != c.counts[rank]:
        raise TransportError(
            f"collect: rank {rank} passes an array of {c.send.size} words, which does"
            f" not fit counts = {list(c.counts)}; pass the same counts on all ranks"
        )


def _check_parts(c: Collective, rank: int, ranks: int) -> None:
    check_summable(c.send.dtype)
    if c.send.size != sum(c.counts) or len(c.counts) != ranks:
        raise TransportError(
            f"sum of parts: rank {rank} passes an array of {c.send.size} words, which"
            f" does not fit counts = {list(c.counts)} of {ranks} ranks; pass the same"
            " counts on all ranks"
        )


def _check_exchange(c: Collective, rank: int, ranks: int) -> None:
    if c.send.size != sum(c.counts) or c.receive.size != ranks * c.counts[rank]:
        raise TransportError(
            f"exchange: rank {rank} passes arrays of {c.send.size} words to send and"
            f" {c.receive.size} to receive, which do not fit counts = {list(c.counts)};"
            " pass the same counts on all ranks"
        )


def _check_deal(c: Collective, rank: int, ranks: int) -> None:
    if c.send.size != sum(c.counts) or c.receive.size != sum(c.received):
        raise TransportError(
            f"deal: rank {rank} passes arrays of {c.send.size} words to send and"
            f" {c.receive.size} to receive, and the counts add up to {sum(c.counts)}"
            f" and {sum(c.received)}; compute both counts from the sizes of all ranks"
        )


def _check_swap(c: Collective, rank: int, ranks: int) -> None:
    if not 0 <= c.peer < ranks:
        raise TransportError(
            f"swap: rank {rank} cannot swap with rank {c.peer} in a group of {ranks}"
            " ranks; name a rank of the group"
        )
    if c.send.dtype != c.receive.dtype:
        raise TransportError(
            f"swap: rank {rank} sends an array of {c.send.dtype} and receives one of"
            f" {c.receive.dtype}; pass two arrays of the same dtype"
        )


def check_swapped(rank: int, peer: int, got: int, wanted: int) -> None:
    """Raise `TransportError` if `peer` sent another number of bytes than expected.

    A shorter message would leave old words in the array that receives it.
    """
    if got != wanted:
        raise TransportError(
            f"rank {peer} sent rank {rank} {got} bytes in a swap, not {wanted}; pass an"
            " array to receive of the size that the other rank sends"
        )


def _dealt_bytes(c: Collective, ranks: int, rank: int | None) -> float:
    if rank is None:
        return exchange_bytes(c.send.nbytes, ranks)
    return float(c.send.nbytes - c.counts[rank] * c.send.itemsize)


class _Kind(NamedTuple):
    title: str
    wire_bytes: Callable[[Collective, int, int | None], float]  # of ranks, rank
    check: Callable[[Collective, int, int], None] | None = None  # of rank, ranks


_KINDS = {
    "sum": _Kind("sum", lambda c, n, _: sum_bytes(c.send.nbytes, n), _check_sum),
    "reduce": _Kind(
        "reduction", lambda c, n, _: reduce_bytes(c.send.nbytes, n), _check_sum
    ),
    "broadcast": _Kind("broadcast", lambda c, n, _: broadcast_bytes(c.send.nbytes, n)),
    "max": _Kind("largest flag", lambda c, n, _: sum_bytes(c.send.nbytes, n)),
    "gather": _Kind(
        "gather", lambda c, n, _: gather_bytes(c.receive.nbytes, n), _check_gather
    ),
    "collect": _Kind(
        "collection",
        lambda c, _, rank: 0.0 if rank == 0 else float(c.send.nbytes),
        _check_collect,
    ),
    "exchange": _Kind(
        "exchange of pieces",
        lambda c, n, _: exchange_bytes(c.send.nbytes, n),
        _check_exchange,
    ),
    "deal": _Kind("deal of pieces", _dealt_bytes, _check_deal),
    "parts": _Kind(
        "sum of parts", lambda c, n, _: reduce_bytes(c.send.nbytes, n), _check_parts
    ),
    "ordered_parts": _Kind(
        "sum of parts", lambda c, n, _: reduce_bytes(c.send.nbytes, n), _check_parts
    ),
    "swap": _Kind("swap", lambda c, n, _: float(c.send.nbytes), _check_swap),
    "objects": _Kind(
        "exchange of objects", lambda c, n, _: float((n - 1) * c.send.nbytes)
    ),
}


# What a transport has to supply.


class Transfer(NamedTuple):
    """A collective under way: how to wait for it, and how to poll it.

    `is_done` is None where the transport cannot tell without waiting.
    """

    wait: Callable[[], object]
    is_done: Callable[[], bool] | None = None


DONE = Transfer(lambda: None, lambda: True)  # of a collective that is over


class Transport(ABC):
    """The part of a communicator that moves data: all that a transport supplies.

    `begin` is the only method that moves data. It may rely on this: the arrays and
    counts have been checked, the group has two ranks or more, all ranks make the same
    call in the same order (of a swap: the two ranks of it), and `Communicator` measures
    the time, counts the words and informs the watchdog.
    """

    rank: int
    size: int
    transport: str  # its name in reports

    @abstractmethod
    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Start a collective, and return how to wait for it.

        The arrays of the collective belong to the transport until `wait` returns. If
        `blocking`, the caller waits at once: the transport may use a faster call, and
        may return `DONE`.
        """

    @abstractmethod
    def split(self, color: int, key: int) -> "Communicator":
        """Return the group of the ranks with this color, ordered by key. Collective.

        The group writes into the ledger of this communicator.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the transport. Collective."""

    @abstractmethod
    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks now, with the exit code `code`."""

    def survivors(self) -> "Communicator":
        """Return the group of the ranks that are left after a loss of ranks.

        All ranks that are left call it. Optional: a transport that can continue
        without lost ranks implements it, and `has_lost_ranks`.
        """
        raise TransportError(
            f"a run over {self.transport} cannot go on after the loss of a rank; use"
            " --on-failure stop"
        )


def start_parts_in_order(transport: Transport, parts: Collective) -> Transfer:
    """Begin a sum of parts as an exchange of pieces, which `wait` adds in rank order.

    For transports that have no sum of parts, or none in rank order.
    """
    total = parts.receive
    ranks = transport.size
    pieces = np.empty((ranks, total.size), dtype=total.dtype)
    exchange = Collective("exchange", parts.send, pieces.reshape(-1), parts.counts)
    transfer = transport.begin(exchange, False)

    def wait() -> None:
        transfer.wait()
        np.copyto(total, pieces[0])
        for piece in pieces[1:]:
            np.add(total, piece, out=total)

    return Transfer(wait, transfer.is_done)


# A collective that was started and is not waited for yet.


class Pending:
    """A collective under way; `wait` returns the result, as often as it is called."""

    def __init__(
        self,
        buffer: Array,
        finish: Callable[[], object] | None = None,
        is_done: Callable[[], bool] | None = None,
    ) -> None:
        self.buffer = buffer
        self._finish = finish
        self._is_done = is_done

    @property
    def is_under_way(self) -> bool:
        """Return whether the result still needs a call of `wait`.

        It does not after the first call, or if it was complete from the beginning.
        """
        return self._finish is not None

    def wait(self) -> Array:
        """Block until the result is in the buffer, and return the buffer.

        For device arrays the stream may wait instead of the host.
        """
        finish = self._finish
        self._finish = None
        if finish is not None:
            finish()
        return self.buffer

    def has_arrived(self) -> bool:
        """Return whether `wait` would return at once; False if that is not known.

        The answer differs between ranks: what they send next must not depend on it.
        """
        if self._finish is None:
            return True
        return self._is_done is not None and self._is_done()


# The address of a rank: its node, and the rack of that where it is known.


class Address(NamedTuple):
    """Rack and node of a rank, equal for ranks that share them.

    An unknown rack is "".
    """

    rack: str
    node: str


def own_address(environ: Mapping[str, str] = os.environ) -> Address:
    """Return the address of this rank, from its host name and `environ`.

    Its rack is HPCSGD_RACK, else the switches that Slurm names in front of the node.
    """
    switches, _, _ = environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")
    return Address(environ.get("HPCSGD_RACK", switches), socket.gethostname())


# A message that is summed again and again: written, summed, read, written again.


class Message(Protocol):
    """An array that products write into and sum over ranks, sent in any format."""

    @property
    def array(self) -> Array:
        """The array for this rank's part of the next sum, float32 or float64."""

    def sum(self, purpose: str) -> Array:
        """Return Σ over ranks of the array, valid until the next sum. Collective."""

    def start(self, purpose: str) -> Pending:
        """Start the sum; do not use `array` until `wait` returns the total."""


class Workspace:
    """A message that is summed again and again over the ranks of a group.

    Write all of `array`, then call `sum`; the total that it returns is valid until the
    next sum. After each sum `array` may be another array. The total may be an array
    that several ranks read in place: it is then read-only.
    """

    def __init__(self, group: "Communicator", words: int, dtype: Any) -> None:
        self.group = group
        self._array: Array = np.empty(words, dtype=dtype)
        self._collective = Collective("sum", self._array, self._array)

    @property
    def array(self) -> Array:
        """The array for this rank's part of the next sum."""
        return self._array

    def sum(self, purpose: str) -> Array:
        """Return Σ over ranks of the array, and book it like a sum. Collective."""
        group = self.group
        written = self.array
        if group.size == 1 or group.reproducible:
            return group.sum(written, purpose)
        began = perf_counter()
        with group.enter("sum", purpose):
            total = self.add()
        elapsed = perf_counter() - began
        size = written.nbytes
        moved = sum_bytes(size, group.size)
        group.ledger.record(purpose, written.size, size, moved, elapsed)
        return total

    def start(self, purpose: str) -> Pending:
        """Start the sum of the array over ranks, in place. Collective."""
        return self.group.start_sum(self.array, purpose)

    def add(self) -> Array:
        """Return Σ over ranks of the array, without an entry in the ledger.

        Transports override this method. Collective.
        """
        self.group.begin(self._collective, True).wait()
        return self._array


# The calls of programs: every one is checked, watched, timed and booked.

T = TypeVar("T")
SHORT = 256  # bytes of the first message of a shared object, with its length
SIGN = 1 << 63
NOT_A_NUMBER = SIGN - 1  # its order: beyond infinity


def _order_of(value: float) -> int:
    """Return an integer of 64 bits that is ordered as floats are, NaN the largest."""
    if value != value:
        return NOT_A_NUMBER
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits if bits >= 0 else -SIGN - bits - 1)


def _float_of(order: int) -> float:
    """Return the float whose `_order_of` is `order`."""
    bits = order if order >= 0 else -SIGN - order - 1
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)


class Communicator(Transport):
    """A group of ranks. Every collective is called by all of them, in one order.

    A group of one rank sends nothing, and books nothing in the ledger.
    """

    transport = "one process"  # what carries the words
    kind = "none"  # what carries arrays of GPUs, as a configuration names it
    waits_busily = False  # True: its ranks spin in collectives, on a core each
    is_patient = False  # True: they sleep where they wait for words of control
    timeout = 0.0  # seconds that a rank waits for one that does nothing; 0 = for ever
    node_sharing = "auto"  # whether ranks of a node share memory: auto, on or off
    serves_threads = True  # False: one thread of a rank alone may call it
    address: Address | None = None  # of this rank, where it differs from the system's

    def __init__(
        self, rank: int, size: int, ledger: Ledger, reproducible: bool = False
    ) -> None:
        self.rank = rank
        self.size = size
        self.ledger = ledger
        self.reproducible = reproducible
        self.begun = 0  # collectives of this group so far
        # Flags are exchanged all the time: their array and collective are made once.
        self._flag = np.zeros(1, dtype=np.int64)
        self._largest_flag = Collective("max", self._flag, self._flag)

    @contextmanager
    def ordered_sums(self, is_ordered: bool = True) -> Iterator[None]:
        """Return a context in which this group is reproducible, if `is_ordered`.

        All ranks then get the same bits of a sum, and sums of parts are added in rank
        order, except by NCCL. Groups that are split in the context stay reproducible. A
        reproducible group is so whatever `is_ordered` is. All ranks must enter and
        leave.
        """
        before = self.reproducible
        self.reproducible = before or is_ordered
        try:
            yield
        finally:
            self.reproducible = before

    @property
    def newest(self) -> Any:
        """The newest pending collective of GPU arrays, for `reach`.

        None if there is none, or if the transport is not NCCL.
        """
        return None

    def reach(self, begun: Any) -> None:  # noqa: B027
        """Make the host wait for `begun`, a collective that `newest` has returned.

        Without NCCL this does nothing.
        """

    def run(self, collective: Collective, purpose: str) -> Any:
        """Perform a collective, and return its `receive` with the result."""
        collective.check(self.rank, self.size)
        if self.size == 1:
            return _alone(collective)
        return self._run(collective, purpose)

    def start(self, collective: Collective, purpose: str) -> Pending:
        """Begin a collective; do not use its arrays until `wait` returns."""
        collective.check(self.rank, self.size)
        if self.size == 1:
            return Pending(_alone(collective))
        return self._start(collective, purpose)

    def _run(self, collective: Collective, purpose: str) -> Any:
        began = perf_counter()
        with self.enter(collective.title, purpose):
            self.begin(collective, True).wait()
        self._book(collective, purpose, began)
        return collective.receive

    def _start(self, collective: Collective, purpose: str) -> Pending:
        began = perf_counter()
        title = collective.title
        with self.enter(f"start of the {title}", purpose):
            transfer = self.begin(collective, False)
        number = self.begun
        self._book(collective, purpose, began)

        def wait() -> None:
            began = perf_counter()
            with self.ledger.place.enter(title, purpose, number, self.size):
                transfer.wait()
            self.ledger.wait(purpose, perf_counter() - began)

        return Pending(collective.receive, wait, transfer.is_done)

    def _book(self, collective: Collective, purpose: str, began: float) -> None:
        sent = collective.send
        elapsed = perf_counter() - began
        moved = collective.wire_bytes(self.size, self.rank)
        self.ledger.record(purpose, sent.size, sent.nbytes, moved, elapsed)

    def enter(self, what: str, purpose: str) -> ThreadLocation:
        """Enter the next collective of this group; `with` leaves it.

        Calls that may wait for other ranks belong into the `with` block: the watchdog
        reads from the returned location where a rank is.
        """
        self.begun += 1
        return self.ledger.place.enter(what, purpose, self.begun, self.size)

    def sum(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, in place.

        Reproducible groups reduce to rank 0 and broadcast, so that every rank holds
        the same bits: two collectives, booked as two.
        """
        if self.size == 1:
            return buffer
        if self.reproducible:
            return self.broadcast(self.reduce(buffer, purpose), 0, purpose)
        self.run(Collective("sum", buffer, buffer), purpose)
        return buffer

    def start_sum(self, buffer: Array, purpose: str) -> Pending:
        """Begin a sum in place; do not use the buffer until `wait` returns."""
        if self.size == 1:
            return Pending(buffer)
        if self.reproducible:
            return Pending(self.sum(buffer, purpose))
        return self.start(Collective("sum", buffer, buffer), purpose)

    def reduce(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, on rank 0 alone; other ranks keep their values."""
        if self.size > 1:
            self.run(Collective("reduce", buffer, buffer), purpose)
        return buffer

    def gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """out ← the flat parts of all ranks in rank order, counts[r] of rank r."""
        if self.size == 1:
            out[...] = part
        else:
            self.run(Collective("gather", part, out, counts), purpose)
        return out

    def start_gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin a gather; do not use either array until `wait` returns."""
        if self.size == 1:
            return Pending(self.gather(part, counts, out, purpose))
        return self.start(Collective("gather", part, out, counts), purpose)

    def exchange_pieces(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """Send piece r of `pieces` to rank r, counts[r] elements each.

        All ranks pass the same counts. out ← in rank order, the pieces of all ranks for
        this rank.
        """
        if self.size == 1:
            out[...] = pieces
        else:
            self.run(Collective("exchange", pieces, out, counts), purpose)
        return out

    def start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin an exchange of pieces; do not use either array until `wait` returns."""
        if self.size == 1:
            return Pending(self.exchange_pieces(pieces, counts, out, purpose))
        return self.start(Collective("exchange", pieces, out, counts), purpose)

    def deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
        purpose: str,
    ) -> Array:
        """Send piece r of `pieces` to rank r, counts[r] elements.

        Other ranks may have other counts. out ← in rank order, the pieces of all ranks
        for this rank: received[r] elements from rank r.
        """
        self.run(Collective("deal", pieces, out, counts, received), purpose)
        return out

    def collect(
        self, part: Array, counts: Sequence[int], purpose: str = "control"
    ) -> Array | None:
        """Return the flat parts of all ranks in order on rank 0, None on other ranks.

        counts[r] elements come from rank r.
        """
        if self.size == 1:
            return part
        out = np.empty(sum(counts) if self.rank == 0 else 0, dtype=part.dtype)
        self.run(Collective("collect", part, out, counts), purpose)
        return out if self.rank == 0 else None

    def broadcast(
        self, buffer: Array, root: int = 0, purpose: str = "control"
    ) -> Array:
        """buffer ← the buffer of rank `root`, in place."""
        if self.size > 1:
            self._run(Collective("broadcast", buffer, buffer, root=root), purpose)
        return buffer

    def start_sum_parts(
        self, buffer: Array, counts: Sequence[int], purpose: str
    ) -> Pending:
        """Start a reduce-scatter: rank r gets its part of the sum, counts[r] elements.

        In place: `wait` returns the part of this rank, a view of the buffer (at the
        beginning of a host array); the rest of the buffer is undefined afterwards.
        Reproducible groups add in rank order; NCCL adds in a fixed order of its own.
        """
        kind = "ordered_parts" if self.reproducible else "parts"
        whole = Collective(kind, buffer, buffer, counts)
        whole.check(self.rank, self.size)
        own_part = self._own_part(buffer, counts)
        if self.size == 1:
            return Pending(own_part)
        return self._start(whole.with_arrays(buffer, own_part), purpose)

    def _own_part(self, buffer: Array, counts: Sequence[int]) -> Array:
        """Return the view in which a sum of parts leaves the part of this rank."""
        return buffer[: counts[self.rank]]

    def swap(self, array: Array, out: Array, peer: int, purpose: str) -> Array:
        """Send `array` to rank `peer`; out ← the array that `peer` sends to this rank.

        Both ranks call it, each with the other as `peer`; pairs need not wait for other
        pairs. If `peer` is this rank, `array` is copied to `out`, and nothing is sent.
        Swaps of the same two ranks are in the order of their calls.
        """
        return self.start_swap(array, out, peer, purpose).wait()

    def start_swap(self, array: Array, out: Array, peer: int, purpose: str) -> Pending:
        """Begin a swap; do not use either array until `wait` returns."""
        if peer == self.rank:
            np.copyto(out, array)
            return Pending(out)
        return self.start(Collective("swap", array, out, peer=peer), purpose)

    def max_flag(self, value: int, purpose: str = "control") -> int:
        """Return the largest `value` of all ranks. Collective."""
        if self.size == 1:
            return value
        self._flag[0] = value
        self._run(self._largest_flag, purpose)
        return int(self._flag[0])

    def max_number(self, value: float, purpose: str = "control") -> float:
        """Return the largest `value` of all ranks; NaN if it is NaN on one. Collective.

        All ranks return the same bits: the floats are compared as integers in the same
        order.
        """
        if self.size == 1:
            return value
        return _float_of(self.max_flag(_order_of(value), purpose))

    def has_equal(self, value: int, purpose: str = "control") -> bool:
        """Return whether all ranks pass the same integer `value`. Collective.

        It has less than 64 bits; pass the hash of anything larger.
        """
        largest = self.max_flag(value, purpose)
        return largest == -self.max_flag(-value, purpose)

    def share_object(self, item: Any, root: int = 0, purpose: str = "control") -> Any:
        """Return the `item` of rank `root` on every rank. Collective.

        It is broadcast as a pickle, so that other ranks get a copy; their own `item` is
        ignored. An object whose pickle has up to `SHORT` − 8 bytes is one message.
        """
        if self.size == 1:
            return item
        packed = np.empty(0, dtype=np.uint8)
        head = np.zeros(SHORT, dtype=np.uint8)
        room = head[8:]
        if self.rank == root:
            packed = np.frombuffer(pickle.dumps(item), dtype=np.uint8)
            head[:8].view(np.int64)[0] = packed.size
            room[: packed.size] = packed[: room.size]
        self.broadcast(head, root, purpose)
        size = int(head[:8].view(np.int64)[0])
        whole = np.empty(size, dtype=np.uint8)
        whole[: room.size] = room[:size]
        if size > room.size:
            rest = whole[room.size :]
            if self.rank == root:
                rest[...] = packed[room.size :]
            self.broadcast(rest, root, purpose)
        return item if self.rank == root else pickle.loads(whole.data)

    def of_root(self, action: Callable[[], T], purpose: str = "control") -> T:
        """Return on every rank what `action` returns on rank 0. Collective.

        Rank 0 alone performs it; an error there is raised as by `together`.
        """
        result = self.together(lambda: None if self.rank else action())
        shared: T = self.share_object(result, 0, purpose)
        return shared

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """Return the items of all ranks, in rank order, on every rank.

        Its messages and memory grow with the number of ranks: use `share_object` for an
        item of one rank, and `max_flag`, `max_number`, `has_equal` or `sum` where one
        number of all ranks is enough.
        """
        if self.size == 1:
            return [item]
        items: list[Any] = self._run(
            Collective("objects", SentObject(item), []), purpose
        )
        return items

    def workspace(self, words: int, dtype: Any) -> Workspace:
        """Return a workspace of `words` words, summed by the fastest way available.

        Collective: all ranks call this, and `keep`, in the same order.
        """
        if self.size == 1:
            return Workspace(self, words, dtype)
        check_summable(np.dtype(dtype))
        if self.reproducible:
            return Workspace(self, words, dtype)
        with self.enter("opening of a workspace", "control"):
            return self._workspace(words, dtype) or Workspace(self, words, dtype)

    def keep(self, array: Array) -> Array:
        """Return a lasting copy of `array`, which must be equal on all ranks.

        Ranks of a node may share the copy, which is then read-only. Collective.
        """
        if self.size == 1:
            return array.copy()
        with self.enter("copy for the node", "control"):
            return self._keep(array)

    def share_nodes(self, how: str) -> None:
        """Set whether ranks of a node share memory: `how` is auto, on or off.

        Groups that are split later inherit it.
        """
        self.node_sharing = how

    def together(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, or raise an error of any rank on every rank.

        Only errors of this package are shared; of several, that of the lowest rank is
        raised. No rank waits for other exceptions: they end the job where they happen.
        Collective. Calls may be nested: a rank that fails before an inner call reports
        its error in the inner call.
        """
        result = None
        error = None
        try:
            result = action()
        except HpcsgdError as raised:
            if raised.was_told:
                raise
            error = raised
        if self.max_flag(int(error is not None)):
            errors = [e for e in self.exchange_objects(error) if e is not None]
            errors[0].on_all_ranks = errors[0].was_told = True
            raise errors[0]
        return result  # type: ignore[return-value]

    def working(self, what: str) -> AbstractContextManager[None]:
        """Return a context for work without messages, such as writes to a slow disk.

        The watchdog would take a rank in such work for idle. `what` names the work.
        """
        return self.ledger.place.working(what)

    def watch(self, timeout: float) -> None:
        """Limit from now on the seconds that a rank waits for a rank that is idle.

        Called by all ranks; 0 = wait for ever.
        """
        self.timeout = timeout

    def unwatch(self) -> None:
        """End the limit that `watch` has set. Called by all ranks."""
        self.timeout = 0.0

    @property
    def charged(self) -> float | None:
        """Seconds that an emulated network took so far; None where there is none."""
        return None

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes copied (up, down) between GPU and host for collectives, so far."""
        return 0, 0

    @property
    def processes(self) -> int:
        """Return the number of ranks that really run: 1 if the others are emulated."""
        return self.size

    # What a transport may supply besides: other libraries, losses, shorter ways.

    @property
    def host_group(self) -> "Communicator":
        """Return a group of the same ranks for host arrays, without a GPU transport."""
        return self

    @property
    def mpi_handle(self) -> Any:
        """The communicator of mpi4py beneath, for libraries that need it, or None."""
        return None

    def has_lost_ranks(self, error: BaseException) -> bool:
        """Return whether `error` reports lost ranks, and this rank may continue."""
        return False

    def exit_abruptly(self) -> None:
        """End this rank as if it was killed; return if the transport cannot.

        The other ranks, which may continue, get no message.
        """
        return

    def _workspace(self, words: int, dtype: Any) -> Workspace | None:
        """Return a faster workspace of the transport, or None. Collective."""
        return None

    def _keep(self, array: Array) -> Array:
        """Return a lasting copy of `array`, as the transport makes it. Collective."""
        return array.copy()


def _alone(collective: Collective) -> Any:
    """Perform a collective of a single rank, without messages; return its result."""
    if collective.kind == "objects":
        collective.receive[:] = [collective.send.value]
    elif collective.receive is not collective.send:
        collective.receive[...] = collective.send
    return collective.receive
