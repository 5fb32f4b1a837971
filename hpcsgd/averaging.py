"""The mean of the last iterates: less noise than any of them, at no message.

With a constant rate SGD ends by wandering around the optimum; the mean over the last
part of a run lies closer to its middle. It is one more array beside the weights, and a
run keeps whichever has the lower F, the mean or the last iterate.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.backends.base import Backend
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation, numbers
from hpcsgd.products.base import Array, State
from hpcsgd.products.hooks import Hook

KINDS = ("none", "tail")
WEIGHTS, INTERCEPT = "average", "average_intercept"  # in `state.memory`
COUNT = "averaged"  # there, too: a run that goes on may have become longer or shorter


@dataclass(frozen=True)
class AverageConfig:
    """Which iterates are averaged."""

    kind: str = "none"  # tail: those of the last part of the run
    share: float = 0.5  # that part; larger = less noise, more of the way there

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"[average] kind = {self.kind!r}; known: {', '.join(KINDS)}"
            )
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(
                f"[average] share = {self.share!r} must be above 0 and at most 1;"
                " 0.5 averages the last half of a run"
            )


@dataclass
class TailAverage(Hook):
    """Averages the weights after each exchange in which replicas agreed."""

    evaluation: Evaluation
    backend: Backend
    first: int  # exchanges that are left out
    every: int  # exchanges between two iterates of the mean
    columns: int  # K
    own: slice  # this member's columns within the weights it holds
    said: dict[str, Any] = field(default_factory=dict)

    def prepare(self, state: State) -> None:
        """Kept in the memory of the state, so that checkpoints hold it.

        An intercept is a row of its own in every column, as all memory is.
        """
        height = len(state.weights)
        state.memory[WEIGHTS] = np.zeros((height, self.columns))
        state.memory[COUNT] = np.zeros((height, 1))
        if state.intercept is not None:
            state.memory[INTERCEPT] = np.zeros((height, self.columns))

    def after_exchange(self, state: State, exchanges: int) -> None:
        """mean ← mean + (w − mean) / count."""
        place = self._place(exchanges)
        if not place or exchanges % self.every:
            return
        self.evaluation.agreement.arrive(state)
        count = 1 if place == 1 else self._count(state) + 1
        state.memory[COUNT][...] = count
        seen = state.glance()
        _move(state.memory[WEIGHTS], seen.weights[:, : self.columns], 1.0 / count)
        if seen.intercept is not None:
            _move(state.memory[INTERCEPT], seen.intercept[:1], 1.0 / count)

    def settle(self, state: State, exchanges: int) -> None:
        """The mean for the last iterate, in every model whose F says so."""
        if not self._place(exchanges) or not self._count(state):
            return
        weights, intercept = self._rounded(state)
        last = self._losses_now(state, exchanges)
        mean = self._losses(weights, intercept)
        better = self._alike(np.isfinite(mean) & ~(mean >= last))
        self._tell(better, mean, last, self._count(state))
        if not better.any():
            return
        chosen = np.flatnonzero(np.repeat(better, self.columns // len(better)))
        state.weights[:, chosen] = weights[:, chosen]
        if state.intercept is not None and intercept is not None:
            state.intercept[0, chosen] = intercept[0, chosen]
        self.evaluation.measured_at = -1  # the loss at hand is not of these

    def facts(self) -> dict[str, Any]:
        """Which of both was kept."""
        return {"average": dict(self.said)}

    def _alike(self, better: Array) -> Array:
        """As rank 0 sees it: where both are as good, last bits differ among ranks."""
        found = self.evaluation.objective.grid.world.exchange_objects(better)
        return np.asarray(found[0])

    def _count(self, state: State) -> int:
        """Iterates in the mean."""
        return int(state.memory[COUNT][0, 0])

    def _place(self, exchanges: int) -> int:
        """The how manieth of the last part it is; 0: that has not begun."""
        return max(exchanges // self.every - self.first // self.every, 0)

    def _rounded(self, state: State) -> tuple[Array, Array | None]:
        """The mean as the weights are stored, which is what F is asked of."""
        weights = state.memory[WEIGHTS].astype(state.weights.dtype)
        self.backend.round(weights, self.backend.precision.weights)
        if state.intercept is None:
            return weights, None
        return weights, state.memory[INTERCEPT][:1].copy()

    def _losses_now(self, state: State, exchanges: int) -> Array:
        """F of the last iterate, which is known where it was just taken."""
        known = self.evaluation
        is_one = known.objective.models is None
        if is_one and known.measured_at == exchanges and known.good is not None:
            return np.array([known.good[2]])
        seen = state.glance()
        return self._losses(seen.weights[:, : self.columns], seen.intercept)

    def _losses(self, weights: Array, intercept: Array | None) -> Array:
        """Of every model."""
        first = None if intercept is None else intercept[0]
        with np.errstate(all="ignore"):
            return self.evaluation.objective.measure(weights[self.own], first).each

    def _tell(self, better: Array, mean: Array, last: Array, count: int) -> None:
        kept = ["mean" if one else "last" for one in better]
        found: dict[str, Any] = {"kept": kept, "loss_of_mean": numbers(mean)}
        found["loss_of_last"] = numbers(last)
        if self.evaluation.objective.models is None:
            found = {name: values[0] for name, values in found.items()}
        self.said |= {"iterates": count, **found}


def _move(mean: Array, towards: Array, share: float) -> None:
    mean += share * (towards - mean)
