"""Sums through memory that the ranks of a node share: nobody copies a message.

Every rank writes its part into its own slot of a window. Sums are in rank order, so
all ranks of a node read the same bits.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.comm.node import LINE, Node, share
from hpcsgd.comm.workspace import Array, Workspace

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator

# Words beyond the first rank's that a rank adds itself before a second barrier pays.
ALONE_UP_TO = 20_000


class SummedByEach(Workspace):
    """One barrier: every rank adds all slots, into memory of its own.

    There are two sets of slots. A rank writes into one of them again after the next
    sum's barrier, which nobody reaches before having read it.
    """

    def __init__(
        self, group: "Communicator", node: Node, memory: Array, words: int, dtype: Any
    ) -> None:
        super().__init__(group, words, dtype)
        self.node = node
        rows = _rows(memory, 2 * node.size, words, dtype)
        self._slots = (rows[: node.size], rows[node.size :])
        self._turn = 0

    @property
    def array(self) -> Array:
        """This rank's slot of the set whose turn it is."""
        return self._slots[self._turn][self.node.rank]

    def add(self) -> Array:
        """Meet, then read what all have written."""
        slots = self._slots[self._turn]
        self._turn = 1 - self._turn
        self.node.meet()
        return self._total(slots)

    def _total(self, slots: list[Array]) -> Array:
        return add_in_order(slots, self._array)


class SummedInSlices(Workspace):
    """Two barriers: every rank adds its slice, and all read the total in place.

    Slots are read between the two barriers of a sum and written outside; the total is
    written between them and read outside: one set of each is enough. Between nodes,
    the ranks that hold the same slice sum it, all slices at once.
    """

    def __init__(
        self, group: "Communicator", node: Node, memory: Array, words: int, dtype: Any
    ) -> None:
        super().__init__(group, 0, dtype)
        self.node = node
        *slots, total = _rows(memory, node.size + 1, words, dtype)
        own = share(words, node.size, node.rank)
        self._slot: Array = slots[node.rank]
        self._parts, self._part = [slot[own] for slot in slots], total[own]
        self._total: Array = total.view()
        self._total.flags.writeable = False

    @property
    def array(self) -> Array:
        """This rank's slot."""
        return self._slot

    def add(self) -> Array:
        """Meet, add a slice, meet again."""
        self.node.meet()
        add_in_order(self._parts, self._part)
        if self.node.across is not None:
            self.node.across.Allreduce(self.node.mpi.IN_PLACE, self._part)
        self.node.meet()
        return self._total


def open_shared(
    group: "Communicator", node: Node, memory: Array, words: int, dtype: Any
) -> Workspace:
    """The way that measuring says is the shorter one; across nodes there is one."""
    alone = node.whole and words * (node.size - 1) <= ALONE_UP_TO
    kind = SummedByEach if alone else SummedInSlices
    return kind(group, node, memory, words, dtype)


def bytes_needed(node: Node, words: int, dtype: Any) -> int:
    """Room for either way: two sets of slots are more than one and a total."""
    return 2 * node.size * _stride(words, dtype)


def add_in_order(parts: list[Array], out: Array) -> Array:
    """out ← parts[0] + parts[1] + ..., from the left."""
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)
    return out


def _rows(memory: Array, count: int, words: int, dtype: Any) -> list[Array]:
    """`count` arrays of `words`, each on cache lines of its own."""
    kind, stride = np.dtype(dtype), _stride(words, dtype)
    starts = range(0, count * stride, stride)
    return [memory[at : at + words * kind.itemsize].view(kind) for at in starts]


def _stride(words: int, dtype: Any) -> int:
    size: int = words * np.dtype(dtype).itemsize
    return -(-size // LINE) * LINE
