"""Exchanges that are timed on a sample, within a budget of time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from hpcsgd.products.cost import CostInputs, ProductsConfig, kept_bytes
from hpcsgd.runs.assembled_run import AssembledRun, poll_every
from hpcsgd.runs.build import assemble_run, open_all
from hpcsgd.runs.choose import job_of
from hpcsgd.runs.load import LoadedRows

# The real thing for some hundredths of a second: exchanges of a setting, timed.
#
# The data are loaded once; every setting gets its own product, feed and loop on them,
# so that what is timed is what a run does, messages and all.

EPOCHS = 10**6  # as many as anybody waits for: a burst ends before
LEAST, MOST = 3, 20000  # exchanges of a burst
FIRST_EPOCH = 0.15  # seconds of one in which all is kept, and which is not timed
WOKEN = 2  # exchanges after which everything has its place
FEW = 16  # exchanges of it, where nobody knows what one takes
MOST_TOUCHED = 2**29  # bytes
TINY = 1e-9  # rate: what is timed is not to diverge
FIRST = {"cached": "gram", "gather-once": "gather"}  # what the first epoch is like


@dataclass(frozen=True, order=True)
class TimedSetting:
    """Settings that the time of a step depends on, on one grid in one precision."""

    product: str
    steps: int
    batch: int
    look_ahead: bool = False
    period: int = 0  # exchanges between agreements; 0 = none while it is timed

    @property
    def rows(self) -> int:
        """Rows of an exchange, m."""
        return self.steps * self.batch

    @property
    def kind(self) -> str:
        """The product, with a word on whether it looks ahead."""
        return self.product + (" ahead" if self.look_ahead else "")

    def applied_to(self, config: RunConfig) -> RunConfig:
        """Return `config` with this setting."""
        schedule, products = config.schedule, config.products
        return replace(
            config,
            schedule=replace(
                schedule,
                batch=self.batch,
                steps=self.steps,
                period=self.period or schedule.period,
            ),
            products=replace(
                products,
                kind=self.product,
                look_ahead="on" if self.look_ahead else "off",
            ),
        )


@dataclass(frozen=True)
class Burst:
    """Some exchanges of a setting."""

    setting: TimedSetting
    later: bool  # of epochs in which all is kept
    exchanges: int
    seconds: float  # of one exchange


class Stage:
    """One grid and one precision of a world, with data in it."""

    def __init__(
        self,
        config: RunConfig,
        world: Communicator,
        reader: Callable[[Communicator], RowReader],
    ) -> None:
        self.config = rehearsal(
            config,
            monitored=True,  # a run spends seconds on its checks
            rate=replace(config.rate, kind="constant", value=TINY, warmup=0),
            products=ProductsConfig(kind="gram", look_ahead="off"),
            schedule=replace(config.schedule, steps=1),
        )
        setup = Clock()
        self.opened = open_all(self.config, world, reader, setup)
        self.seconds_reading = setup.seconds.get("read", 0.0)
        self.world = self.opened.grid.world
        self.first_epoch = FIRST_EPOCH  # seconds
        self._task: Task | None = None
        self._runs: dict[TimedSetting, _TimedRun] = {}

    @property
    def rows(self) -> int:
        """Rows of a replica, at least."""
        return self.opened.loaded.shard.total_rows // self.opened.grid.replicas.size

    @property
    def task(self) -> Task:
        """Any that stands on these data: kernels and groups are the same in all."""
        if self._task is None:
            self._task = self._live(TimedSetting("direct", 1, 1)).task
        return self._task

    def job(self, rows: int, epochs: int) -> CostInputs:
        """Return the inputs of the cost model for a run on `rows` rows in all."""
        opened, schedule = self.opened, self.config.schedule
        config = replace(self.config, schedule=replace(schedule, epochs=epochs))
        job = job_of(config, opened.words, self.task, opened.loaded)
        return replace(job, rows=max(rows // opened.grid.replicas.size, 1))

    def fits(self, setting: TimedSetting) -> bool:
        """Return whether an epoch of the sample has exchanges of this size."""
        return setting.rows <= self.rows

    def burst(self, setting: TimedSetting, seconds: float) -> Burst:
        """About so many seconds of it; of a product that keeps, of later epochs."""
        later = product_facts(setting.product).keeps_batches
        if setting not in self._runs:
            self._runs[setting] = _TimedRun(self._live(setting), setting)
            if later:
                self._touch(setting)
        return Burst(setting, later, *self._runs[setting].run(seconds))

    def _touch(self, setting: TimedSetting) -> None:
        """Take memory for all that it keeps, and give it back.

        Pages that nobody has used since the machine began can take ten times as long
        as others, where the machine is a virtual one; a run seldom meets any.
        """
        size = kept_bytes(setting.product, setting.steps, self.job(self.rows, 2))
        np.empty(min(size, MOST_TOUCHED), dtype=np.uint8).fill(0)

    def first(self, setting: TimedSetting) -> Burst:
        """The first epoch, of a product that keeps; there has been a burst of it."""
        return Burst(setting, False, *self._runs[setting].first)

    def forget(self) -> None:
        """Let go of the products that bursts were made with."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def close(self) -> None:
        """Let go of the groups, with all ranks."""
        self.forget()
        self.opened.grid.close()

    def _live(self, setting: TimedSetting) -> AssembledRun:
        endless = replace(self.config.schedule, period=EPOCHS, epochs=EPOCHS)
        config = setting.applied_to(replace(self.config, schedule=endless))
        opened = self.opened
        if product_facts(setting.product).keeps_batches:
            opened = replace(opened, loaded=self._fewer(setting))
        return assemble_run(config, opened, [])

    def _fewer(self, setting: TimedSetting) -> LoadedRows:
        """As many rows as a first epoch may take in which everything is kept."""
        loaded, replicas = self.opened.loaded, self.opened.grid.replicas.size
        first = TimedSetting(FIRST[setting.product], setting.steps, setting.batch)
        known = self._runs.get(first)
        each = known.each if known and known.each else self.first_epoch / FEW
        count = max(int(self.first_epoch / each), LEAST)
        # Of every replica as many: the last ones may have a row less than the first.
        height = min(self.rows, count * setting.rows)
        shard, part = loaded.shard, slice(0, height)
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
        self.first = (0, 0.0)  # exchanges of a first epoch, and what one took
        self.each = 0.0  # seconds of an exchange, as far as is known

    def run(self, seconds: float) -> tuple[int, float]:
        """(exchanges, seconds of one): the same on all ranks."""
        if not self.each:
            self._wake()
        count = min(max(int(seconds / self.each), LEAST), MOST)
        self.each = self._time(count)
        return count, self.each

    def finish(self) -> None:
        """Finish messages that are still under way."""
        self.live.product.finish()

    def _wake(self) -> None:
        """Run a first epoch if the product keeps, else touch its memory once."""
        live = self.live
        live.warm_up()
        view = live.view
        view.history.append({})  # no loss is asked for
        first = live.feed.exchanges_per_epoch if self.keeps else LEAST
        # The first of all exchanges makes room and messages, once in a run.
        woken = min(WOKEN, first - 1)
        if woken:
            self._time(woken)
        self.first = first - woken, self._time(first - woken)
        self.each = self._time(LEAST)

    def _time(self, count: int) -> float:
        """Seconds of an exchange of the slowest rank, looks as often as in a run."""
        loop, world = self.live.loop, self.live.grid.world
        looks = world.ledger.entries["control"]
        view, control = loop.view, (looks.calls, looks.seconds)
        before = view.seconds
        with np.errstate(all="ignore"):
            groups = self.live.feed.groups(view.exchanges)
            self.live.run_exchanges(groups, count)
        calls, waited = looks.calls - control[0], looks.seconds - control[1]
        own = (view.seconds - before - waited) / count
        own += waited / max(calls, 1) / poll_every(self.live.config, self.live.task)
        return float(max(*world.exchange_objects(own), 1e-9))


