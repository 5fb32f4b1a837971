"""A clock that stands still while somebody looks, and what a timed run comes to."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from benchmarks.peers.problems import Problem

TARGET = 0.005  # (F − F*) / |F*|


@dataclass(frozen=True)
class Limit:
    """Where a run is given up."""

    seconds: float
    epochs: int = 10**6  # the clock ends a run long before


@dataclass(frozen=True)
class Outcome:
    """How far a run came."""

    reached: bool
    seconds: float
    epochs: int  # or iterations of a solver
    gap: float

    def is_better_than(self, other: "Outcome | None") -> bool:
        """Sooner there; or nearer, if neither got there."""
        if other is None or self.reached != other.reached:
            return other is None or self.reached
        if self.reached:
            return self.seconds < other.seconds
        return self.gap < other.gap


class Stopwatch:
    """Adds up the seconds spent inside `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.began = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += perf_counter() - self.began


class Run(Protocol):
    """A method that goes through the rows again and again."""

    def epoch(self) -> None:
        """Once through the rows."""

    def weights(self) -> np.ndarray:
        """What it has learnt so far."""


def walk(begin: Callable[[], Run], problem: Problem, limit: Limit) -> Outcome:
    """Epoch after epoch until the target is reached; losses are taken off the clock."""
    watch, gap, epoch = Stopwatch(), float("inf"), 0
    with watch:
        run = begin()
    while epoch < limit.epochs and watch.seconds < limit.seconds:
        with watch, np.errstate(all="ignore"):
            run.epoch()
        epoch, gap = epoch + 1, problem.gap(run.weights())
        if gap <= TARGET or not np.isfinite(gap):
            break
    return Outcome(gap <= TARGET, watch.seconds, epoch, gap)
