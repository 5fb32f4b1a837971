"""hpcsgd by its Python call on one rank, from arrays in memory.

A first run, followed epoch by epoch, says how many epochs it takes; what is timed is a
call of its own for that many: from before the call to after its return, set-up,
conversions and report included, and only the losses that it evaluates taken off.
"""

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import hpcsgd
from benchmarks.peers.clock import TARGET, Limit, Outcome
from benchmarks.peers.methods import WithRate
from benchmarks.peers.problems import Problem
from benchmarks.peers.settings import Setting
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.solvers.callbacks import Callback, View
from hpcsgd.tuning.pilots import silence_pilots

GROUP = 32  # steps handed to the kernels together; on one rank no iterate depends on it


class Follow(Callback):
    """Keeps the time without the losses, and asks to stop where the walk would."""

    def __init__(self, best: float, limit: Limit) -> None:
        self.best, self.limit = best, limit
        self.began = self.mark = perf_counter()
        self.paused = self.trained = 0.0
        self.outcome = Outcome(False, 0.0, 0, float("inf"))

    def on_start(self, view: View) -> None:
        """A loss is evaluated next."""
        self._look_away(view)

    def on_exchange(self, view: View) -> bool:
        """Perhaps a loss is evaluated next; True past the limit."""
        self._look_away(view)
        return self.seconds_at_mark() > self.limit.seconds

    def _look_away(self, view: View) -> None:
        self.mark, self.trained = perf_counter(), view.seconds

    def seconds_at_mark(self) -> float:
        """Since the call, without losses."""
        return self.mark - self.began - self.paused

    def on_evaluate(self, view: View) -> bool:
        """What was not training since the mark was the loss."""
        training = view.seconds - self.trained
        seconds = self.seconds_at_mark() + training
        gap = (view.loss - self.best) / abs(self.best)
        reached = gap <= TARGET
        if view.epoch and not self.outcome.reached:
            self.outcome = Outcome(reached, seconds, view.epoch, gap)
        self.paused += perf_counter() - self.mark - training
        return reached


@dataclass(frozen=True)
class Ours(WithRate):
    """One recipe of precision."""

    recipe: str
    fields: tuple[str, ...] = ("rate", "batch", "momentum", "decays")

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"hpcsgd {self.recipe}"

    def reach(
        self, problem: Problem, setting: Setting, seed: int, limit: Limit
    ) -> Outcome:
        """Followed epoch by epoch."""
        assert problem.best is not None
        follow = Follow(problem.best, limit)
        self._train(problem, setting, seed, limit.epochs, follow, every=1)
        if follow.outcome.reached:
            return follow.outcome
        return replace(follow.outcome, seconds=follow.seconds_at_mark())

    def time(
        self, problem: Problem, setting: Setting, seed: int, cap: float
    ) -> Outcome:
        """A call for exactly the epochs that it takes."""
        scout = self.reach(problem, setting, seed, Limit(cap))
        if not scout.reached:
            return scout
        assert problem.best is not None
        follow = Follow(problem.best, Limit(float("inf")))
        result = self._train(problem, setting, seed, scout.epochs, follow, every=0)
        seconds = perf_counter() - follow.began - follow.paused
        gap = problem.gap(result.weights)
        return Outcome(gap <= TARGET, seconds, scout.epochs, gap)

    def _train(
        self,
        problem: Problem,
        setting: Setting,
        seed: int,
        epochs: int,
        follow: Follow,
        every: int,
    ) -> Any:
        config = {
            "problem": {"family": problem.family, "l2": problem.l2},
            "schedule": {
                "batch": int(setting["batch"]),
                "steps": GROUP,
                "epochs": epochs,
            },
            "update": _update(setting["momentum"]),
            "rate": _rate(setting, len(problem.y)),
            "sampling": {"mode": "shuffle-once", "seed": seed},
            "precision": {"recipe": self.recipe},
            "run": {"comm": "serial", "evaluate_every": every},
        }
        world = SerialCommunicator()
        with silence_pilots():
            follow.began = perf_counter()
            return hpcsgd.train(
                config, X=problem.X, y=problem.y, world=world, callbacks=[follow]
            )


def _update(momentum: float) -> dict[str, Any]:
    if not momentum:
        return {"kind": "sgd"}
    return {"kind": "momentum", "momentum": momentum}


def _rate(setting: Setting, rows: int) -> dict[str, Any]:
    """Decaying ones are halved after an epoch, as everybody's are."""
    if not setting["decays"]:
        return {"kind": "constant", "value": setting["rate"]}
    steps = -(-rows // int(setting["batch"]))
    return {"kind": "inverse", "value": setting["rate"], "decay": 1 / steps}
