"""The exchange on a host: sampled rows, products and messages, steps, update."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hpcsgd.backends.base import HostPlan, Rows, StepBatch, StepSequence
from hpcsgd.backends.task import Group, State, Task
from hpcsgd.comm.communicator import Communicator, Message, Pending
from hpcsgd.comm.messages import open_message
from hpcsgd.data.matrix import Csr, DenseMatrix, edges_of, index_dtype, side_by_side
from hpcsgd.data.shard import take
from hpcsgd.data.stream import Unheld
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.unrolling import Blocks, blocks_of
from hpcsgd.precision import Precision


class Scratch:
    """Arrays and messages that are used again: one for each name and shape."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], Array] = {}
        self._messages: dict[tuple[Any, ...], Message] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the array of these arguments; the first call allocates it.

        Its values are those of its last use, and undefined at first.
        """
        key = (name, shape, dtype)
        array = self._arrays.get(key)
        if array is None:
            array = self._arrays[key] = np.empty(shape, dtype=dtype)
        return array

    def message(
        self,
        members: Communicator,
        name: str,
        words: int,
        form: str,
        travels: bool = False,
    ) -> Message:
        """Return a message that members sum in format `form`.

        Equal arguments return the same message. A message is opened before its first
        sum: members sum in the same order, and so they also open in the same order.
        `travels`: the sum is started, and waited for later.
        """
        key = (name, words, form, travels)
        message = self._messages.get(key)
        if message is None:
            message = open_message(members, words, form, travels)
            self._messages[key] = message
        return message


# Arithmetic that every kind of exchange shares.


def batch_of(task: Task, rows: Array) -> StepBatch:
    """Return targets, sample weights and offsets of the sampled local `rows`."""
    shard = task.shard
    targets = np.take(shard.targets, rows, axis=0)
    if shard.weights is None and shard.offsets is None:
        return StepBatch(targets, None, None)
    weights = take(shard.weights, rows)
    if task.models is not None:
        weights = task.models.of_columns(weights)
    return StepBatch(targets, weights, take(shard.offsets, rows))


def room_for_rows(task: Task, scratch: Scratch, blocks: Blocks) -> Array | None:
    """Return memory for the sampled rows of an exchange; None for sparse ones."""
    if task.shard.is_sparse:
        return None
    shape = (blocks.rows, task.shard.width)
    return scratch.array("rows", shape, task.precision.working)


def gather_rows(task: Task, group: Group, room: Array | None) -> Rows:
    """Return the group's rows in this member's columns, as the backend takes them.

    `room` is memory in which the backend may widen them.
    """
    rows = task.shard.matrix.gather(task.backend, group.rows, room)
    task.clock.lap("gather")
    return rows


def rounds_margins(precision: Precision) -> bool:
    """Return whether margins are stored in a narrower format than that of their sum."""
    stored = get_format(precision.margin)
    summed = get_format(precision.margin_sum)
    return stored.unit_roundoff > summed.unit_roundoff


def store_margins(task: Task, margins: Array) -> Array:
    """Return the summed margins, rounded to the format in which they are stored.

    They are rounded in place, or in a copy if the array is read-only.
    """
    if rounds_margins(task.precision):
        # An array that several members read in place must not be changed by one.
        margins = margins if margins.flags.writeable else margins.copy()
        task.backend.round(margins, task.precision.margin)
    return margins


def probed(task: Task, weights: Array) -> Array:
    """Return q · (w, v), the point at which scores are read, from `weights` (w, v).

    It is w itself, except for update rules that read scores ahead at w + q[1] v.
    """
    if task.states == 1:
        return weights
    point = weights[:, : task.columns]
    momentum = float(task.probe[1])
    if momentum == 0.0:
        return point
    return point + momentum * weights[:, task.columns : 2 * task.columns]


def score(task: Task, state: State, rows: Rows, point: Array, out: Array) -> None:
    """Compute out ← Y w of this member at w = `point`.

    `task.gradient` computes it if there is one, else the backend.
    """
    if task.gradient is None:
        task.backend.scores(rows, point, out)
    else:
        task.gradient.scores(task, state, rows, point, out)


def movable_intercept(task: Task, state: State) -> Array | None:
    """Return the intercept for the steps to advance: that of `state`, or a copy.

    It is a copy, whose changes are dropped, if replicas combine the gradient of the
    intercept first.
    """
    if task.gradient is None or state.intercept is None:
        return state.intercept
    return state.intercept.copy()


def apply_update(
    task: Task, state: State, rows: Rows, residuals: Array, plan: HostPlan
) -> None:
    """Apply weights ← Φ weights + Σ_i gain_i Y_iᵀ r_i over the steps i of `plan`.

    If the task has a gradient sink, the sink processes the gradient instead.
    """
    if task.gradient_sink is None:
        task.backend.apply_update(state.weights, rows, residuals, plan)
    else:
        task.gradient_sink.apply_update(task, state, rows, residuals, plan)


# One member's part of an exchange on a host.

NOTHING: Array = np.empty(0)


class HostExchange:
    """An exchange of one member on a host; see `hpcsgd.backends.task.Exchange`.

    Members sum z = Σ_c Y^c w^c and the strictly-lower blocks of G = Σ_c Y^c (Y^c)ᵀ,
    packed one behind the other in one message where their formats are equal. The words
    of the monitor travel with z.
    """

    group: Group
    state: State
    rows: Rows  # sampled
    gram: Array  # packed: written before a sum, and its total after it
    margins: Array  # (m, states · K)
    more: Array  # the words of the monitor

    def __init__(self, task: Task, scratch: Scratch, blocks: Blocks) -> None:
        self.task = task
        self.scratch = scratch
        self.blocks = blocks
        self.margin_shape = blocks.rows, task.states * task.columns
        self.rounds_margins = rounds_margins(task.precision)
        self._messages: dict[tuple[Any, ...], tuple[HostSum, ...]] = {}

    @cached_property
    def room(self) -> Array | None:
        """Return memory for the sampled rows; None for sparse ones."""
        return room_for_rows(self.task, self.scratch, self.blocks)

    def stored_margins(self) -> Array:
        """Return the summed margins in the format that they are stored in."""
        if not self.rounds_margins:
            return self.margins
        return store_margins(self.task, self.margins)

    def load(self, group: Group) -> None:
        """Take the rows and the coefficients of this group in the next exchange."""
        self.group = group

    def attach(self, state: State) -> None:
        """Advance this state in the steps that follow."""
        self.state = state

    def sample(self) -> None:
        """Gather the sampled rows, as the backend takes them."""
        self.rows = gather_rows(self.task, self.group, self.room)

    def products(self) -> None:
        """Compute this member's parts of the Gram and of the margins."""
        self.gram_alone()
        self.scores()

    def gram_alone(self) -> None:
        """Compute this member's part of the Gram."""
        task = self.task
        task.backend.strict_gram(self.rows, self.blocks, self.gram)
        task.clock.lap("gram")

    def scores(self) -> None:
        """Compute this member's part of the margins, and write the monitor's words."""
        task = self.task
        if task.monitor is not None:
            task.monitor.post(self.more)
        task.backend.scores(self.rows, self.state.weights, self.margins)
        task.clock.lap("scores")

    def messages(self, *names: str, travels: bool = False) -> Sequence["HostSum"]:
        """Return the messages that sum `gram` and `margins`, whichever `names` has.

        The next products are written into these messages. `travels`: the sums are
        started, and waited for later.
        """
        key = names, travels, self.task.monitor_words
        sums = self._messages.get(key)
        if sums is None:
            sums = self._messages[key] = tuple(self._open(names, travels))
        for message in sums:
            message.aim()
        return sums

    def _open(self, names: tuple[str, ...], travels: bool) -> Iterator["HostSum"]:
        """Yield one message if the formats of all names are equal, else one each."""
        task = self.task
        precision = self.task.precision
        margins = self.margin_shape[0] * self.margin_shape[1] + task.monitor_words
        words = {"gram": self.blocks.gram_words, "margins": margins}
        forms = {"gram": precision.gram_wire, "margins": precision.margin_sum}
        together = [names] if precision.one_message else [(name,) for name in names]
        for part in together:
            count = sum(words[name] for name in part)
            form = forms[part[-1]]
            message = self.scratch.message(
                task.members, "+".join(part), count, form, travels
            )
            yield HostSum(self, message, part, travels)

    def views(self, names: tuple[str, ...], values: Array) -> dict[str, Array]:
        """Return the arrays of these names as views of a message, or of its total."""
        views: dict[str, Array] = {}
        if "gram" in names:
            words = self.blocks.gram_words
            views["gram"], values = values[:words], values[words:]
        if "margins" in names:
            shape = self.margin_shape
            words = shape[0] * shape[1]
            views["margins"] = values[:words].reshape(shape)
            views["more"] = values[words:]
        return views

    def place(self, views: dict[str, Array]) -> None:
        """Use the arrays of `views` as `gram`, `margins` and `more` from now on."""
        vars(self).update(views)

    def steps(self) -> None:
        """Compute the residuals of all s steps from the summed products.

        `update` then applies them to the weights.
        """
        task = self.task
        state = self.state
        group = self.group
        margins = self.stored_margins()
        batch = batch_of(task, group.rows)
        if task.anchored:
            batch = replace(batch, anchors=margins[:, task.columns : 2 * task.columns])
        state.residuals = task.backend.corrected_residuals(
            margins,
            self.gram,
            group.plan,
            task.family,
            batch,
            movable_intercept(task, state),
        )
        task.clock.lap("inner")

    def update(self) -> None:
        """Apply the s steps to the weights."""
        state = self.state
        residuals = self.state.residuals
        assert residuals is not None
        apply_update(self.task, state, self.rows, residuals, self.group.plan)
        self.task.clock.lap("update")

    def finish(self) -> None:
        """Do nothing: the state of a host is written step by step."""

    def keep(self) -> Array:
        """Return a lasting copy of the summed Gram. Collective."""
        self.task.clock.start()
        gram = self.task.members.keep(self.gram)
        self.task.clock.lap("gram")
        return gram

    def use(self, kept: Array) -> None:
        """Take the next steps with `kept`, a Gram that `keep` returned."""
        self.gram = kept

    def host_margins(self) -> Array:
        """Return the summed margins."""
        return self.margins

    def host_rows(self) -> Rows:
        """Return the sampled rows, as the backend of the host takes them."""
        return self.rows

    def host_gram(self) -> Array:
        """Return the summed Gram, packed."""
        return self.gram

    def host_state(self) -> State:
        """Return the state, with weights before the update and the steps' residuals."""
        return self.state


