"""`direct`, which sums margins in every step, and products that run batches singly.

These serve agreements that accumulate the gradients of batches, take as many batches as
a round lasts, or read the weights tile by tile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.base import Rows
from hpcsgd.backends.exchange import (
    Scratch,
    batch_of,
    movable_intercept,
    store_margins,
)
from hpcsgd.backends.task import (
    ExchangeCoefficients,
    GradientReducer,
    Group,
    MemberExchanges,
    PlainStepSequence,
    State,
    Task,
)
from hpcsgd.data.matrix import ByColumns, Csr
from hpcsgd.data.sampling import Sampler
from hpcsgd.formats import Array
from hpcsgd.products.base import (
    ExchangeMessage,
    ExchangeShape,
    MemoryShape,
    Planner,
    Product,
)

# Plain SGD: a sum of b words in every step, and no Gram.


class Direct(Product):
    """Plain SGD: each of s steps sums b·K words of margins over the members.

    b is the number of rows of a batch, K that of scores of a row. A replica of one
    member sends nothing.
    """

    def __init__(self, task: Task, exchanges: MemberExchanges) -> None:
        self.task = task
        self.exchanges = exchanges

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield a sum of b·K words for each step; momentum adds no words."""
        for rows in shape.sizes:
            yield ExchangeMessage(rows * shape.scores, "margin_sum")

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the arrays of an exchange."""
        yield "rows", shape.own_rows()
        yield shape.vectors()

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Take s plain steps, each with its own sum over members; return the state."""
        x = self.exchanges.plain(group.blocks)
        x.load(group)
        x.attach(state)
        take_plain_steps(self.exchanges, x)
        return state


def take_plain_steps(exchanges: MemberExchanges, x: PlainStepSequence) -> None:
    """Take s steps one after the other, by one kernel if `x` has one, else by parts."""
    if not x.fused_steps():
        take_each_step(exchanges, x)
    x.finish()


def take_each_step(exchanges: MemberExchanges, x: PlainStepSequence) -> None:
    """Take the steps one by one: t = Σ_c Y w;  r = residual(t, y);  w ← M w + u Yᵀr.

    Σ_c is the sum over the members.
    """
    for step in x.each_step():
        sums = step.messages("margins")
        before = (step.sample, step.scores)
        after = (step.steps, step.update)
        exchanges.sequence(step, before, sums, after).run()


# Batches whose gradients travel together, taken one after the other at one point.


class BatchAccumulator(Protocol):
    """A consumer of gradients that adds up those of several batches.

    It then sends their sum, once for all of these batches.
    """

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Begin exchange `index` of `epoch`, with `batches` batches on this replica."""


class MicroBatches(Product):
    """A product that runs `product` on the batches of a group, one by one.

    `product` passes their gradients to the consumer `gathering`. The rows of only one
    batch are stored at a time.
    """

    def __init__(
        self, product: Product, gathering: BatchAccumulator, most: int
    ) -> None:
        self.product = product
        self.gathering = gathering
        self.most = most  # batches of a group
        self.holds_all_columns = product.holds_all_columns
        self._known: dict[int, ExchangeCoefficients] = {}  # by the size of a batch

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Run all batches of the group at its initial weights, and return the state."""
        blocks = group.blocks
        self.gathering.begin(group.epoch, group.index, len(blocks.sizes))
        for number, size in enumerate(blocks.sizes):
            state = self.product.advance(state, self._one(group, number, size), None)
        return state

    def finish(self) -> None:
        """Wait for messages that `product` started early."""
        self.product.finish()

    def _one(self, group: Group, number: int, size: int) -> Group:
        """Return batch `number` of the group, which has `size` rows, as a group."""
        first = group.blocks.starts[number]
        return replace(
            group,
            index=group.index * self.most + number,
            rows=group.rows[first : first + size],
            coefficients=self._coefficients(group.coefficients, size),
            first=group.first + first,
        )

    def _coefficients(
        self, of_group: ExchangeCoefficients, size: int
    ) -> ExchangeCoefficients:
        """Return the coefficients of one step of `size` rows, cached by `size`.

        Their rate is the first of `of_group`. It is not used, since the consumer of the
        gradients takes the step.
        """
        if size not in self._known:
            update = of_group.update
            l2 = of_group.l2
            backend = of_group.backend
            self._known[size] = ExchangeCoefficients(
                update, l2, backend, of_group.rates[:1], (size,)
            )
        return self._known[size]


