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
        self.sparse = SparseGather(task, widths) if task.shard.is_sparse else None

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Rows of all columns, then plain steps on them."""
        return walk(self.task, state, group, self._whole_rows(group), None)

    def finish(self) -> None:
        """Nothing is begun early."""

    def _whole_rows(self, group: Group) -> Rows:
        if self.sparse is not None:
            return self.sparse.whole_rows(group)
        task, height = self.task, group.blocks.rows
        own = task.backend.pick(*task.shard.at(group.rows))
        task.clock.lap("gather")
        counts = [height * width for width in self.widths]
        flat = self.scratch.array("flat", (sum(counts),), own.dtype)
        task.members.gather(own.reshape(-1), counts, flat, "products")
        task.clock.lap("communicate")
        return self._assemble(flat, counts, height)

    def _assemble(self, flat: Array, counts: list[int], height: int) -> Array:
        """Put the members' column blocks side by side."""
        task, edges = self.task, [0, *accumulate(self.widths)]
        stored = self.scratch.array("stored", (height, edges[-1]), flat.dtype)
        parts = np.split(flat, list(accumulate(counts))[:-1])
        for part, first, last in zip(parts, edges, edges[1:], strict=False):
            stored[:, first:last] = part.reshape(height, last - first)
        whole = self.scratch.array("whole", stored.shape, task.precision.working)
        task.backend.widen(stored, whole)
        task.clock.lap("gather")
        return whole
