"""Any-batch mirror descent: rounds of a fixed time, on replicas of any speed.

A round t of replica i, whose weights are x_i:

    s_i, b_i ← Σ Yᵀr and rows of as many chunks as there was time for
    y_i      = argmin_x η_t ⟨s_i / b_i + λ x_i, x⟩ + D_ψ(x, x_i)       (b_i = 0: x_i)
    y_i      ← Σ_j W_ij y_j,  k times over a graph that may change
    x_i      = y_i;  weighted: x_i = num_i / den_i, where b_i y_i and b_i are mixed

Nobody waits for a slow replica to finish a batch, only for the words of its neighbours.
W is doubly stochastic: what is mixed keeps its sum, and the weighted mean of all
replicas, Σ den_i x_i / Σ den_i = Σ b_i y_i / Σ b_i, is what evaluation, result and
checkpoints of other grids go by.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.agreement.anybatch_mixing import (
    PURPOSE,
    Mixer,
    apart,
    in_one_row,
    unweigh,
    weighed,
)
from hpcsgd.agreement.anybatch_rounds import Pace, rows_of
from hpcsgd.agreement.gradient import Gradient
from hpcsgd.agreement.means import Means
from hpcsgd.comm.grid import Grid
from hpcsgd.mirror import Mirror, Point
from hpcsgd.products.any_batches import Stream
from hpcsgd.products.base import Array, Rows, State, Task

DEN = "anybatch_den"  # (1, K) beside the intercept: how much this replica counts
CHUNKS, SKIPPED, ROWS = "chunks", "skipped", "rows"


@dataclass(frozen=True)
class Terms:
    """What is known where it is made, besides `Means`."""

    pace: Pace
    stream: Stream
    mixer: Mixer
    weighted: bool
    mirror: Callable[[bool], Mirror]  # whether a member holds all columns itself


class Anybatch(Gradient):
    """Takes the gradients of a round, steps by itself, and mixes with neighbours."""

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, means)
        terms: Terms = means.more
        self.terms = terms
        self.stream = terms.stream
        self.mixer = terms.mixer
        self.weighted = terms.weighted
        self.disagreement = 0.0
        self._chunks: list[int] = []  # of every round so far, on this replica
        self._before: Array = np.zeros((grid.replicas.size, 0), dtype=np.int64)
        # Chunks of its streams that other replicas, in other streams, stood for.
        self._skipped = self._before
        self._is_regridded = False
        self._settled = -1  # the exchange behind which all became one
        self._started = 0  # chunks of the stream, where this round began
        self._taken = 0

    def prepare(self, state: State) -> None:
        """One buffer for sums, the first point of the map, and its room."""
        shape = len(state.weights), self.columns
        has_intercept = state.intercept is not None
        given = *shape, state.weights.dtype, 1, has_intercept
        self.buffer = self.means.buffer(*given)
        self.mirror = self.terms.mirror(len(state.weights) == self.means.total)
        for name in self.mirror.kept:
            state.remember(name, self.columns)
        real = state.weights.dtype
        for name in self.mirror.shared:
            state.shared.setdefault(name, np.zeros((1, self.columns), real))
        state.shared.setdefault(DEN, np.ones((1, self.columns)))
        self.mirror.begin(self._point(state))

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Who swaps what with whom."""
        graph = self.mixer.graph
        return {
            **super().plan_in_words(state),
            "graph": f"{graph.kind} by seed {graph.seed}",
            "consensus iterations": repr(self.mixer.iterations),
            "replicas count by rows": repr(self.weighted),
            "mirror map": type(self.mirror).__name__,
        }

    def start(self, state: State, exchanges: int) -> None:
        """Other replicas than before begin where full rounds would have ended."""
        if self._is_regridded:
            shape = self.grid.replicas.size, exchanges
            most = self.means.settings.accumulate
            self._chunks, self._before = [], np.zeros(shape, dtype=np.int64)
            self._skipped = np.full(shape, most, dtype=np.int64)
            self.stream.taken = exchanges * most
            self.mirror.repair(self._point(state))
            state.shared[DEN][...] = 1.0

    # ------------------------------------------------------------------ a round

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """Round number epoch · each + index: its time runs from here."""
        self._begin(epoch * self.steps.each + index)
        self._started, self._taken = self.stream.taken, 0
        self.terms.pace.begin(self._done)

    def goes_on(self) -> bool:
        """Asked before every chunk."""
        if self.terms.pace.has_clock:
            self.buffer.settle()
        if not self.terms.pace.goes_on(self._taken):
            return False
        self._taken += 1
        return True

    @property
    def is_last(self) -> bool:
        """Nobody knows before the time is up: it may be."""
        return True

    @property
    def is_full(self) -> bool:
        """So sums are collected behind a round."""
        return False

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """All of them for the first chunk of a round; they stay as they are."""
        if self._taken == 1:
            yield slice(None)

    def descend(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a chunk."""
        self.buffer.count_in(residuals)
        self._add(self.buffer.gradient, rows, residuals)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Step by what was added up, then mix; a replica without rows mixes along."""
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            self._started, self._taken = self.stream.taken, 0
        self.terms.pace.end()
        self._chunks.append(self._taken)
        rows = self.stream.rows_in(self._started, self._taken)
        if rows:
            self.buffer.collect()
            self._descend(state, rows)
        if self.grid.replicas.size > 1:
            self._mix(state, rows)

    def _descend(self, state: State, rows: int) -> None:
        """By the mean gradient of this replica's own rows."""
        gradient, rate = self.buffer.gradient, self._moment.rate
        gradient *= gradient.dtype.type(1.0 / rows)
        if self.steps.l2:
            gradient += gradient.dtype.type(self.steps.l2) * state.weights
        self.mirror.step(self._point(state), gradient, rate)
        if state.intercept is not None:
            state.intercept -= rate * self.buffer.tail[:-1].astype(np.float64) / rows

    def _mix(self, state: State, rows: int) -> None:
        """k iterations of [b y | b], or of y alone."""
        point = self._point(state)
        travelling = self.mirror.travels(point)
        logs = sum(a.size for a in travelling) if self.mirror.logarithms else 0
        if state.intercept is not None:
            travelling = [*travelling, state.intercept]
        words = in_one_row(travelling, self.buffer.flat.dtype)
        words = weighed(words, logs, rows) if self.weighted else words
        self.mixer.mix(words, logs, self._done)
        if self._knows(state, words, logs):
            first = 0
            for array in travelling:
                part = words[first : first + array.size]
                array[...] = part.reshape(array.shape)
                first += array.size
            self.mirror.arrive(point)
        self._mend_intercept(state)

    def _knows(self, state: State, words: Array, logs: int) -> bool:
        """num / den; False where no neighbour had any rows: nothing is known here."""
        if not self.weighted:
            return True
        den = unweigh(words, logs)
        state.shared[DEN][...] = den
        return den != 0.0

    def _mend_intercept(self, state: State) -> None:
        """Sums of other column blocks may have another last bit; members must not."""
        members = self.grid.members
        sums = self.mixer.by_sum and self.grid.replicas.size > 2
        if state.intercept is not None and members.size > 1 and sums:
            members.broadcast(state.intercept, 0, PURPOSE)

    def _point(self, state: State) -> Point:
        return Point(
            state.weights,
            {name: state.memory[name] for name in self.mirror.kept},
            {name: state.shared[name] for name in self.mirror.shared},
        )

    # ------------------------------------------------------------- agreeing on one

    def is_whole(self, exchanges: int) -> bool:
        """Only where all have heard all."""
        if self.grid.replicas.size == 1 or exchanges in (0, self._settled):
            return True
        return self.mixer.graph.kind == "full"

    def settle(self, state: State, exchanges: int) -> None:
        """The end: from here on all hold the mean."""
        super().settle(state, exchanges)
        self._settled = exchanges

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """What a map keeps may be each replica's own."""
        return self.is_whole(exchanges) and not self.keeps_own(state)

    def agree(self, state: State, purpose: str) -> None:
        """x ← Σ den x / Σ den over replicas, and how far they were from it."""
        mean = self._mean(state, purpose, float(state.shared[DEN][0, 0]))
        if mean is None:  # a round in which nobody had rows
            mean = self._mean(state, purpose, 1.0)
        if mean is None:
            return
        own = state.weights.astype(np.float64)
        intercept = state.become(mean)
        if intercept is not None and self.grid.members.size > 1:
            self.grid.members.broadcast(intercept, 0, purpose)
        self.disagreement = apart(self.grid.world, own, state.weights)

    def _mean(self, state: State, purpose: str, share: float) -> Array | None:
        words = state.portion(share, self.grid.replicas)
        words = np.append(words, words.dtype.type(share))
        self.grid.replicas.sum(words, purpose)
        if words[-1] == 0.0:
            return None
        mean: Array = words[:-1] / words[-1]
        return mean

    # ------------------------------------------------------------------ the log

    def logs(self) -> dict[str, Array]:
        """Chunks of every round so far, (R, rounds); called by all ranks."""
        own = np.array(self._chunks, dtype=np.int64)
        found = np.array(self.grid.replicas.exchange_objects(own))
        none = np.zeros_like(found)
        return {
            CHUNKS: np.concatenate([self._before, found], axis=1),
            SKIPPED: np.concatenate([self._skipped, none], axis=1),
        }

    def recall(self, name: str, log: Array) -> None:
        """Go on from there; other replicas have streams of their own."""
        if len(log) != self.grid.replicas.size:
            self._is_regridded = True
            return
        self._chunks = []
        if name == SKIPPED:
            self._skipped = log
        else:
            self._before, self._skipped = log, np.zeros_like(log)
        passed = self._before + self._skipped
        self.stream.taken = int(passed[self.grid.replica].sum())

    def visited(self, dealt: int) -> int:
        """Of R replicas such as this one; `facts` has what they really were."""
        own = self.stream.rows_in(self._started, self._taken)
        return own * self.grid.replicas.size

    def facts(self) -> dict[str, Any]:
        """For the report of a run; called by all ranks."""
        chunks = self.logs()[CHUNKS]
        own = list(self.stream.sizes), self.stream.taken
        rows = rows_of(chunks, self.grid.replicas.exchange_objects(own))
        return {
            "graph": self.mixer.graph.kind,
            "iterations": self.mixer.iterations,
            "deadline_seconds": getattr(self.terms.pace, "deadline", None),
            "disagreement": self.disagreement,
            **self.buffer.facts(),
            "rows_by_replica": rows.sum(axis=1).tolist(),
            "rounds": {CHUNKS: chunks.tolist(), ROWS: rows.tolist()},
        }
