"""The ranks of a group that share a machine, and the memory they all see (MPI 3).

Nothing but the window's synchronisation orders what ranks write: `meet` is a memory
barrier, a barrier of the ranks, and a memory barrier, in an epoch open from the start.
"""

import os
import weakref
from typing import Any

import numpy as np

from hpcsgd.comm.persistent import Repeated, agreed, attempt
from hpcsgd.comm.workspace import Array

FIRST_WINDOW = 4 * 2**20  # bytes; pages that nobody touches cost nothing
LINE = 64  # bytes of a cache line: no two ranks write to one
SHARED_MEMORY = "/dev/shm"  # its limit, not the machine's, ends large windows


class Holding:
    """What a node took from MPI, and who may still be looking at it.

    Windows are freed by all ranks together and nobody may read them afterwards, so
    it waits until the last array in them is gone on every rank.
    """

    def __init__(self, comm: Any, across: Any, mpi: Any) -> None:
        self.comm, self.across, self._mpi = comm, across, mpi
        self.windows: list[Any] = []
        self.users: list[weakref.ref[Any]] = []

    def release(self) -> bool:
        """Free all of it if it is unused everywhere; a collective of the node."""
        unused = all(user() is None for user in self.users)
        unused = agreed(self.comm, self._mpi, unused)
        if self.across is not None:  # then with it, as all nodes free it together
            unused = agreed(self.across, self._mpi, unused)
        if not unused:
            return False
        for window in self.windows:
            window.Unlock_all()
            window.Free()
        for comm in (self.across, self.comm):
            if comm is not None:
                comm.Free()
        return True


class Node:
    """The ranks of a group on one machine, and windows that hold what they share."""

    def __init__(self, comm: Any, across: Any, mpi: Any, whole: bool) -> None:
        self.comm, self.across, self.mpi = comm, across, mpi
        self.whole = whole  # the group has no ranks elsewhere
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.holding = Holding(comm, across, mpi)
        self.holding.users.append(weakref.ref(self))
        self._bases: list[Array] = []
        self._used = 0
        request = attempt(lambda: comm.Barrier_init())  # MPI 4
        fast = agreed(comm, mpi, request is not None)
        self.barrier = Repeated(mpi, request) if fast else comm.Barrier

    def meet(self) -> None:
        """All ranks of the node see what each of them wrote before."""
        for window in self.holding.windows:
            window.Sync()
        self.barrier()
        for window in self.holding.windows:
            window.Sync()

    def take(self, size: int) -> Array | None:
        """`size` shared bytes, the same on all ranks of the node; None: no room."""
        room = len(self._bases[-1]) - self._used if self._bases else 0
        if size > room and not self._grow(size):
            return None
        first = self._used
        self._used += -(-size // LINE) * LINE
        return self._bases[-1][first : first + size]

    def keep(self, array: Array) -> Array | None:
        """A lasting read-only copy of what all ranks hold alike; each writes a part."""
        memory = self.take(array.nbytes)
        if memory is None:
            return None
        kept = memory.view(array.dtype).reshape(array.shape)
        part = share(array.size, self.size, self.rank)
        kept.reshape(-1)[part] = array.reshape(-1)[part]
        self.meet()
        kept.flags.writeable = False
        return kept

    def _grow(self, size: int) -> bool:
        """Open another window, at least twice the last; all ranks, or none."""
        last = len(self._bases[-1]) if self._bases else FIRST_WINDOW // 2
        size = max(size + LINE, 2 * last)
        if not agreed(self.comm, self.mpi, has_room(size)):
            return False
        own = size if self.rank == 0 else 0
        window = attempt(lambda: self.mpi.Win.Allocate_shared(own, 1, comm=self.comm))
        if not agreed(self.comm, self.mpi, window is not None):
            return False
        window.Lock_all()
        base = np.frombuffer(window.Shared_query(0)[0], np.uint8)
        self.holding.windows.append(window)
        self.holding.users.append(weakref.ref(base))
        self._bases.append(base)
        self._used = -base.ctypes.data % LINE
        return True


def open_node(comm: Any, mpi: Any, pretended: int | None) -> Node | None:
    """The node of each rank of `comm`; None, on all of them, where there is none.

    `pretended` names another node than the real one, for tests on one machine.
    """
    if pretended is None:
        kind = getattr(mpi, "COMM_TYPE_SHARED", None)
        own = attempt(lambda: comm.Split_type(kind, comm.rank))
    else:
        own = comm.Split(pretended, comm.rank)
    if not agreed(comm, mpi, own is not None):
        return None
    sizes = set(comm.allgather(own.size))
    if sizes == {1}:
        own.Free()
        return None
    alike = len(sizes) == 1 and sizes != {comm.size}
    across = comm.Split(own.rank, comm.rank) if alike else None
    return Node(own, across, mpi, whole=sizes == {comm.size})


def has_room(size: int) -> bool:
    """Whether `size` bytes fit; a page that does not would kill whoever touches it."""
    try:
        there = os.statvfs(SHARED_MEMORY)
    except OSError:
        return True
    return there.f_bavail * there.f_frsize >= 2 * size


def share(words: int, ranks: int, rank: int) -> slice:
    """The words that one of the ranks takes care of."""
    return slice(words * rank // ranks, words * (rank + 1) // ranks)
