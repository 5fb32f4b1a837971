"""Which part of the machine the time of a step is spent on, by the cost model."""

from collections.abc import Callable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from hpcsgd.cost import RATES, Job, Machine, seconds

Array = NDArray[np.float64]
NAMES = tuple(field.name for field in fields(Machine))
STEP = 1e-4  # relative, of a constant, to see what hangs on it
SMALL = 1e-6  # seconds: the size of a constant that was assumed to be nothing
# What people call the parts, and the constants that they are made of.
TERMS = {
    "latency": ("latency",),
    "bandwidth": ("per_byte",),
    "gram": ("gram",),
    "memory": ("read", "again", "plain"),
    "recurrence": ("inner", "turn"),
    "overhead": ("link", "exchange", "step", "alone"),
}


def terms(product: str, steps: int, job: Job, machine: Machine) -> dict[str, float]:
    """Seconds of a step by part; casts of narrow sums count as bandwidth."""

    def step(costs: Array) -> float:
        return seconds(product, steps, job, machine_of(costs))

    costs = costs_of(machine)
    paid = dict(zip(NAMES, parts_of(step, costs) * costs, strict=True))
    found = {term: float(sum(paid[n] for n in own)) for term, own in TERMS.items()}
    rest = seconds(product, steps, job, machine) - sum(found.values())
    found["bandwidth"] += max(rest, 0.0)
    return found


def parts_of(time: Callable[[Array], float], costs: Array) -> Array:
    """What there is of each constant, where the model stands at `costs`.

    The model grows as its constants grow together, so these times the constants are
    the time, also where it takes the larger of two terms.
    """
    here, found = time(costs), np.empty(len(costs))
    for k in range(len(costs)):
        step = STEP * costs[k] if costs[k] > 0 else STEP * SMALL
        moved = costs.copy()
        moved[k] += step
        found[k] = (time(moved) - here) / step
    return found


def costs_of(machine: Machine) -> Array:
    """The constants as what is paid: seconds a unit, for rates too."""
    values = [(name, getattr(machine, name)) for name in NAMES]
    return np.array([1.0 / v if name in RATES else v for name, v in values])


def machine_of(costs: Array) -> Machine:
    """Back again."""
    table = dict(zip(NAMES, costs.tolist(), strict=True))
    for name in RATES:
        table[name] = 1.0 / max(table[name], 1e-30)
    return Machine(**table)
