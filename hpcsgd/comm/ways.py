"""Which way a group's repeated sums and lasting copies go, from what was measured.

Every decision rests on what all ranks know alike or have agreed on: the size of the
message, the setting, what the probes found. No rank ever goes a way of its own.
"""

import logging
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.comm import persistent
from hpcsgd.comm.node import Holding, Node, open_node
from hpcsgd.comm.persistent import PersistentWorkspace, Repeated
from hpcsgd.comm.shared import bytes_needed, open_shared
from hpcsgd.comm.workspace import Array, Workspace

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator

log = logging.getLogger(__name__)
KEEP_FROM = 4096  # bytes of a lasting copy from which a window is worth it


class Ways:
    """What one MPI group found out about itself, each thing when first asked for."""

    def __init__(self, comm: Any, mpi: Any, pretended: int | None = None) -> None:
        self._comm, self._mpi, self._pretended = comm, mpi, pretended
        self._held: list[Holding] = []  # of all groups split from one world
        self._of_world = True
        self._node: Node | None = None
        self._node_sought = False
        self._persistent: bool | None = None
        self._requests: weakref.WeakSet[Repeated] = weakref.WeakSet()

    def of_part(self, comm: Any) -> "Ways":
        """Those of a group split from this one."""
        part = Ways(comm, self._mpi, self._pretended)
        part._held, part._of_world = self._held, False
        return part

    def workspace(self, group: "Communicator", words: int, dtype: Any) -> Workspace:
        """The fastest one for messages of this size; collective."""
        size = words * np.dtype(dtype).itemsize
        if self._shares_sums(group.node_sharing, size):
            shared = self._shared(group, words, dtype)
            if shared is not None:
                return shared
        if 0 < size <= persistent.UP_TO and self._prepares_sums():
            prepared = PersistentWorkspace(group, self._comm, self._mpi, words, dtype)
            self._requests.add(prepared.request)
            return prepared
        return Workspace(group, words, dtype)

    def keep(self, sharing: str, array: Array) -> Array:
        """A lasting copy of what all ranks hold alike, one for each node."""
        least = {"off": np.inf, "auto": KEEP_FROM, "on": 1}[sharing]
        node = self._find_node() if array.nbytes >= least else None
        kept = node.keep(array) if node is not None and node.size > 1 else None
        return array.copy() if kept is None else kept

    def release(self) -> None:
        """Free windows that no array is in any more; a collective of the world."""
        if self._of_world:
            self._held[:] = [held for held in self._held if not held.release()]

    def close(self) -> None:
        """Let go of what hangs on the communicator, before it is freed."""
        self._node = None
        self.release()
        for request in list(self._requests):
            request.free()

    def _shares_sums(self, sharing: str, size: int) -> bool:
        """Between nodes only where it is asked for: that could not be measured yet."""
        if sharing == "off" or size == 0:
            return False
        if sharing == "auto" and size <= persistent.UP_TO:
            return False
        node = self._find_node()
        if node is None:
            return False
        return node.whole or (sharing == "on" and node.across is not None)

    def _shared(
        self, group: "Communicator", words: int, dtype: Any
    ) -> Workspace | None:
        node = self._node
        assert node is not None
        memory = node.take(bytes_needed(node, words, dtype))
        # A node without room keeps the others from waiting for it.
        if not persistent.agreed(self._comm, self._mpi, memory is not None):
            log.debug("no room for a shared sum of %d words; summed by MPI", words)
            return None
        assert memory is not None
        return open_shared(group, node, memory, words, dtype)

    def _find_node(self) -> Node | None:
        if not self._node_sought:
            self._node_sought = True
            self._node = open_node(self._comm, self._mpi, self._pretended)
            if self._node is None:
                log.debug("no memory that ranks of this group share; summed by MPI")
            else:
                self._held.append(self._node.holding)
        return self._node

    def _prepares_sums(self) -> bool:
        if self._persistent is None:
            self._persistent = persistent.supported(self._comm, self._mpi)
            if not self._persistent:
                log.debug("this MPI has no persistent collectives; summed one by one")
        return self._persistent
