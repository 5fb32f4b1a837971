"""CA-SGD on batches that come again: the Gram is summed once and kept.

Under "shuffle once" every epoch has the same groups, and G depends on rows alone:
from the second epoch on only the margins travel.
"""

from hpcsgd.products.base import Array, Group, State, Task, gather_rows, iterate
from hpcsgd.products.gram import Gram, sum_margins


class CachedGram:
    """Epoch 1 as gram; later one sum of m·K·states words and no Gram flops."""

    holds_all_columns = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self.first = Gram(task)
        self.scratch = self.first.scratch
        self.kept: dict[int, tuple[Array, Array]] = {}  # exchange -> its rows, its G

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Look the Gram up, or sum it and keep it."""
        rows = gather_rows(self.task, self.scratch, "rows", group)
        known = self.kept.get(group.index)
        if known is None or not same_rows(known[0], group.rows):
            gram, margins = self.first.sum_products(state, group, rows)
            known = group.rows.copy(), self._kept_gram(gram)
            self.kept[group.index] = known
            if group.epoch == 0:
                return iterate(self.task, state, group, rows, margins, gram)
            # A run that goes on from a checkpoint: its margins come by the message
            # they would have come by, so that their sum has the same bits.
        margins = sum_margins(self.task, self.scratch, state, group, rows)
        return iterate(self.task, state, group, rows, margins, known[1])

    def finish(self) -> None:
        """Nothing is begun early."""

    def _kept_gram(self, gram: Array) -> Array:
        self.task.clock.start()
        kept = self.task.members.keep(gram)
        self.task.clock.lap("gram")
        return kept


def same_rows(known: Array, rows: Array) -> bool:
    """The same rows in the same order: a Gram of others would be wrong silently."""
    return known.shape == rows.shape and bool((known == rows).all())