class HostSum:
    """A message of an exchange, and the arrays of the exchange that it sums."""

    def __init__(
        self,
        exchange: HostExchange,
        message: Message,
        names: tuple[str, ...],
        travels: bool,
    ) -> None:
        self.exchange = exchange
        self.message = message
        self.names = names
        self.travels = travels
        self._written: Array = NOTHING
        self._views: dict[str, Array] = {}

    def aim(self) -> None:
        """Have the exchange write its products into the message."""
        array = self.message.array
        if array is not self._written:  # most messages write to one array
            self._written = array
            self._views = self.exchange.views(self.names, array)
        self.exchange.place(self._views)

    def start(self) -> Pending:
        """Begin the sum, and return it pending.

        `wait` of the result sets the exchange's arrays to the sum.
        """
        pending = self.message.start("products")
        self.exchange.task.clock.lap("communicate")
        return Pending(pending.buffer, lambda: self.arrive(pending.wait()))

    def arrive(self, total: Array) -> None:
        """Set the exchange's arrays to `total`, the sum over members.

        If the message contains margins, have the monitor judge its words.
        """
        exchange = self.exchange
        exchange.task.clock.lap("communicate")
        if total is not self._written:
            exchange.place(exchange.views(self.names, total))
        monitor = exchange.task.monitor
        if monitor is not None and "margins" in self.names:
            monitor.judge(exchange.more)


