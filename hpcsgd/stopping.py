"""When to stop: what an evaluation has to say for a run to have reached its goal."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.optimality import gap_limit

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks would say it alike
GOALS = ("none", "gradient", "gap", "loss", "validation")
MEASURES = ("loss", "gradient", "gap")  # what an evaluation takes; each has the former


@dataclass(frozen=True)
class StopConfig:
    """An end before the last epoch, at an evaluation that finds the goal reached."""

    on: str = "none"  # gradient, gap: at the optimum; loss: when it falls no more
    tol: float = 1e-4  # relative; smaller = later
    patience: int = 5  # evaluations without a fall; for `loss` and `validation`

    def __post_init__(self) -> None:
        if self.on not in GOALS:
            raise ConfigError(f"[stop] on = {self.on!r}; known: {', '.join(GOALS)}")
        if not 0.0 <= self.tol < 1.0:
            raise ConfigError(
                f"[stop] tol = {self.tol!r} must be at least 0 and below 1; 1e-4 is"
                " usual"
            )
        if self.patience < 1:
            raise ConfigError(
                f"[stop] patience = {self.patience} must be at least 1; 5 is usual"
            )

    def is_reached(
        self, history: Sequence[Mapping[str, Any]], null_excess: float = 0.0
    ) -> bool:
        """Return whether the last of these records reaches the goal.

        `null_excess` is F₀ of `gap_limit`, for a gap.
        """
        if self.on == "none" or not history:
            return False
        if self.on == "loss":
            return self._falls_no_more([float(one["loss"]) for one in history])
        if self.on == "validation":
            return self._falls_no_more([_held(one) for one in history])
        found = history[-1].get(self.on)
        return found is not None and float(found) <= self.limit(history, null_excess)

    def limit(
        self, history: Sequence[Mapping[str, Any]], null_excess: float = 0.0
    ) -> float:
        """Return what the gradient, or the gap, has to come down to."""
        if self.on == "gap":
            return gap_limit(self.tol, float(history[-1]["loss"]), null_excess)
        return self.tol * max(1.0, float(history[0].get("gradient") or 0.0))

    def _falls_no_more(self, losses: Sequence[float]) -> bool:
        """No fall by tol, relative, below the best of `patience` looks ago."""
        if len(losses) <= self.patience:
            return False
        before, since = losses[: -self.patience], losses[-self.patience :]
        best = min((one for one in before if math.isfinite(one)), default=math.inf)
        return min(since) >= best - self.tol * abs(best)

    def warn(
        self, history: Sequence[Mapping[str, Any]], null_excess: float = 0.0
    ) -> None:
        """Say that the epochs are over and the goal is not reached."""
        remedy = (
            "raise --epochs, lower the rate, or go on to the optimum with --polish or"
            " --update svrg"
        )
        if self.on in ("loss", "validation"):
            log.warning(
                "the loss still falls after the last epoch; %s",
                remedy,
                extra=ONCE,
            )
            return
        found = history[-1].get(self.on) if history else None
        if found is None:
            remedy = "a gap needs a ridge penalty (--l2); stop on the gradient instead"
        log.warning(
            "the goal is not reached: %s %s, not %.3g; %s",
            self.on,
            "is not known" if found is None else f"{found:.3g}",
            self.limit(history, null_excess) if history else self.tol,
            remedy,
            extra=ONCE,
        )


def _held(record: Mapping[str, Any]) -> float:
    """The loss of rows that are not trained on."""
    found = record.get("held")
    return math.inf if found is None else float(found)
