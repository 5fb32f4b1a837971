"""Narrow data: members exchange the sampled rows, then step without a message."""

from itertools import accumulate

import numpy as np

from hpcsgd.products.base import Array, Group, Rows, Scratch, State, Task
from hpcsgd.products.direct import walk
from hpcsgd.products.sparse_rows import SparseGather


class Gather:
    """One all-gather of m·d_c words from each member, then s exact local steps.

    Rows travel as they are stored, so a 16-bit matrix costs half the bytes.
    Every member holds w whole.
    """

    holds_all_columns = True

    def __init__(self, task: Task, widths: tuple[int, ...]) -> None:
        self.task = task
        self.widths = widths  # d_c of every member, in rank order
        self.scratch = Scratch()
        self._numbers: Array = np.empty(0, dtype=np.int64)
        self.sparse = SparseGather(task, widths) if task.shard.is_sparse else None

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Rows of all columns, then plain steps on them."""
        rows = self.for_products(self.gather(group))
        return walk(self.task, state, group, rows, None)

    def finish(self) -> None:
        """Nothing is begun early."""

    def gather(self, group: Group, into: Array | None = None) -> Rows:
        """The sampled rows with the columns of all members, as they are stored.

        Dense ones in `into`, else where the next group's will be.
        """
        if self.sparse is not None:
            return self.sparse.gather(group)
        task, height = self.task, group.blocks.rows
        own = task.backend.pick(*task.shard.at(group.rows))
        task.clock.lap("gather")
        counts = [height * width for width in self.widths]
        flat = self.scratch.array("flat", (sum(counts),), own.dtype)
        task.members.gather(own.reshape(-1), counts, flat, "products")
        task.clock.lap("communicate")
        shape = (height, sum(self.widths))
        stored = (
            self.scratch.array("stored", shape, flat.dtype) if into is None else into
        )
        self._assemble(flat, counts, stored)
        task.clock.lap("gather")
        return stored

    def for_products(self, stored: Rows) -> Rows:
        """What was gathered, as the backend takes it."""
        task = self.task
        if self.sparse is not None:
            return task.backend.widen(stored, None)
        room = self.scratch.array("whole", stored.shape, task.precision.working)
        rows = task.backend.gather(stored, self._all(len(stored)), room)
        task.clock.lap("gather")
        return rows

    def _assemble(self, flat: Array, counts: list[int], stored: Array) -> None:
        """Put the members' column blocks side by side."""
        edges = [0, *accumulate(self.widths)]
        parts = np.split(flat, list(accumulate(counts))[:-1])
        for part, first, last in zip(parts, edges, edges[1:], strict=False):
            stored[:, first:last] = part.reshape(len(stored), last - first)

    def _all(self, height: int) -> Array:
        """The numbers of all rows, made once."""
        if len(self._numbers) < height:
            self._numbers = np.arange(height, dtype=np.int64)
        return self._numbers[:height]