Part = Callable[[], None]
NO_SUMS = Pending(NOTHING)


class HostSequence:
    """The calls before the sums of an exchange, the sums, and the calls after them.

    See `hpcsgd.backends.task.PartSequence`.
    """

    def __init__(
        self, before: Sequence[Part], sums: Sequence[HostSum], after: Sequence[Part]
    ) -> None:
        self._before = before
        self._sums = sums
        self._after = after

    def run(self) -> None:
        """Call the parts before the sums, sum over members, and call the others."""
        for part in self._before:
            part()
        for sums in self._sums:
            if sums.travels:
                sums.start().wait()
            else:
                sums.arrive(sums.message.sum("products"))
        for part in self._after:
            part()

    def up_to_sums(self) -> None:
        """Call the parts ahead of the sums, and complete the sums."""
        HostSequence(self._before, self._sums, ()).run()

    def start(self) -> Pending:
        """Call the parts ahead of the sums, begin the sums, and return them pending."""
        for part in self._before:
            part()
        if len(self._sums) == 1:
            return self._sums[0].start()
        pending = [message.start() for message in self._sums]
        return Pending(NOTHING, lambda: wait_for_all(pending))

    def run_beside(self, ahead: "HostSequence | None", earlier: Pending) -> Pending:
        """Call all parts; start the sequence `ahead` while the sums are in transit.

        The sums `earlier` are complete before the parts behind the sums are called.
        Return the sums of `ahead`, which are pending.
        """
        own_sums = self.start()
        following = NO_SUMS if ahead is None else ahead.start()
        own_sums.wait()
        earlier.wait()
        for part in self._after:
            part()
        return following


