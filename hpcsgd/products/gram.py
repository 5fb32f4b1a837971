"""CA-SGD: one sum of the strict Gram and the margins replaces s sums.

Members sum  z = Σ_c Y^c w^c  and the strictly-lower blocks of  G = Σ_c Y^c (Y^c)ᵀ,
packed one behind the other in one buffer where their formats are equal.
"""

import numpy as np

from hpcsgd.precision import get_format
from hpcsgd.products.base import (
    Array,
    Group,
    Scratch,
    State,
    Task,
    gather_rows,
    iterate,
)


class Gram:
    """One sum of b² s (s−1)/2 + m·K·states words per s steps."""

    holds_all_columns = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self.scratch = Scratch()

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Products, one message, s steps."""
        rows = gather_rows(self.task, self.scratch, "rows", group)
        gram, margins = self.sum_products(state, group, rows)
        return iterate(self.task, state, group, rows, margins, gram)

    def finish(self) -> None:
        """Nothing is begun early."""

    def sum_products(
        self, state: State, group: Group, rows: Array
    ) -> tuple[Array, Array]:
        """Packed G and z of `group`, summed over members."""
        task, blocks = self.task, group.blocks
        messages, gram, margins = self._buffers(group)
        task.backend.strict_gram(rows, blocks, gram)
        task.clock.lap("gram")
        task.backend.scores(rows, state.weights, margins)
        task.clock.lap("scores")
        for message in messages:
            task.members.sum(message, "products")
        task.clock.lap("communicate")
        return gram, margins

    def _buffers(self, group: Group) -> tuple[list[Array], Array, Array]:
        """What is sent, and the Gram and the margins as views of it."""
        words, shape = group.blocks.gram_words, margin_shape(self.task, group)
        if self.task.precision.one_message:
            size = words + shape[0] * shape[1]
            whole = self.scratch.array("products", (size,), self.task.margin_dtype)
            return [whole], whole[:words], whole[words:].reshape(shape)
        gram = gram_buffer(self.task, self.scratch, "gram", group)
        margins = self.scratch.array("margins", shape, self.task.margin_dtype)
        return [gram, margins], gram, margins


def margin_shape(task: Task, group: Group) -> tuple[int, int]:
    """z holds K columns for each state."""
    return group.blocks.rows, task.states * task.columns


def gram_buffer(task: Task, scratch: Scratch, name: str, group: Group) -> Array:
    """A buffer for packed G in the format it travels in."""
    dtype: np.dtype[np.generic] = get_format(task.precision.gram_wire).dtype
    return scratch.array(name, (group.blocks.gram_words,), dtype)


def sum_margins(
    task: Task, scratch: Scratch, state: State, group: Group, rows: Array
) -> Array:
    """z alone, where G is known already or travels apart."""
    shape = margin_shape(task, group)
    margins = scratch.array("margins", shape, task.margin_dtype)
    task.backend.scores(rows, state.weights, margins)
    task.clock.lap("scores")
    task.members.sum(margins, "products")
    task.clock.lap("communicate")
    return margins
