"""What ranks can say to each other.

The public methods shortcut groups of one, time and book every collective
(`hpcsgd.comm.blocking`, `hpcsgd.comm.starting`); what a transport has to supply are the
hooks behind them (`hpcsgd.comm.hooks`).
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from hpcsgd.comm import sizes, wire
from hpcsgd.comm.address import Address
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.starting import Starting
from hpcsgd.comm.workspace import Workspace
from hpcsgd.errors import HpcsgdError, TransportError

T = TypeVar("T")


class Communicator(Starting):
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
        sizes.check_summable(np.dtype(dtype))
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