def wait_for_all(pending: Sequence[Pending]) -> None:
    """Wait for sums in the order in which they were begun."""
    for sums in pending:
        sums.wait()


# Plain SGD: steps one after the other on rows that were gathered.


class HostStep(HostExchange):
    """One plain step on one batch: its scores are read at one point, q · (w, v).

    With anchors, scores are also read at the anchor. `is_alone`: the rows have the
    columns of all members, and nothing is summed.
    """

    residuals: Array

    def __init__(
        self, task: Task, scratch: Scratch, blocks: Blocks, is_alone: bool
    ) -> None:
        super().__init__(task, scratch, blocks)
        self.margin_shape = blocks.rows, task.columns * (2 if task.anchored else 1)
        self.gram = task.no_gram
        self.is_alone = is_alone

    def take(self, state: State, plan: HostPlan, rows: Rows, batch: StepBatch) -> None:
        """Use the state, plan and rows of this batch in the next step."""
        self.state = state
        self.plan = plan
        self.rows = rows
        self.batch = batch

    def sample(self) -> None:
        """Do nothing: the rows of all steps were gathered together."""

    def messages(self, *names: str, travels: bool = False) -> Sequence["HostSum"]:
        """Return a tuple of the message of the margins; () if nothing is summed."""
        if not self.is_alone:
            return super().messages(*names, travels=travels)
        self.margins = np.empty(self.margin_shape, dtype=self.task.margin_dtype)
        return ()

    def scores(self) -> None:
        """Compute this member's part of the margins at w, and at its anchor, if any."""
        task = self.task
        weights = self.state.weights
        point = weights[:, : 2 * task.columns]  # w and its anchor
        if not task.anchored:
            point = probed(task, weights)
        score(task, self.state, self.rows, point, self.margins)
        task.clock.lap("scores")

    def steps(self) -> None:
        """Compute the residuals of the step from the summed margins."""
        task = self.task
        batch = self.batch
        margins = self.stored_margins()
        if task.anchored:
            margins, anchors = np.split(margins, 2, axis=1)
            batch = replace(batch, anchors=anchors)
        self.residuals = task.backend.corrected_residuals(
            margins,
            task.no_gram,
            self.plan,
            task.family,
            batch,
            movable_intercept(task, self.state),
        )
        task.clock.lap("inner")

    def update(self) -> None:
        """Apply the step to the weights."""
        apply_update(self.task, self.state, self.rows, self.residuals, self.plan)
        self.task.clock.lap("update")


