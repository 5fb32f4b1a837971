"""The exchange on a host: sampled rows, products and messages, steps, update."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from hpcsgd.backends.base import Backend, StepBatch
from hpcsgd.comm.communicator import Communicator, Message, Pending
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.messages import open_message
from hpcsgd.data.shard import Shard, take
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.families import Family
from hpcsgd.glm.penalties import Models
from hpcsgd.glm.unrolling import Blocks
from hpcsgd.precision import Precision

# What an exchange works on: products pass their task, their state, their group.


class MessageWords(Protocol):
    """Words of a monitor that travel with the margins of the next exchange."""

    @property
    def words(self) -> int:
        """Return how many words wait for the next message."""

    def post(self, room: Array) -> None:
        """Write the words into their place in the message."""

    def judge(self, total: Array) -> None:
        """Compare the sum of the members' words with what it should be."""


class MemberTask(Protocol):
    """The data, the arithmetic and the ranks of one member; nothing in it changes."""

    @property
    def shard(self) -> Shard:
        """Return the rows of this member."""

    @property
    def backend(self) -> Backend:
        """Return the arithmetic of the host."""

    @property
    def members(self) -> Communicator:
        """Return the members of this replica."""

    @property
    def family(self) -> Family:
        """Return the loss."""

    @property
    def precision(self) -> Precision:
        """Return the number formats."""

    @property
    def columns(self) -> int:
        """Return K, the columns of one state of the weights."""

    @property
    def states(self) -> int:
        """Return 1, or 2 with momentum."""

    @property
    def probe(self) -> Array:
        """Return q: scores are read at q · (w, v)."""

    @property
    def clock(self) -> Clock:
        """Return the clock of phases."""

    @property
    def anchored(self) -> bool:
        """Return whether residuals are less those at the second state."""

    @property
    def models(self) -> Models | None:
        """Return several models at once; None for one."""

    @property
    def monitor(self) -> MessageWords:
        """Return the monitor of the recurrence."""

    @property
    def gradient(self) -> Any:
        """Return the consumer that shares gradients with other replicas, or None."""

    @property
    def gradient_sink(self) -> Any:
        """Return the consumer of updates before they are added, or None."""

    @property
    def margin_dtype(self) -> Any:
        """Return the dtype in which margins are summed."""

    @property
    def no_gram(self) -> Array:
        """Return the packed Gram of one step, which is empty."""


class MemberState(Protocol):
    """What evolves: the weights of one member and what all members store alike."""

    weights: Array
    intercept: Array | None
    residuals: Array | None


class MemberGroup(Protocol):
    """The rows of one exchange and the coefficients of its steps."""

    @property
    def rows(self) -> Array:
        """Return local row numbers."""

    @property
    def blocks(self) -> Blocks:
        """Return where each batch begins."""

    @property
    def plan(self) -> Any:
        """Return the coefficients of all s steps, as the backend takes them."""

    @property
    def steps(self) -> tuple[Any, ...]:
        """Return the coefficients of each step alone."""

    @property
    def coefficients(self) -> Any:
        """Return the coefficients in every form."""

    @property
    def place(self) -> tuple[Array, int]:
        """Return the order that the rows come from, and where they begin in it."""


class Scratch:
    """Arrays that are used again: one for each name and shape."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, ...], Array] = {}
        self._messages: dict[tuple[Any, ...], Message] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array, the same one for the same arguments."""
        key = (name, shape, dtype)
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = np.empty(shape, dtype=dtype)
        return found

    def message(
        self,
        members: Communicator,
        name: str,
        words: int,
        form: str,
        travels: bool = False,
    ) -> Message:
        """What members sum in format `form`, the same one for the same arguments.

        It is opened where it is first summed: members that sum in one order, as they
        must, open in one order too. `travels`: it is started, and waited for later.
        """
        key = (name, words, form, travels)
        found = self._messages.get(key)
        if found is None:
            found = open_message(members, words, form, travels)
            self._messages[key] = found
        return found


# Arithmetic that every kind of exchange shares.


def batch_of(task: MemberTask, rows: Array) -> StepBatch:
    """Return targets, weights and offsets of the sampled rows."""
    shard = task.shard
    targets = np.take(shard.targets, rows, axis=0)
    if shard.weights is None and shard.offsets is None:
        return StepBatch(targets, None, None)
    weights = take(shard.weights, rows)
    if task.models is not None:
        weights = task.models.of_columns(weights)
    return StepBatch(targets, weights, take(shard.offsets, rows))


def gather_rows(task: MemberTask, scratch: Scratch, name: str, group: Any) -> Any:
    """Return the sampled rows of this member's columns, widened."""
    out = None
    if not task.shard.is_sparse:
        shape = (group.blocks.rows, task.shard.width)
        out = scratch.array(name, shape, task.precision.working)
    rows = task.backend.gather(*task.shard.at(group.rows), out)
    task.clock.lap("gather")
    return rows


