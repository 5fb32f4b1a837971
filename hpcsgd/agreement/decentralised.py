"""Replicas that take steps of their own, and mix weights in every one of them.

Decentralised SGD in full precision (BAGUA's D_FP_S, arXiv 2107.01499):

    w_i ← (n_i w_i + n_j w_j) / (n_i + n_j) − η g_i(w_i)

with j the replica that is met in this exchange, or with the mean over all replicas. The
weights set out before the gradient is computed, and arrive when it is there. Weights
count by the rows behind them, so that Σ n_i w_i, the model that a run evaluates and
returns, is what mixing leaves alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpcsgd.agreement.average import Average
from hpcsgd.agreement.flat import (
    positions,
    put_positions,
    share_intercept,
)
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.means import Means
from hpcsgd.agreement.overlap import Overlap
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, Rows, State, Task
from hpcsgd.updates.rules import Linear, Part, Turn


class OwnSteps(Gradient, ABC):
    """A gradient agreement whose replicas step by their own gradients.

    Momentum and whatever else a rule keeps stay with their replica. Evaluation, results
    and the end of a run see the mean of all replicas.
    """

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, means)
        self.mean = Average(grid, share, 1)
        self.overlap = Overlap(grid.replicas)
        self._departed = False

    def prepare(self, state: State) -> None:
        """Room for a gradient that nobody else is told."""
        self.buffer = self.means.buffer(
            len(state.weights),
            self.columns,
            state.weights.dtype,
            1,
            state.intercept is not None,
        )
        self.steps.prepare(state, self.columns)

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """The first that an exchange asks for: weights set out before."""
        self._set_out(state)
        super().scores(task, state, rows, point, out)

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Whoever computes elsewhere is given weights that have set out, too."""
        self._set_out(state)
        yield slice(None)

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch; after the last one, step."""
        self._left -= 1
        self.buffer.count_in(residuals)
        self._add(self.buffer.gradient, rows, residuals)
        task.clock.lap("update")
        if not self._left:
            self._step(state, task)
            task.clock.start()  # what others were waited for is booked by the ledger

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Where this replica had no rows, it mixes and does not step."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._set_out(state)
            self._step(state, None)

    def is_whole(self, exchanges: int) -> bool:
        """They always differ, by the steps that they took last."""
        return self.grid.replicas.size == 1

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """As little."""
        return self.grid.replicas.size == 1

    def agree(self, state: State, purpose: str) -> None:
        """Σ_r (n_r / n) w_r, for whoever looks at the model."""
        self.mean.agree(state, purpose)

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        return {**self.overlap.facts(), **self.buffer.facts()}

    @abstractmethod
    def _depart(self, state: State) -> None:
        """Send what the others need, before the gradient is computed."""

    def _set_out(self, state: State) -> None:
        if not self._departed:
            self._departed = True
            self._depart(state)

    def _begin(self, number: int) -> None:
        super()._begin(number)
        self._departed = False

    def _whole_gradient(self, state: State) -> None:
        """The mean over own rows, with the penalty, at the weights it was taken at."""
        gradient = self.buffer.gradient
        gradient *= gradient.dtype.type(1.0 / float(self.buffer.tail[-1]))
        if self.steps.l2:
            gradient += gradient.dtype.type(self.steps.l2) * self._point(state)

    def _point(self, state: State) -> Array:
        """Where scores are read: w, or w + μv."""
        rule, weights = self.steps.rule, state.weights
        point: Array = weights[:, : self.columns]
        if isinstance(rule, Linear) and rule.states > 1:
            momentum = float(rule.update.probe()[1])
            point = point + weights.dtype.type(momentum) * weights[:, self.columns :]
        return point

    def _descend(self, state: State) -> None:
        """The step of this replica; its gradient has the penalty already."""
        count = float(self.buffer.tail[-1])
        if not count:
            return
        rule, moment = self.steps.rule, self._moment
        kept = {name: state.memory[name] for name in rule.kept}
        turn = Turn(moment.number, moment.rate)
        part = Part(state.weights, kept)
        rule.step(part, self.buffer.gradient, 1.0, turn, 0.0)
        if state.intercept is not None:
            sums = self.buffer.tail[: self.buffer.sums].astype(np.float64)
            self.steps.take_intercept(state, sums / count, moment)


class Decentralised(OwnSteps):
    """Mixes with one replica or with all, while the gradient is computed."""

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, means)
        self.mixer = MIXERS[means.settings.peers](grid, means.rows)

    def facts(self) -> dict[str, Any]:
        """Whom they mix with."""
        return {"peers": self.means.settings.peers, **super().facts()}

    def _depart(self, state: State) -> None:
        if self.grid.replicas.size > 1:
            words = positions(state, self.columns)
            with self.overlap.posting():
                self._arrive = self.mixer.start(words, self._moment.number)

    def _step(self, state: State, task: Task | None) -> None:
        if self.buffer.tail[-1]:
            self._whole_gradient(state)
        if self.grid.replicas.size > 1:
            with self.overlap.waiting():
                mixed = self._arrive()
            put_positions(state, mixed, self.columns)
            share_intercept(state, self.grid)
        self._descend(state)


class Mixer(Protocol):
    """Whose weights are mixed in an exchange, and how."""

    def start(self, words: Array, number: int) -> Callable[[], Array]:
        """Begin; what comes back waits, and gives what the weights become."""


@dataclass
class MixAll:
    """Σ_r (n_r / n) w_r, in one sum."""

    grid: Grid
    rows: tuple[int, ...]

    def start(self, words: Array, number: int) -> Callable[[], Array]:
        """The sum has the words it was given."""
        share = self.rows[self.grid.replica] / sum(self.rows)
        words *= words.dtype.type(share)
        return self.grid.replicas.start_sum(words, PURPOSE).wait


@dataclass
class MixPairs:
    """(n_i w_i + n_j w_j) / (n_i + n_j), the pairs others in every exchange.

    Both sides add in the same order, and hold the same bits.
    """

    grid: Grid
    rows: tuple[int, ...]

    def start(self, words: Array, number: int) -> Callable[[], Array]:
        """What was given stays as it is until it has left."""
        replicas, theirs = self.grid.replicas, np.empty_like(words)
        peer = partner(replicas.rank, number, replicas.size)
        pending = replicas.start_swap(words, theirs, peer, PURPOSE)
        own, other = self.rows[replicas.rank], self.rows[peer]

        def arrive() -> Array:
            pending.wait()
            parts = (words, theirs) if replicas.rank < peer else (theirs, words)
            counts = (own, other) if replicas.rank < peer else (other, own)
            return weighted(parts, counts)

        return arrive


def weighted(parts: tuple[Array, Array], counts: tuple[int, int]) -> Array:
    """The mean of two by their counts; where both have none, of both alike."""
    counts = counts if any(counts) else (1, 1)
    first, second = (
        words.dtype.type(count / sum(counts)) * words
        for words, count in zip(parts, counts, strict=True)
    )
    total: Array = first + second
    return total


def partner(replica: int, number: int, replicas: int) -> int:
    """Whom a replica meets in exchange `number`, from 0 on; `replicas` is even.

    Replica i of the first half meets one of the second, ((t + i) mod R/2) + R/2, and
    after R/2 exchanges each of the first has met each of the second.
    """
    half = replicas // 2
    if replica < half:
        return (number + replica) % half + half
    return (replica - half - number) % half


MIXERS: dict[str, Callable[[Grid, tuple[int, ...]], Mixer]] = {
    "all": MixAll,
    "shift_one": MixPairs,
}
