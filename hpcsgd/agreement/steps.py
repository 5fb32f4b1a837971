"""The step that replicas take together, once they know the mean gradient."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array, State
from hpcsgd.updates import Part, Rule, Turn


@dataclass(frozen=True)
class Steps:
    """The step that all replicas take in each exchange of a run."""

    rule: Rule
    l2: float
    rates: Callable[[int, int], Array]  # (first step, count) -> rates
    each: int  # exchanges of an epoch, those of the largest replica
    drops: Callable[[int], int] = lambda step: 0  # step -> milestones that are passed

    def moment(self, number: int) -> Moment:
        """Exchange `number` of the run, from 0 on."""
        now, then = self.rates(number, 2)
        drops = self.drops(number)
        return Moment(number, number // self.each, float(now), float(then), drops)

    def prepare(self, state: State, columns: int) -> None:
        """Room for what the rule keeps, K words a column, and of the intercept."""
        for name in self.rule.kept:
            words = len(state.weights), columns, state.weights.dtype
            state.memory.setdefault(name, self.rule.room(name, *words))
            if state.intercept is not None:
                state.shared.setdefault(name, np.zeros((1, columns)))

    def take(
        self,
        state: State,
        columns: slice,
        gradient: Array,
        factor: float,
        moment: Moment,
    ) -> None:
        """Some columns; their mean gradient is `factor` · `gradient` (destroyed)."""
        kept = {name: state.memory[name][columns] for name in self.rule.kept}
        part = Part(state.weights[columns], kept)
        self.step(part, gradient, factor, moment)

    def step(self, part: Part, gradient: Array, factor: float, moment: Moment) -> None:
        """Any part of the weights, wherever it is held."""
        turn = Turn(moment.number, moment.rate)
        self.rule.step(part, gradient, factor, turn, self.l2)

    def take_intercept(self, state: State, gradient: Array, moment: Moment) -> None:
        """The same without the penalty; `gradient` is the mean, (K,)."""
        if state.intercept is None:
            return
        own = state.intercept.reshape(1, -1)  # (states, K) as one column
        kept = {name: state.shared[name] for name in self.rule.kept}
        turn = Turn(moment.number, moment.rate)
        self.rule.step(Part(own, kept), gradient.reshape(1, -1), 1.0, turn, 0.0)