def store_margins(task: Any, margins: Array) -> Array:
    """Round the summed margins to the format they are stored in."""
    stored, summed = task.precision.margin, task.precision.margin_sum
    if get_format(stored).unit_roundoff > get_format(summed).unit_roundoff:
        # What several members read in place is not for one of them to write.
        margins = margins if margins.flags.writeable else margins.copy()
        task.backend.round(margins, stored)
    return margins


def probed(task: MemberTask, weights: Array) -> Array:
    """Return the point at which scores are read: w, or w + μv."""
    if task.states == 1:
        return weights
    point = weights[:, : task.columns]
    momentum = float(task.probe[1])
    if momentum == 0.0:
        return point
    return point + momentum * weights[:, task.columns :]


def score(
    task: MemberTask, state: MemberState, rows: Any, point: Array, out: Array
) -> None:
    """Compute out ← Y w of this member, where another class holds the weights there."""
    if task.gradient is None:
        task.backend.scores(rows, point, out)
    else:
        task.gradient.scores(task, state, rows, point, out)


def movable_intercept(task: MemberTask, state: MemberState) -> Array | None:
    """What residuals move along: a copy, where replicas agree on its gradient first."""
    if task.gradient is None or state.intercept is None:
        return state.intercept
    return state.intercept.copy()


def apply_update(
    task: MemberTask, state: MemberState, rows: Any, residuals: Array, plan: Any
) -> None:
    """Apply weights ← Φ weights + Σ_i gain_i Y_iᵀ r_i, unless a gradient sink takes the
    gradient.
    """
    if task.gradient_sink is None:
        task.backend.apply_update(state.weights, rows, residuals, plan)
    else:
        task.gradient_sink.apply_update(task, state, rows, residuals, plan)


# One member's part of an exchange on a host.


class HostExchange:
    """See `hpcsgd.backends.base.Exchange`; the monitor's words travel with z.

    Members sum  z = Σ_c Y^c w^c  and the strictly-lower blocks of  G = Σ_c Y^c (Y^c)ᵀ,
    packed one behind the other in one message where their formats are equal.
    """

    group: MemberGroup
    state: MemberState
    rows: Any  # the sampled ones, as the backend takes them
    gram: Array  # packed: written before a sum, and its total after it
    margins: Array  # (m, states · K)
    more: Array  # the words of the monitor

    def __init__(self, task: MemberTask, scratch: Scratch, blocks: Blocks) -> None:
        self.task, self.scratch, self.blocks = task, scratch, blocks
        self.margin_shape = blocks.rows, task.states * task.columns
        self._messages: dict[tuple[Any, ...], tuple[HostSum, ...]] = {}

    def load(self, group: Any) -> None:
        """Take the rows of this group next."""
        self.group = group

    def bind(self, state: Any) -> None:
        """Advance this state in the steps that follow."""
        self.state = state

    def sample(self) -> None:
        """Gather the rows, widened."""
        self.rows = gather_rows(self.task, self.scratch, "rows", self.group)

    def products(self) -> None:
        """Compute the Gram and the margins of this member."""
        self.gram_alone()
        self.scores()

    def gram_alone(self) -> None:
        """Compute the Gram of this member."""
        task = self.task
        task.backend.strict_gram(self.rows, self.blocks, self.gram)
        task.clock.lap("gram")

    def scores(self) -> None:
        """Compute the margins of this member."""
        task = self.task
        task.monitor.post(self.more)
        task.backend.scores(self.rows, self.state.weights, self.margins)
        task.clock.lap("scores")

    def messages(self, *names: str, travels: bool = False) -> Sequence["HostSum"]:
        """Return the sums of `gram` and `margins`: what is computed next goes there.

        `travels`: they are started, and waited for later.
        """
        key = names, travels, self.task.monitor.words
        sums = self._messages.get(key)
        if sums is None:
            sums = self._messages[key] = tuple(self._open(names, travels))
        for message in sums:
            message.aim()
        return sums

    def _open(self, names: tuple[str, ...], travels: bool) -> Iterator["HostSum"]:
        """Yield one message where the formats of all are equal, else one for each."""
        task, precision = self.task, self.task.precision
        margins = self.margin_shape[0] * self.margin_shape[1] + task.monitor.words
        words = {"gram": self.blocks.gram_words, "margins": margins}
        forms = {"gram": precision.gram_wire, "margins": precision.margin_sum}
        together = [names] if precision.one_message else [(name,) for name in names]
        for part in together:
            count, form = sum(words[name] for name in part), forms[part[-1]]
            message = self.scratch.message(
                task.members, "+".join(part), count, form, travels
            )
            yield HostSum(self, message, part, travels)

    def place(self, names: tuple[str, ...], values: Array) -> None:
        """Take the arrays of these names from a message, or from its total."""
        if "gram" in names:
            words = self.blocks.gram_words
            self.gram, values = values[:words], values[words:]
        if "margins" in names:
            shape = self.margin_shape
            words = shape[0] * shape[1]
            self.margins, self.more = values[:words].reshape(shape), values[words:]

    def steps(self) -> None:
        """Take the s steps: residuals from summed products."""
        task, state, group = self.task, self.state, self.group
        margins, batch = store_margins(task, self.margins), batch_of(task, group.rows)
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
        """Add the steps to the weights."""
        state, residuals = self.state, self.state.residuals
        assert residuals is not None
        apply_update(self.task, state, self.rows, residuals, self.group.plan)
        self.task.clock.lap("update")

    def finish(self) -> None:
        """Do nothing: the state of a host is written step by step."""

    def keep(self) -> Array:
        """Return a lasting copy of the summed Gram. Collective."""
        self.task.clock.start()
        kept = self.task.members.keep(self.gram)
        self.task.clock.lap("gram")
        return kept

    def use(self, kept: Array) -> None:
        """Take the steps with a Gram that was kept."""
        self.gram = kept

    def host_margins(self) -> Array:
        """Return the summed margins."""
        return self.margins

    def host_rows(self) -> Any:
        """Return the sampled rows, as the backend of the host takes them."""
        return self.rows

    def host_gram(self) -> Array:
        """Return the summed Gram, packed."""
        return self.gram

    def host_state(self) -> Any:
        """Return the weights before the update, and the residuals of the steps."""
        return self.state


