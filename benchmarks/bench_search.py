"""How many combinations a search for partition and credit measures, on model curves.

    python -m benchmarks.bench_search

A curve gives the seconds of an exchange for a partition and a credit. It is that of a
network (latency, bandwidth) that sends at most four messages at a time: the first tile
stops the next step, what is under way cannot be overtaken, and the rest hides behind
70 % of the computation. Figures are medians of nine searches with 1 % of noise: the
combinations until one is within 2 % of the best of a fine lattice, all combinations,
and the cost of the result beside that of the best.
"""

import json
from collections.abc import Callable
from math import ceil, inf
from statistics import median
from typing import Any

import numpy as np

from hpcsgd.agreements.more.scheduled import BayesianSearch, Search, log_grid

LEAST, MOST_PARTITION, MOST_CREDIT = 1 / 16, 64.0, 256.0  # MiB
NOISE, REPEATS = 0.01, 9
# network: MiB of the gradient, seconds of a message, MiB/s, seconds of computation
NETWORKS = {
    "inside a node": (64.0, 2e-6, 12_000.0, 0.004),
    "10 Gbit/s": (64.0, 5e-5, 1_200.0, 0.03),
    "10 Gbit/s, small gradient": (1.0, 5e-5, 1_200.0, 0.001),
    "1 Gbit/s": (32.0, 1e-3, 120.0, 0.2),
    "100 Mbit/s": (64.0, 1e-2, 12.0, 0.5),
}
SEARCHES = {"grid": Search, "bayesian": BayesianSearch}


def curve(
    size: float, latency: float, bandwidth: float, computation: float
) -> Callable[[float, float], float]:
    """The seconds of an exchange, as a function of partition and credit."""

    def seconds(partition: float, credit: float) -> float:
        messages = max(1, ceil(size / partition))
        together = min(max(credit, partition) / partition + 1, messages, 4)
        wire = size / bandwidth + messages * latency / together
        first = min(partition, size) / bandwidth + latency
        ahead = 0.3 * min(credit + partition, size) / bandwidth
        return computation + max(wire - 0.7 * computation, first + ahead)

    return seconds


def searched(kind: str, cost: Callable[[float, float], float], seed: int) -> list[Any]:
    """Combinations until one is near the best, all of them, and the excess."""
    best = min(
        cost(partition, credit)
        for partition in np.geomspace(LEAST, MOST_PARTITION, 100)
        for credit in np.geomspace(LEAST, MOST_CREDIT, 100)
    )
    draws = np.random.default_rng(seed)
    axes = log_grid(LEAST, MOST_PARTITION), log_grid(LEAST, MOST_CREDIT)
    search, near, count = SEARCHES[kind](*axes), inf, 0
    while search.point is not None:
        value = cost(*search.point)
        count += 1
        near = min(near, count if value <= 1.02 * best else inf)
        search.tell(value * (1 + NOISE * draws.standard_normal()))
    return [near, count, cost(*search.best) / best]


def measure() -> dict[str, Any]:
    """Medians for every network and search; null: no combination came near."""
    found: dict[str, Any] = {}
    for network, sizes in NETWORKS.items():
        found[network] = {}
        for kind in SEARCHES:
            runs = [searched(kind, curve(*sizes), seed) for seed in range(REPEATS)]
            near, count, excess = (median(column) for column in zip(*runs, strict=True))
            found[network][kind] = {
                "until_near": None if near == inf else near,
                "combinations": count,
                "beside_the_best": round(excess, 4),
            }
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
