"""`gram`, `cached` and look-ahead: s steps after members sum a Gram and margins."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcsgd.backends.exchange import same_rows
from hpcsgd.backends.task import (
    Exchange,
    Group,
    MemberExchanges,
    PartSequence,
    State,
    Task,
)
from hpcsgd.formats import Array
from hpcsgd.products.base import (
    ExchangeMessage,
    ExchangeShape,
    MemoryShape,
    Product,
)

Part = Callable[[], None]

# CA-SGD: one sum of the strict Gram and the margins replaces s sums.


class Gram(Product):
    """CA-SGD: members sum a Gram matrix once, and then take s steps without messages.

    For batches of b rows, m = b s rows in all, and K scores, the sum has b² s (s−1)/2 +
    m·K·states words; `states` is 1, 2 with momentum, or 3 with svrg.
    """

    has_recurrence = True
    is_monitored = True

    def __init__(self, task: Task, exchanges: MemberExchanges) -> None:
        self.task = task
        self.exchanges = exchanges

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield one message of the Gram G and the margins z.

        They are two messages if their number formats differ.
        """
        gram = shape.gram
        margins = shape.margins
        if shape.one_message:
            yield replace(margins, words=gram.words + margins.words)
        else:
            yield from (gram, margins)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of each group of arrays that an exchange needs."""
        yield "rows", shape.own_rows()
        yield shape.message()
        yield shape.vectors()

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Compute Gram and margins, sum them over members, and take s steps.

        Return the state, which is changed in place.
        """
        x = self.exchanges.exchange(group.blocks)
        x.load(group)
        x.attach(state)
        sums = x.messages("gram", "margins")
        parts = self.exchanges.sequence(
            x, (x.sample, x.products), sums, (x.steps, x.update)
        )
        if not run_watched(self.task, state, group, x, parts):
            parts.run()
        x.finish()
        return state


def run_watched(
    task: Task, state: State, group: Group, x: Exchange, parts: PartSequence
) -> bool:
    """Run an exchange part by part with the check of the task's monitor, if it is due.

    `parts` are the parts of the exchange `x`. Return True if they were run; return
    False, without running a part, if no check is due.
    """
    monitor = task.monitor
    if monitor is None:
        return False
    if not monitor.is_due(group):
        monitor.before(state, group, NO_MARGINS)
        return False
    parts.up_to_sums()
    seen = monitor.before(state, group, x.host_margins())
    x.steps()
    monitor.after(seen, task, x.host_state(), group, x.host_rows(), x.host_gram())
    x.update()
    return True


NO_MARGINS: Array = np.empty(0)

# CA-SGD on batches that come again: the Gram is summed once and kept.
#
# Under "shuffle once" every epoch has the same groups, and G depends on rows alone:
# from the second epoch on only the margins travel.


