"""Sums that MPI prepares once and starts again and again (MPI 4).

A request belongs to one buffer on every rank, and preparing it is collective. So
nothing is looked up by address: a workspace prepares its own request when it is
opened, and workspaces are opened by all ranks in one order.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.comm.workspace import Array, Workspace

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator

# What is saved is a call's preparation: measured up to 2 KiB, nothing beyond.
UP_TO = 2048


class Repeated:
    """A persistent request: started, waited for, and freed once, at the latest at exit.

    To free one is no collective, so it may happen when nobody uses it any more.
    """

    def __init__(self, mpi: Any, request: Any) -> None:
        self._start, self._wait = request.Start, request.Wait
        self.free = weakref.finalize(self, _free, mpi, request)

    def __call__(self) -> None:
        """Start, and wait for the end."""
        self._start()
        self._wait()


class PersistentWorkspace(Workspace):
    """One buffer and the request that sums it."""

    def __init__(
        self, group: "Communicator", comm: Any, mpi: Any, words: int, dtype: Any
    ) -> None:
        super().__init__(group, words, dtype)
        self.request = Repeated(mpi, comm.Allreduce_init(mpi.IN_PLACE, self._array))

    def add(self) -> Array:
        """Σ over ranks, in place."""
        self.request()
        return self._array


def supported(comm: Any, mpi: Any) -> bool:
    """Whether all ranks can prepare sums: tried once, and agreed on at each stage.

    A rank that cannot prepare one must keep the others from starting theirs.
    """
    if not agreed(comm, mpi, mpi.Get_version() >= (4, 0)):
        return False
    word = np.ones(1, dtype=np.int64)
    request = attempt(lambda: comm.Allreduce_init(mpi.IN_PLACE, word))
    if not agreed(comm, mpi, request is not None):
        return False
    probe = Repeated(mpi, request)
    attempt(probe)
    probe.free()
    return agreed(comm, mpi, word[0] == comm.size)


def agreed(comm: Any, mpi: Any, good: bool) -> bool:
    """Whether it is good on all ranks; an ordinary collective."""
    flag = np.array([good], dtype=np.int64)
    comm.Allreduce(mpi.IN_PLACE, flag, op=mpi.MIN)
    return bool(flag[0])


def attempt(action: Callable[[], Any]) -> Any:
    """What `action` gives, or None where this MPI cannot do it."""
    try:
        return action()
    except (AttributeError, NotImplementedError, RuntimeError, MemoryError):
        return None  # mpi4py's own exceptions are RuntimeErrors


def _free(mpi: Any, request: Any) -> None:
    if not mpi.Is_finalized():
        request.Free()