class HostPlainSteps:
    """s steps of plain SGD of one member on a host.

    The rows of all s batches are sampled before the first step. See
    `hpcsgd.backends.task.PlainStepSequence`.
    """

    group: Group
    state: State
    rows: Rows
    batch: StepBatch
    is_alone = False

    def __init__(self, task: Task, scratch: Scratch, blocks: Blocks) -> None:
        self.task = task
        self.scratch = scratch
        self.blocks = blocks
        self._steps: dict[int, HostStep] = {}

    @cached_property
    def room(self) -> Array | None:
        """Return memory for the sampled rows; None for sparse ones."""
        return room_for_rows(self.task, self.scratch, self.blocks)

    def load(self, group: Group) -> None:
        """Take the steps of this group next."""
        self.group = group

    def attach(self, state: State) -> None:
        """Advance this state in the steps that follow."""
        self.state = state

    def sample(self) -> None:
        """Gather the rows of all steps, with their targets, weights and offsets."""
        self.rows = gather_rows(self.task, self.group, self.room)
        self.batch = batch_of(self.task, self.group.rows)

    def fused_steps(self) -> bool:
        """Sample the rows, and take all steps by a compiled kernel, if there is one.

        Return whether the steps were taken. The kernel is called once, or, if several
        members sum margins, once between two sums.
        """
        self.sample()
        task = self.task
        state = self.state
        # Kernels do not cover gradient sinks, several models and anchors.
        if task.gradient_sink is not None or task.models is not None or task.anchored:
            return False
        if self.is_alone or task.members.size == 1:
            residuals = task.backend.fused_steps(state.weights, self.step_sequence())
            if residuals is None:
                return False
            task.clock.lap("steps")
        else:
            kernel = task.backend.pipelined_steps(state.weights, self.step_sequence())
            if kernel is None:
                return False
            self._between_messages(kernel[0])
            residuals = kernel[1]
        state.residuals = residuals
        return True

    def step_sequence(self) -> StepSequence:
        """Return the steps as kernels take them."""
        return StepSequence(
            self.rows,
            self.blocks,
            self.group.coefficients.plain,
            self.task.family,
            self.batch,
            self.state.intercept,
        )

    def _between_messages(self, between: Any) -> None:
        """Alternate sums of margins over members with calls of the kernel `between`."""
        sizes = self.blocks.sizes
        clock = self.task.clock
        message = self._message(sizes[0])
        between(-1, None, message.array)
        clock.lap("steps")
        for j, size in enumerate(sizes):
            total = message.sum("products")
            clock.lap("communicate")
            after = sizes[j + 1] if j + 1 < len(sizes) else size
            if after != size:
                message = self._message(after)
            between(j, total, message.array)
            clock.lap("steps")

    def _message(self, rows: int) -> Message:
        """Return the message that sums the margins of a batch of `rows` rows."""
        task = self.task
        words = rows * self.task.columns
        form = task.precision.margin_sum
        return self.scratch.message(task.members, "margins", words, form)

    def each_step(self) -> Iterator[HostStep]:
        """Yield the steps one by one; the caller runs each before it requests the next.

        The residuals of all steps are stored in the state after the last one.
        """
        residuals = []
        starts = self.blocks.starts
        for j, plan in enumerate(self.group.steps):
            part = slice(starts[j], starts[j + 1])
            step = self._step_of(self.blocks.sizes[j])
            step.take(self.state, plan, self.rows[part], self.batch.part(part))
            yield step
            residuals.append(step.residuals)
        joined = residuals[0] if len(residuals) == 1 else np.vstack(residuals)
        self.state.residuals = joined

    def _step_of(self, size: int) -> HostStep:
        step = self._steps.get(size)
        if step is None:
            blocks = blocks_of((size,))
            step = HostStep(self.task, self.scratch, blocks, self.is_alone)
            self._steps[size] = step
        return step

    def finish(self) -> None:
        """Do nothing: the state of a host is written step by step."""


