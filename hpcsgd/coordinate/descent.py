"""Epochs of exchanges, until a gap or a gradient says that it is enough."""

from collections.abc import Callable, Iterator

import numpy as np

from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.form import Look
from hpcsgd.coordinate.items import Array
from hpcsgd.coordinate.opening import Ready
from hpcsgd.data.sampling import make_sampler, plan_groups
from hpcsgd.schedule import blocks_of


class Descent:
    """Goes on from a point; the same one on all ranks."""

    def __init__(self, ready: Ready, point: Point) -> None:
        self.ready = ready
        self.point = point
        self.epoch = self.exchanges = self.steps = 0
        self.progress = 0, 1  # exchanges of this epoch: taken, and all of them
        form, config = ready.form, ready.config
        self.sampler = make_sampler(config.sampling, form.count, 0)
        self.seen: Look | None = None
        self.first_gradient = form.steep

    def look(self) -> Look:
        """At the point now; x is made the same bits everywhere."""
        self.ready.opened.grid.world.broadcast(self.point.x, 0, "evaluate")
        seen = self.seen = self.ready.form.look(self.point)
        self.first_gradient = self.first_gradient or seen.gradient
        return seen

    def is_done(self, tol: float) -> bool:
        """Whether what was seen last is as good as was asked for."""
        seen = self.seen
        if seen is None or not tol:
            return False
        if seen.gap is not None:
            return seen.gap <= tol * self.ready.form.worst
        return seen.gradient <= tol * self.first_gradient

    def run_epoch(self, after: Callable[[], bool]) -> bool:
        """The sweeps of one epoch; False where `after` an exchange says to stop."""
        form, exchanges = self.ready.form, self.ready.exchanges
        order = form.prepare(self.point, self.sampler.order(self.epoch))
        if form.renews:
            exchanges.known.clear()
        steps = self._sweeps() if form.is_alone else self._exchanges(order)
        goes_on = True
        for blocks in steps:
            self.exchanges += 1
            self.steps += blocks
            goes_on = after()
            if not goes_on:
                break
        form.settle(self.point)
        if goes_on:
            self.epoch += 1
        return goes_on

    def _sweeps(self) -> Iterator[int]:
        """The steps of each sweep that a rank takes by itself."""
        form, clock = self.ready.form, self.ready.clock
        clock.lap("gather")
        for done in range(form.sweeps):
            steps, goes_on = form.sweep(self.point)
            clock.lap("inner")
            self.progress = done + 1 if goes_on else form.sweeps, form.sweeps
            yield steps
            if not goes_on:
                return

    def _exchanges(self, order: Array) -> Iterator[int]:
        """The blocks of each exchange of an epoch's sweeps."""
        form, schedule = self.ready.form, self.ready.config.schedule
        groups = plan_groups(len(order), schedule.batch, schedule.steps)
        for sweep in range(form.sweeps):
            first = 0
            for number, sizes in enumerate(groups):
                blocks = blocks_of(sizes)
                items = np.ascontiguousarray(order[first : first + blocks.rows])
                first += blocks.rows
                self.ready.exchanges.advance(self.point, number, items, blocks, form)
                done = sweep * len(groups) + number + 1
                self.progress = done, len(groups) * form.sweeps
                yield len(blocks.sizes)
