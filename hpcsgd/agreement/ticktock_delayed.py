"""Tick-tock with one weight vector and gradients that come one batch late.

    w_{k+1} = step(w_k, g_{k-1}(w_{k-1})),    w_1 = w_0

The gradient of a batch travels while all of the next one is computed, and is applied
after that, at the rate of its own exchange; the penalty is that of the weights it is
applied to. On a quadratic it is stable for rates below 1/L, where SGD is below 2/L.
What is still to be applied is part of the state: checkpoints hold it, losses along the
way are those with it applied, and the end of a run applies it.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.agreement.buckets import Buffer
from hpcsgd.agreement.ticktock import TickTock
from hpcsgd.agreement.ticktock_items import Item
from hpcsgd.products.base import Array, Rows, State, Task

GRADIENT, TAIL = "late_gradient", "late_tail"


class LateTickTock(TickTock):
    """Items take turns, exchange by exchange."""

    def prepare(self, state: State) -> None:
        """And room for what is late where a checkpoint is made."""
        super().prepare(state)
        self._late: Item | None = None  # that travels
        state.remember(GRADIENT, self.columns)
        state.shared.setdefault(TAIL, np.zeros((2, self.columns)))

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch; after the last one, send it and apply the one before."""
        self._left -= 1
        self._compute(self._own, task, rows, residuals, is_full=not self._left)
        if not self._left:
            self._turn(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Where this replica had no rows: nothing, zero times, in its turn."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._say(self._own)
            self._turn(state, None)
        self.check.after_exchange(state, exchanges, self._alike(state))

    def arrive(self, state: State) -> None:
        """What travels comes to rest in the state, and is applied in its turn."""
        item, self._late = self._late, None
        if item is None:
            return
        for tile in item.buffer:
            item.receive(tile)
        state.memory[GRADIENT][...] = item.buffer.gradient
        tail = state.shared[TAIL]
        tail[0] = item.buffer.tail[:-1] if item.buffer.sums else 0.0
        tail[1] = item.buffer.tail[-1]

    def settle(self, state: State, exchanges: int) -> None:
        """Nothing is left out: the last gradient is applied."""
        self.arrive(state)
        self._apply_rested(state, exchanges)

    def consensus(self, state: State, exchanges: int) -> State:
        """What `settle` would give, with the state left as it is."""
        self.arrive(state)
        seen = state.glance()
        intercept = None if seen.intercept is None else seen.intercept.copy()
        copy = replace(
            seen,
            weights=seen.weights.copy(),
            intercept=intercept,
            memory=_copies(state.memory),
            shared=_copies(state.shared),
        )
        self._apply_rested(copy, exchanges)
        return copy

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """What is late is the same on all replicas."""
        own = set(state.memory) - {GRADIENT, *self.steps.rule.kept}
        return self.grid.replicas.size == 1 or not own

    @property
    def is_full(self) -> bool:
        """An item is a whole exchange."""
        return self.is_last

    @property
    def sums(self) -> Buffer:
        """Of the item whose turn it is."""
        return self._own.buffer

    @property
    def _own(self) -> Item:
        """Of this exchange."""
        return self.items[self._done % 2]

    def _begin(self, number: int) -> None:
        self._moment = self.steps.moment(number)
        self._done = number
        self._own.begin()

    def _turn(self, state: State, task: Task | None) -> None:
        """The gradient of the exchange before; that of this one is late from now on."""
        item, self._late = self._late, self._own
        if item is None:
            self._apply_rested(state, self._done)
            return
        for tile in item.buffer:
            item.receive(tile)
        self._apply(state, item.buffer.gradient, item.buffer.tail, self._done, task)

    def _apply_rested(self, state: State, exchanges: int) -> None:
        """That of exchange number `exchanges`, from 1, where there is one at rest."""
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
        """At the rate of the exchange that it is the gradient of."""
        now, self._moment = self._moment, self.steps.moment(exchanges - 1)
        self._take_whole(state, gradient, tail, task)
        self._moment = now


def _copies(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}
