"""A run that is put together: its parts, its choices, its batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpcsgd.agreements.base import Agreement
from hpcsgd.backends.base import Backend
from hpcsgd.backends.task import Group, State, Task
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.gpu import DeviceCommunicator as CarriesArrays
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.sampling import Sampler, make_sampler, plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.data.stream import Unheld
from hpcsgd.glm.families import Family
from hpcsgd.glm.updates import LinearUpdate, make_rate
from hpcsgd.precision import Precision
from hpcsgd.products.base import Planner, Product
from hpcsgd.products.cost import Choice
from hpcsgd.products.direct import Stream, TiledProduct
from hpcsgd.runs.checkpoint import Capture, Saver
from hpcsgd.runs.load import LoadedRows
from hpcsgd.runs.loop import Training, TrainingLoop
from hpcsgd.solvers.callbacks import View
from hpcsgd.solvers.evaluation import Columns, Evaluation
from hpcsgd.solvers.sgd import RunLength, SgdSolver
from hpcsgd.solvers.snapshot import Snapshot

# The groups of a whole run, in order: sampling, rates and plans put together.


@dataclass(frozen=True)
class Feed:
    """What one replica works through, epoch after epoch."""

    sampler: Sampler
    planner: Planner
    plans: list[tuple[int, ...]]  # batch sizes of each exchange of an epoch
    exchanges_per_epoch: int  # of the replica with most rows
    epochs: int
    follow: Callable[[int, int, int], None] | None = None  # told what comes next
    one_step: bool = False  # the batches of an exchange are one step together

    def groups(self, done: int = 0) -> Iterator[Group | None]:
        """The groups after exchange `done`; None where this replica has no more rows.

        The sequence depends on seed, epoch and replica alone, never on s, the product
        or C: every member agrees on it without a message.
        """
        begun, skip = divmod(done, self.exchanges_per_epoch)
        for epoch in range(begun, self.epochs):
            yield from self._epoch(epoch, skip)
            skip = 0

    def progress(self, done: int) -> tuple[int, int]:
        """Steps and rows behind this replica after exchange `done` of the run."""
        epochs, rest = divmod(done, self.exchanges_per_epoch)
        begun = self.plans[:rest]
        count = len if self.one_step else steps_in
        steps = epochs * count(self.plans) + count(begun)
        return steps, epochs * rows_in(self.plans) + rows_in(begun)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Group | None]:
        order = self.sampler.order(epoch)
        first, step = 0, epoch * steps_in(self.plans)
        for index, sizes in enumerate(self.plans):
            if index < skip:
                first, step = first + sum(sizes), step + len(sizes)
                continue
            rows = order[first : first + sum(sizes)]
            if self.follow is not None:
                self.follow(epoch, first, len(rows))
            yield self.planner.group(index, epoch, rows, sizes, step, order, first)
            first, step = first + len(rows), step + len(sizes)
        done = max(skip, len(self.plans))
        yield from [None] * (self.exchanges_per_epoch - done)


@dataclass(frozen=True)
class RoundFeed(Feed):
    """Rounds that take what they get to of a stream, which goes on in the next one."""

    stream: Stream | None = None

    def progress(self, done: int) -> tuple[int, int]:
        """Rounds are steps; the stream knows its rows."""
        stream = self.stream
        return done, stream.rows_in(0, stream.taken) if stream is not None else 0

    def _epoch(self, epoch: int, skip: int) -> Iterator[Group | None]:
        for index in range(skip, self.exchanges_per_epoch):
            if not self.plans:
                yield None
                continue
            nothing = np.empty(0, dtype=np.int64)
            yield self.planner.group(index, epoch, nothing, self.plans[0], 0)


def make_feed(
    config: RunConfig,
    planner: Planner,
    rows: int,
    replicas: int,
    replica: int,
    follow: Callable[[int, int, int], None] | None,
) -> Feed:
    """The feed of `replica`; `rows` are those of the whole data."""
    schedule, sampling = config.schedule, config.sampling
    part = split_range(rows, replicas, replica)
    largest = split_range(rows, replicas, 0)
    height = part.stop - part.start
    feed = Feed(
        sampler=make_sampler(sampling, height, replica),
        planner=planner,
        plans=plan_groups(height, schedule.batch, schedule.steps),
        exchanges_per_epoch=len(
            plan_groups(largest.stop, schedule.batch, schedule.steps)
        ),
        epochs=schedule.epochs,
        follow=follow,
        one_step=config.agreement.shares_gradients,
    )
    if not config.agreement.takes_rounds:
        return feed
    chunks = [size for (size,) in plan_groups(height, schedule.batch, 1)]
    return RoundFeed(**vars(feed), stream=Stream(feed.sampler, planner, chunks))


def last_rate(config: RunConfig, rows: int) -> Callable[[int], float]:
    """Return what gives the rate of the last step of exchange k = 1, 2, ... of a run.

    `rows` are those of the largest replica. Models of a sweep have rates in one
    proportion: theirs is that of `[rate] value`, or of 1 where it names none.
    """
    schedule, value = config.schedule, config.rate.value or 1.0
    plans = plan_groups(rows, schedule.batch, schedule.steps)
    each = steps_in(plans)
    rate = make_rate(replace(config.rate, value=value), schedule.epochs * each)

    def after(exchanges: int) -> float:
        epoch, index = divmod(exchanges - 1, len(plans))
        steps = epoch * each + steps_in(plans[: index + 1])
        return float(rate.at(steps - 1, 1)[0])

    return after


def steps_in(plans: list[tuple[int, ...]]) -> int:
    """SGD steps of an epoch."""
    return sum(len(sizes) for sizes in plans)


def rows_in(plans: list[tuple[int, ...]]) -> int:
    """Rows of an epoch."""
    return sum(sum(sizes) for sizes in plans)


# What the training of a run is put together from.


@dataclass(frozen=True)
class ResolvedNames:
    """The concrete things behind the names."""

    world: Communicator  # behind the network that was asked for
    members: int
    family: Family
    precision: Precision
    backend: Backend
    update: LinearUpdate
    agreement: str
    latency: float  # seconds a message takes at least, as far as is known


@dataclass(frozen=True)
class Earlier:
    """What the run that goes on had chosen."""

    product: str
    steps: int
    look_ahead: bool
    members: int


@dataclass(frozen=True)
class RunChoice:
    """What will run, and what a step of it is expected to take."""

    product: str
    steps: int
    look_ahead: bool
    seconds: float = 0.0  # of a step, by the model; 0 = it was not asked
    key: str = ""  # under which the machine file knows this kind of run
    rival: Choice | None = None  # the best of the other products
    reasons: Mapping[str, str] = field(default_factory=dict)  # of settings left open
    figures: str = ""  # of the machine behind `seconds`: measured, assumed, or a file


def poll_every(config: RunConfig, task: Task) -> int:
    """Return the exchanges between two polls of all ranks.

    Alarms of a monitor are seen in polls, so these are as frequent as its checks.
    """
    run = config.run
    return (
        run.check_every if task.monitor is None else min(run.check_every, run.gap_every)
    )


@dataclass(frozen=True)
class Parts:
    """What is there before the training loop is."""

    config: RunConfig
    words: ResolvedNames
    grid: Grid
    loaded: LoadedRows
    task: Task
    product: Product
    product_name: str
    look_ahead: bool
    feed: Feed
    columns: Columns
    undo: list[Callable[[], None]]  # what closes the groups that were opened

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at the recurrence."""
        return self.task.monitor is not None