class AtOnce(MicroBatches):
    """A product that runs `product` on all batches of a group as one batch.

    A consumer of gradients that sends tiles of weights for each batch then sends them
    only once.
    """

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Run all batches of the group as one batch, and return the state."""
        self.gathering.begin(group.epoch, group.index, 1)
        coefficients = self._coefficients(group.coefficients, len(group.rows))
        whole_group = replace(group, coefficients=coefficients)
        return self.product.advance(state, whole_group, None)


# Batches one after the other, for as long as a round lasts.
#
# Each replica works through a stream of its own rows: pass after pass in the order of
# its sampler, one chunk after the other. A round begins where the last one ended. So a
# slow replica leaves no row out; it only comes to it later, in another epoch of the
# run.


class RoundJudge(Protocol):
    """The consumer that decides how many chunks a replica takes in a round."""

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Begin round `index` of `epoch`, with at most `batches` chunks."""

    def has_next_chunk(self) -> bool:
        """Return whether the replica takes another chunk in this round."""


@dataclass
class Stream:
    """The endless sequence of chunks of one replica, pass after pass over its rows."""

    sampler: Sampler
    planner: Planner
    sizes: Sequence[int]  # rows of the chunks of one pass
    taken: int = 0  # chunks so far
    _order: tuple[int, Array] | None = field(default=None, repr=False)

    def next(self) -> Group:
        """Return the next chunk, as a group of one batch, and count it as taken."""
        turn, place = divmod(self.taken, len(self.sizes))
        first = sum(self.sizes[:place])
        sizes = (self.sizes[place],)
        self.taken += 1
        return self.planner.group(place, turn, self._order_of(turn), first, sizes, 0)

    def rows_at(self, first: int, count: int) -> Array:
        """Return the local numbers of the rows in `count` chunks from `first` on."""
        parts = [np.zeros(0, dtype=np.int64)]
        for chunk in range(first, first + count):
            turn, place = divmod(chunk, len(self.sizes))
            start = sum(self.sizes[:place])
            order = self._order_of(turn)
            parts.append(order[start : start + self.sizes[place]])
        return np.concatenate(parts)

    def rows_in(self, first: int, count: int) -> int:
        """Return the number of rows in `count` chunks from chunk `first` on."""
        return self._rows_of(first + count) - self._rows_of(first)

    def _rows_of(self, chunks: int) -> int:
        """Return the number of rows in the first `chunks` chunks of the stream."""
        if not self.sizes:
            return 0
        turns, rest = divmod(chunks, len(self.sizes))
        ends = [0, *accumulate(self.sizes)]
        return turns * ends[-1] + ends[rest]

    def _order_of(self, turn: int) -> Array:
        """Return the row order of pass `turn`, which is computed once a pass."""
        if self._order is None or self._order[0] != turn:
            self._order = (turn, self.sampler.order(turn))
        return self._order[1]


