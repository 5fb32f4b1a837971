"""Sums through memory that the ranks of a node share."""

import logging
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.comm.communicator import Workspace
from hpcsgd.formats import Array

if TYPE_CHECKING:
    from hpcsgd.comm.communicator import Communicator


# Sums that MPI prepares once and starts again and again (MPI 4).
#
# A request belongs to one buffer on every rank, and preparing it is collective. So
# nothing is looked up by address: a workspace prepares its own request when it is
# opened, and workspaces are opened by all ranks in one order.

# What is saved is a call's preparation: measured up to 2 KiB, nothing beyond.
UP_TO = 2048


class PersistentRequest:
    """A persistent MPI request, which may be started again and again.

    When the last reference to it is gone, it is appended to the list `unused`, whose
    requests `free_requests` frees. Python may collect garbage in any thread, and not
    every thread may call MPI.
    """

    def __init__(self, request: Any, unused: list[Any]) -> None:
        self._start = request.Start
        self._wait = request.Wait
        self.drop = weakref.finalize(self, unused.append, request)

    def __call__(self) -> None:
        """Start the request, and wait until it is complete."""
        self._start()
        self._wait()


class PersistentWorkspace(Workspace):
    """A workspace whose buffer is summed by a persistent request."""

    def __init__(
        self,
        group: "Communicator",
        comm: Any,
        mpi: Any,
        words: int,
        dtype: Any,
        unused: list[Any],
    ) -> None:
        super().__init__(group, words, dtype)
        request = comm.Allreduce_init(mpi.IN_PLACE, self._array)
        self.request = PersistentRequest(request, unused)

    def add(self) -> Array:
        """Return the sum of the buffer over the ranks, in place."""
        self.request()
        return self._array


def supported(comm: Any, mpi: Any) -> bool:
    """Return whether MPI can prepare persistent sums on all ranks.

    One sum is tried, and all ranks agree after each stage: a rank that fails must keep
    the others from starting theirs. Collective.
    """
    if not agreed(comm, mpi, mpi.Get_version() >= (4, 0)):
        return False
    word = np.ones(1, dtype=np.int64)
    request = attempt(lambda: comm.Allreduce_init(mpi.IN_PLACE, word))
    if not agreed(comm, mpi, request is not None):
        return False
    unused: list[Any] = []
    probe = PersistentRequest(request, unused)
    attempt(probe)
    probe.drop()
    free_requests(unused)
    return agreed(comm, mpi, word[0] == comm.size)


def agreed(comm: Any, mpi: Any, good: bool) -> bool:
    """Return whether `good` is true on all ranks, by an ordinary all-reduce."""
    flag = np.array([good], dtype=np.int64)
    comm.Allreduce(mpi.IN_PLACE, flag, op=mpi.MIN)
    return bool(flag[0])


def attempt(action: Callable[[], Any]) -> Any:
    """Return the result of `action`, or None if MPI fails or does not support it."""
    try:
        return action()
    except (AttributeError, NotImplementedError, RuntimeError, MemoryError):
        return None  # mpi4py's own exceptions are RuntimeErrors


def free_requests(unused: list[Any]) -> None:
    """Free all requests of the list, and empty it. It is not collective."""
    while unused:
        unused.pop().Free()


# The ranks of a group that share a machine, and the memory they all see (MPI 3).
#
# Nothing but the window's synchronisation orders what ranks write: `meet` is a memory
# barrier, a barrier of the ranks, and a memory barrier, in an epoch open from the
# start.

FIRST_WINDOW = 4 * 2**20  # bytes; pages that are not touched cost nothing
LINE = 64  # bytes of a cache line: no two ranks write to one
SHARED_MEMORY = "/dev/shm"  # its limit, not the machine's, ends large windows


class NodeWindows:
    """The windows and communicators of a node, with weak references to their users.

    The users are arrays in the windows, and the `NodeRanks`. The ranks of a node free
    all windows together, when the last user is gone on every rank, since no rank may
    read a window afterwards. `comm` has the ranks of the node, and `across` is that of
    `NodeRanks`.
    """

    def __init__(self, comm: Any, across: Any, mpi: Any) -> None:
        self.comm = comm
        self.across = across
        self._mpi = mpi
        self.windows: list[Any] = []
        self.users: list[weakref.ref[Any]] = []

    def release(self) -> bool:
        """Free all windows and communicators, if no rank uses them.

        Return whether they were freed. Collective over the ranks of the node, and of
        all nodes unless `across` is None.
        """
        unused = all(user() is None for user in self.users)
        # All nodes free `across` together, and not every rank of a node may have it.
        for comm in (self.comm, self.across, self.comm):
            if comm is not None:
                unused = agreed(comm, self._mpi, unused)
        if not unused:
            return False
        for window in self.windows:
            window.Unlock_all()
            window.Free()
        for comm in (self.across, self.comm):
            if comm is not None:
                comm.Free()
        return True


