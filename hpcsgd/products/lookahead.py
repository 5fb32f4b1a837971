"""CA-SGD with the next Gram under way: only the margin sum is waited for.

G of the next group does not depend on w. While the sum of this group's margins
travels, the next Gram is computed; its own sum travels during the recurrence.
"""

from dataclasses import dataclass

from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import (
    Array,
    Group,
    Rows,
    Scratch,
    State,
    Task,
    gather_rows,
    iterate,
)
from hpcsgd.products.gram import margin_words, margins_in


@dataclass(frozen=True)
class Prepared:
    """A group whose rows are gathered and whose Gram is on its way."""

    group: Group
    rows: Rows
    gram: Array
    pending: Pending


class LookAheadGram:
    """Two sums per exchange: m·K·states words waited for, the Gram hidden."""

    holds_all_columns = False

    def __init__(self, task: Task) -> None:
        self.task = task
        # Two sets of buffers: one group iterates while the next one travels.
        self.scratches = (Scratch(), Scratch())
        self.turn = 0
        self.prepared: Prepared | None = None

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Post the margins, begin the next Gram, then iterate on this one."""
        ready = self._take(group)
        travelling = self._post_margins(state, ready)
        if upcoming is not None:
            self.prepared = self._prepare(upcoming)
        margins, more = margins_in(self.task, group, travelling.wait())
        ready.pending.wait()
        self.task.clock.lap("communicate")
        self.task.monitor.judge(more)
        return iterate(self.task, state, group, ready.rows, margins, ready.gram)

    def finish(self) -> None:
        """A Gram that nobody will read still has to arrive."""
        if self.prepared is not None:
            self.prepared.pending.wait()
            self.prepared = None

    def _take(self, group: Group) -> Prepared:
        if self.prepared is not None and self.prepared.group is not group:
            self.finish()
        ready = self.prepared or self._prepare(group)
        self.prepared = None
        return ready

    def _prepare(self, group: Group) -> Prepared:
        task, scratch = self.task, self.scratches[self.turn]
        self.turn = 1 - self.turn
        rows = gather_rows(task, scratch, "rows", group)
        words, form = group.blocks.gram_words, task.precision.gram_wire
        message = scratch.message(task.members, "gram", words, form, travels=True)
        gram = message.array
        task.backend.strict_gram(rows, group.blocks, gram)
        task.clock.lap("gram")
        pending = message.start("products")
        task.clock.lap("communicate")
        return Prepared(group, rows, gram, pending)

    def _post_margins(self, state: State, ready: Prepared) -> Pending:
        task, group = self.task, ready.group
        words = margin_words(task, group) + task.monitor.words
        form, scratch = task.precision.margin_sum, self.scratches[0]
        message = scratch.message(task.members, "margins", words, form, travels=True)
        margins, more = margins_in(task, group, message.array)
        task.monitor.post(more)
        task.backend.scores(ready.rows, state.weights, margins)
        task.clock.lap("scores")
        pending = message.start("products")
        task.clock.lap("communicate")
        return pending
