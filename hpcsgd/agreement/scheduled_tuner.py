"""Partition and credit by measuring: a grid on a log scale, then sections of it.

Five partitions at the middle credit and three sections of them, then four more credits
at the best of these and three sections: 15 points. A section is at the vertex of a
parabola, or else golden, as Brent's. Rank 0 measures the median seconds of some
exchanges; all ranks hear of it after the same exchange, and feed the same search.
"""

from collections.abc import Generator, Sequence
from math import exp, log
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcsgd.products.base import State

if TYPE_CHECKING:
    from hpcsgd.agreement.scheduled import Scheduled

POINTS, SECTIONS = 5, 3
MOST = 2 * POINTS - 1 + 2 * SECTIONS
ROUNDS = 6  # exchanges a point; the first still has what was under way before
SMALLEST = 2.0**-4  # MiB; messages below it are all latency
GOLDEN = (3 - 5**0.5) / 2
NEAR = 1e-2  # of the bracket: a parabola that ends there says nothing new
COSTS = "schedule_costs"  # in `State.kept`, for runs that go on
Point = tuple[float, float]  # partition, credit, in MiB


def log_grid(least: float, most: float) -> list[float]:
    """POINTS from least to most, in equal ratios."""
    return [float(x) for x in np.geomspace(least, most, POINTS)]


class Search:
    """Asks for the cost of one point after the other; `best` is the answer."""

    def __init__(self, partitions: Sequence[float], credits: Sequence[float]) -> None:
        self.costs: dict[Point, float] = {}
        self._steps = self._search(partitions, credits)
        self.point: Point | None = next(self._steps)  # to be measured; None: done

    @property
    def best(self) -> Point:
        """Of those that were measured."""
        return min(self.costs, key=lambda point: self.costs[point])

    def tell(self, cost: float) -> None:
        """What the point costs."""
        assert self.point is not None
        self.costs[self.point] = cost
        self.point = next(self._steps, None)

    def _search(
        self, partitions: Sequence[float], credits: Sequence[float]
    ) -> Generator[Point, None, None]:
        middle = credits[len(credits) // 2]
        for partition in partitions:
            yield from self._new((partition, middle))
        yield from self._sections(0, partitions)
        chosen = self.best[0]
        for credit in credits:
            yield from self._new((chosen, credit))
        yield from self._sections(1, credits)

    def _new(self, point: Point) -> Generator[Point, None, None]:
        if point not in self.costs:
            yield point

    def _sections(
        self, axis: int, grid: Sequence[float]
    ) -> Generator[Point, None, None]:
        """Between the neighbours of the best value of one axis, the other as it is."""
        centre = self.best
        place = grid.index(centre[axis])
        low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]

        def at(value: float) -> Point:
            return (value, centre[1]) if axis == 0 else (centre[0], value)

        for _ in range(SECTIONS):
            before = self.best[axis]
            known = [(log(x), self.costs[at(x)]) for x in (low, before, high)]
            value = exp(between(*known))
            yield from self._new(at(value))
            worse = before if self.best[axis] == value else value
            low, high = (worse, high) if worse < self.best[axis] else (low, worse)


def between(low: Point, best: Point, high: Point) -> float:
    """Where to look next, given (place, cost) of three, the least in the middle.

    The vertex of the parabola through them, if it is well inside and not where we are;
    else the golden section of the longer side.
    """
    (a, fa), (b, fb), (c, fc) = low, best, high
    left, right = (b - a) * (fb - fc), (b - c) * (fb - fa)
    if left != right:
        vertex = b - ((b - a) * left - (b - c) * right) / (2 * (left - right))
        if a < vertex < c and abs(vertex - b) > NEAR * (c - a):
            return vertex
    return b + GOLDEN * (c - b) if c - b > b - a else b - GOLDEN * (b - a)


class Tuning:
    """Measures exchanges of a run, and has it switch, all ranks alike."""

    def __init__(self, agreement: "Scheduled", state: State) -> None:
        self.agreement = agreement
        self.replicas = agreement.grid.replicas
        buffer = agreement.buffer
        tile = max(buffer.with_tail(one).nbytes for one in buffer.tiles) / 2**20
        whole = buffer.flat.nbytes / 2**20
        least = min(SMALLEST, tile)
        self.search = Search(log_grid(least, tile), log_grid(least, whole))
        self.costs = state.kept.setdefault(COSTS, np.full(MOST, np.nan))
        self._told = -1  # -1: nothing is in use yet
        self._since = 0.0
        self._seconds: list[float] = []

    def after_exchange(self, state: State) -> None:
        """Count it; switch when the point has been measured."""
        if self._told < 0:
            self._go_on(state)
        elif self.search.point is not None:
            self._seconds.append(perf_counter() - self._since)
            if len(self._seconds) == ROUNDS:
                self._decide(state)
        self._since = perf_counter()

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        return {"tuned": self.search.point is None, "tuned_points": max(self._told, 0)}

    def _go_on(self, state: State) -> None:
        """What a checkpoint knew, then the point after it."""
        self._told = 0
        for cost in self.costs[~np.isnan(self.costs)]:
            self._told += 1
            self.search.tell(float(cost))
        self._use(state)

    def _decide(self, state: State) -> None:
        cost = np.array([median(self._seconds[1:])])
        self.replicas.broadcast(cost, 0, "control")
        self.costs[self._told] = cost[0]
        self._told += 1
        self.search.tell(float(cost[0]))
        self._use(state)

    def _use(self, state: State) -> None:
        """The next point to measure, or the best of all."""
        self._seconds = []
        self.agreement.use(state, *(self.search.point or self.search.best))