@dataclass(frozen=True)
class AssembledRun:
    """A run ready to go."""

    config: RunConfig
    grid: Grid
    loaded: LoadedRows
    task: Task
    solver: SgdSolver
    chosen: RunChoice
    feed: Feed
    columns: Columns
    capture: Capture
    training: Training[State]
    state: State

    @property
    def loop(self) -> TrainingLoop[State]:
        """Return the loop over the exchanges."""
        return self.training.loop

    @property
    def view(self) -> View:
        """Return where the run stands."""
        return self.loop.view

    @property
    def agreement(self) -> Agreement:
        """Return how replicas agree."""
        return self.solver.agreement

    @property
    def product(self) -> Product:
        """Return the product that runs."""
        return self.solver.product

    @property
    def evaluation(self) -> Evaluation:
        """Return what measures the model."""
        return self.capture.evaluation

    @property
    def saver(self) -> Saver[State] | None:
        """Return what writes checkpoints; None: the run leaves nothing behind."""
        return self.loop.saver

    @property
    def product_name(self) -> str:
        """Of the product that runs."""
        return self.chosen.product

    @property
    def look_ahead(self) -> bool:
        """Whether its Gram travels ahead of use."""
        return self.chosen.look_ahead

    def restore(self, checkpoint: Snapshot) -> None:
        """Restore the state of a checkpoint."""
        self.capture.restore(checkpoint, self.state, self.view, self.feed.progress)
        trains, done = self.agreement.trains, self.view.exchanges
        if self.task.monitor is not None:
            self.task.monitor.begin(done, self.feed.plans, trains)

    def close(self) -> None:
        """Let go of the file and of the groups, with all ranks; the world stays."""
        if isinstance(self.loaded.shard.matrix, Unheld):
            self.loaded.shard.matrix.close()
        self.agreement.close()
        self.grid.close()
        if isinstance(self.grid.world, CarriesArrays):
            self.grid.world.carrier.close()  # the world below it goes on

    def open(self) -> None:
        """Make what a run that begins keeps on disk, if anything; it is gone on from
        there even before the first checkpoint that is due.
        """
        agreement: Any = self.agreement
        if self.config.agreement.on_disk and not agreement.is_open:
            agreement.open()
            self.save()
            self.finish_saving()  # a first step without it could not be found

    def run_exchanges(self, groups: Iterator[Group | None], more: int) -> None:
        """Run so many exchanges and no more, to time them: no loss is evaluated.

        The rest of the run is lost: its length is now one epoch that ends there.
        """
        length = RunLength(1, self.view.exchanges + more, evaluate_every=0)
        self.solver.feed(groups, length)
        self.loop.train(self.state)
        self.agreement.arrive(self.state)

    def save(self) -> None:
        """Make a checkpoint, where the run leaves any behind. Collective."""
        if self.saver is not None:
            self.saver.save(self.state, self.view)

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is on disk; a local call."""
        if self.saver is not None:
            self.saver.finish()

    def release(self) -> None:
        """Let go of files and threads, however the run ended; a local call."""
        self.agreement.release()

    def warm_up(self) -> None:
        """Touch the arrays and wake the libraries once, on copies, in silence."""
        task, shard = self.task, self.task.shard
        height = min(shard.height, self.config.schedule.batch)
        numbers = np.arange(height, dtype=np.int64)
        out = None
        if isinstance(self.product, TiledProduct):
            return  # nothing of it is there at a time
        if not shard.is_sparse:
            out = np.zeros((height, shard.width), dtype=task.precision.working)
        matrix = shard.matrix
        if isinstance(matrix, Unheld):  # nothing of it is in memory yet
            matrix = task.backend.store(np.zeros_like(out))
        rows = task.backend.gather(matrix, numbers, out)
        weights = task.backend.zeros((shard.width, task.columns))
        margins = np.empty((height, task.columns), dtype=task.margin_dtype)
        task.backend.scores(rows, weights, margins)
        task.family.residual(margins, shard.targets[:height])