class NodeRanks:
    """The ranks of a communicator on one machine, and memory that they share.

    `across` is None if there is one node. It has the ranks with the same number on all
    nodes if these are `alike`, that is, have equal numbers of ranks. Otherwise it has
    rank 0 of each node, and is None on other ranks.
    """

    def __init__(
        self, comm: Any, across: Any, mpi: Any, alike: bool, unused: list[Any]
    ) -> None:
        self.comm = comm
        self.across = across
        self.mpi = mpi
        self.alike = alike
        self.whole = alike and across is None  # the group has no ranks elsewhere
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.holding = NodeWindows(comm, across, mpi)
        self.holding.users.append(weakref.ref(self))
        self._bases: list[Array] = []
        self._used = 0
        request = attempt(lambda: comm.Barrier_init())  # MPI 4
        fast = agreed(comm, mpi, request is not None)
        self.barrier = PersistentRequest(request, unused) if fast else comm.Barrier

    def meet(self) -> None:
        """Synchronise the ranks of the node: each then sees what the others wrote."""
        for window in self.holding.windows:
            window.Sync()
        self.barrier()
        for window in self.holding.windows:
            window.Sync()

    def take(self, size: int) -> Array | None:
        """Return `size` bytes of shared memory, the same on all ranks of the node.

        None if there is no room. Collective.
        """
        free_bytes = len(self._bases[-1]) - self._used if self._bases else 0
        if size > free_bytes and not self._grow(size):
            return None
        first = self._used
        self._used += -(-size // LINE) * LINE
        return self._bases[-1][first : first + size]

    def keep(self, array: Array) -> Array | None:
        """Return a read-only copy of `array`, which is stored in shared memory.

        `array` is equal on all ranks. Each rank writes a part of the copy. None if
        there is no room. Collective.
        """
        memory = self.take(array.nbytes)
        if memory is None:
            return None
        shared_copy = memory.view(array.dtype).reshape(array.shape)
        part = share(array.size, self.size, self.rank)
        shared_copy.reshape(-1)[part] = array.reshape(-1)[part]
        self.meet()
        shared_copy.flags.writeable = False
        return shared_copy

    def _grow(self, size: int) -> bool:
        """Open another window, at least twice as large as the last one.

        Return whether it was opened, on all ranks or on none.
        """
        last = len(self._bases[-1]) if self._bases else FIRST_WINDOW // 2
        size = max(size + LINE, 2 * last)
        if not agreed(self.comm, self.mpi, fits_shared_memory(size)):
            return False
        own_bytes = size if self.rank == 0 else 0
        window = attempt(
            lambda: self.mpi.Win.Allocate_shared(own_bytes, 1, comm=self.comm)
        )
        if not agreed(self.comm, self.mpi, window is not None):
            return False
        window.Lock_all()
        base = np.frombuffer(window.Shared_query(0)[0], np.uint8)
        self.holding.windows.append(window)
        self.holding.users.append(weakref.ref(base))
        self._bases.append(base)
        self._used = -base.ctypes.data % LINE
        return True


def open_node(
    comm: Any, mpi: Any, pretended: int | None, unused: list[Any]
) -> NodeRanks | None:
    """Return the ranks on the node of this rank, for shared memory. Collective.

    None, on all ranks, if MPI cannot find them or if no node has several ranks.
    `pretended` is the number of a pretended node, for tests on one machine. `unused`
    is the list for requests that are to be freed.
    """
    if pretended is None:
        kind = getattr(mpi, "COMM_TYPE_SHARED", None)
        node_comm = attempt(lambda: comm.Split_type(kind, comm.rank))
    else:
        node_comm = comm.Split(pretended, comm.rank)
    if not agreed(comm, mpi, node_comm is not None):
        return None
    sizes = set(comm.allgather(node_comm.size))
    if sizes == {1}:
        node_comm.Free()
        return None
    alike = len(sizes) == 1
    across = None
    if sizes != {comm.size}:
        has_part = alike or node_comm.rank == 0
        color = node_comm.rank if has_part else mpi.UNDEFINED
        part = comm.Split(color, comm.rank)
        across = part if has_part else None
    return NodeRanks(node_comm, across, mpi, alike, unused)


def fits_shared_memory(size: int) -> bool:
    """Return whether there is room for `size` bytes of shared memory, twice over.

    Touching a page for which there is no room kills the process. The result is True if
    the system does not show the room.
    """
    try:
        file_system = os.statvfs(SHARED_MEMORY)
    except OSError:
        return True
    return file_system.f_bavail * file_system.f_frsize >= 2 * size


def share(words: int, ranks: int, rank: int) -> slice:
    """Return the slice of `words` words that rank `rank` of `ranks` handles."""
    return slice(words * rank // ranks, words * (rank + 1) // ranks)


# Sums through memory that the ranks of a node share: no rank copies a message.
#
# Every rank writes its part into its own slot of a window. Sums are in rank order, so
# all ranks of a node read the same bits.

# Words of other ranks up to which adding all of them is faster than a second barrier.
ALONE_UP_TO = 20_000


class SummedByEach(Workspace):
    """A sum with one barrier: every rank adds the slots of all ranks by itself.

    Each rank stores the result in its own memory. There are two sets of slots, used in
    turn. A rank writes into a set again only after the barrier of the next sum, which a
    rank reaches only when it has read the set.
    """

    def __init__(
        self,
        group: "Communicator",
        node: NodeRanks,
        memory: Array,
        words: int,
        dtype: Any,
    ) -> None:
        super().__init__(group, words, dtype)
        self.node = node
        rows = _rows(memory, 2 * node.size, words, dtype)
        self._slots = (rows[: node.size], rows[node.size :])
        self._turn = 0

    @property
    def array(self) -> Array:
        """Return this rank's slot for the next sum."""
        return self._slots[self._turn][self.node.rank]

    def add(self) -> Array:
        """Synchronise the ranks of the node, then return the sum of all slots."""
        slots = self._slots[self._turn]
        self._turn = 1 - self._turn
        self.node.meet()
        return self._total(slots)

    def _total(self, slots: list[Array]) -> Array:
        return add_in_order(slots, self._array)


class SummedInSlices(Workspace):
    """A sum with two barriers: every rank adds one slice of all slots.

    All ranks read the total in shared memory. Slots are read between the two barriers
    and written outside; the total is written between them and read outside: one set of
    each is enough. Between nodes, the ranks that have the same slice sum it, all slices
    at once. If nodes have different numbers of ranks, one rank of each node sums the
    whole total after the second barrier, and a third one follows.
    """

    def __init__(
        self,
        group: "Communicator",
        node: NodeRanks,
        memory: Array,
        words: int,
        dtype: Any,
    ) -> None:
        super().__init__(group, 0, dtype)
        self.node = node
        *slots, total = _rows(memory, node.size + 1, words, dtype)
        own_words = share(words, node.size, node.rank)
        self._slot: Array = slots[node.rank]
        self._parts = [slot[own_words] for slot in slots]
        self._part = total[own_words]
        self._node_total: Array = total
        self._total: Array = total.view()
        self._total.flags.writeable = False

    @property
    def array(self) -> Array:
        """Return this rank's slot for the next sum."""
        return self._slot

    def add(self) -> Array:
        """Return the sum of all slots, which is in memory shared by the node's ranks.

        This rank adds one slice. The ranks are synchronised before and after.
        """
        node = self.node
        node.meet()
        add_in_order(self._parts, self._part)
        if node.alike and node.across is not None:
            node.across.Allreduce(node.mpi.IN_PLACE, self._part)
        node.meet()
        if not node.alike:
            if node.across is not None:
                node.across.Allreduce(node.mpi.IN_PLACE, self._node_total)
            node.meet()
        return self._total


def open_shared(
    group: "Communicator", node: NodeRanks, memory: Array, words: int, dtype: Any
) -> Workspace:
    """Return the faster kind of workspace for `words` words, by earlier measurements.

    Between nodes there is only one kind, `SummedInSlices`.
    """
    alone = node.whole and words * (node.size - 1) <= ALONE_UP_TO
    kind = SummedByEach if alone else SummedInSlices
    return kind(group, node, memory, words, dtype)


def bytes_needed(node: NodeRanks, words: int, dtype: Any) -> int:
    """Return the bytes of shared memory that suffice for either kind of workspace.

    Two sets of slots take at least as many as one set and a total.
    """
    return 2 * node.size * _stride(words, dtype)


def add_in_order(parts: list[Array], out: Array) -> Array:
    """Compute out ← parts[0] + parts[1] + ..., from left to right; return `out`."""
    if len(parts) == 1:
        np.copyto(out, parts[0])
        return out
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)
    return out


def _rows(memory: Array, count: int, words: int, dtype: Any) -> list[Array]:
    """Return `count` arrays of `words` words, each on separate cache lines."""
    kind = np.dtype(dtype)
    stride = _stride(words, dtype)
    starts = range(0, count * stride, stride)
    return [memory[at : at + words * kind.itemsize].view(kind) for at in starts]


def _stride(words: int, dtype: Any) -> int:
    size: int = words * np.dtype(dtype).itemsize
    return -(-size // LINE) * LINE


# The choice between repeated sums, and between lasting copies, by measurements.
#
# Every decision depends on values that are equal on all ranks: the size of the message,
# the setting, and the agreed results of the probes. So all ranks choose alike.

log = logging.getLogger(__name__)
KEEP_FROM = 4096  # bytes of a lasting copy from which a window is worth it


class SumChoice:
    """The choice of how one MPI communicator sums arrays and stores lasting copies.

    What MPI and the node can do is probed when it is first needed.
    """

    def __init__(self, comm: Any, mpi: Any, pretended: int | None = None) -> None:
        self._comm = comm
        self._mpi = mpi
        self._pretended = pretended
        self._held: list[NodeWindows] = []  # of all groups split from one world
        self._of_world = True
        self._node: NodeRanks | None = None
        self._node_sought = False
        self._persistent: bool | None = None
        self._requests: weakref.WeakSet[PersistentRequest] = weakref.WeakSet()
        self._unused: list[Any] = []  # requests to be freed, of all those groups

    def of_part(self, comm: Any) -> "SumChoice":
        """Return the choice for `comm`, a part of the communicator of this choice."""
        part = SumChoice(comm, self._mpi, self._pretended)
        part._held = self._held
        part._unused = self._unused
        part._of_world = False
        return part

    def workspace(
        self, group: "Communicator", words: int, dtype: Any
    ) -> Workspace | None:
        """Return the fastest workspace for sums of `words` words. Collective.

        None if an ordinary sum of MPI is as good.
        """
        free_requests(self._unused)
        size = words * np.dtype(dtype).itemsize
        if self._shares_sums(group.node_sharing, size):
            shared = self._shared(group, words, dtype)
            if shared is not None:
                return shared
        if 0 < size <= UP_TO and self._prepares_sums():
            prepared = PersistentWorkspace(
                group, self._comm, self._mpi, words, dtype, self._unused
            )
            self._requests.add(prepared.request)
            return prepared
        return None

    def keep(self, sharing: str, array: Array) -> Array:
        """Return a lasting copy of an array that is equal on all ranks. Collective.

        The ranks of a node share one copy if `sharing` allows it and there is room.
        """
        least = {"off": np.inf, "auto": KEEP_FROM, "on": 1}[sharing]
        node = self._find_node() if array.nbytes >= least else None
        shared_copy = node.keep(array) if node is not None and node.size > 1 else None
        return array.copy() if shared_copy is None else shared_copy

    def release(self) -> None:
        """Free the windows whose arrays are all gone. Collective over the world.

        A choice for a part of the world frees none. Requests that are no longer used
        are freed by all choices.
        """
        free_requests(self._unused)
        if self._of_world:
            self._held[:] = [windows for windows in self._held if not windows.release()]

    def close(self) -> None:
        """Free the persistent requests of the communicator, before it is freed.

        The world also frees the windows whose arrays are all gone.
        """
        self._node = None
        for request in list(self._requests):
            request.drop()
        self.release()

    def _shares_sums(self, sharing: str, size: int) -> bool:
        """Return whether ranks of a node sum `size` bytes in shared memory.

        Between nodes they do so only if `sharing` is "on", since that has not been
        measured.
        """
        if sharing == "off" or size == 0:
            return False
        if sharing == "auto" and size <= UP_TO:
            return False
        node = self._find_node()
        if node is None:
            return False
        return node.whole or sharing == "on"

    def _shared(
        self, group: "Communicator", words: int, dtype: Any
    ) -> Workspace | None:
        node = self._node
        assert node is not None
        memory = node.take(bytes_needed(node, words, dtype))
        # If one node has no room, no node uses shared memory: none waits for it.
        if not agreed(self._comm, self._mpi, memory is not None):
            log.debug("no room for a shared sum of %d words; summed by MPI", words)
            return None
        assert memory is not None
        return open_shared(group, node, memory, words, dtype)

    def _find_node(self) -> NodeRanks | None:
        if not self._node_sought:
            self._node_sought = True
            self._node = open_node(self._comm, self._mpi, self._pretended, self._unused)
            if self._node is None:
                log.debug("no memory that ranks of this group share; summed by MPI")
            else:
                self._held.append(self._node.holding)
        return self._node

    def _prepares_sums(self) -> bool:
        if self._persistent is None:
            self._persistent = supported(self._comm, self._mpi)
            if not self._persistent:
                log.debug("this MPI has no persistent collectives; summed one by one")
        return self._persistent
