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
        self.messages: dict[Blocks, list[Message]] = {}

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
        messages = self.messages.get(group.blocks)
        if messages is None:
            messages = self.messages[group.blocks] = self._messages(group)
        written = [message.array for message in messages]
        gram, margins = self._parts(group, written)
        task.backend.strict_gram(rows, blocks, gram)
        task.clock.lap("gram")
        task.backend.scores(rows, state.weights, margins)
        task.clock.lap("scores")
        totals = [message.sum("products") for message in messages]
        task.clock.lap("communicate")
        if len(totals) == 1 and totals[0] is written[0]:
            return gram, margins  # summed in place: the views are there already
        return self._parts(group, totals)

    def _messages(self, group: Group) -> list[Message]:
        """What is sent: Gram and margins together where their formats are equal."""
        task, blocks = self.task, group.blocks
        words, precision = margin_words(task, group), task.precision
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

    def _parts(self, group: Group, arrays: list[Array]) -> tuple[Array, Array]:
        """The Gram and the margins as views of what is sent, or of its sums."""
        words, shape = group.blocks.gram_words, margin_shape(self.task, group)
        if len(arrays) == 1:
            return arrays[0][:words], arrays[0][words:].reshape(shape)
        return arrays[0], arrays[1].reshape(shape)


def margin_shape(task: Task, group: Group) -> tuple[int, int]:
    """z holds K columns for each state."""
    return group.blocks.rows, task.states * task.columns


def margin_words(task: Task, group: Group) -> int:
    """How many words that is."""
    rows, columns = margin_shape(task, group)
    return rows * columns


def sum_margins(
    task: Task, scratch: Scratch, state: State, group: Group, rows: Rows
) -> Array:
    """z alone, where G is known already or travels apart."""
    shape = margin_shape(task, group)
    words = margin_words(task, group)
    form = task.precision.margin_sum
    message = scratch.message(task.members, "margins", words, form)
    task.backend.scores(rows, state.weights, message.array.reshape(shape))
    task.clock.lap("scores")
    total = message.sum("products")
    task.clock.lap("communicate")
    return total.reshape(shape)
