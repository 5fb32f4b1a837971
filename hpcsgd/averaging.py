"""The mean of the last iterates: less noise than any of them, at no message.

With a constant rate SGD ends by wandering around the optimum; the mean over the last
part of a run lies closer to its middle. It is one more array beside the weights, and a
run keeps whichever has the lower F, the mean or the last iterate.
"""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from hpcsgd.backends.base import Backend
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.base import Array, State
from hpcsgd.products.hooks import Hook

KINDS = ("none", "tail")
WEIGHTS, INTERCEPT = "average", "average_intercept"  # in `state.memory`


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
        if state.intercept is not None:
            state.memory[INTERCEPT] = np.zeros((height, self.columns))

    def after_exchange(self, state: State, exchanges: int) -> None:
        """mean ← mean + (w − mean) / count."""
        count = self._count(exchanges)
        if not count or exchanges % self.every:
            return
        _move(state.memory[WEIGHTS], state.weights[:, : self.columns], 1.0 / count)
        if state.intercept is not None:
            _move(state.memory[INTERCEPT], state.intercept[:1], 1.0 / count)

    def settle(self, state: State, exchanges: int) -> None:
        """The mean for the last iterate, where F says so."""
        if not self._count(exchanges):
            return
        weights, intercept = self._rounded(state)
        last = self._loss_now(state, exchanges)
        mean = self._loss(weights, intercept)
        is_better = isfinite(mean) and not mean >= last
        self.said |= {
            "kept": "mean" if is_better else "last",
            "iterates": self._count(exchanges),
            "loss_of_mean": mean,
            "loss_of_last": last,
        }
        if is_better:
            state.weights[:, : self.columns] = weights
            if state.intercept is not None and intercept is not None:
                state.intercept[:1] = intercept
            self.evaluation.measured_at = -1  # the loss at hand is not of these

    def facts(self) -> dict[str, Any]:
        """Which of both was kept."""
        return {"average": dict(self.said)}

    def _count(self, exchanges: int) -> int:
        """Iterates in the mean after so many exchanges."""
        return max(exchanges // self.every - self.first // self.every, 0)

    def _rounded(self, state: State) -> tuple[Array, Array | None]:
        """The mean as the weights are stored, which is what F is asked of."""
        weights = state.memory[WEIGHTS].astype(state.weights.dtype)
        self.backend.round(weights, self.backend.precision.weights)
        if state.intercept is None:
            return weights, None
        return weights, state.memory[INTERCEPT][:1].copy()

    def _loss_now(self, state: State, exchanges: int) -> float:
        """F of the last iterate, which may be known."""
        known = self.evaluation
        if known.measured_at == exchanges and known.good is not None:
            return known.good[2]
        return self._loss(state.weights[:, : self.columns], state.intercept)

    def _loss(self, weights: Array, intercept: Array | None) -> float:
        first = None if intercept is None else intercept[0]
        with np.errstate(all="ignore"):
            return self.evaluation.objective.loss(weights[self.own], first)[0]


def _move(mean: Array, towards: Array, share: float) -> None:
    mean += share * (towards - mean)
