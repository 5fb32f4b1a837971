"""Tick-tock scheduling of Wavelet: gradients, or fits, that take turns.

`TickTock` sends one gradient while another is computed (Wang et al., 2021). A rank has
d columns and K classes, and t = K·i + 1 words of tail: i = 1 with an intercept, else 0.

Needs    s = 1, τ = 1, update sgd, momentum, nesterov, nesterov-classic, adagrad or
         adam, product direct, gather or gather-once, one model, a smooth penalty, and
         weights of at least 32 bits.
Refuses  codecs, `hierarchical`, scaled residuals, and `mode` = independent.
Keeps    two gradients (delayed: and one that is late) and the arrays of the rule (adam
         2, adagrad 1, a momentum in 8 bits 1, others 0), d·K words each.
Sends    exact-sum: 2 (d·K + t) words in an exchange, an all-reduce of each bucket of
         either gradient, the tail with the first; d·K + t where `accumulate` batches
         hold all rows of a replica (`AsOne`). delayed: d·K + t. Where R > 2 member 0
         broadcasts the tail to the members, in `AsOne` only if i = 1; delayed also in
         evaluations, so that `messages` is None there.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.base import (
    AgreementSettings,
    GradientSettings,
    RunShape,
    StateShape,
    Supports,
    copied,
)
from hpcsgd.agreements.buckets import Buffer, PlainSender, Tile
from hpcsgd.agreements.codecs.base import Moment
from hpcsgd.agreements.gradient import Gradient, sent_for_gradient, sent_in_place
from hpcsgd.backends.base import Rows
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import duplicate
from hpcsgd.comm.ledger import Ledger, Sent
from hpcsgd.formats import Array
from hpcsgd.precision import Precision
from hpcsgd.settings import setting

# A work item of tick-tock: its own buffer, sender and communicator.


@dataclass
class Item:
    """The work item tick (0) or tock (1): a buffer of sums, and its sender."""

    name: int
    buffer: Buffer
    sender: PlainSender

    # Called with each event, by tests and to draw time lines.
    watchers: ClassVar[list[Callable[[str, int], None]]] = []

    def begin(self) -> None:
        """Clear the sums of the buffer, at the start of an exchange."""
        self.tell("computes")
        self.buffer.clear()

    def send(self, tile: Tile) -> None:
        """Start to send a tile of the buffer, whose sums are complete."""
        if tile is self.buffer.tiles[0]:
            self.sender.begin(self.buffer, Moment(0, 0, 1.0, 1.0))
        self.sender.send(self.buffer, tile)
        if tile is self.buffer.tiles[-1]:
            self.tell("sent")

    def receive(self, tile: Tile) -> None:
        """Wait until the sum of `tile` over replicas has arrived.

        The tail of the buffer (Σr for the intercept, and the row count) arrives with
        the first tile.
        """
        self.sender.wait()
        if tile is self.buffer.tiles[-1]:
            self.tell("arrived")

    def tell(self, event: str) -> None:
        """Call all watchers with an event of this item."""
        for watch in self.watchers:
            watch(event, self.name)


def make_items(
    buffers: tuple[Buffer, Buffer], replicas: Communicator
) -> tuple[Item, Item]:
    """Return tick and tock, each with its own duplicate of `replicas`. Collective."""
    tick, tock = (PlainSender(duplicate(replicas.host_group)) for _ in buffers)
    return Item(0, buffers[0], tick), Item(1, buffers[1], tock)


# Tick-tock: two work items out of phase, one computes while the other travels.
#
# After Wavelet, whose waves of tasks share memory: the peak of one falls into the
# valley of the other. A generalized linear model stores no activations; its peak are
# the rows, margins and residuals of a batch. Items never compute at a time, so that
# both use the memory of one batch. The second item adds its gradient alone, and the
# late one a third. The transfer of one item hides behind the computing of the other.
# `[agreement] mode` names the items:
#
# delayed, the asynchronous schedule of Wavelet and the default of the method `wavelet`:
#   batch after batch; each gradient is applied after the next was computed,
#   w_{k+1} = step(w_k, g_{k-1}(w_{k-1})). All transfers hide; another method than SGD.
# exact-sum: the two halves of a step, at the same weights; one update with both, which
#   is the step on their union. Only the tick's transfer has something to hide behind.
#
# Two fits that share nothing are `hpcsgd.tick_tock`.

MODES = ("exact-sum", "delayed", "independent")


@dataclass(frozen=True)
class TickTockSettings(GradientSettings):
    """The settings of gradients of which one is sent while another is computed."""

    mode: str = setting(
        "exact-sum",
        "sum two gradients for each step of SGD (exact-sum), or apply each one exchange"
        " late (delayed, the default of --method wavelet); independent is two fits, by"
        " hpcsgd.tick_tock",
        choices=MODES,
    )

    reads: ClassVar[frozenset[str]] = frozenset()
    supports: ClassVar[Supports] = Supports(
        codecs=False, leaders=False, loss_scale=False
    )

    @property
    def batches_together(self) -> int:
        """Return how many batches are summed for one step, over tick and tock together.

        For `mode` = delayed, a step takes only one of the two, and its batches are
        counted.
        """
        return self.accumulate * (2 if self.mode == "exact-sum" else 1)

    @property
    def steps_late(self) -> bool:
        """Return whether a gradient is applied only after the next one was computed."""
        return self.mode == "delayed"

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield an error message for `mode` = independent, which would be two fits."""
        if self.mode == "independent":
            yield (
                "runs one fit and mode = 'independent' is two; use hpcsgd.tick_tock, or"
                " --set agreement.mode=exact-sum"
            )


