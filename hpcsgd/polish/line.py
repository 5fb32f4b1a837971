"""How far to go along a direction: no trial reads the matrix.

Scores are linear, t(a) = t + a q, and the objective is convex along the line, so the
search is for a root of its slope. A trial costs n exponentials and a few words.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

STEEP = 0.5  # of the first slope: where it is flatter than that the search ends
TRIALS = 40
LONGER = 10.0  # at most so many times the step before
MARGIN = 0.1  # of a bracket that the next trial keeps off its ends


@dataclass(frozen=True)
class Trial:
    """The objective at t + a q."""

    step: float  # a
    value: float
    slope: float
    noise: float  # differences of values below it mean nothing

    @property
    def is_finite(self) -> bool:
        """False where the step was so long that a number overflowed."""
        return bool(np.isfinite(self.value) and np.isfinite(self.slope))


def search(look: Callable[[float], Trial], begin: Trial) -> tuple[Trial | None, int]:
    """A step with a flat enough slope and no higher value; None: there is none.

    The second number is that of trials. The first of them is 1.
    """
    low, high, step = begin, None, 1.0
    for count in range(1, TRIALS + 1):
        trial = look(step)
        if _too_far(trial, begin):
            high = trial
        elif trial.slope < STEEP * begin.slope:
            low = trial
        else:
            return trial, count
        step = _next(begin, low, high)
        if step in (low.step, 0.0 if high is None else high.step):
            return None, count
    return None, TRIALS


def _too_far(trial: Trial, begin: Trial) -> bool:
    if not trial.is_finite:
        return True
    rises = trial.value > begin.value + begin.noise
    return rises or trial.slope > -STEEP * begin.slope


def _next(begin: Trial, low: Trial, high: Trial | None) -> float:
    """Where the slope is zero if it is a straight line, kept within reason."""
    if high is None:
        share = begin.slope / min(begin.slope - low.slope, begin.slope / LONGER)
        return low.step * max(share, 2.0)
    width = high.step - low.step
    if not high.is_finite or high.slope <= low.slope:
        return low.step + MARGIN * width
    share = -low.slope / (high.slope - low.slope)
    return low.step + width * min(max(share, MARGIN), 1.0 - MARGIN)