class CachedGram(Product):
    """The product `gram` in the first epoch, whose Grams are kept for later epochs.

    Later epochs sum margins only: m·K·states words for m rows and K scores in an
    exchange, with `states` 1, 2 with momentum, or 3 with svrg.
    """

    has_recurrence = True
    is_monitored = True
    keeps_batches = True

    def __init__(self, task: Task, exchanges: MemberExchanges) -> None:
        self.task = task
        self.exchanges = exchanges
        self.kept: dict[int, tuple[Array, Any]] = {}  # exchange -> its rows, its G

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield the messages of `gram` for new rows, else one of the margins z.

        New rows after the first epoch, which occur if a run resumes, need the messages
        of `gram` and then one of the margins.
        """
        if not shape.is_kept:
            yield from Gram.messages(shape)
            shape = replace(shape, monitor_words=0)
        if shape.is_kept or shape.epoch:
            yield shape.margins

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the arrays of `gram`, and of the kept Grams."""
        yield from Gram.holds(shape)
        yield "kept", shape.gram.all_words * shape.gram.itemsize

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Take s steps with the kept Gram of these rows, or first sum and keep it.

        Return the state, which is changed in place.
        """
        x = self.exchanges.exchange(group.blocks)
        x.load(group)
        x.attach(state)
        rows, gram = self.kept.get(group.index, NOT_KEPT)
        is_known = same_rows(rows, group.rows)
        if not is_known:
            gram = self._sum_and_keep(x)
            self.kept[group.index] = group.rows.copy(), gram
        before: tuple[Part, ...] = ()
        sums: Sequence[Any] = ()
        if is_known or group.epoch:
            # A run that resumed from a checkpoint sums the margins of new rows in the
            # message of a run without interruption, so that the sum has the same bits.
            x.use(gram)
            sums = x.messages("margins")
            before = (x.sample, x.scores) if is_known else (x.scores,)
        parts = self.exchanges.sequence(
            x, before, sums, (x.steps, x.update), once=not is_known
        )
        if not run_watched(self.task, state, group, x, parts):
            parts.run()
        x.finish()
        return state

    def _sum_and_keep(self, x: Exchange) -> Any:
        """Sum Gram and margins of new rows; return the Gram for later epochs."""
        sums = x.messages("gram", "margins")
        before = x.sample, x.products
        self.exchanges.sequence(x, before, sums, (), once=True).run()
        return x.keep()


NOT_KEPT: tuple[Array, Any] = (np.empty(0, np.int64), None)


# CA-SGD with the next Gram in transit: steps wait only for the sum of the margins.
#
# G of the next group does not depend on w. While the sum of this group's margins
# travels, the next Gram is computed; its own sum travels during the recurrence.


@dataclass(frozen=True)
class AheadGroup:
    """A group whose rows are loaded, and whose Gram is summed or in transit."""

    group: Group
    exchange: Exchange
    gram: Any  # the sum under way


class LookAheadGram(Product):
    """CA-SGD with two sums in each exchange, of which one is hidden behind work.

    Members sum the margins, m·K·states words for m rows and K scores, with `states` 1,
    2 with momentum, or 3 with svrg, and wait for them. The sum of the Gram of the next
    exchange overlaps with the steps.
    """

    has_recurrence = True
    is_monitored = True

    def __init__(self, task: Task, exchanges: MemberExchanges) -> None:
        self.task = task
        self.exchanges = exchanges
        # Two exchanges of each size: one takes its steps while the next is made.
        self.turn = 0
        self.prepared: AheadGroup | None = None

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield a message of the margins z and one of the Gram G.

        The sum of G begins in the exchange before.
        """
        yield from (shape.margins, shape.gram)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of each group of arrays of an exchange.

        Dense rows and the message of the Gram count twice, since the next exchange is
        prepared at the same time.
        """
        yield "rows", shape.own_rows() * (1 if shape.density is not None else 2)
        yield shape.message(ahead=True)
        yield shape.vectors()

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Start the sum of the margins, start the next Gram, then take the s steps.

        The next Gram is that of `upcoming`. It is not started here if `upcoming` is
        None, or if the monitor checks this exchange. Return the state, which is changed
        in place.
        """
        ready = self._take(group)
        x = ready.exchange
        x.attach(state)
        sums = x.messages("margins", travels=True)
        parts = self.exchanges.sequence(x, (x.scores,), sums, (x.steps, x.update))
        monitor = self.task.monitor
        if monitor is not None and monitor.is_due(group):
            ready.gram.wait()  # the next Gram is begun when its exchange comes
        if not run_watched(self.task, state, group, x, parts):
            self._run(parts, ready, upcoming)
        x.finish()
        return state

    def finish(self) -> None:
        """Wait for the sum of a Gram that was started ahead, and discard it."""
        if self.prepared is not None:
            self.prepared.gram.wait()
            self.prepared = None

    def _run(
        self, parts: PartSequence, ready: AheadGroup, upcoming: Group | None
    ) -> None:
        if upcoming is None:
            parts.run_beside(None, ready.gram)
            return
        x, ahead = self._ahead(upcoming)
        self.prepared = AheadGroup(upcoming, x, parts.run_beside(ahead, ready.gram))

    def _take(self, group: Group) -> AheadGroup:
        if self.prepared is not None and self.prepared.group is not group:
            self.finish()
        ready = self.prepared
        self.prepared = None
        if ready is None:
            x, ahead = self._ahead(group)
            ready = AheadGroup(group, x, ahead.start())
        return ready

    def _ahead(self, group: Group) -> tuple[Exchange, PartSequence]:
        """Return the next exchange, of the batches of `group`, and its first calls.

        These calls gather its rows, compute its Gram matrix and send it ahead.
        """
        x = self.exchanges.exchange(group.blocks, self.turn)
        self.turn = 1 - self.turn
        x.load(group)
        sums = x.messages("gram", travels=True)
        return x, self.exchanges.sequence(x, (x.sample, x.gram_alone), sums, ())
