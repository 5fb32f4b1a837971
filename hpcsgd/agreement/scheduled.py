"""Transfers with priorities and credit that cross the step (after ByteScheduler).

The gradient travels in pieces, those first whose columns the next scores need first.
Nobody waits at the end of an exchange: the next one gathers its rows, takes its first
columns as they arrive, steps them, and adds their part of the scores

    z ← z + Y[:, b] w[b]

while the others still travel. Whoever else wants the weights waits for all of them
before (`arrive`). Scores are always added up tile by tile in one order, so that no bit
depends on what was under way when.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcsgd.agreement.buckets import Buffer, Tile
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.means import Made
from hpcsgd.agreement.scheduled_queue import Queue
from hpcsgd.agreement.scheduled_tuner import Tuning
from hpcsgd.agreement.scheduled_wire import AsTheyAre, Encoded, Ordered
from hpcsgd.agreement.senders import Plain
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import duplicate
from hpcsgd.comm.on_device import of_hosts
from hpcsgd.products.base import Array, Rows, State, Task
from hpcsgd.products.direct import probed


class Scheduled(Gradient):
    """A gradient agreement whose tiles are stepped when somebody needs them."""

    buffer: Ordered
    own: Communicator | None = None  # of its pieces

    def prepare(self, state: State) -> None:
        """The buffer, the wire, the queue before it, and what is being tuned."""
        super().prepare(state)
        asked = self.means.settings
        self.wire = self._open()
        self.order = self.buffer.in_order(asked.order)
        self.buffer.going = [self.buffer.tiles[number] for number in self.order]
        # Nor where two fits take turns at waits, which have to be those of the program.
        has_turns = self.grid.world.ledger.gives_way is not None
        polls = self.order == sorted(self.order) and not has_turns
        self.partition = asked.partition
        self.queue = Queue(self.wire, asked.credit * 2**20, polls)
        self._travels = [False] * len(self.buffer.tiles)
        self._coming, self._is_begun = 0, False
        self._is_good = True
        self.tuning = Tuning(self, state) if asked.tune_schedule else None

    def _make_buffer(self, state: State, kind: type[Made]) -> Ordered:  # type: ignore[override]
        # What a device sums into is made there, and in this order already.
        return super()._make_buffer(state, Ordered if kind is Buffer else kind)  # type: ignore[return-value]

    def _open(self) -> AsTheyAre | Encoded:
        """Pieces start when there is credit, here earlier and there later: between them
        nothing else may be said on their communicator.
        """
        if not isinstance(self.sender, Plain):
            return Encoded(self.sender, self.buffer)
        self.grid.meet()
        self.own = duplicate(of_hosts(self.grid.replicas))
        self.sender = Plain(self.own)
        return AsTheyAre(self.sender)

    def close(self) -> None:
        """The communicator of its own and groups of leaders, with all replicas."""
        super().close()
        if self.own is not None and self.own.size > 1:
            self.own.close()

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """An exchange; the last one may still be under way."""
        self._coming = epoch * self.steps.each + index
        self._is_begun = False
        self._left = batches

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """Tile by tile, as they arrive; `point` is from before that."""
        tiles, room = self.buffer.tiles, None
        for number, tile in enumerate(tiles):
            self._need(state, number, task)
            there = probed(task, state.weights[tile.columns])
            if number == 0:
                task.backend.scores(self._columns(rows, tile), there, out)
                continue
            room = np.empty_like(out) if room is None else room
            task.backend.scores(self._columns(rows, tile), there, room)
            out += room
            self.queue.pump()

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Tile by tile, as they arrive; after the last one their room is free."""
        for number, tile in enumerate(self.buffer.tiles):
            self._need(state, number, task)
            yield tile.columns
        self._begin(self._coming)

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch; after the last one, let it travel."""
        if not self._is_begun:
            self._begin(self._coming)
        self._left -= 1
        self._flag_overflow()
        self.buffer.count_in(residuals)
        if self._left:
            self._add(self.buffer.gradient, rows, residuals)
            return
        self.sender.begin(self.buffer, self._moment)
        for number in self.order:
            tile = self.buffer.tiles[number]
            self._add(tile.gradient, self._columns(rows, tile), residuals)
            task.clock.lap("update")
            if not self.sender.wants_norm:
                self._is_ready(number, tile)
            task.clock.start()
        if self.sender.wants_norm:
            self._all_are_ready()

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Where this replica had no rows: nothing, zero times, in the same order."""
        if self._done != exchanges - 1:
            self.arrive(state)
            self._begin(exchanges - 1)
            self.buffer.say_nothing()
            self.sender.begin(self.buffer, self._moment)
            self._all_are_ready()
        if self.tuning is not None:
            self.tuning.after_exchange(state)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def arrive(self, state: State) -> None:
        """All tiles, and their steps."""
        for number in range(len(self.buffer.tiles)):
            self._need(state, number, None)

    def settle(self, state: State, exchanges: int) -> None:
        """The end of a run waits for its last step."""
        self.arrive(state)

    def consensus(self, state: State, exchanges: int) -> State:
        """The state itself, once it is there."""
        self.arrive(state)
        return state

    def use(self, state: State, partition: float, credit: float) -> None:
        """Another schedule, in MiB, from the next exchange on; all ranks alike."""
        self.arrive(state)
        self.partition = partition
        self.queue.allow(credit * 2**20)

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        tuned = {} if self.tuning is None else self.tuning.facts()
        return {
            **super().facts(),
            "messages": self._messages(),
            "partition": self.partition,
            "credit": self.queue.limit / 2**20,
            "most_in_flight": self.queue.most,
            **tuned,
        }

    def _begin(self, number: int) -> None:
        super()._begin(number)
        self._is_begun = True

    def _messages(self) -> int:
        """Of an exchange."""
        pieces = (self._pieces(tile) for tile in self.buffer.tiles)
        return sum(len(of_tile) for of_tile in pieces)

    def _pieces(self, tile: Tile) -> Sequence[Any]:
        return self.wire.pieces(self.buffer, tile, self.partition)

    def _all_are_ready(self) -> None:
        if self.sender.wants_norm:
            self.sender.measure(self.buffer)
        for number in self.order:
            self._is_ready(number, self.buffer.tiles[number])

    def _is_ready(self, number: int, tile: Tile) -> None:
        self._travels[number] = True
        for piece in self._pieces(tile):
            self.queue.push(piece)
        self.queue.pump()

    def _need(self, state: State, number: int, task: Task | None) -> None:
        """Wait for a tile and step it, unless that is done; the first one first."""
        if not self._travels[number]:
            return
        if self.means.shapers:
            self._need_all(state)
            return
        if task is not None:
            task.clock.lap("scores")
        self.queue.take(number)
        if number == 0:  # the tail is here
            self._is_good = self._counts(state)
        self._step_tile(state, number, self.wire.factor(number), task)

    def _step_tile(
        self, state: State, number: int, factor: float, task: Task | None
    ) -> None:
        self._travels[number] = False
        if not self._is_good:
            return
        self._take(state, self.buffer.tiles[number], factor, task)
        if number == 0 and state.intercept is not None:
            tail = self._tail()
            mean = tail[: self.buffer.sums] / tail[-1]
            self.steps.take_intercept(state, mean, self._moment)

    def _need_all(self, state: State) -> None:
        """Who shapes a gradient has to see all of it."""
        self._receive_all()
        self._is_good = self._counts(state)
        self._shape(self._is_good)
        for number in range(len(self.buffer.tiles)):
            self._step_tile(state, number, 1.0, None)

    def _receive(self, tile: Tile) -> float:
        number = self.buffer.tiles.index(tile)
        self.queue.take(number)
        return self.wire.factor(number)
