"""Exchanges that are timed on a sample, and the cost model fitted to their times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.backends.task import Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import RunConfig, rehearsal
from hpcsgd.data.readers import RowReader, is_sparse, stored_in
from hpcsgd.data.targets import LABELLED, MOST_CLASSES
from hpcsgd.formats import Array
from hpcsgd.glm import get_family
from hpcsgd.products.base import product_facts
from hpcsgd.products.cost import (
    SMALL,
    CostInputs,
    Machine,
    ProductsConfig,
    costs_of,
    kept_bytes,
    machine_of,
    parts_of,
    seconds,
)
from hpcsgd.runs.assembled_run import AssembledRun, poll_every
from hpcsgd.runs.build import assemble_run
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.opened_run import open_run
from hpcsgd.runs.settle import job_of

# Timed exchanges of a setting: a real run for some hundredths of a second.
#
# The data are loaded once; every setting gets its own product, feed and loop on them,
# so that the times are those of a run, messages included.

EPOCHS = 10**6  # more than any burst takes
LEAST, MOST = 3, 20000  # exchanges of a burst
FIRST_EPOCH = 0.15  # seconds of a first epoch, in which a product stores its batches
WOKEN = 2  # exchanges after which all memory and messages are allocated
FEW = 16  # exchanges of a first epoch, if the time of one is unknown
MOST_TOUCHED = 2**29  # bytes
TINY = 1e-9  # learning rate at which a timed run does not diverge
STEADY = {  # values of settings of every timed run
    "rate.kind": "constant",
    "rate.value": TINY,
    "rate.warmup": 0,
    "schedule.steps": 1,
}
# product that stores batches -> the product that its first epoch costs as much as
FIRST = {"cached": "gram", "gather-once": "gather"}


@dataclass(frozen=True, order=True)
class TimedSetting:
    """Settings that the time of a step depends on, on one grid in one precision."""

    product: str
    steps: int
    batch: int
    look_ahead: bool = False
    period: int = 0  # exchanges between agreements; 0 = no agreement while timed

    @property
    def rows(self) -> int:
        """Return m, the rows of an exchange of one replica."""
        return self.steps * self.batch

    @property
    def kind(self) -> str:
        """Return the product, with " ahead" if it looks ahead."""
        return self.product + (" ahead" if self.look_ahead else "")

    def values(self) -> dict[str, Any]:
        """Return section.key -> value of this setting in a configuration.

        Without a period, that of the configuration stays.
        """
        values: dict[str, Any] = {
            "schedule.batch": self.batch,
            "schedule.steps": self.steps,
            "products.kind": self.product,
            "products.look_ahead": "on" if self.look_ahead else "off",
        }
        return values | {"schedule.period": self.period} if self.period else values


@dataclass(frozen=True)
class Burst:
    """A number of timed exchanges of a setting, in a row."""

    setting: TimedSetting
    later: bool  # after the first epoch, with all batches stored
    exchanges: int
    seconds: float  # of one exchange


class Stage:
    """The data on one grid in one precision, on which settings are timed.

    Attributes
    ----------
    planned : RunConfig
        The run whose settings are chosen.
    place : mapping
        section.key -> value of the grid and the precision.
    """

    def __init__(
        self,
        planned: RunConfig,
        place: Mapping[str, Any],
        world: Communicator,
        reader: Callable[[Communicator], RowReader],
    ) -> None:
        self.planned = planned
        self.place = place
        self.opened = open_run(self.settings({}), world, reader, Clock())
        self.world = self.opened.grid.world
        self.first_epoch = FIRST_EPOCH  # seconds
        self._task: Task | None = None
        self._runs: dict[TimedSetting, _TimedRun] = {}

    def settings(self, values: Mapping[str, Any]) -> RunConfig:
        """Return the settings of a timed run that has `values`, by section.key."""
        return rehearsal(
            self.planned,
            {**self.place, **STEADY, **values},
            monitored=True,  # a run spends seconds on its checks
            products=ProductsConfig(kind="gram", look_ahead="off"),
        )

    @property
    def rows(self) -> int:
        """Return the least number of rows of a replica."""
        return self.opened.loaded.shard.total_rows // self.opened.grid.replicas.size

    @property
    def task(self) -> Task:
        """Return the task of a run on these data.

        Its kernels and communicators are those of all settings.
        """
        if self._task is None:
            self._task = self._live(TimedSetting("direct", 1, 1)).task
        return self._task

    def job(self, rows: int, epochs: int) -> CostInputs:
        """Return the inputs of the cost model for a run on `rows` rows of all replicas.

        It has `epochs` epochs on the grid of this stage.
        """
        opened = self.opened
        job = job_of(self.settings({"schedule.epochs": epochs}), opened)
        rows = max(rows // opened.grid.replicas.size, 1)
        return replace(job, replica=replace(job.replica, rows=rows))

    def fits(self, setting: TimedSetting) -> bool:
        """Return whether a replica has as many rows as an exchange of `setting`."""
        return setting.rows <= self.rows

    def burst(self, setting: TimedSetting, seconds: float) -> Burst:
        """Time exchanges of a setting for about `seconds` seconds; return the burst.

        Collective. If the product stores batches, the timed exchanges are those of
        later epochs.
        """
        later = product_facts(setting.product).keeps_batches
        if setting not in self._runs:
            self._runs[setting] = _TimedRun(self._live(setting), setting)
            if later:
                self._touch(setting)
        return Burst(setting, later, *self._runs[setting].run(seconds))

    def _touch(self, setting: TimedSetting) -> None:
        """Allocate the memory that the product stores batches in, and free it.

        On a virtual machine, pages that were never used since its start can take ten
        times as long as others; a run seldom gets such pages.
        """
        size = kept_bytes(setting.product, setting.steps, self.job(self.rows, 2))
        np.empty(min(size, MOST_TOUCHED), dtype=np.uint8).fill(0)

    def first(self, setting: TimedSetting) -> Burst:
        """Return the burst of the first epoch of `setting`, which `burst` has timed.

        Its product stores batches.
        """
        return Burst(setting, False, *self._runs[setting].first)

    def forget(self) -> None:
        """Finish and release the products of all bursts."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def close(self) -> None:
        """Release the products and close the grid. Collective."""
        self.forget()
        self.opened.grid.close()

    def _live(self, setting: TimedSetting) -> AssembledRun:
        endless = {"schedule.period": EPOCHS, "schedule.epochs": EPOCHS}
        config = self.settings({**endless, **setting.values()})
        opened = self.opened
        if product_facts(setting.product).keeps_batches:
            opened = replace(opened, loaded=self._fewer(setting))
        return assemble_run(config, opened, [])

    def _fewer(self, setting: TimedSetting) -> LoadedRows:
        """Return first local rows, for a first epoch of about `first_epoch` seconds.

        They are the rows of at least `LEAST` exchanges, or all rows if there are fewer.
        """
        loaded = self.opened.loaded
        replicas = self.opened.grid.replicas.size
        first = TimedSetting(FIRST[setting.product], setting.steps, setting.batch)
        run = self._runs.get(first)
        each = run.each if run and run.each else self.first_epoch / FEW
        count = max(int(self.first_epoch / each), LEAST)
        # The same number for every replica: the last ones may have one row less.
        height = min(self.rows, count * setting.rows)
        shard = loaded.shard
        part = slice(0, height)
        return replace(
            loaded,
            shard=replace(
                shard,
                matrix=shard.matrix[part],  # type: ignore[index]
                targets=shard.targets[part],
                weights=None if shard.weights is None else shard.weights[part],
                offsets=None if shard.offsets is None else shard.offsets[part],
                rows=slice(shard.rows.start, shard.rows.start + height),
                total_rows=height * replicas,
            ),
        )