# Seconds to spend: every part of the plan asks what is left, and ends in time.


class TimeBudget:
    """A clock that all ranks read alike: rank 0's."""

    def __init__(
        self,
        world: Communicator,
        seconds: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.world = world
        self.seconds: float = world.exchange_objects(seconds)[0]
        self.clock = clock
        self.began = clock()

    @property
    def spent(self) -> float:
        """Seconds since the beginning; asked by all ranks together."""
        own = self.clock() - self.began
        said: float = self.world.exchange_objects(own)[0]
        return said

    def until(self, share: float) -> float:
        """Seconds until so much of the whole is spent, or 0."""
        return max(share * self.seconds - self.spent, 0.0)


# The first rows of a file as a file of its own: what is timed on instead of all.


class FirstRows:
    """Rows 0 .. n − 1 of a reader; of a family of classes with every label in them."""

    def __init__(self, whole: RowReader, rows: int, family: str) -> None:
        self.whole = whole
        self.rows = min(rows, whole.rows)
        self.cols = whole.cols
        self.is_sparse = is_sparse(whole)
        self.nnz = int(stored_in(whole) * self.rows / max(whole.rows, 1))
        self._y = _with_all_labels(whole, self.rows, family)

    def read(self, rows: slice, cols: slice) -> Array:
        """As the whole has it."""
        return self.whole.read(rows, cols)

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """As the whole has it."""
        return self.whole.read_csr(rows, cols)

    def targets(self, rows: slice) -> Array:
        """With every label somewhere."""
        found: Array = self._y[rows]
        return found

    def sample_weight(self, rows: slice) -> Array | None:
        """As the whole has it."""
        return self.whole.sample_weight(rows)

    def offset(self, rows: slice) -> Array | None:
        """As the whole has it."""
        return self.whole.offset(rows)

    def describe(self) -> dict[str, Any]:
        """As the whole does."""
        return self.whole.describe()

    def close(self) -> None:
        """Close the whole."""
        self.whole.close()


def _with_all_labels(whole: RowReader, rows: int, family: str) -> Array:
    """Targets of the first rows; labels that they lack take the places of some.

    Times depend on how many classes there are, not on whose row is whose.
    """
    y = np.array(whole.targets(slice(0, rows)))
    if get_family(family).targets not in LABELLED or rows == whole.rows:
        return y
    labels = np.unique(whole.targets(slice(0, whole.rows)))
    if len(labels) <= min(MOST_CLASSES, rows):
        y[: len(labels)] = labels
    return y
