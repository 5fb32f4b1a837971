"""The groups of a whole run, in order: sampling, rates and plans put together."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.products.base import Group
from hpcsgd.products.plan import Planner


@dataclass(frozen=True)
class Feed:
    """What one replica works through, epoch after epoch."""

    sampler: Sampler
    planner: Planner
    plans: list[tuple[int, ...]]  # batch sizes of each exchange of an epoch
    exchanges_per_epoch: int  # of the replica with most rows
    epochs: int

    def groups(self) -> Iterator[Group | None]:
        """The groups of all epochs; None where this replica has run out of rows.

        The sequence depends on seed, epoch and replica alone, never on s, the product
        or C: every member agrees on it without a message.
        """
        padding: list[None] = [None] * (self.exchanges_per_epoch - len(self.plans))
        for epoch in range(self.epochs):
            order = self.sampler.order(epoch)
            first, step = 0, epoch * steps_in(self.plans)
            for index, sizes in enumerate(self.plans):
                rows = order[first : first + sum(sizes)]
                yield self.planner.group(index, rows, sizes, step)
                first, step = first + len(rows), step + len(sizes)
            yield from padding


def make_feed(
    config: RunConfig, planner: Planner, rows: int, replicas: int, replica: int
) -> Feed:
    """The feed of `replica`; `rows` are those of the whole data."""
    schedule, sampling = config.schedule, config.sampling
    part = split_range(rows, replicas, replica)
    largest = split_range(rows, replicas, 0)
    height = part.stop - part.start
    return Feed(
        sampler=Sampler(sampling.mode, sampling.seed, height, replica),
        planner=planner,
        plans=plan_groups(height, schedule.batch, schedule.steps),
        exchanges_per_epoch=len(
            plan_groups(largest.stop, schedule.batch, schedule.steps)
        ),
        epochs=schedule.epochs,
    )


def steps_in(plans: list[tuple[int, ...]]) -> int:
    """SGD steps of an epoch."""
    return sum(len(sizes) for sizes in plans)
