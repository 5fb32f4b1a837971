"""`gram`, `cached` and look-ahead: s steps after one sum of a Gram."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpcsgd.comm.communicator import Message, Pending
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import Blocks
from hpcsgd.products.base import (
    ExchangeMessage,
    ExchangeShape,
    Group,
    MemoryShape,
    Rows,
    Scratch,
    State,
    Task,
    gather_rows,
    iterate,
)

# CA-SGD: one sum of the strict Gram and the margins replaces s sums.
#
# Members sum  z = Σ_c Y^c w^c  and the strictly-lower blocks of  G = Σ_c Y^c (Y^c)ᵀ,
# packed one behind the other in one buffer where their formats are equal.


class Gram:
    """One sum of b² s (s−1)/2 + m·K·states words per s steps."""

    holds_all_columns = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self.scratch = Scratch()
        self.opened: dict[tuple[Blocks, int], list[Message]] = {}

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield one sum of G and z, or two where their formats differ."""
        gram, margins = shape.gram, shape.margins
        if shape.one_message:
            yield replace(margins, words=gram.words + margins.words)
        else:
            yield from (gram, margins)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of what an exchange holds."""
        yield "rows", shape.own_rows()
        yield shape.message()
        yield shape.vectors()

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
        messages = self.opened.get(key)
        if messages is None:
            messages = self.opened[key] = self._messages(group)
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
        task, precision = self.task, self.task.precision
        shape = ExchangeShape(
            sizes=group.blocks.sizes,
            scores=task.columns,
            states=task.states,
            one_message=precision.one_message,
            monitor_words=task.monitor.words,
        )
        return [
            self.scratch.message(
                task.members,
                message.field,
                message.words,
                getattr(precision, message.field),
            )
            for message in Gram.messages(shape)
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


# CA-SGD on batches that come again: the Gram is summed once and kept.
#
# Under "shuffle once" every epoch has the same groups, and G depends on rows alone:
# from the second epoch on only the margins travel.


class CachedGram:
    """Epoch 1 as gram; later one sum of m·K·states words and no Gram flops."""

    holds_all_columns = False

    def __init__(self, task: Task) -> None:
        self.task = task
        self.first = Gram(task)
        self.scratch = self.first.scratch
        self.kept: dict[int, tuple[Array, Array]] = {}  # exchange -> its rows, its G

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield what `gram` sends for new rows, else a sum of z alone.

        Where a run goes on behind the first epoch, new rows take both.
        """
        if not shape.is_kept:
            yield from Gram.messages(shape)
            shape = replace(shape, monitor_words=0)
        if shape.is_kept or shape.epoch:
            yield shape.margins

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield what `gram` holds, and the Grams that are kept."""
        yield from Gram.holds(shape)
        yield "kept", shape.all_gram_words * shape.gram_size

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


# CA-SGD with the next Gram under way: only the margin sum is waited for.
#
# G of the next group does not depend on w. While the sum of this group's margins
# travels, the next Gram is computed; its own sum travels during the recurrence.


@dataclass(frozen=True)
class AheadGroup:
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
        self.prepared: AheadGroup | None = None

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield a sum of z and one of G, which begins in the exchange before."""
        yield from (shape.margins, shape.gram)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield what two exchanges hold, of which one is under way."""
        yield "rows", shape.own_rows() * (1 if shape.density is not None else 2)
        yield shape.message(ahead=True)
        yield shape.vectors()

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

    def _take(self, group: Group) -> AheadGroup:
        if self.prepared is not None and self.prepared.group is not group:
            self.finish()
        ready = self.prepared or self._prepare(group)
        self.prepared = None
        return ready

    def _prepare(self, group: Group) -> AheadGroup:
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
        return AheadGroup(group, rows, gram, pending)

    def _post_margins(self, state: State, ready: AheadGroup) -> Pending:
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
