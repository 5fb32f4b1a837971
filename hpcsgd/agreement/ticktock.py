"""Tick-tock: two work items out of phase, one computes while the other travels.

After Wavelet, whose gain in memory does not exist here: a generalized linear model
stores no activations. What stays is that the transfer of one item hides behind the
computing of the other. `[agreement] mode` says what the items are:

exact-sum: the two halves of a step, at the same weights; one update with both, which is
    the step on their union. Only the tick's transfer has something to hide behind.
delayed: batch after batch; each gradient is applied after the next batch was computed,
    w_{k+1} = step(w_k, g_{k-1}(w_{k-1})). All transfers hide; another method than SGD.

Two fits that share nothing are `hpcsgd.tick_tock`.
"""

from typing import Any

from hpcsgd.agreement.buckets import Buffer
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.ticktock_items import Item, make_items
from hpcsgd.products.base import Array, Rows, State, Task

MODES = ("exact-sum", "delayed", "independent")


class TickTock(Gradient):
    """Two halves of one step: the tick travels while the tock is computed."""

    def prepare(self, state: State) -> None:
        """Two buffers, and two communicators."""
        super().prepare(state)
        buffers = self.buffer, self._make_buffer(state, self.means.buffer)
        self.grid.meet()
        self.items = make_items(buffers, self.grid.replicas)
        self.sender = self.items[0].sender
        self.half = self.means.settings.accumulate  # batches of the tick
        self._seen = 0

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """An exchange of so many batches: the tick's, then the tock's."""
        self._begin(epoch * self.steps.each + index)
        self._left = batches

    @property
    def is_full(self) -> bool:
        """That of either item."""
        return self._seen + 1 == self.half or self.is_last

    @property
    def sums(self) -> Buffer:
        """The tick's, then the tock's."""
        return self.items[self._seen >= self.half].buffer

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch to its item; step after the last one of the tock."""
        self._left -= 1
        self._seen += 1
        tick, tock = self.items
        item = tick if self._seen <= self.half else tock
        is_full = self._seen == self.half or not self._left
        self._compute(item, task, rows, residuals, is_full)
        if item is tick and is_full:
            tock.begin()
            if not self._left:  # others may have something to say
                self._say(tock)
        if not self._left:
            self._step(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Where this replica had no rows: nothing, zero times, and the same step."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._say(self.items[0])
            self.items[1].begin()
            self._say(self.items[1])
            self._step(state, None)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def facts(self) -> dict[str, Any]:
        """For the report of a run; transfers of both items together."""
        own = [item.sender.overlap.facts() for item in self.items]
        transfer, hidden = (
            sum(float(one[name]) for one in own)
            for name in ("transfer_seconds", "hidden_seconds")
        )
        return {
            **super().facts(),
            **self._bytes(),
            "mode": self.means.settings.mode,
            "transfer_seconds": transfer,
            "hidden_seconds": hidden,
            "hidden_share": hidden / transfer if transfer else 0.0,
        }

    def _bytes(self) -> dict[str, int]:
        """Between host and device, of both items."""
        tick, tock = (item.buffer.facts() for item in self.items)
        return {name: said + tock[name] for name, said in tick.items()}

    def close(self) -> None:
        """Both communicators, with all replicas."""
        is_alone = self.grid.replicas.size == 1
        for item in () if is_alone else getattr(self, "items", ()):
            item.sender.replicas.close()

    def _begin(self, number: int) -> None:
        self._moment = self.steps.moment(number)
        self._done, self._seen = number, 0
        self.items[0].begin()

    def _compute(
        self, item: Item, task: Task, rows: Rows, residuals: Array, is_full: bool
    ) -> None:
        """Add a batch; the last one tile by tile, each sent as soon as it is there."""
        buffer = item.buffer
        buffer.count_in(residuals)
        if not is_full:
            self._add(buffer.gradient, rows, residuals)
            return
        for tile in buffer:
            self._add(tile.gradient, self._columns(rows, tile), residuals)
            task.clock.lap("update")
            item.send(tile)
            task.clock.start()  # what a sum takes is booked by the ledger

    def _say(self, item: Item) -> None:
        """Nothing: it is as it began."""
        item.buffer.say_nothing()
        for tile in item.buffer:
            item.send(tile)

    def _step(self, state: State, task: Task | None) -> None:
        """Both items' sums as one gradient, then the step of every other agreement."""
        tick, tock = self.items
        for own, other in zip(tick.buffer, tock.buffer, strict=True):
            tick.receive(own)
            tock.receive(other)
            own.gradient[...] += other.gradient
        tick.buffer.tail[...] += tock.buffer.tail
        self._take_whole(state, tick.buffer.gradient, tick.buffer.tail, task)

    def _take_whole(
        self, state: State, gradient: Array, tail: Array, task: Task | None
    ) -> None:
        """A step along a sum of gradients (destroyed), whose tail says of how many."""
        if task is not None:
            task.clock.start()
        count, factor = self._same_on_members(tail), 1.0 / float(tail[-1])
        if self.means.shapers:
            gradient *= gradient.dtype.type(factor)
            self._shape_mean(gradient)
            factor = 1.0
        self.steps.take(state, slice(None), gradient, factor, self._moment)
        if state.intercept is not None:
            self.steps.take_intercept(state, count[:-1] / count[-1], self._moment)
        if task is not None:
            task.clock.lap("update")


class AsOne(Gradient):
    """Both halves at once, as ddp: where no half has anything to hide behind."""
