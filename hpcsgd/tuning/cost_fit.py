"""The fit of the cost model to measured times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hpcsgd.products.base import product_facts
from hpcsgd.products.cost import (
    SMALL,
    CostInputs,
    Machine,
    costs_of,
    machine_of,
    parts_of,
    seconds,
)
from hpcsgd.tuning.timed_exchanges import FIRST, Burst, TimedSetting

# The constants of the cost model that explain measured times.
#
# The model is a sum of constants times counts of an exchange (messages, bytes,
# multiply-adds, bytes of rows, ...), so the fit is by least squares: relative errors,
# no negative constant, and a pull toward the constants that were measured separately,
# for constants that times do not distinguish.

Array = NDArray[np.float64]
LEAST_SECONDS = 0.1  # least ratio of a constant to its separate measurement
PULL = 0.03  # weight of a constant's relative distance from its measurement
ROUNDS = 6  # each determines again which of two terms counts, and the outliers
STRANGE = 0.1  # times with a larger relative error have less weight


@dataclass(frozen=True)
class TimeSample:
    """One measured time of an exchange, and the inputs of its cost model."""

    product: str
    steps: int
    job: CostInputs
    seconds: float  # of an exchange


def fit_machine(times: Sequence[TimeSample], start: Machine) -> Machine:
    """Return the machine nearest to `start` that explains the times."""
    if not times:
        return start
    y = np.array([t.seconds for t in times])
    models = [_time_of(t) for t in times]
    first = costs_of(start)
    # A machine that is slower in everything must not pull each constant.
    first *= np.exp(np.median(np.log(y / [model(first) for model in models])))
    unit = np.where(first > 0, first, SMALL)
    pull, least = PULL * np.eye(len(first)), np.where(first > 0, LEAST_SECONDS, 0.0)
    costs, weights = first, np.ones(len(y))
    for _ in range(ROUNDS):
        parts = np.array([parts_of(model, costs) for model in models])
        # Casts of narrow sums belong to no constant.
        given = np.array([model(costs) for model in models]) - parts @ costs
        scaled = parts * unit / y[:, None] * weights[:, None]
        rows = np.concatenate([scaled, pull])
        aims = np.concatenate([weights * (1.0 - given / y), PULL * first / unit])
        costs = unit * (least + _bounded(rows, aims - rows @ least))
        off = np.abs((parts @ costs + given) / y - 1.0)
        usual = max(STRANGE, float(np.median(off)))
        weights = np.minimum(1.0, usual / np.maximum(off, 1e-9))
    return machine_of(costs)


def _time_of(timed: TimeSample) -> Callable[[Array], float]:
    """Return a function from constants to the seconds of such an exchange."""

    def time(costs: Array) -> float:
        machine = machine_of(costs)
        return seconds(timed.product, timed.steps, timed.job, machine) * timed.steps

    return time


def _bounded(rows: Array, aims: Array) -> Array:
    """Return the solution of least squares without negative entries."""
    from scipy.optimize import nnls  # slow to import; other commands do not need it

    found: Array = nnls(rows, aims)[0]
    return found


# The cost model after a fit: seconds of a step of any setting.

FOR_EVER = 10**12  # epochs, so that the first one has no weight


@dataclass(frozen=True)
class MachineModels:
    """A fitted machine for each kind of exchange, all near the measured one."""

    job: CostInputs  # of the run that is planned, whatever its batch
    start: Machine
    machines: Mapping[str, Machine] = field(default_factory=dict)

    def step(self, setting: TimedSetting) -> float:
        """Return the seconds of a step, on average over the run."""
        if not product_facts(setting.product).keeps_batches or not self.job.comes_again:
            return self.exchange(setting) / setting.steps
        first = 1.0 / self.job.epochs
        once = self.exchange(setting, later=False)
        later = self.exchange(setting, later=True)
        return (first * once + (1.0 - first) * later) / setting.steps

    def exchange(self, setting: TimedSetting, later: bool = False) -> float:
        """Return the seconds of one exchange, of a first or a `later` epoch."""
        timed = question(setting, later, self.job)
        machine = self.machines.get(kind_of(setting, later), self.start)
        return seconds(timed.product, timed.steps, timed.job, machine) * setting.steps

    def fitted(self, bursts: Sequence[Burst]) -> "MachineModels":
        """Return the models, fitted to the seconds of these bursts."""
        kinds: dict[str, list[TimeSample]] = {}
        for burst in bursts:
            timed = question(burst.setting, burst.later, self.job)
            kind = kind_of(burst.setting, burst.later)
            kinds.setdefault(kind, []).append(replace(timed, seconds=burst.seconds))
        every = [t for times in kinds.values() for t in times]
        near = fit_machine(every, self.start)
        machines = {kind: fit_machine(times, near) for kind, times in kinds.items()}
        return MachineModels(self.job, near, machines)


def kind_of(setting: TimedSetting, later: bool) -> str:
    """Return the name of the kind of exchange, which has constants of its own."""
    if not product_facts(setting.product).keeps_batches:
        return setting.kind
    return f"{setting.kind} {'later' if later else 'first'}"


def question(setting: TimedSetting, later: bool, job: CostInputs) -> TimeSample:
    """Return the sample of such an exchange, with 0 seconds."""
    job = replace(job, batch=setting.batch, apart=job.apart or setting.look_ahead)
    if not product_facts(setting.product).keeps_batches:
        return TimeSample(setting.product, setting.steps, job, 0.0)
    if not later:
        return TimeSample(FIRST[setting.product], setting.steps, job, 0.0)
    again = replace(job, epochs=FOR_EVER, comes_again=True)
    return TimeSample(setting.product, setting.steps, again, 0.0)