# Sparse rows between members: one message of exactly what is stored.
#
# How many values every row has on every member is exchanged once, before the first
# group. A member then sends its k values of m rows as k column numbers and k values
# behind each other, k·(4 + e_Y) bytes, and every member knows the size of each part.


def piece_of(storage: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the dtype of a message of sparse rows with values of dtype `storage`.

    It has 8 bits for 8-bit values, else 16.
    """
    return np.dtype(np.uint8 if storage.itemsize == 1 else np.uint16)


class SparseGather:
    """Sparse rows of all columns, gathered from the columns of each member.

    The first call of `pack` is collective: members exchange the lengths of their rows.
    """

    def __init__(self, task: Task, matrix: Csr, widths: tuple[int, ...]) -> None:
        self.task = task
        self.matrix = matrix
        self.widths = widths
        self.column = index_dtype(max(widths))
        self.lengths: Array | None = None  # (members, rows): values of each row

    def pack(self, rows: Array) -> Array:
        """Return the rows `rows`, in this member's columns, as one message."""
        self._lengths = self._all_lengths()[:, rows]
        block = self.matrix.take(rows)
        message = pack(block, self.column)
        each = (self.column.itemsize + block.dtype.itemsize) // message.dtype.itemsize
        self.counts = [int(count) * each for count in self._lengths.sum(axis=1)]
        return message

    def room_for_all(self) -> Array:
        """Return memory for the messages of all members, after `pack`."""
        return np.empty(sum(self.counts), dtype=piece_of(self.matrix.dtype))

    def assemble(self, flat: Array) -> Csr:
        """Return the rows in all columns from `flat`, the messages of all members."""
        return self._assemble(flat, self.counts, self._lengths)

    def _assemble(self, flat: Array, counts: list[int], lengths: Array) -> Csr:
        parts = np.split(flat, list(accumulate(counts))[:-1])
        storage = self.matrix.dtype
        return side_by_side(
            [
                unpack(part, length, width, self.column, storage)
                for part, length, width in zip(parts, lengths, self.widths, strict=True)
            ]
        )

    def for_products(self, stored: Csr) -> Rows:
        """Return the gathered rows `stored` as the backend takes them."""
        return self.task.backend.widen(stored)

    def _all_lengths(self) -> Array:
        if self.lengths is None:
            members = self.task.members
            height = len(self.matrix)
            own_lengths = self.matrix.lengths.astype(self.column)
            flat = np.empty(members.size * height, dtype=self.column)
            members.gather(own_lengths, [height] * members.size, flat, "control")
            self.lengths = members.keep(flat.reshape(-1, height))
        return self.lengths


def pack(rows: Csr, column: np.dtype[np.generic]) -> Array:
    """Return the column numbers, then the values, of `rows` in one array.

    Its dtype is `piece_of` the dtype of the values.
    """
    piece = piece_of(rows.data.dtype)
    numbers = rows.indices.astype(column, copy=False).view(piece)
    return np.concatenate([numbers, np.ascontiguousarray(rows.data).view(piece)])


def unpack(
    flat: Array,
    lengths: Array,
    width: int,
    column: np.dtype[np.generic],
    storage: np.dtype[np.generic],
) -> Csr:
    """Return the rows, with `lengths` values each, of an array that `pack` returned."""
    indptr = edges_of(lengths)
    cut = int(indptr[-1]) * column.itemsize // flat.itemsize
    # Copies, since a part of a message need not be aligned for wider words.
    numbers = flat[:cut].copy()
    values = flat[cut:].copy()
    return Csr(indptr, numbers.view(column), values.view(storage), width)


# Rows with the columns of all members: steps on them need no message.


class DenseGather:
    """Dense rows of all columns, gathered from the columns of each member."""

    def __init__(
        self,
        task: Task,
        matrix: DenseMatrix | Unheld,
        widths: tuple[int, ...],
        keeps: bool,
    ) -> None:
        self.task = task
        self.matrix = matrix
        self.widths = widths
        self.keeps = keeps
        self.scratch = Scratch()
        self._numbers: Array = np.empty(0, dtype=np.int64)
        self._all: Array | None = None
        self._filled = 0  # rows of it

    def pack(self, rows: Array) -> Array:
        """Return the rows `rows`, in this member's columns, as one message."""
        self.counts = [len(rows) * width for width in self.widths]
        return self.matrix.take(rows).reshape(-1)

    def room_for_all(self) -> Array:
        """Return memory for the messages of all members, after `pack`."""
        return self.scratch.array("flat", (sum(self.counts),), self.matrix.dtype)

    def assemble(self, flat: Array) -> Array:
        """Return the rows in all columns from `flat`, the messages of all members."""
        stored = self._room(len(flat) // sum(self.widths), flat.dtype)
        edges = [0, *accumulate(self.widths)]
        parts = np.split(flat, list(accumulate(self.counts))[:-1])
        for part, first, last in zip(parts, edges, edges[1:], strict=False):
            stored[:, first:last] = part.reshape(len(stored), last - first)
        return stored

    def _room(self, rows: int, dtype: Any) -> Array:
        """Return memory for `rows` rows of all columns, in the storage format `dtype`.

        Rows that are kept are in one array, which systems give large pages: a copy that
        the members of a node share would be written a page of 4 KiB at a time, and that
        takes longer than it saves.
        """
        if not self.keeps:
            return self.scratch.array("stored", (rows, sum(self.widths)), dtype)
        if self._all is None:
            shape = (self.matrix.shape[0], sum(self.widths))
            self._all = np.empty(shape, dtype=dtype)
        first = self._filled
        self._filled = self._filled + rows
        if self._filled > len(self._all):  # rows that were kept are no longer good
            self._all = np.empty_like(self._all)
            self._filled = rows
            first = 0
        return self._all[first : self._filled]

    def for_products(self, stored: Array) -> Rows:
        """Return the gathered rows `stored` as the backend takes them."""
        task = self.task
        buffer = self.scratch.array("whole", stored.shape, task.precision.working)
        if len(self._numbers) < len(stored):
            self._numbers = np.arange(len(stored), dtype=np.int64)
        rows = task.backend.gather(stored, self._numbers[: len(stored)], buffer)
        task.clock.lap("gather")
        return rows


class HostRows:
    """Gathered rows with the columns of all members.

    They are the rows of the last exchange or, if `keeps`, of the last exchange with
    each index in an epoch.
    """

    def __init__(self, task: Task, keeps: bool) -> None:
        self.task = task
        self.keeps = keeps
        self.scratch = Scratch()
        widths = tuple(part.stop - part.start for part in task.shard.parts)
        matrix = task.shard.matrix
        self.gathering: SparseGather | DenseGather = (
            SparseGather(task, matrix, widths)
            if matrix.is_sparse
            else DenseGather(task, matrix, widths, keeps)
        )
        # exchange -> its row numbers, its rows as they are stored, their targets
        self.kept: dict[int, tuple[Array, Any, StepBatch]] = {}


class HostGatheredSteps(HostPlainSteps):
    """Plain steps on rows that are gathered from all members, in their storage format.

    See `hpcsgd.backends.task.GatheredSteps`.
    """

    is_alone = True

    def __init__(self, whole: HostRows, blocks: Blocks) -> None:
        super().__init__(whole.task, whole.scratch, blocks)
        self.whole = whole
        self._packed: Array
        self._flat: Array

    def has_rows(self) -> bool:
        """Return whether gathered rows of this group are stored."""
        entry = self.whole.kept.get(self.group.index)
        return entry is not None and same_rows(entry[0], self.group.rows)

    def pack(self) -> None:
        """Pack the group's rows in this member's columns, as they are stored.

        For sparse rows the first call is collective.
        """
        gathering = self.whole.gathering
        self._packed = gathering.pack(self.group.rows)
        self._flat = gathering.room_for_all()
        self.task.clock.lap("gather")

    def gather(self) -> None:
        """Gather the packed rows of all members. Collective."""
        counts = self.whole.gathering.counts
        self.task.members.gather(self._packed, counts, self._flat, "products")
        self.task.clock.lap("communicate")

    def place(self) -> None:
        """Put the gathered columns of all members side by side, and store the rows."""
        whole = self.whole
        group = self.group
        stored = whole.gathering.assemble(self._flat)
        self.task.clock.lap("gather")
        rows = group.rows.copy() if whole.keeps else group.rows
        if not whole.keeps:
            whole.kept.clear()
        whole.kept[group.index] = rows, stored, batch_of(self.task, group.rows)

    def sample(self) -> None:
        """Take the gathered rows of the group, as the backend takes them."""
        _, stored, self.batch = self.whole.kept[self.group.index]
        self.rows = self.whole.gathering.for_products(stored)


def same_rows(known: Array, rows: Array) -> bool:
    """Return whether two arrays contain the same row numbers in the same order."""
    return known.shape == rows.shape and bool((known == rows).all())


class HostExchanges:
    """The exchanges of one member on a host, `hpcsgd.backends.task.MemberExchanges`."""

    device = None
    gram_kernel = ""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.scratches: dict[int, Scratch] = {}
        self._exchanges: dict[tuple[Blocks, int], HostExchange] = {}
        self._plain: dict[Blocks, HostPlainSteps] = {}
        self._gathered: dict[Blocks, HostGatheredSteps] = {}
        self._rows: HostRows | None = None

    def exchange(self, blocks: Blocks, number: int = 0) -> HostExchange:
        """Return the exchange for batches of the sizes `blocks`.

        Equal arguments return the same exchange. `number` distinguishes several
        exchanges of the same sizes.
        """
        key = blocks, number
        exchange = self._exchanges.get(key)
        if exchange is None:
            scratch = self.scratches.setdefault(number, Scratch())
            exchange = HostExchange(self.task, scratch, blocks)
            self._exchanges[key] = exchange
        return exchange

    def sequence(
        self,
        exchange: HostExchange,
        before: Sequence[Part],
        sums: Sequence[HostSum],
        after: Sequence[Part],
        once: bool = False,
    ) -> HostSequence:
        """Return the sequence of `before`, `sums` and `after`; ignore `once`."""
        return HostSequence(before, sums, after)

    def plain(self, blocks: Blocks) -> HostPlainSteps:
        """Return plain steps of the sizes `blocks`, which are taken one by one."""
        steps = self._plain.get(blocks)
        if steps is None:
            scratch = self.scratches.setdefault(0, Scratch())
            steps = self._plain[blocks] = HostPlainSteps(self.task, scratch, blocks)
        return steps

    def gathered(self, blocks: Blocks, keeps: bool = False) -> HostGatheredSteps:
        """Return plain steps on rows with the columns of all members.

        With `keeps`, gathered rows are stored for later epochs.
        """
        if self._rows is None:
            self._rows = HostRows(self.task, keeps)
        steps = self._gathered.get(blocks)
        if steps is None:
            steps = self._gathered[blocks] = HostGatheredSteps(self._rows, blocks)
        return steps
