"""An average whose result is made in parts, one on each replica, and put together.

Of d_c columns held, W words each, replica r makes rows `split_range(d_c, R, r)`: all
replicas send it theirs (a reduce-scatter: d_c·W words, and the intercept R times over),
it adds them in rank order, works on its part, and a gather of (d_c / R)·W words hands
the parts to all. Two calls that move what one all-reduce does.
"""

from collections.abc import Callable

import numpy as np

from hpcsgd.agreement.average import Average, clear_momentum
from hpcsgd.data.partition import split_range
from hpcsgd.products.base import Array, State

Work = Callable[[State, Array], None]


class Shards:
    """The parts of one column block, over its replicas."""

    def __init__(self, base: Average, classes: int) -> None:
        self.base = base
        self.classes = classes
        self.replicas = base.grid.replicas

    def part(self, rows: int, replica: int | None = None) -> slice:
        """The rows of one replica, this one if none is named."""
        own = self.replicas.rank if replica is None else replica
        return split_range(rows, self.replicas.size, own)

    def average(self, state: State, exchanges: int, work: Work) -> None:
        """The base's full average; `work` sees the weights of the part in between."""
        whole = self.base.momentum == "average"
        width = state.weights.shape[1] if whole else self.classes
        wide = width // self.classes  # states of the intercept that travel
        held = state.weights[:, :width]
        beta = None if state.intercept is None else state.intercept[:wide]
        own, mean = self._scatter(held, beta, self.base.weight(exchanges))
        work(state, own[:, : self.classes])
        state.weights[:, :width] = self.join(own, state, "agreement")
        if beta is not None:
            beta[...] = mean.reshape(beta.shape)
        if self.base.momentum == "reset":
            clear_momentum(state, self.classes)

    def join(self, own: Array, state: State, purpose: str) -> Array:
        """One row a column held from the parts of all replicas."""
        rows, width = len(state.weights), own.shape[1]
        out = np.empty((rows, width), dtype=own.dtype)
        flat = np.ascontiguousarray(own).reshape(-1)
        counts = [size * width for size in self._sizes(rows)]
        self.replicas.gather(flat, counts, out.reshape(-1), purpose)
        return out

    def _scatter(
        self, held: Array, beta: Array | None, share: float
    ) -> tuple[Array, Array]:
        """Σ share · held of the own part, and the same of the intercept, whole."""
        rows, width = held.shape
        more = np.empty(0, held.dtype)
        if beta is not None:
            more = beta.reshape(-1).astype(held.dtype)
        parts = [self.part(rows, r) for r in range(self.replicas.size)]
        pieces = np.concatenate([x for p in parts for x in (held[p].reshape(-1), more)])
        pieces *= share
        counts = [size * width + more.size for size in self._sizes(rows)]
        size = counts[self.replicas.rank]
        out = np.empty((self.replicas.size, size), dtype=held.dtype)
        self.replicas.exchange_pieces(pieces, counts, out.reshape(-1), "agreement")
        total = out[0]
        for other in out[1:]:
            total += other
        cut = size - more.size
        return total[:cut].reshape(-1, width), total[cut:]

    def _sizes(self, rows: int) -> list[int]:
        parts = [self.part(rows, r) for r in range(self.replicas.size)]
        return [part.stop - part.start for part in parts]
