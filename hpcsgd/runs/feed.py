"""The groups of a whole run, in order: sampling, rates and plans put together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hpcsgd.backends.task import Group
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.sampling import (
    PoissonSampler,
    Sampler,
    make_sampler,
    plan_groups,
)
from hpcsgd.data.shard import Shard, split_range
from hpcsgd.data.stream import StreamedMatrix
from hpcsgd.formats import Array
from hpcsgd.glm.penalties import Models
from hpcsgd.glm.updates import Rate, RateConfig, make_rate
from hpcsgd.products.base import Planner
from hpcsgd.products.direct import Stream


@dataclass(frozen=True)
class Feed:
    """The groups of batches that one replica trains on, epoch after epoch."""

    sampler: Sampler
    planner: Planner
    plans: list[tuple[int, ...]]  # batch sizes of each exchange of an epoch
    exchanges_per_epoch: int  # of the replica with most rows
    epochs: int
    follow: Callable[[int, int, int], None] | None = None  # called ahead of groups
    one_step: bool = False  # the batches of an exchange are one step together

    def groups(self, done: int = 0) -> Iterator[Group | None]:
        """Yield the groups of batches after exchange `done`, one for each exchange.

        Yield None for exchanges in which this replica has no rows. The order of the
        rows depends on seed, epoch and replica, and not on s, the product or C. All
        members of the replica therefore use the same rows without a message.
        """
        begun, skip = divmod(done, self.exchanges_per_epoch)
        for epoch in range(begun, self.epochs):
            yield from self._epoch(epoch, skip)
            skip = 0

    def progress(self, done: int) -> tuple[int, int]:
        """Return (steps, rows) that this replica has taken after exchange `done`."""
        epochs, rest = divmod(done, self.exchanges_per_epoch)
        begun = self.plans[:rest]
        count = len if self.one_step else steps_in
        steps = epochs * count(self.plans) + count(begun)
        return steps, epochs * rows_in(self.plans) + rows_in(begun)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Group | None]:
        order = self.sampler.order(epoch)
        first = 0
        step = epoch * steps_in(self.plans)
        for index, sizes in enumerate(self.plans):
            if index < skip:
                first = first + sum(sizes)
                step = step + len(sizes)
                continue
            group = self.planner.group(index, epoch, order, first, sizes, step)
            if self.follow is not None:
                self.follow(epoch, first, len(group.rows))
            yield group
            first = first + len(group.rows)
            step = step + len(sizes)
        done = max(skip, len(self.plans))
        yield from [None] * (self.exchanges_per_epoch - done)


@dataclass(frozen=True)
class RoundFeed(Feed):
    """A feed of rounds of a fixed time, which take the next rows of a stream."""

    stream: Stream | None = None

    def progress(self, done: int) -> tuple[int, int]:
        """Return (done, rows): each round is one step.

        The rows are all that this replica has taken from the stream, whatever `done`
        is; 0 without a stream.
        """
        stream = self.stream
        return done, stream.rows_in(0, stream.taken) if stream is not None else 0

    def _epoch(self, epoch: int, skip: int) -> Iterator[Group | None]:
        for index in range(skip, self.exchanges_per_epoch):
            if not self.plans:
                yield None
                continue
            nothing = np.empty(0, dtype=np.int64)
            yield self.planner.group(index, epoch, nothing, 0, self.plans[0], 0)


def make_feed(
    config: RunConfig,
    planner: Planner,
    shard: Shard,
    grid: Grid,
) -> Feed:
    """Return the feed of this rank's replica. Collective."""
    schedule = config.schedule
    replicas = grid.replicas.size
    steps = steps_together(config)
    part = split_range(shard.total_rows, replicas, grid.replica)
    largest = split_range(shard.total_rows, replicas, 0)
    height = part.stop - part.start
    matrix = shard.matrix
    sampler = make_sampler(config.sampling, height, grid.replica)
    if config.privacy.is_poisson:
        seed = config.sampling.seed
        places = schedule.batch * steps
        sampler = PoissonSampler("poisson", seed, height, grid.replica, places=places)
    if schedule.epochs > 0:
        sampler.keep_order(grid.members.keep)
    feed = Feed(
        sampler=sampler,
        planner=planner,
        plans=plan_groups(height, schedule.batch, steps),
        exchanges_per_epoch=len(plan_groups(largest.stop, schedule.batch, steps)),
        epochs=schedule.epochs,
        follow=matrix.follow if isinstance(matrix, StreamedMatrix) else None,
        one_step=config.agreement.shares_gradients,
    )
    if not config.agreement.takes_rounds:
        return feed
    chunks = [size for (size,) in plan_groups(height, schedule.batch, 1)]
    return RoundFeed(**vars(feed), stream=Stream(feed.sampler, planner, chunks))


def steps_together(config: RunConfig) -> int:
    """Return the number of batches of an exchange.

    If replicas share gradients, it is the number of batches whose gradients are summed
    together; else it is s.
    """
    agreement = config.agreement
    if agreement.shares_gradients:
        return agreement.batches_together
    return config.schedule.steps


def rates_of(
    config: RateConfig, models: Models | None, total_steps: int, epochs: int
) -> Callable[[int, int], Array]:
    """Return a function of (first step, count) that returns learning rates.

    They are the rates of `count` steps: (count,) for one model, and for several models
    (count, settings), a column for each of `models.settings`. `total_steps` is the
    number of steps of the run.
    """
    if models is None:
        return make_rate(config, total_steps, epochs).at
    shape = make_rate(replace(config, value=1.0), total_steps, epochs)
    values = np.array([rate for _, rate in models.settings])
    return lambda first, count: np.multiply.outer(shape.at(first, count), values)


@dataclass(frozen=True)
class LastRate:
    """A function of k that returns the rate of the last step of exchange k, from 1 on.

    `rows` are those of the largest replica. The rates of several models differ by
    constant factors; the result is that for `[rate] value`, or for a first rate of 1 if
    the value is automatic.
    """

    config: RunConfig
    rows: int

    @cached_property
    def _plans(self) -> list[tuple[int, ...]]:
        schedule = self.config.schedule
        return plan_groups(self.rows, schedule.batch, schedule.steps)

    @cached_property
    def _rate(self) -> Rate:
        config = self.config
        settings = replace(config.rate, value=config.rate.value or 1.0)
        epochs = config.schedule.epochs
        return make_rate(settings, epochs * steps_in(self._plans), epochs)

    def __call__(self, exchanges: int) -> float:
        """Return the rate of the last step of exchange number `exchanges`."""
        plans = self._plans
        epoch, index = divmod(exchanges - 1, len(plans))
        steps = epoch * steps_in(plans) + steps_in(plans[: index + 1])
        return float(self._rate.at(steps - 1, 1)[0])


def steps_in(plans: list[tuple[int, ...]]) -> int:
    """Return the SGD steps of an epoch, one for each batch in `plans`."""
    return sum(map(len, plans))


def rows_in(plans: list[tuple[int, ...]]) -> int:
    """Return the rows of an epoch: the sum of all batch sizes in `plans`."""
    return sum(map(sum, plans))
