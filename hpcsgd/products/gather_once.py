"""Rows that come again: members exchange them once, and then need each other no more.

Under "shuffle once" every epoch has the same groups. After the first one every member
holds all columns of all rows, in the order in which they are taken.
"""

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

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Look the rows up, or gather them and keep them; then plain steps."""
        task, known = self.task, self.kept.get(group.index)
        if known is None or not same_rows(known[0], group.rows):
            stored = self._keep(self.first.gather(group))
            known = group.rows.copy(), stored, batch_of(task, group.rows)
            self.kept[group.index] = known
        rows = self.first.for_products(known[1])
        return walk(task, state, group, rows, None, known[2])

    def finish(self) -> None:
        """Nothing is begun early."""

    def _keep(self, stored: Rows) -> Rows:
        """Out of the scratch; once for all members of a node where they share memory.

        Sparse rows were put together for this group alone.
        """
        if self.first.sparse is not None:
            return stored
        kept = self.task.members.keep(stored.reshape(-1)).reshape(stored.shape)
        self.task.clock.lap("gather")
        return kept
