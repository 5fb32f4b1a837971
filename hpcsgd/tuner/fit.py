"""Figures from times: the constants of the cost model that explain what was measured.

The model is a sum of constants times what an exchange has of each (messages, bytes,
multiply-adds, bytes of rows, ...), so a fit is least squares: relative errors, nothing
negative, and a pull toward what was measured of each part alone where times cannot
tell two constants apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcsgd.cost import Job, Machine, seconds
from hpcsgd.cost_terms import SMALL, costs_of, machine_of, parts_of

Array = NDArray[np.float64]
LEAST = 0.1  # of what was measured alone: nothing is done in no time at all
PULL = 0.03  # weight of "as measured alone", of a time that is known to 100 %
ROUNDS = 6  # which of two terms counts, and which times are strange, is found anew
STRANGE = 0.1  # a time that is off by more counts less


@dataclass(frozen=True)
class Timed:
    """One time that is to be explained."""

    product: str
    steps: int
    job: Job
    seconds: float  # of an exchange


def fit_line(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """(α, β) of times α + β · size, neither of them negative, in relative errors."""
    x, y = np.asarray(sizes, float), np.asarray(times, float)
    unit = max(float(x.max()), 1.0)
    found = _bounded(np.stack([1.0 / y, x / unit / y], axis=1), np.ones(len(y)))
    return float(found[0]), float(found[1]) / unit


def fit_machine(times: Sequence[Timed], start: Machine) -> Machine:
    """The constants nearest to `start` that explain the times."""
    if not times:
        return start
    y = np.array([t.seconds for t in times])
    models = [_time_of(t) for t in times]
    first = costs_of(start)
    # A machine that is slower in all is no reason to pull at each constant.
    first *= np.exp(np.median(np.log(y / [model(first) for model in models])))
    unit = np.where(first > 0, first, SMALL)
    pull, least = PULL * np.eye(len(first)), np.where(first > 0, LEAST, 0.0)
    costs, weights = first, np.ones(len(y))
    for _ in range(ROUNDS):
        parts = np.array([parts_of(model, costs) for model in models])
        # Casts of narrow sums are nobody's constant.
        given = np.array([model(costs) for model in models]) - parts @ costs
        scaled = parts * unit / y[:, None] * weights[:, None]
        rows = np.concatenate([scaled, pull])
        aims = np.concatenate([weights * (1.0 - given / y), PULL * first / unit])
        costs = unit * (least + _bounded(rows, aims - rows @ least))
        off = np.abs((parts @ costs + given) / y - 1.0)
        usual = max(STRANGE, float(np.median(off)))
        weights = np.minimum(1.0, usual / np.maximum(off, 1e-9))
    return machine_of(costs)


def _time_of(timed: Timed) -> Callable[[Array], float]:
    """Seconds of such an exchange, from constants."""

    def time(costs: Array) -> float:
        machine = machine_of(costs)
        return seconds(timed.product, timed.steps, timed.job, machine) * timed.steps

    return time


def _bounded(rows: Array, aims: Array) -> Array:
    """Least squares without negative parts."""
    from scipy.optimize import nnls  # heavy: other commands do without

    found: Array = nnls(rows, aims)[0]
    return found