class TickTock(Gradient):
    """Gradients of two halves of a step: the tick is sent while the tock computes."""

    settings: ClassVar[type[AgreementSettings]] = TickTockSettings
    gradients: ClassVar[int] = 2

    @classmethod
    def variant(
        cls, settings: Any, replicas: int, rows: int, batch: int
    ) -> type[Gradient]:
        """Return the class for `mode`: `LateTickTock` for delayed, else `TickTock`.

        It is `AsOne` if `mode` is exact-sum and no transfer can be hidden: with one
        replica, or if the tick has room for all `rows` of the largest replica.
        """
        if settings.mode == "delayed":
            return LateTickTock
        is_one = replicas == 1 or rows <= batch * settings.accumulate
        return AsOne if settings.mode == "exact-sum" and is_one else cls

    def prepare(self, state: State) -> None:
        """Allocate buffers of tick and tock, each with a communicator. Collective."""
        super().prepare(state)
        buffers = self.buffer, self._make_buffer(state)
        self.grid.meet()
        self.items = make_items(buffers, self.grid.replicas)
        self.sender = self.items[0].sender
        self.half = self.inputs.settings.accumulate  # batches of the tick
        self._seen = 0

    @property
    def is_full(self) -> bool:
        """Return whether the next batch is the last one of the tick or of the tock."""
        return self._seen + 1 == self.half or self.is_last

    @property
    def sums(self) -> Buffer:
        """Return the buffer to add the next batch to: the tick's or the tock's."""
        return self.items[self._seen >= self.half].buffer

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch to the tick or the tock; step after the last batch."""
        self._left -= 1
        self._seen += 1
        tick, tock = self.items
        item = tick if self._seen <= self.half else tock
        is_full = self._seen == self.half or not self._left
        self._compute(item, task, rows, residuals, is_full)
        if item is tick and is_full:
            tock.begin()
            if not self._left:  # other replicas may have a tock to send
                self._say(tock)
        if not self._left:
            self._step(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Take the step of the exchange also on a replica that had no rows in it.

        Collective. Such a replica sends sums of zero rows. Then compare the replicas
        if that is due.
        """
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._say(self.items[0])
            self.items[1].begin()
            self._say(self.items[1])
            self._step(state, None)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def facts(self) -> dict[str, Any]:
        """Return entries of the report, with the transfer times of tick and tock."""
        tick, tock = (item.sender.overlap for item in self.items)
        mode = self.inputs.settings.mode
        return {**super().facts(), "mode": mode, **tick.facts(tock)}

    def close(self) -> None:
        """Close the communicators of tick and tock. Collective."""
        is_alone = self.grid.replicas.size == 1
        for item in () if is_alone else getattr(self, "items", ()):
            item.sender.replicas.close()

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return what rank 0 sends in an exchange: two gradients, or one.

        It is one for `mode` = delayed, and where `AsOne` sums tick and tock before
        sending.

        Return None for a delayed gradient whose tail is broadcast to members, since
        every evaluation of the state broadcasts the tail, too.
        """
        settings = shape.settings
        if settings.mode == "delayed":
            return None if shape.shares_tail else sent_in_place(shape)
        if shape.own_rows <= shape.config.schedule.batch * settings.accumulate:
            return sent_for_gradient(shape)
        return 2 * sent_in_place(shape) + shape.to_members(shape.tail)

    @classmethod
    def vectors(cls, shape: StateShape) -> int:
        """Return the number of arrays as large as a state, beside the states.

        They are the moments of the rule, the buffers of tick and tock, and for `mode` =
        delayed the late gradient.
        """
        return shape.moments + 2 + int(shape.settings.mode == "delayed")

    def _begin(self, number: int) -> None:
        self._moment = self.steps.moment(number)
        self._done = number
        self._seen = 0
        self.items[0].begin()

    def _compute(
        self, item: Item, task: Task, rows: Rows, residuals: Array, is_full: bool
    ) -> None:
        """Add Yᵀr of a batch to the buffer of `item`.

        `is_full`: the batch is the last one of `item`. It is added tile by tile, and
        each tile is sent as soon as it is complete.
        """
        buffer = item.buffer
        buffer.count_in(residuals)
        if not is_full:
            self.add_gradient(buffer.gradient, rows, residuals)
            return
        for tile in self._computed(task, buffer, rows, residuals):
            item.send(tile)

    def _say(self, item: Item) -> None:
        """Send the buffer of `item` with sums of zero rows."""
        item.buffer.mark_empty()
        for tile in item.buffer:
            item.send(tile)

    def _step(self, state: State, task: Task | None) -> None:
        """Wait for the sums of tick and tock, and take the step along their total."""
        tick, tock = self.items
        for tick_tile, tock_tile in zip(tick.buffer, tock.buffer, strict=True):
            tick.receive(tick_tile)
            tock.receive(tock_tile)
            tick_tile.gradient[...] += tock_tile.gradient
        tick.buffer.tail[...] += tock.buffer.tail
        self._take_whole(state, tick.buffer.gradient, tick.buffer.tail, task)

    def _take_whole(
        self, state: State, gradient: Array, tail: Array, task: Task | None
    ) -> None:
        """Take a step along `gradient`, a sum over rows, divided by the row count.

        The count is the last word of `tail`. `gradient` is overwritten.
        """
        if task is not None:
            task.clock.start()
        same = self._same_on_members(tail)
        factor = 1.0 / float(tail[-1])
        if self.inputs.shapers:
            gradient *= gradient.dtype.type(factor)
            self._shape_mean(gradient)
            factor = 1.0
        self.steps.take(state, slice(None), gradient, factor, self._moment)
        self._step_intercept(state, same)
        if task is not None:
            task.clock.lap("update")


class AsOne(Gradient, sums_on_devices=True, steps_on_devices=True):
    """One gradient for tick and tock, where neither transfer can be hidden."""

    settings: ClassVar[type[AgreementSettings]] = TickTockSettings


# Tick-tock with one weight vector and gradients that come one batch late.
#
#     w_{k+1} = step(w_k, g_{k-1}(w_{k-1})),    w_1 = w_0
#
# The gradient of a batch travels while all of the next one is computed, and is applied
# after that, at the rate of its own exchange; the penalty is that of the weights it is
# applied to. On a quadratic it is stable for rates below 1/L, where SGD is below 2/L.
# What is still to be applied is part of the state: checkpoints hold it, losses along
# the way are those with it applied, and the end of a run applies it.

GRADIENT = "late_gradient"
TAIL = "late_tail"


class LateTickTock(TickTock):
    """Gradients applied one exchange late; tick and tock alternate by exchange."""

    def prepare(self, state: State) -> None:
        """Allocate the buffers, and the arrays in which a late gradient is saved."""
        super().prepare(state)
        self._late: Item | None = None  # whose sums are being sent
        state.remember(GRADIENT, self.columns)
        state.shared.setdefault(TAIL, np.zeros((2, self.columns)))

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch to the gradient of this exchange.

        After the last batch, send this gradient, and apply that of the exchange before.
        """
        self._left -= 1
        self._compute(self._own, task, rows, residuals, is_full=not self._left)
        if not self._left:
            self._turn(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Take the step of the exchange also on a replica that had no rows in it.

        Collective. Such a replica sends sums of zero rows. Then compare the replicas
        if that is due.
        """
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._say(self._own)
            self._turn(state, None)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def arrive(self, state: State) -> None:
        """Wait for the gradient that is being sent, and store its sum in `state`.

        Collective. Do nothing if no gradient is being sent.
        """
        item = self._late
        self._late = None
        if item is None:
            return
        for tile in item.buffer:
            item.receive(tile)
        state.memory[GRADIENT][...] = item.buffer.gradient
        tail = state.shared[TAIL]
        tail[0] = item.buffer.tail[:-1] if item.buffer.sums else 0.0
        tail[1] = item.buffer.tail[-1]

    def settle(self, state: State, exchanges: int) -> None:
        """Apply the late gradient at the end of a run. Collective."""
        self.arrive(state)
        self._apply_rested(state, exchanges)

    def consensus(self, state: State, exchanges: int) -> State:
        """Return a copy of `state` after the step along the late gradient. Collective.

        The weights of `state` stay as they are.
        """
        self.arrive(state)
        copy = copied(state, state.memory)
        self._apply_rested(copy, exchanges)
        return copy

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return whether replicas have equal states: True unless codecs save arrays.

        The late gradient and the arrays of the rule are equal on all replicas.
        """
        codec_names = set(state.memory) - {GRADIENT, *self.steps.rule.state_names}
        return self.grid.replicas.size == 1 or not codec_names

    @property
    def is_full(self) -> bool:
        """Return whether the next batch is the last of its exchange."""
        return self.is_last

    @property
    def sums(self) -> Buffer:
        """Return the buffer of the item (tick or tock) of this exchange."""
        return self._own.buffer

    @property
    def _own(self) -> Item:
        """Return the item of this exchange; the first exchange has the tick."""
        return self.items[self._done % 2]

    def _begin(self, number: int) -> None:
        self._moment = self.steps.moment(number)
        self._done = number
        self._own.begin()

    def _turn(self, state: State, task: Task | None) -> None:
        """Apply the gradient of the previous exchange; this exchange's is now late."""
        item = self._late
        self._late = self._own
        if item is None:
            self._apply_rested(state, self._done)
            return
        for tile in item.buffer:
            item.receive(tile)
        self._apply(state, item.buffer.gradient, item.buffer.tail, self._done, task)

    def _apply_rested(self, state: State, exchanges: int) -> None:
        """Apply the late gradient that `state` stores, if any.

        Its step has the learning rate of exchange number `exchanges`, counted from 1.
        """
        tail = state.shared[TAIL]
        if not tail[1, 0]:
            return
        words = np.append(tail[0] if state.intercept is not None else [], tail[1, 0])
        gradient = state.memory[GRADIENT]
        self._apply(state, gradient, words, exchanges, None)
        gradient[...], tail[...] = 0.0, 0.0

    def _apply(
        self,
        state: State,
        gradient: Array,
        tail: Array,
        exchanges: int,
        task: Task | None,
    ) -> None:
        """Step along a late gradient, at the rate of exchange number `exchanges`."""
        now = self._moment
        self._moment = self.steps.moment(exchanges - 1)
        self._take_whole(state, gradient, tail, task)
        self._moment = now


# Two pieces of work on one rank that take turns: one computes while the other waits.
#
# They run in threads of their own, but never at the same time. A work that is about to
# wait for a transfer hands over, and continues when it is its turn again. The program
# alone decides the turns, never a clock, so that they are the same on all ranks, and
# all ranks call collectives in one order.


class OtherFailed(BaseException):
    """Raised in a function of `run_alternately` when the other function has failed."""


class Turns:
    """The turn of two functions, 0 and 1, in two threads; function 0 begins."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.turn = 0
        self.active = {0, 1}
        self.failed = False

    def wait_for(self, own: int) -> None:
        """Wait for the turn of function `own`; raise if the other function failed."""
        with self.changed:
            self.changed.wait_for(lambda: self.failed or self.turn == own)
            if self.failed:
                raise OtherFailed

    def yield_turn(self, own: int) -> None:
        """Hand the turn to the other function, and wait until it comes back.

        Return at once if the other function has ended.
        """
        with self.changed:
            if 1 - own not in self.active:
                return
            self.turn = 1 - own
            self.changed.notify_all()
        self.wait_for(own)

    def leave(self, own: int, failed: bool) -> None:
        """Note that function `own` has ended: the other one continues alone.

        If function `own` has failed, the other one stops instead.
        """
        with self.changed:
            self.active.discard(own)
            self.turn, self.failed = 1 - own, self.failed or failed
            self.changed.notify_all()


def run_alternately(works: Sequence[Callable[[Turns], Any]]) -> list[Any]:
    """Run two functions in threads that take turns; return the two results.

    If one of the functions fails, raise its error.
    """
    turns = Turns()
    results: list[Any] = [None, None]
    errors: list[BaseException] = []

    def run(own: int) -> None:
        failed = True
        try:
            turns.wait_for(own)
            results[own] = works[own](turns)
            failed = False
        except OtherFailed:
            pass
        except BaseException as error:  # whatever it is, the other must not wait
            errors.append(error)
        finally:
            turns.leave(own, failed)

    threads = [threading.Thread(target=run, args=(own,)) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def duplicate_communicator(world: Communicator) -> Communicator:
    """Return a communicator of the same ranks, with its own ledger. Collective."""
    layer: Communicator | None = world.split(0, world.rank)
    communicator = layer
    ledger = Ledger()
    while layer is not None:  # through what it is wrapped in
        layer.ledger = ledger
        layer = getattr(layer, "inner", None)
    assert communicator is not None
    return communicator
