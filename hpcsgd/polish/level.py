"""The best intercept for the scores at hand: Newton on K numbers, no pass over rows.

F is convex in β, so along each Newton step the slope is looked at, and a step is halved
until it goes down. A look is 1 + K + K² words over all ranks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.polish.rows import AllRows

Array = NDArray[Any]
LOOKS = 60
DONE = 1e-14  # of the mean residual's size: what its sum over all rows is worth
SINGULAR = 1e-7  # of the largest curvature: what a difference makes of none
STEP = 1e-5  # of the difference quotient for the curvature
GRAIN = 2.0**10  # units in the last place of a score, which that step is at least
REACH = 10.0  # of the first step
FURTHER = 8.0  # so many times as far after a step that was cut


@dataclass(frozen=True)
class Level:
    """What the intercept has to move by, and what F gains."""

    shift: Array  # β* − β, (K,)
    gain: float  # F(w, β) − F(w, β*), at least 0
    is_found: bool  # False: there is no best one, or it was not reached


@dataclass(frozen=True)
class _Look:
    loss: float
    slope: Array  # Σ p r, (K,)
    bend: Array  # ∂ of it, (K, K)
    worth: float  # what rounding leaves of a slope that is 0


def level(rows: AllRows, scores: Array) -> Level:
    """The best shift of all scores (n, K) by the same K numbers."""
    shift = np.zeros(scores.shape[1])
    first = here = _look(rows, scores, shift)
    reach = REACH
    for _ in range(LOOKS):
        if _is_flat(here):
            break
        step = _newton(here, reach)
        ahead = _look(rows, scores, shift + step)
        while not _is_lower(ahead, here, step) and np.abs(step).max() >= 1e-16:
            reach = 0.5 * float(np.abs(step).max())
            step = 0.5 * step
            ahead = _look(rows, scores, shift + step)
        shift, here = shift + step, ahead
        if np.abs(step).max() < 1e-16:  # no step is better: from here it is the same
            break
        if np.abs(step).max() >= reach:  # targets may be of any size
            reach *= FURTHER
    return Level(shift, max(first.loss - here.loss, 0.0), _is_flat(here))


def _is_flat(look: _Look) -> bool:
    return bool(np.abs(look.slope).max() <= look.worth)


def _is_lower(ahead: _Look, before: _Look, step: Array) -> bool:
    """Not so far past the point where the slope along the step turns."""
    if not np.isfinite(ahead.loss):
        return False
    there, here = float(ahead.slope @ step), abs(float(before.slope @ step))
    # Residuals that are all at an end are as large on both sides.
    return abs(there) <= (here if there <= 0.0 else 0.5 * here)


def _newton(look: _Look, reach: float) -> Array:
    """The step; of classes, none where all scores grow alike."""
    if not look.bend.any():  # all residuals are at an end: as far as it goes
        downhill: Array = -look.slope * (reach / np.abs(look.slope).max())
        return downhill
    step = -np.linalg.pinv(look.bend, SINGULAR, hermitian=True) @ look.slope
    return np.clip(step, -reach, reach)


def _look(rows: AllRows, scores: Array, shift: Array) -> _Look:
    columns, moved = len(shift), scores + shift
    words = np.zeros(2 + columns + columns * columns)
    if rows.grid.member == 0:
        residuals = rows.residuals(moved)
        bend, rounding = _bend(rows, moved)
        words[0] = rows.loss(moved)
        words[1] = 10 * DONE * np.abs(residuals).sum() + rounding + _cancelled(rows)
        words[2 : 2 + columns] = residuals.sum(axis=0)
        words[2 + columns :] = bend.reshape(-1)
    rows.grid.world.sum(words, "evaluate")
    bend = words[2 + columns :].reshape(columns, columns)
    return _Look(
        float(words[0]), words[2 : 2 + columns], (bend + bend.T) / 2, float(words[1])
    )


def _cancelled(rows: AllRows) -> float:
    """Return what the rounding of μ − y, near y, makes of Σ p r: no residual of a
    row that fits is more exact than its target.
    """
    is_label = rows.objective.family.targets == "classes"  # whose y are indicators
    size = 1.0 if is_label else np.abs(rows.targets)
    return float(np.finfo(float).eps * (rows.share * size).sum())


def _bend(rows: AllRows, scores: Array) -> tuple[Array, float]:
    """∂(Σ p r)/∂β by differences, and what the rounding of scores makes of Σ p r."""
    columns = scores.shape[1]
    found, rounding = np.empty((columns, columns)), 0.0
    width = max(STEP, GRAIN * float(np.spacing(np.abs(scores).max(initial=0.0))))
    for k in range(columns):
        away = np.zeros(columns)
        away[k] = width
        ahead = rows.residuals(scores + away) - rows.residuals(scores - away)
        found[k] = ahead.sum(axis=0) / (2 * width)
        rounding += float(np.abs(ahead * np.spacing(scores)).sum()) / (2 * width)
    return found, rounding
