"""The weights that rows which were held out liked best: what an early stop returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np

from hpcsgd.callbacks.base import View
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.base import State
from hpcsgd.products.hooks import Hook

WEIGHTS, INTERCEPT = "best_held", "best_held_intercept"  # in `state.memory`


@dataclass
class BestHeld(Hook):
    """A copy of the weights at the evaluation with the least loss on held-out rows."""

    evaluation: Evaluation
    columns: int  # K
    history: Sequence[Mapping[str, Any]] = ()
    said: dict[str, Any] = field(default_factory=dict)

    def prepare(self, state: State) -> None:
        """Kept in the memory of the state, so that checkpoints hold it."""
        height = len(state.weights)
        state.memory[WEIGHTS] = np.zeros((height, self.columns))
        if state.intercept is not None:
            state.memory[INTERCEPT] = np.zeros((height, self.columns))

    def after_evaluation(self, state: State, view: View) -> None:
        """Kept where the newest record is the best of all."""
        self.history = view.history
        good = self.evaluation.good
        if good is None or _best(self.history) is not self.history[-1]:
            return
        weights, intercept, _ = good
        state.memory[WEIGHTS][...] = weights[:, : self.columns]
        if state.intercept is not None and intercept is not None:
            state.memory[INTERCEPT][...] = intercept[:1]

    def settle(self, state: State, exchanges: int) -> None:
        """Back to the best, where it is not the last."""
        best = _best(self.history)
        if best is None:
            return
        self.said |= {"epoch": best["epoch"], "held": best["held"]}
        if best["exchanges"] == exchanges:
            return
        state.weights[:, : self.columns] = state.memory[WEIGHTS]
        if state.intercept is not None:
            state.intercept[:1] = state.memory[INTERCEPT][:1]
        self.evaluation.measured_at = -1  # the loss at hand is not of these

    def facts(self) -> dict[str, Any]:
        """When it was."""
        return {"best_held": dict(self.said)} if self.said else {}


def _best(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first record with the least loss on held-out rows."""
    best = min(history, key=_held, default=None)
    return None if best is None or _held(best) == inf else best


def _held(record: Mapping[str, Any]) -> float:
    found = record.get("held")
    return float(found) if found is not None and isfinite(found) else inf