class AnyBatches(Product):
    """A product that runs `product` on chunks of `stream` until `judge` ends the round.

    The rows of only one chunk are stored at a time.
    """

    def __init__(
        self, product: Product, judge: RoundJudge, stream: Stream, most: int
    ) -> None:
        self.product = product
        self.judge = judge
        self.stream = stream
        self.most = most  # chunks of a round
        self.holds_all_columns = product.holds_all_columns

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Run chunks of the stream at the weights of the start of the round.

        `group` only gives the epoch and the number of the round. Return the state.
        """
        self.judge.begin(group.epoch, group.index, self.most)
        while self.judge.has_next_chunk():
            state = self.product.advance(state, self.stream.next(), None)
        return state

    def finish(self) -> None:
        """Wait for messages that `product` started early."""
        self.product.finish()


# Sampled rows of which only some columns are in memory at a time.


class TiledRows:
    """The sampled rows of one exchange, gathered in one tile of columns at a time."""

    def __init__(self, task: Task, scratch: Scratch, rows: Array, height: int) -> None:
        self.task = task
        self.scratch = scratch
        self.rows = rows
        self.height = height  # columns of a tile
        self._sorted: ByColumns | None = None  # of sparse rows

    def __len__(self) -> int:
        return len(self.rows)

    def tile(self, part: slice) -> Rows:
        """Return the rows in the columns `part`, in the backend's form.

        The next call may overwrite dense rows.
        """
        matrix = self.task.shard.matrix
        backend = self.task.backend
        if matrix.is_sparse:
            return backend.widen(self._by_columns(matrix).tile(part))
        buffer = self._room((len(self.rows), part.stop - part.start))
        return matrix.gather_columns(backend, self.rows, part, buffer)

    def _room(self, shape: tuple[int, int]) -> Array:
        words = shape[0] * min(self.height, self.task.shard.width)
        flat = self.scratch.array("tile", (words,), self.task.precision.working)
        return flat[: shape[0] * shape[1]].reshape(shape)

    def _by_columns(self, matrix: Csr) -> ByColumns:
        """Return the rows sorted by column, once for both passes over the tiles."""
        if self._sorted is None:
            self._sorted = ByColumns(matrix.take(self.rows))
        return self._sorted


# Plain SGD on rows and weights that are never in memory as a whole.
#
# Batches whose gradients travel together are one batch here: a pass over all tiles of
# the weights serves all of them.


class ByTiles(GradientReducer, Protocol):
    """A reducer of gradients that stores the weights, and reads them tile by tile."""

    height: int  # columns of a tile

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Begin exchange `index` of `epoch`, with `batches` batches on this replica."""


class TiledProduct(Product):
    """A product on weights that are read tile by tile: one step for all batches.

    One pass over the tiles computes the scores, and one the gradient and the step.
    """

    def __init__(self, task: Task, by_tiles: ByTiles) -> None:
        self.task = task
        self.by_tiles = by_tiles
        self.scratch = Scratch()
        self._known: dict[int, ExchangeCoefficients] = {}

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Take one step with all rows of the group, and return the state.

        The scores t = Σ_b Y_b w_b, where b runs over the tiles of columns, are summed
        over members. `by_tiles` then takes the step from the residuals r, with the
        gradients Y_bᵀ r.
        """
        task = self.task
        plan = self._plan(group)
        self.by_tiles.begin(group.epoch, group.index, 1)
        rows = TiledRows(task, self.scratch, group.rows, self.by_tiles.height)
        margins = store_margins(task, self._margins(state, rows))
        state.residuals = task.backend.corrected_residuals(
            margins,
            task.no_gram,
            plan,
            task.family,
            batch_of(task, group.rows),
            movable_intercept(task, state),
        )
        task.clock.lap("inner")
        self.by_tiles.apply_update(task, state, rows, state.residuals, plan)
        return state

    def _margins(self, state: State, rows: TiledRows) -> Array:
        task = self.task
        shape = (len(rows), self.task.columns)
        if task.members.size == 1:
            margins = np.empty(shape, dtype=task.margin_dtype)
            self._score(state, rows, margins)
            return margins
        words = shape[0] * shape[1]
        form = task.precision.margin_sum
        message = self.scratch.message(task.members, "margins", words, form)
        self._score(state, rows, message.array.reshape(shape))
        total = message.sum("products")
        task.clock.lap("communicate")
        return total.reshape(shape)

    def _score(self, state: State, rows: TiledRows, out: Array) -> None:
        self.by_tiles.scores(self.task, state, rows, state.weights, out)
        self.task.clock.lap("scores")

    def _plan(self, group: Group) -> Any:
        """Return the coefficients of one step of all rows of the group.

        Their rate is not used, since `by_tiles` takes the step.
        """
        size = len(group.rows)
        of_group = group.coefficients
        if size not in self._known:
            update = of_group.update
            l2 = of_group.l2
            backend = of_group.backend
            coefficients = ExchangeCoefficients(
                update, l2, backend, of_group.rates[:1], (size,)
            )
            self._known[size] = coefficients
        return self._known[size].steps[0]
