"""How a method is tuned and timed: those that have a rate, and solvers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from benchmarks.peers.clock import TARGET, Limit, Outcome, Run, Stopwatch, walk
from benchmarks.peers.problems import Problem
from benchmarks.peers.settings import Setting, settings, taken
from benchmarks.peers.smallest import smallest

CONFIRMING = 101, 102  # seeds of the orders that the best trial has to arrive with
PATIENCE = 4  # times the seconds of the trial that are left for each


@dataclass(frozen=True)
class Tuned:
    """What tuning found on the second draw, and what it cost."""

    setting: Setting
    outcome: Outcome
    trials: int
    seconds: float  # inside of the clocks of all trials


class Method(Protocol):
    """What the bench asks of everybody."""

    name: str

    def tune(self, problem: Problem, trials: int, cap: float) -> Tuned:
        """Spend at most so many trials of at most `cap` seconds."""

    def settle(self, problem: Problem, setting: Setting, cap: float) -> Setting:
        """Carry what was tuned over to the set that is timed, outside of the clock."""

    def time(
        self, problem: Problem, setting: Setting, seed: int, cap: float
    ) -> Outcome:
        """One timed run."""


class WithRate:
    """A method with a rate: tuned by trials, followed epoch by epoch."""

    fields: tuple[str, ...]

    def tune(self, problem: Problem, trials: int, cap: float) -> Tuned:
        """All trials in turn; one that can no longer be the best is ended."""
        tried = taken(settings(trials, problem.row_square), self.fields)
        return search(partial(self.reach, problem), tried, cap)

    def settle(self, problem: Problem, setting: Setting, cap: float) -> Setting:
        """Nothing depends on the draw."""
        return setting

    def reach(
        self, problem: Problem, setting: Setting, seed: int, limit: Limit
    ) -> Outcome:
        """Until the target, or the limit."""
        raise NotImplementedError

    def time(
        self, problem: Problem, setting: Setting, seed: int, cap: float
    ) -> Outcome:
        """The same, with the order of the rows that this seed gives."""
        return self.reach(problem, setting, seed, Limit(cap))


@dataclass(frozen=True)
class ByEpochs(WithRate):
    """One that goes through the rows when it is told to."""

    name: str
    begin: Callable[[Problem, Setting, int], Run]
    fields: tuple[str, ...] = ("rate", "batch", "momentum", "decays")

    def reach(
        self, problem: Problem, setting: Setting, seed: int, limit: Limit
    ) -> Outcome:
        """One epoch after the other."""
        return walk(lambda: self.begin(problem, setting, seed), problem, limit)


Reach = Callable[[Setting, int, Limit], Outcome]  # with the order of a seed


def search(reach: Reach, tried: list[Setting], cap: float) -> Tuned:
    """The best of what is tried; the limit of each is the time of the best so far.

    A rate that gets there by luck will not do so twice: whoever is faster than the best
    has to arrive with two other orders of the rows as well.
    """
    best, chosen, spent = None, tried[0], 0.0
    for setting in tried:
        limit = min(cap, best.seconds) if best and best.reached else cap
        runs = [reach(setting, 0, Limit(limit))]
        if runs[0].reached and runs[0].is_better_than(best):
            runs += _again(reach, setting, min(cap, PATIENCE * runs[0].seconds))
        spent += sum(run.seconds for run in runs)
        outcome = runs[0] if runs[-1].reached else runs[-1]
        if outcome.is_better_than(best):
            best, chosen = outcome, setting
    assert best is not None
    return Tuned(chosen, best, len(tried), spent)


def _again(reach: Reach, setting: Setting, cap: float) -> list[Outcome]:
    """With other orders, until one does not arrive."""
    found: list[Outcome] = []
    for seed in CONFIRMING:
        found.append(reach(setting, seed, Limit(cap)))
        if not found[-1].reached:
            break
    return found


@dataclass(frozen=True)
class Solver:
    """A method without a rate: its tolerance is the fewest iterations that do."""

    name: str
    fit: Callable[[Problem, int], np.ndarray]  # so many iterations -> weights
    in_double: bool = False  # what takes float64 alone is given a copy in it

    def tune(self, problem: Problem, trials: int, cap: float) -> Tuned:
        """Doubled, then bisected."""
        seen = _Tries(self, problem, trials, cap)
        count = smallest(seen.is_enough, seen.may_double)
        count = count or seen.last
        spent = sum(outcome.seconds for outcome in seen.outcomes.values())
        outcome = seen.outcomes[count]
        return Tuned({"max_iter": count}, outcome, len(seen.outcomes), spent)

    def settle(self, problem: Problem, setting: Setting, cap: float) -> Setting:
        """The fewest iterations on the very set that is timed: in its favour."""
        seen = _Tries(self, problem, 40, cap)
        start = int(setting["max_iter"])
        count = smallest(seen.is_enough, seen.may_double, start)
        return {"max_iter": count or start}

    def reach(self, problem: Problem, count: int) -> Outcome:
        """One fit, timed by itself."""
        watch, given = Stopwatch(), problem.doubled if self.in_double else problem
        with watch, np.errstate(all="ignore"):
            weights = self.fit(given, count)
        gap = problem.gap(weights)
        return Outcome(gap <= TARGET, watch.seconds, count, gap)

    def time(
        self, problem: Problem, setting: Setting, seed: int, cap: float
    ) -> Outcome:
        """One fit with what was found."""
        return self.reach(problem, int(setting["max_iter"]))


class _Tries:
    """What a solver has been seen to reach, within a budget."""

    def __init__(
        self, solver: Solver, problem: Problem, trials: int, cap: float
    ) -> None:
        self.solver, self.problem = solver, problem
        self.trials, self.cap = trials, cap
        self.outcomes: dict[int, Outcome] = {}
        self.last = 0

    def is_enough(self, count: int) -> bool:
        """Whether that many iterations reach the target; the budget's end says no."""
        if count not in self.outcomes:
            if len(self.outcomes) >= self.trials:
                return False
            self.outcomes[count] = self.solver.reach(self.problem, count)
            self.last = count
        return self.outcomes[count].reached

    def may_double(self, count: int) -> bool:
        """Twice as many would take twice as long."""
        if count not in self.outcomes or len(self.outcomes) >= self.trials:
            return False
        return 2 * self.outcomes[count].seconds <= self.cap
