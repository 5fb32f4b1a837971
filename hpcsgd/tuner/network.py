"""α and β of every direction of the grid: sums of several sizes, and a line through."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.comm import wire
from hpcsgd.comm.base import Communicator
from hpcsgd.tuner.fit import fit_line

WORDS = (8, 64, 512, 4096, 2**15, 2**18)  # of a sum, float32
WARM, LEAST, MOST = 2, 3, 60  # sums of a size
SHARE = 1 / len(WORDS)


@dataclass(frozen=True)
class Direction:
    """What sums take among the ranks of one direction of the grid."""

    name: str  # members, or replicas
    ranks: int
    latency: float  # α, seconds of a sum of next to nothing
    per_byte: float  # β, seconds of a byte on the wire, 2(p−1)/p of the payload
    sizes: tuple[int, ...] = ()  # bytes of the payloads
    times: tuple[float, ...] = ()  # seconds of each

    @property
    def worst(self) -> float:
        """The largest relative distance of a time from the line."""
        line = [self.seconds(size) for size in self.sizes]
        pairs = zip(line, self.times, strict=True)
        return max((abs(a / b - 1.0) for a, b in pairs), default=0.0)

    def seconds(self, payload: float) -> float:
        """Of a sum of so many bytes, by the line."""
        moved = wire.sum_bytes(int(payload), self.ranks)
        return self.latency + self.per_byte * moved

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self) | {"worst": self.worst}


def measure_direction(name: str, group: Communicator, seconds: float) -> Direction:
    """Sums of several sizes in about so many seconds; called by all ranks together.

    The largest sizes are left out where the smaller ones have used the time up.
    """
    if group.size == 1:
        return Direction(name, 1, 0.0, 0.0)
    sizes: list[int] = []
    times: list[float] = []
    left = seconds
    for words in WORDS:
        if len(sizes) >= 2 and left <= 0.0:
            break
        found, spent = _sums(group, words, seconds * SHARE)
        sizes.append(4 * words)
        times.append(found)
        left -= spent
    return line_through(name, group.size, sizes, times)


def line_through(
    name: str, ranks: int, sizes: Sequence[int], times: Sequence[float]
) -> Direction:
    """α and β of sums that took so long."""
    moved = [wire.sum_bytes(size, ranks) for size in sizes]
    latency, per_byte = fit_line(moved, times)
    return Direction(name, ranks, latency, per_byte, tuple(sizes), tuple(times))


def _sums(group: Communicator, words: int, seconds: float) -> tuple[float, float]:
    """The median of one, and what all of them took: the same on all ranks."""
    workspace, began = group.workspace(words, np.float32), perf_counter()

    def one() -> float:
        workspace.array[...] = 0
        at = perf_counter()
        workspace.sum("control")
        return perf_counter() - at

    first = min([one() for _ in range(WARM)])
    agreed = max(group.exchange_objects(first))
    count = min(max(int(seconds / max(agreed, 1e-9)), LEAST), MOST)
    own = median([one() for _ in range(count)])
    said = group.exchange_objects((own, perf_counter() - began))
    return max(a for a, _ in said), max(b for _, b in said)