class _TimedRun:
    """A run of a setting, which is stopped after a burst and resumed for the next."""

    def __init__(self, live: AssembledRun, setting: TimedSetting) -> None:
        self.live = live
        self.keeps = product_facts(setting.product).keeps_batches
        self.first = (0, 0.0)  # exchanges of a first epoch, and seconds of one
        self.each = 0.0  # seconds of an exchange in the last burst; 0 before it

    def run(self, seconds: float) -> tuple[int, float]:
        """Time exchanges for about `seconds` seconds. Collective.

        Return their number and the seconds of one exchange, the same on all ranks.
        """
        if not self.each:
            self._wake()
        count = min(max(int(seconds / self.each), LEAST), MOST)
        self.each = self._time(count)
        return count, self.each

    def finish(self) -> None:
        """Wait for messages that have not arrived."""
        self.live.product.finish()

    def _wake(self) -> None:
        """Run the first exchanges, in which memory is allocated, before any burst.

        If the product stores batches, run the whole first epoch, and time all of it but
        the very first exchanges.
        """
        live = self.live
        live.warm_up()
        view = live.view
        view.history.append({})  # no loss is evaluated
        first = live.feed.exchanges_per_epoch if self.keeps else LEAST
        # The very first exchange allocates memory and messages, once in a run.
        woken = min(WOKEN, first - 1)
        if woken:
            self._time(woken)
        self.first = first - woken, self._time(first - woken)
        self.each = self._time(LEAST)

    def _time(self, count: int) -> float:
        """Run `count` exchanges; return the seconds of one on the slowest rank.

        Its share of a poll is included, at the interval of polls in a real run.
        """
        loop = self.live.loop
        world = self.live.grid.world
        polls = world.ledger.entries["control"]
        view = loop.view
        control = (polls.calls, polls.seconds)
        before = view.seconds
        with np.errstate(all="ignore"):
            groups = self.live.feed.groups(view.exchanges)
            self.live.run_exchanges(groups, count)
        calls = polls.calls - control[0]
        waited = polls.seconds - control[1]
        own_seconds = (view.seconds - before - waited) / count
        own_seconds += (
            waited / max(calls, 1) / poll_every(self.live.config, self.live.task)
        )
        return max(world.max_number(own_seconds), 1e-9)


