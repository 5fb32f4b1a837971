"""DDP: replicas agree on the gradient of every step, and take the same step.

g = Σ_p s_p / Σ_p n_p,  s_p = Yᵀr of this replica's batch, n_p its rows

Sums and counts travel, never means of means: with R replicas a step is that of one
process on the union of their batches, however uneven they are. A replica whose rows are
used up says nothing and counts nothing, and steps along. Columns travel in tiles, each
sent while the rest of Yᵀr is computed, in one order on all replicas.
"""

from typing import Any

import numpy as np

from hpcsgd.agreement.adding import Adder
from hpcsgd.agreement.asked import Asked
from hpcsgd.agreement.base import Agreement
from hpcsgd.agreement.buckets import Tile
from hpcsgd.agreement.by_leaders import ByLeaders
from hpcsgd.agreement.debts import Debts
from hpcsgd.agreement.means import Made, Means
from hpcsgd.agreement.shaping import Whole
from hpcsgd.codecs import Moment
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, Rows, State, Task
from hpcsgd.updates.codes8 import Eight

LOSS_SCALE = "loss_scale"
OF_CODECS = "codec_"  # names of what they keep


class Gradient(Asked, Agreement):
    """Takes the gradient of every batch, and steps when all replicas have said theirs.

    As a `Taker` it is given residuals; the sums go into the buckets they travel in.
    """

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, 1)
        self.means = means
        self.check = means.check
        self.steps = means.steps
        self.backend = means.backend
        self.columns = means.columns
        self._adder = Adder(means.backend)
        self._left = 0  # batches of this exchange that are still to come
        self._done = -1  # the last exchange that was taken
        self._moment = Moment(0, 0, 1.0, 1.0)
        self.debts = Debts(means.owes)

    def prepare(self, state: State) -> None:
        """The buffer, cut into buckets, and what codecs keep."""
        self.buffer = self._make_buffer(state, self.means.buffer)
        if self.means.loss_scale is not None:
            state.shared.setdefault(LOSS_SCALE, self.means.loss_scale.kept())
        self.sender = self.means.opener(state, self.buffer)
        self.steps.prepare(state, self.columns)
        for shaper in self.means.shapers:
            shaper.prepare(state)

    def _make_buffer(self, state: State, kind: type[Made]) -> Made:
        return kind(
            len(state.weights),
            self.columns,
            state.weights.dtype,
            self.means.buckets(len(state.weights), state.weights.dtype.itemsize),
            state.intercept is not None,
            self.steps.rule.unit,
            flagged=self.means.loss_scale is not None,
        )

    def start(self, state: State, exchanges: int) -> None:
        """The scale of residuals goes on where it was, and debts are paid."""
        if self.means.loss_scale is not None:
            self.means.loss_scale.put_back(state.shared[LOSS_SCALE])
        self.debts.settle(state, self.steps.rule, self.steps.moment(exchanges))

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Buckets too, where there are some, in the order in which they go."""
        tiles = getattr(self, "buffer", ())
        return {
            **super().plan_in_words(state),
            "buckets": " ".join(f"{t.columns.start}:{t.columns.stop}" for t in tiles),
            "codec": repr(self.means.settings.codec),
            "exchanges of an epoch": repr(self.steps.each),
        }

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """An exchange of so many batches, whose gradients are one message."""
        self._begin(epoch * self.steps.each + index)
        self._left = batches

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """Every replica holds its weights."""
        task.backend.scores(rows, point, out)

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch; after the last one, say it and step.

        A tile is sent as soon as it is there, and the next one computed meanwhile;
        where the norm of all tiles is wanted, they are sent after the last one.
        """
        self._left -= 1
        self._flag_overflow()
        self.buffer.count_in(residuals)
        if self._left:
            self._add(self.buffer.gradient, rows, residuals)
            return
        self._finish_sums(state)
        self.sender.begin(self.buffer, self._moment)
        for tile in self.buffer:
            self._add(tile.gradient, self._columns(rows, tile), residuals)
            self._finish_tile(state, tile)
            task.clock.lap("update")
            if not self.sender.wants_norm:
                self.sender.send(self.buffer, tile)
            task.clock.start()  # what a sum takes is booked by the ledger
        if self.sender.wants_norm:
            self._send_whole()
        self._step(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Where this replica had no rows: nothing, zero times, and the same step."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._join(state)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Always, but for what codecs keep."""
        own = set(state.memory) - set(self.steps.rule.kept)
        return self.grid.replicas.size == 1 or not own

    def memory(self, state: State) -> dict[str, Array]:
        """What is kept in eight bits goes to checkpoints as numbers, on any grid."""
        return {
            name: kept.decoded() if isinstance(kept, Eight) else kept
            for name, kept in state.memory.items()
        }

    def remember(self, state: State, name: str, kept: Array) -> None:
        """And comes back to the bits that it was in."""
        held: Any = state.memory[name]
        if isinstance(held, Eight):
            held.encode(kept)
        else:
            super().remember(state, name, kept)

    def inherit(self, state: State, name: str, kept: Array) -> None:
        """One replica encodes nothing: what several still owed it pays at once."""
        if name.startswith(OF_CODECS):
            self.debts.note(name.removeprefix(OF_CODECS), kept)

    def agree(self, state: State, purpose: str) -> None:
        """They never disagree."""

    def updates(self, batches: int) -> int:
        """One step, of all batches together."""
        return 1

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        shaped = {
            key: said
            for shaper in self.means.shapers
            for key, said in shaper.facts().items()
        }
        return {
            **shaped,
            "buckets": len(self.buffer.tiles),
            "codec": self.sender.codec,
            **self.sender.facts(),
            "mended_replicas": self.check.mended,
            **self.sender.overlap.facts(),
            **self.buffer.facts(),
        }

    def close(self) -> None:
        """The groups of leaders, where there are some."""
        sender = getattr(self, "sender", None)
        if isinstance(sender, ByLeaders):
            sender.close()

    def _alike(self, state: State) -> list[Array]:
        """What all replicas hold the same of, beside their weights."""
        found = list(state.shared.values())
        for name in self.steps.rule.kept:
            kept: Any = state.memory[name]
            is_eight = isinstance(kept, Eight)
            found += [kept.codes, kept.scales] if is_eight else [kept]
        return found

    def _join(self, state: State) -> None:
        """Say nothing, and step along."""
        self.buffer.say_nothing()
        self.sender.begin(self.buffer, self._moment)
        self._send_whole()
        self._step(state, None)

    def _send_whole(self) -> None:
        """Send all tiles, which are complete."""
        if self.sender.wants_norm:
            self.sender.measure(self.buffer)
        for tile in self.buffer:
            self.sender.send(self.buffer, tile)

    def _begin(self, number: int) -> None:
        self.buffer.clear()
        self._moment = self.steps.moment(number)
        self._done = number

    def _finish_sums(self, state: State) -> None:
        """Σr and the count of this exchange are complete."""

    def _finish_tile(self, state: State, tile: Tile) -> None:
        """So is Yᵀr of a tile, which is sent next."""

    def _add(self, gradient: Array, rows: Rows, residuals: Array) -> None:
        self._adder.add(gradient, rows, residuals)

    def _columns(self, rows: Rows, tile: Tile) -> Rows:
        """Of one tile; all of them where they cannot be cut, which are then one."""
        if len(self.buffer.tiles) == 1:
            return rows
        return self.backend.some_columns(rows, tile.columns)

    def _step(self, state: State, task: Task | None) -> None:
        """Tile by tile, as they arrive; all together where they are shaped first."""
        shapes, counts = bool(self.means.shapers), True
        if shapes:
            self._receive_all()
            counts = self._counts(state)
            self._shape(counts)
        for tile in self.buffer:
            factor = 1.0 if shapes else self._receive(tile)
            if tile is self.buffer.tiles[0] and not shapes:  # the tail is here
                counts = self._counts(state)
            if counts:
                self._take(state, tile, factor, task)
        if state.intercept is not None and counts:
            tail = self._tail()
            mean = tail[: self.buffer.sums] / tail[-1]
            self.steps.take_intercept(state, mean, self._moment)

    def _take(self, state: State, tile: Tile, factor: float, task: Task | None) -> None:
        """The step of one tile."""
        if task is not None:
            task.clock.start()
        self.debts.add_to(tile, factor)
        self.steps.take(state, tile.columns, tile.gradient, factor, self._moment)
        if task is not None:
            task.clock.lap("update")

    def _flag_overflow(self) -> None:
        """Residuals that do not fit their format: no replica may take this step."""
        scale = self.means.loss_scale
        if scale is not None and scale.overflowed:
            self.buffer.flag()

    def _counts(self, state: State) -> bool:
        """Whether all residuals of all replicas fitted; their scale adapts alike."""
        scale = self.means.loss_scale
        if scale is None:
            return True
        kept = state.shared[LOSS_SCALE]
        overflowed = bool(self.sender.tail()[-2])
        scale.settle(overflowed)
        kept[...] = scale.kept()
        return not overflowed

    def _receive(self, tile: Tile) -> float:
        """Wait for a tile; the mean gradient is what it holds, times this."""
        return self.sender.receive(self.buffer, tile)

    def _receive_all(self) -> None:
        for tile in self.buffer:
            factor = self._receive(tile)
            tile.gradient[...] *= tile.gradient.dtype.type(factor)

    def _shape(self, counts: bool) -> None:
        """What is left out is nothing that shapers should remember."""
        if counts:
            self._shape_mean(self.buffer.gradient)

    def _shape_mean(self, mean: Array) -> None:
        whole = Whole(self.means.held, self._total)
        for shaper in self.means.shapers:
            shaper.shape(mean, whole, self._moment)

    def _total(self, words: Array) -> Array:
        """Over members, who hold other columns of the same mean gradient."""
        return self.grid.members.sum(words, "agreement")

    def _tail(self) -> Array:
        """Σ [Σr | count], the same on all members, who each summed their own."""
        return self._same_on_members(self.sender.tail())

    def _same_on_members(self, tail: Array) -> Array:
        tail = tail.astype(np.float64)
        if self.grid.replicas.size > 2 and self.grid.members.size > 1:
            self.grid.members.broadcast(tail, 0, "agreement")
        return tail
