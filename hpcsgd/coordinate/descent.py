"""Epochs of exchanges, until a gap or a gradient says that it is enough."""

from collections.abc import Callable, Iterator

import numpy as np

from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.form import Look
from hpcsgd.coordinate.items import Array
from hpcsgd.coordinate.opening import Ready
from hpcsgd.data.sampling import make_sampler
from hpcsgd.schedule import Blocks, blocks_of


class Descent:
    """Goes on from a point; the same one on all ranks."""

    def __init__(self, ready: Ready, point: Point) -> None:
        self.ready = ready
        self.point = point
        self.epoch = self.exchanges = self.steps = 0
        form, config = ready.form, ready.config
        self.sampler = make_sampler(config.sampling, form.items.count, 0)
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
        if form.prepare(self.point):
            exchanges.known.clear()
        for number, items, blocks in self._groups():
            exchanges.advance(self.point, number, items, blocks, form)
            self.exchanges += 1
            self.steps += len(blocks.sizes)
            if not after():
                form.settle(self.point)
                return False
        form.settle(self.point)
        self.epoch += 1
        return True

    def _groups(self) -> Iterator[tuple[int, Array, Blocks]]:
        order = self.sampler.order(self.epoch)
        for _ in range(self.ready.form.sweeps):
            first = 0
            for number, sizes in enumerate(self.ready.groups):
                blocks = blocks_of(sizes)
                items = np.ascontiguousarray(order[first : first + blocks.rows])
                first += blocks.rows
                yield number, items, blocks