# The seconds of a tuning: every part queries the time that is left, and ends in time.


class TimeBudget:
    """A limited time, by the clock of rank 0 on all ranks."""

    def __init__(
        self,
        world: Communicator,
        seconds: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.world = world
        self.seconds: float = world.share_object(seconds)
        self.clock = clock
        self.began = clock()

    @property
    def spent(self) -> float:
        """Return the seconds since the beginning. Collective."""
        own_seconds = self.clock() - self.began
        root_seconds: float = self.world.share_object(own_seconds)
        return root_seconds

    def until(self, share: float) -> float:
        """Return the seconds until `share` of the time is spent, 0 if it is.

        Collective.
        """
        return max(share * self.seconds - self.spent, 0.0)


# A reader of the first rows of a file, on which settings are timed.


class FirstRows:
    """Rows 0 .. n − 1 of a reader, with every label if the family has classes.

    Labels are left as they are if there are more of them than rows or `MOST_CLASSES`.
    """

    def __init__(self, whole: RowReader, rows: int, family: str) -> None:
        self.whole = whole
        self.rows = min(rows, whole.rows)
        self.cols = whole.cols
        self.is_sparse = is_sparse(whole)
        self.nnz = int(stored_in(whole) * self.rows / max(whole.rows, 1))
        self._y = _with_all_labels(whole, self.rows, family)

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a block of the rows, as a dense array."""
        return self.whole.read(rows, cols)

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """Return a block of the rows, in CSR."""
        return self.whole.read_csr(rows, cols)

    def targets(self, rows: slice) -> Array:
        """Return the targets of rows; with classes, some have labels of other rows."""
        targets: Array = self._y[rows]
        return targets

    def sample_weight(self, rows: slice) -> Array | None:
        """Return the sample weights of rows, or None."""
        return self.whole.sample_weight(rows)

    def offset(self, rows: slice) -> Array | None:
        """Return the offsets of rows, or None."""
        return self.whole.offset(rows)

    def describe(self) -> dict[str, Any]:
        """Return the description of the whole file."""
        return self.whole.describe()

    def close(self) -> None:
        """Close the reader of the whole file."""
        self.whole.close()


def _with_all_labels(whole: RowReader, rows: int, family: str) -> Array:
    """Return the targets of the first rows, with every label of the data among them.

    If the family has classes, all labels are put in place of the first targets, unless
    there are too many of them. Times depend on the number of classes, not on the label
    of a row.
    """
    y = np.array(whole.targets(slice(0, rows)))
    if get_family(family).targets not in LABELLED or rows == whole.rows:
        return y
    labels = np.unique(whole.targets(slice(0, whole.rows)))
    if len(labels) <= min(MOST_CLASSES, rows):
        y[: len(labels)] = labels
    return y


# The constants of the cost model that explain measured times.
#
# The model is a sum of constants times counts of an exchange (messages, bytes,
# multiply-adds, bytes of rows, ...), so the fit is by least squares: relative errors,
# no negative constant, and a pull toward the constants that were measured separately,
# for constants that times do not distinguish.

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
    """Return the constants of the cost model, near `start`, that fit the times."""
    if not times:
        return start
    y = np.array([t.seconds for t in times])
    models = [_time_of(t) for t in times]
    first = costs_of(start)
    # A machine that is slower in everything must not pull each constant.
    first *= np.exp(np.median(np.log(y / [model(first) for model in models])))
    unit = np.where(first > 0, first, SMALL)
    pull = PULL * np.eye(len(first))
    least = np.where(first > 0, LEAST_SECONDS, 0.0)
    costs = first
    weights = np.ones(len(y))
    for _ in range(ROUNDS):
        parts = np.array([parts_of(model, costs) for model in models])
        # Casts of narrow sums belong to no constant.
        casts = np.array([model(costs) for model in models]) - parts @ costs
        scaled = parts * unit / y[:, None] * weights[:, None]
        rows = np.concatenate([scaled, pull])
        aims = np.concatenate([weights * (1.0 - casts / y), PULL * first / unit])
        costs = unit * (least + _bounded(rows, aims - rows @ least))
        off = np.abs((parts @ costs + casts) / y - 1.0)
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

    solution: Array = nnls(rows, aims)[0]
    return solution


# The cost model after a fit: seconds of a step of any setting.

FOR_EVER = 10**12  # epochs, so that the first one has no weight


@dataclass(frozen=True)
class MachineModels:
    """Fitted constants of the cost model: a `Machine` for each kind of exchange.

    All are near the machine that was measured separately.
    """

    job: CostInputs  # of the run that is planned, whatever its batch
    start: Machine  # of kinds without a fit
    machines: Mapping[str, Machine] = field(default_factory=dict)

    def step(self, setting: TimedSetting) -> float:
        """Return the predicted seconds of a step, on average over the run."""
        if not product_facts(setting.product).keeps_batches or not self.job.comes_again:
            return self.exchange(setting) / setting.steps
        first = 1.0 / self.job.epochs
        once = self.exchange(setting, later=False)
        later = self.exchange(setting, later=True)
        return (first * once + (1.0 - first) * later) / setting.steps

    def exchange(self, setting: TimedSetting, later: bool = False) -> float:
        """Return the predicted seconds of an exchange of a first or a `later` epoch."""
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
    """Return the name of the kind of an exchange; each kind has fitted constants."""
    if not product_facts(setting.product).keeps_batches:
        return setting.kind
    return f"{setting.kind} {'later' if later else 'first'}"


def question(setting: TimedSetting, later: bool, job: CostInputs) -> TimeSample:
    """Return what the cost model needs for an exchange of `setting`, with 0 seconds.

    `later`: the exchange is in an epoch after the first one. `job` is that of the run,
    whatever its batch.
    """
    job = replace(job, batch=setting.batch, apart=job.apart or setting.look_ahead)
    if not product_facts(setting.product).keeps_batches:
        return TimeSample(setting.product, setting.steps, job, 0.0)
    if not later:
        return TimeSample(FIRST[setting.product], setting.steps, job, 0.0)
    again = replace(job, epochs=FOR_EVER, comes_again=True)
    return TimeSample(setting.product, setting.steps, again, 0.0)
