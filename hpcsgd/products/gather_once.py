"""Rows that come again: members exchange them once, and then need each other no more.

Under "shuffle once" every epoch has the same groups. After the first one every member
holds all columns of all rows, in the order in which they are taken.
"""

import numpy as np

from hpcsgd.backends.base import Batch
from hpcsgd.products.base import Array, Group, Rows, State, Task, batch_of
from hpcsgd.products.cached import same_rows
from hpcsgd.products.direct import walk
from hpcsgd.products.gather import Gather


class GatherOnce:
    """Epoch 1 as gather; later no message at all."""

    holds_all_columns = True

    def __init__(self, task: Task, widths: tuple[int, ...]) -> None:
        self.task = task
        self.first = Gather(task, widths)
        # exchange -> its row numbers, its rows as they are stored, their targets
        self.kept: dict[int, tuple[Array, Rows, Batch]] = {}
        self._dtype = np.dtype(task.shard.matrix.dtype)
        self._all: Array | None = None
        self._filled = 0  # rows of it

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Look the rows up, or gather them and keep them; then plain steps."""
        task, known = self.task, self.kept.get(group.index)
        if known is None or not same_rows(known[0], group.rows):
            stored = self.first.gather(group, self._place(len(group.rows)))
            known = group.rows.copy(), stored, batch_of(task, group.rows)
            self.kept[group.index] = known
        rows = self.first.for_products(known[1])
        return walk(task, state, group, rows, None, known[2])

    def finish(self) -> None:
        """Nothing is begun early."""

    def _place(self, rows: int) -> Array | None:
        """Where so many dense rows may stay, behind those that came before them.

        All in one array, which systems give large pages: a copy that the members of a
        node share would be written a page of 4 KiB at a time, and that takes longer
        than it saves.
        """
        if self.first.sparse is not None:
            return None
        if self._all is None:
            shape = (self.task.shard.height, sum(self.first.widths))
            self._all = np.empty(shape, dtype=self._dtype)
        first, self._filled = self._filled, self._filled + rows
        if self._filled > len(self._all):  # rows that were kept are no longer good
            self._all, self._filled = np.empty_like(self._all), rows
            first = 0
        return self._all[first : self._filled]
