"""Consensus iterations: y_i ← Σ_j W_ij(t) y_j, over a graph that may change with t.

Parts are added in rank order, so that replicas that mix the same parts get the same
bits. A full graph is one sum over all replicas, where plain numbers travel; logarithms
are mixed as what they are logarithms of, by

    ln Σ_j W_ij x_j = log-sum-exp_j (ln W_ij + ln x_j)
"""

from collections.abc import Sequence

import numpy as np

from hpcsgd.agreement.graphs import Graph
from hpcsgd.comm.base import Communicator
from hpcsgd.mirror.base import log_sum
from hpcsgd.products.base import Array

PURPOSE = "agreement"


class Mixer:
    """k iterations a round, of words of which the first `logs` are logarithms."""

    def __init__(
        self, replicas: Communicator, graph: Graph, iterations: int, logarithms: bool
    ) -> None:
        self.replicas = replicas
        self.graph = graph
        self.by_sum = graph.kind == "full" and not logarithms
        # Where all have heard all, they agree.
        self.iterations = 1 if graph.kind == "full" else iterations

    def mix(self, words: Array, logs: int, number: int) -> None:
        """All iterations of round `number`, in place."""
        if self.by_sum:
            self.replicas.sum(words, PURPOSE)
            words *= words.dtype.type(1.0 / self.replicas.size)
            return
        for k in range(self.iterations):
            self._iterate(words, logs, number * self.iterations + k)

    def _iterate(self, words: Array, logs: int, time: int) -> None:
        weights = self.graph.row(self.replicas.rank, time)
        parts = self._parts(words, [r for r in weights if r != self.replicas.rank])
        found = [parts[r] for r in weights]
        shares = np.array(list(weights.values()))[:, None]
        if logs:
            with np.errstate(divide="ignore"):
                logged = np.stack([part[:logs] for part in found]) + np.log(shares)
            words[:logs] = log_sum(logged.astype(np.float64))
        mixed = np.zeros(words.size - logs)
        for share, part in zip(shares, found, strict=True):
            mixed += share * part[logs:]
        words[logs:] = mixed

    def _parts(self, words: Array, peers: list[int]) -> dict[int, Array]:
        """What each peer has, and this replica itself; deg · words go out."""
        swaps = {
            peer: self.replicas.start_swap(words, np.empty_like(words), peer, PURPOSE)
            for peer in peers
        }
        found = {peer: swap.wait() for peer, swap in swaps.items()}
        return found | {self.replicas.rank: words.copy()}


def in_one_row(arrays: Sequence[Array], dtype: np.dtype) -> Array:
    """All of them, one after the other, as they travel."""
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    words: Array = flat.astype(dtype, copy=False)
    return words


def weighed(words: Array, logs: int, rows: int) -> Array:
    """[b y | b] of a replica that had b rows."""
    with np.errstate(divide="ignore"):
        words[:logs] += np.log(words.dtype.type(rows))
    words[logs:] *= rows
    return np.append(words, words.dtype.type(rows))


def unweigh(words: Array, logs: int) -> float:
    """num ← num / den of what was mixed; den, and where that is 0 nothing is done."""
    den = words[-1]
    if den != 0.0:
        words[:logs] -= np.log(den)
        words[logs:-1] /= den
    return float(den)


def apart(world: Communicator, own: Array, mean: Array) -> float:
    """sqrt(mean_i |x_i − x̄|²) / |x̄|, over all ranks."""
    found = np.array([np.square(own - mean).sum(), np.square(mean).sum()])
    world.sum(found, "control")
    return float(np.sqrt(found[0] / found[1])) if found[1] else 0.0
