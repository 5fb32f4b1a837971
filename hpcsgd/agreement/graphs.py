"""Who mixes with whom, and with which weights, at any time: doubly stochastic graphs.

W(t) is symmetric and its rows sum to 1, so that a mean over replicas stays what it is,
whatever they mix. Every replica knows W(t) without a message: it is a function of the
number of replicas, the time and a seed. With unequal degrees the weights are those of
Metropolis, W_ij = 1 / (1 + max(deg_i, deg_j)), on any graph that has no direction.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError

Array = NDArray[Any]
DRAWS = 0x9A1B  # where row orders have the replica: no replica has this number
GRAPHS = ("full", "ring", "rings", "matching")


@dataclass(frozen=True)
class Graph:
    """One kind of graph over so many replicas."""

    kind: str  # of GRAPHS, or edges as "0-1,1-2"
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in GRAPHS:
            check_whole(_of_edges(self.kind, self.size), self.kind)
        check_doubly_stochastic(self.at(0))

    def at(self, time: int) -> Array:
        """W(t), (R, R) in float64."""
        if self.kind == "full":
            return np.full((self.size, self.size), 1.0 / self.size)
        if self.kind == "ring":
            return _ring(self.size, 1)
        if self.kind == "rings":
            return _ring(self.size, 1 + time % max(self.size // 2, 1))
        if self.kind == "matching":
            return _matching(self.size, self.seed, time)
        return _of_edges(self.kind, self.size)

    def row(self, rank: int, time: int) -> dict[int, float]:
        """Peer -> weight for one replica, itself among them, in rank order."""
        weights = self.at(time)[rank]
        found = {int(r): float(weights[r]) for r in np.flatnonzero(weights)}
        return found | {rank: float(weights[rank])} if rank not in found else found


def metropolis(edges: Array) -> Array:
    """W of a symmetric (R, R) array of booleans, whose diagonal is not looked at."""
    linked = edges & ~np.eye(len(edges), dtype=bool)
    degree = linked.sum(axis=1)
    weights: Array = linked / (1.0 + np.maximum.outer(degree, degree))
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def sigma_2(weights: Array) -> float:
    """The largest factor that an iteration leaves of what replicas differ by."""
    size = len(weights)
    return float(np.linalg.norm(weights - 1.0 / size, 2)) if size > 1 else 0.0


def check_doubly_stochastic(weights: Array) -> None:
    """Refuse weights that would bias the mean."""
    sums = [*weights.sum(axis=0), *weights.sum(axis=1)]
    if weights.min(initial=0.0) < 0.0 or not np.allclose(sums, 1.0, 0.0, 1e-12):
        raise ConfigError(
            "the weights of a graph must not be negative, and each row and each column"
            " of them must sum to 1, or replicas agree on another mean; use Metropolis"
            " weights"
        )


def check_whole(weights: Array, kind: str) -> None:
    """Refuse replicas that never hear of each other."""
    seen = np.zeros(len(weights), dtype=bool)
    seen[:1] = True
    for _ in range(len(weights)):
        seen = seen | (weights[:, seen] > 0.0).any(axis=1)
    if not seen.all():
        alone = np.flatnonzero(~seen).tolist()
        raise ConfigError(
            f"[agreement] graph = {kind!r} does not join replicas {alone} to replica 0;"
            " add an edge to them"
        )


@lru_cache(maxsize=64)
def _ring(size: int, offset: int) -> Array:
    """Each with those `offset` places ahead and behind."""
    places = np.arange(size)
    edges = np.zeros((size, size), dtype=bool)
    edges[places, (places + offset) % size] = True
    return metropolis(edges | edges.T)


@lru_cache(maxsize=64)
def _matching(size: int, seed: int, time: int) -> Array:
    """Pairs drawn by dice that all share; an odd one rests."""
    order = np.random.default_rng((seed, DRAWS, time)).permutation(size)
    edges = np.zeros((size, size), dtype=bool)
    half = size // 2
    edges[order[:half], order[half : 2 * half]] = True
    return metropolis(edges | edges.T)


@lru_cache(maxsize=64)
def _of_edges(text: str, size: int) -> Array:
    edges = np.zeros((size, size), dtype=bool)
    for edge in text.split(","):
        ends = edge.strip().split("-")
        if len(ends) != 2 or not all(e.isdigit() and int(e) < size for e in ends):
            raise ConfigError(
                f"[agreement] unknown graph: {text!r}; known: {list(GRAPHS)}, or edges"
                f" between replicas 0 to {size - 1}, as '0-1,1-2'"
            )
        edges[int(ends[0]), int(ends[1])] = True
    return metropolis(edges | edges.T)
