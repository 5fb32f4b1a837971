"""Times of ways to do one thing: everybody in every turn, on the clock of the GPU."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

MOST = 20000  # calls of a turn
SHORTEST = 1e-7  # seconds


@dataclass(frozen=True)
class Way:
    """One of them. `run` queues its work, `parts` times the thing that is timed."""

    run: Callable[[], None]
    parts: int = 1
    most: int = MOST  # calls between two of `before`
    before: Callable[[], None] | None = None
    on_host: bool = False  # by the host's clock, work and waiting


@dataclass(frozen=True)
class Times:
    """Seconds of one thing."""

    median: float
    low: float
    high: float

    @property
    def us(self) -> dict[str, float]:
        """All of it in millionths."""
        return {name: 1e6 * value for name, value in asdict(self).items()}


class Clock:
    """Warm up, find how often, then turns."""

    def __init__(self, device: Any, turns: int, least: float) -> None:
        self.device, self.turns, self.least = device, turns, least

    def measure(self, ways: Mapping[str, Way]) -> dict[str, Times]:
        """name -> seconds; the first turn of everybody is not counted."""
        counts = {name: self._count(way) for name, way in ways.items()}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(self.turns + 1):
            for name, way in ways.items():
                taken = self._once(way, counts[name])
                if turn:
                    found[name].append(taken)
        return {
            name: Times(statistics.median(taken), min(taken), max(taken))
            for name, taken in found.items()
        }

    def _count(self, way: Way) -> int:
        self._once(way, 1)
        once = max(self._once(way, 1) * way.parts, SHORTEST)
        return min(max(int(self.least / once), 1), way.most)

    def _once(self, way: Way, count: int) -> float:
        if way.before is not None:
            way.before()
        self.device.synchronize()
        if not way.on_host:
            return self.device.seconds(way.run, count) / way.parts
        began = time.perf_counter()
        for _ in range(count):
            way.run()
        self.device.synchronize()
        return (time.perf_counter() - began) / count / way.parts


def as_graph(device: Any, action: Callable[[], None]) -> Callable[[], None]:
    """One launch that repeats it.

    What cannot be recorded fails the figure: launched one by one it would be a slower
    rival than it is.
    """
    action()
    device.synchronize()
    return device.capture(action)
