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
    history: Sequence[Mapping[str, Any]]  # of the run, also where it goes on
    said: dict[str, Any] = field(default_factory=dict)

    def prepare(self, state: State) -> None:
        """Kept in the memory of the state, so that checkpoints hold it."""
        height = len(state.weights)
        state.memory[WEIGHTS] = np.zeros((height, self.columns))
        if state.intercept is not None:
            state.memory[INTERCEPT] = np.zeros((height, self.columns))

    def after_evaluation(self, state: State, view: View) -> None:
        """Kept where the newest record is the best of all."""
        good, newest = self.evaluation.good, self.history[-1]
        if self._best() is not newest or good is None:
            return
        weights, intercept, _ = good
        state.memory[WEIGHTS][...] = weights[:, : self.columns]
        if intercept is not None:
            state.memory[INTERCEPT][...] = intercept[:1]

    def settle(self, state: State, exchanges: int) -> None:
        """Back to the best, where it is not the last."""
        best = self._best()
        if best is None:
            return
        is_seen = self.evaluation.measured_at == exchanges  # and not averaged since
        unseen = None if is_seen else self._held_now(state)
        if unseen is not None and unseen < best["held"]:
            self.said |= {"held": unseen}
            return
        self.said |= {"epoch": best["epoch"], "held": best["held"]}
        if is_seen and best["exchanges"] == exchanges:
            return
        state.weights[:, : self.columns] = state.memory[WEIGHTS]
        if state.intercept is not None:
            state.intercept[:1] = state.memory[INTERCEPT][:1]
        self.evaluation.measured_at = -1  # the loss at hand is not of these

    def _held_now(self, state: State) -> float | None:
        """Of weights that no evaluation has seen yet, as rank 0 has it."""
        known = self.evaluation
        seen = state.glance()
        intercept = None if seen.intercept is None else seen.intercept[0]
        weights = seen.weights[known.own, : self.columns]
        with np.errstate(all="ignore"):
            held = known.objective.measure(weights, intercept).held
        own = None if held is None else float(held[0])
        found: float | None = known.objective.grid.world.exchange_objects(own)[0]
        return found

    def facts(self) -> dict[str, Any]:
        """When it was."""
        return {"best_held": dict(self.said)} if self.said else {}

    def _best(self) -> Mapping[str, Any] | None:
        """The first record with the least loss on held-out rows, as rank 0 sees it:
        sums need not give all ranks the same last bits, and all must keep one model.
        """
        losses = [_held(record) for record in self.history]
        own = int(np.argmin(losses)) if min(losses, default=inf) < inf else None
        number = self.evaluation.objective.grid.world.exchange_objects(own)[0]
        return None if number is None else self.history[number]


def _held(record: Mapping[str, Any]) -> float:
    found = record.get("held")
    return float(found) if found is not None and isfinite(found) else inf