class HostSum:
    """A message of an exchange, and the places of its total."""

    def __init__(
        self,
        exchange: HostExchange,
        message: Message,
        names: tuple[str, ...],
        travels: bool,
    ) -> None:
        self.exchange, self.message = exchange, message
        self.names, self.travels = names, travels
        self._written: Array

    def aim(self) -> None:
        """Let the exchange write its products into the message."""
        self._written = self.message.array
        self.exchange.place(self.names, self._written)

    def sum(self) -> None:
        """Sum it over members."""
        if self.travels:
            self.start().wait()
        else:
            self.arrive(self.message.sum("products"))

    def start(self) -> Pending:
        """Begin the sum; `wait` puts the total into its places."""
        pending = self.message.start("products")
        self.exchange.task.clock.lap("communicate")
        return Pending(pending.buffer, lambda: self.arrive(pending.wait()))

    def arrive(self, total: Array) -> None:
        """Put the total into its places."""
        exchange = self.exchange
        exchange.task.clock.lap("communicate")
        if total is not self._written:
            exchange.place(self.names, total)
        if "margins" in self.names:
            exchange.task.monitor.judge(exchange.more)


Part = Callable[[], None]
NOTHING: Array = np.empty(0)
NO_SUMS = Pending(NOTHING)


class HostSequence:
    """See `hpcsgd.backends.base.PartSequence`: every part is a call."""

    def __init__(
        self, before: Sequence[Part], sums: Sequence[HostSum], after: Sequence[Part]
    ) -> None:
        self._before, self._sums, self._after = before, sums, after

    def run(self) -> None:
        """Call all parts."""
        for part in self._before:
            part()
        for message in self._sums:
            message.sum()
        for part in self._after:
            part()

    def up_to_sums(self) -> None:
        """Call the parts up to the sums, and wait for these."""
        for part in self._before:
            part()
        for message in self._sums:
            message.sum()

    def start(self) -> Pending:
        """Call the parts ahead of the sums, and begin these."""
        for part in self._before:
            part()
        pending = [message.start() for message in self._sums]
        return Pending(NOTHING, lambda: wait_for_all(pending))

    def run_beside(self, ahead: "HostSequence | None", earlier: Pending) -> Pending:
        """Call all parts; begin `ahead` while the sums are under way.

        The parts behind the sums need `earlier`, too. Returns the sums of `ahead`.
        """
        own = self.start()
        following = NO_SUMS if ahead is None else ahead.start()
        own.wait()
        earlier.wait()
        for part in self._after:
            part()
        return following


def wait_for_all(pending: Sequence[Pending]) -> None:
    """Wait for sums in the order in which they were begun."""
    for one in pending:
        one.wait()


class HostExchanges:
    """See `hpcsgd.backends.base.MemberExchanges`: those of one member on a host."""

    def __init__(self, task: MemberTask) -> None:
        self.task = task
        self.scratches: dict[int, Scratch] = {}
        self._exchanges: dict[tuple[Blocks, int], HostExchange] = {}

    def exchange(self, blocks: Blocks, number: int = 0) -> HostExchange:
        """Return the exchange of these sizes; `number` tells several of them apart."""
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
        """Return the parts in their order; `once`: they do not come again."""
        return HostSequence(before, sums, after)
