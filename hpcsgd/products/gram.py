"""CA-SGD: one sum of the strict Gram and the margins replaces s sums.

Members sum  z = Σ_c Y^c w^c  and the strictly-lower blocks of  G = Σ_c Y^c (Y^c)ᵀ,
packed one behind the other in one buffer where their formats are equal.
"""

from hpcsgd.comm.workspace import Message
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
from hpcsgd.schedule import Blocks


class Gram:
    """One sum of b² s (s−1)/2 + m·K·states words per s steps."""

    holds_all_columns = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self.scratch = Scratch()
        self.messages: dict[tuple[Blocks, int], list[Message]] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Products, one message, s steps."""
        rows = gather_rows(self.task, self.scratch, "rows", group)
        gram, margins = self.sum_products(state, group, rows)
        return iterate(self.task, state, group, rows, margins, gram)

    def finish(self) -> None:
        """Nothing is begun early."""

    def sum_products(
        self, state: State, group: Group, rows: Rows
    ) -> tuple[Array, Array]:
        """Packed G and z of `group`, summed over members."""
        task, blocks = self.task, group.blocks
        key = (group.blocks, task.monitor.words)
        messages = self.messages.get(key)
        if messages is None:
            messages = self.messages[key] = self._messages(group)
        written = [message.array for message in messages]
        gram, margins, more = self._parts(group, written)
        task.monitor.post(more)
        task.backend.strict_gram(rows, blocks, gram)
        task.clock.lap("gram")
        task.backend.scores(rows, state.weights, margins)
        task.clock.lap("scores")
        totals = [message.sum("products") for message in messages]
        task.clock.lap("communicate")
        if len(totals) > 1 or totals[0] is not written[0]:
            gram, margins, more = self._parts(group, totals)
        task.monitor.judge(more)
        return gram, margins

    def _messages(self, group: Group) -> list[Message]:
        """What is sent: Gram and margins together where their formats are equal."""
        task, blocks = self.task, group.blocks
        words = margin_words(task, group) + task.monitor.words
        precision = task.precision
        if precision.one_message:
            sizes = {"products": (blocks.gram_words + words, precision.margin_sum)}
        else:
            sizes = {
                "gram": (blocks.gram_words, precision.gram_wire),
                "margins": (words, precision.margin_sum),
            }
        return [
            self.scratch.message(task.members, name, *size)
            for name, size in sizes.items()
        ]

    def _parts(self, group: Group, arrays: list[Array]) -> tuple[Array, Array, Array]:
        """Gram, margins and the monitor's words: views of what is sent or summed."""
        words = group.blocks.gram_words
        behind = arrays[0][words:] if len(arrays) == 1 else arrays[1]
        return arrays[0][:words], *margins_in(self.task, group, behind)


def margin_shape(task: Task, group: Group) -> tuple[int, int]:
    """z holds K columns for each state."""
    return group.blocks.rows, task.states * task.columns


def margin_words(task: Task, group: Group) -> int:
    """How many words that is."""
    rows, columns = margin_shape(task, group)
    return rows * columns


def margins_in(task: Task, group: Group, flat: Array) -> tuple[Array, Array]:
    """The margins, and the words of the monitor behind them."""
    shape = margin_shape(task, group)
    words = shape[0] * shape[1]
    return flat[:words].reshape(shape), flat[words:]


def sum_margins(
    task: Task, scratch: Scratch, state: State, group: Group, rows: Rows
) -> Array:
    """z alone, where G is known already or travels apart."""
    words = margin_words(task, group) + task.monitor.words
    form = task.precision.margin_sum
    message = scratch.message(task.members, "margins", words, form)
    margins, more = margins_in(task, group, message.array)
    task.monitor.post(more)
    task.backend.scores(rows, state.weights, margins)
    task.clock.lap("scores")
    total = message.sum("products")
    task.clock.lap("communicate")
    margins, more = margins_in(task, group, total)
    task.monitor.judge(more)
    return margins
