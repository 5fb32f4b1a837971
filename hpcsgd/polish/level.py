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
    size: float  # Σ p |r|


def level(rows: AllRows, scores: Array) -> Level:
    """The best shift of all scores (n, K) by the same K numbers."""
    shift = np.zeros(scores.shape[1])
    first = here = _look(rows, scores, shift)
    for _ in range(LOOKS):
        if _is_flat(here):
            break
        step = _newton(here)
        ahead = _look(rows, scores, shift + step)
        while not _is_lower(ahead, here, step) and np.abs(step).max() >= 1e-16:
            step = 0.5 * step
            ahead = _look(rows, scores, shift + step)
        shift, here = shift + step, ahead
        if np.abs(step).max() < 1e-16:  # no step is better: from here it is the same
            break
    return Level(shift, max(first.loss - here.loss, 0.0), _is_flat(here))


def _is_flat(look: _Look) -> bool:
    return bool(np.abs(look.slope).max() <= 10 * DONE * look.size)


def _is_lower(ahead: _Look, before: _Look, step: Array) -> bool:
    """Not past the point where the slope along the step has turned and grown."""
    if not np.isfinite(ahead.loss):
        return False
    return bool(abs(ahead.slope @ step) <= abs(before.slope @ step))


def _newton(look: _Look) -> Array:
    """The step; of classes, none where all scores grow alike."""
    bend = look.bend
    floor = 1e-3 * look.size * np.eye(len(bend)) if not bend.any() else 0.0
    step: Array = -np.linalg.pinv(bend + floor, SINGULAR, hermitian=True) @ look.slope
    return np.clip(step, -10.0, 10.0)


def _look(rows: AllRows, scores: Array, shift: Array) -> _Look:
    columns, moved = len(shift), scores + shift
    words = np.zeros(2 + columns + columns * columns)
    if rows.grid.member == 0:
        residuals = rows.residuals(moved)
        words[0] = rows.loss(moved)
        words[1] = np.abs(residuals).sum()
        words[2 : 2 + columns] = residuals.sum(axis=0)
        words[2 + columns :] = _bend(rows, moved).reshape(-1)
    rows.grid.world.sum(words, "evaluate")
    bend = words[2 + columns :].reshape(columns, columns)
    return _Look(
        float(words[0]), words[2 : 2 + columns], (bend + bend.T) / 2, float(words[1])
    )


def _bend(rows: AllRows, scores: Array) -> Array:
    """∂(Σ p r)/∂β by differences, one column at a time."""
    columns = scores.shape[1]
    found = np.empty((columns, columns))
    for k in range(columns):
        away = np.zeros(columns)
        away[k] = STEP
        ahead = rows.residuals(scores + away).sum(axis=0)
        found[k] = (ahead - rows.residuals(scores - away).sum(axis=0)) / (2 * STEP)
    return found
