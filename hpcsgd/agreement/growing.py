"""Batches that grow where gradients have settled (Accordion's second form).

An exchange is up to A batches. While gradients change, each of them is a message and a
step; from a look on at which they did not, the batches of an exchange are one message
and one step, that of a batch A times larger, at A times the rate. Batches never become
smaller again.

Looks are those of `hpcsgd/codecs/regime.py`, at the ends of epochs, over all columns.
Rank 0 decides for all: nobody may send what others do not wait for.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.agreement.buckets import Tile
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.means import Means
from hpcsgd.codecs.regime import FIRST, HIGHS, LOWS, Regime
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, Rows, State, Task

NAME = "accordion"
TOTAL = "accordion_total"  # the name of G among what is saved
PURPOSE = "agreement"


class Growing(Gradient):
    """A gradient agreement whose exchange is several steps at first."""

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, means)
        self.times = int(means.settings.accumulate)  # A
        self._step_in = 0  # steps that this exchange has taken

    def prepare(self, state: State) -> None:
        """And room for what is seen: it outlives a change of the grid."""
        super().prepare(state)
        asked = self.means.accordion
        total = state.remember(TOTAL, self.columns)
        self.regime = Regime(total, asked.eta, asked.interval)
        record = np.tile(FIRST[:, None], self.columns)
        self.regime.record = state.shared.setdefault(NAME, record)[:, 0]

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """A message for each batch, or one for all of them."""
        super().begin(epoch, index, batches)
        if self.regime.is_low:
            self._left = 1

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Step after every batch, or after the last."""
        super().descend(task, state, rows, residuals, plan)
        if self._step_in and self._step_in < self._steps_of(self._done):
            self._begin_step(self._done)
            self._left = 1

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Steps that others take alone; then look, where an epoch is over."""
        number = exchanges - 1
        if self._done != number:
            self._begin(number)
        while self._step_in < self._steps_of(number):
            self._begin_step(number)
            self._join(state)
        self.check.after_exchange(state, exchanges, self._alike(state))
        if exchanges % self.steps.each == 0 and self.regime.watches(self._moment):
            self._look(exchanges)

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """G is the same everywhere."""
        others = replace(
            state, memory={k: v for k, v in state.memory.items() if k != TOTAL}
        )
        return super().holds_one_state(others, exchanges)

    def updates(self, batches: int) -> int:
        """One for each batch, or one."""
        return batches if self.regime.is_low else 1

    def steps_taken(self, planned: int) -> int:
        """As it counted them."""
        return int(self.regime.record[LOWS] + self.regime.record[HIGHS])

    def facts(self) -> dict[str, Any]:
        """Steps of either kind."""
        record = self.regime.record
        counts = {"small_steps": int(record[LOWS]), "large_steps": int(record[HIGHS])}
        return super().facts() | counts

    def _begin(self, number: int) -> None:
        self._step_in = 0
        self._begin_step(number)

    def _begin_step(self, number: int) -> None:
        """Steps are numbered through; the rate is that of the exchange."""
        super()._begin(number)
        grows = not self.regime.is_low and self.means.accordion.scale_rate
        factor, moment = self.times if grows else 1, self._moment
        self._moment = replace(
            moment,
            number=self.steps_taken(number),
            rate=moment.rate * factor,
            next_rate=moment.next_rate * factor,
        )

    def _step(self, state: State, task: Task | None) -> None:
        super()._step(state, task)
        self._step_in += 1
        self.regime.count(self._moment)

    def _take(self, state: State, tile: Tile, factor: float, task: Task | None) -> None:
        if not self.means.shapers:
            self._watch(tile, factor)
        super()._take(state, tile, factor, task)

    def _shape(self, counts: bool) -> None:
        for tile in self.buffer if counts else ():
            self._watch(tile, 1.0)
        super()._shape(counts)

    def _watch(self, tile: Tile, factor: float) -> None:
        """Sum the gradients that steps are taken by, before they are shaped."""
        if self.regime.watches(self._moment):
            self.regime.total[tile.columns] += factor * tile.gradient

    def _steps_of(self, number: int) -> int:
        """Of all replicas, in this exchange."""
        if not self.regime.is_low:
            return 1
        return self.means.batches[number % self.steps.each]

    def _look(self, exchanges: int) -> None:
        """What rank 0 makes of |G|², which members sum."""
        regime, moment = self.regime, self.steps.moment(exchanges)
        square = float(self._total(np.array([regime.take_square()]))[0])
        small = regime.is_low and regime.verdict(moment, square)
        mode = np.array([small], dtype=np.int32)
        self.grid.world.broadcast(mode, 0, PURPOSE)
        regime.turn(bool(mode[0]), moment, square)
