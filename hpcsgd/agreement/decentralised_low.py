"""Replicas on a ring that tell their neighbours how they moved, in 8 bits a word.

Decentralised SGD in low precision (BAGUA's D_LP_S, arXiv 2107.01499). Replica i keeps
what its neighbours on the left and on the right are, L and R, beside its own w. With x
what its own step makes of w,

    δ = (x − w) + a (L − w) + b (R − w);    w ← w + Q(δ),    L ← L + Q(δ_L), ...

with a and b 1/3, less towards a neighbour of fewer rows (`towards`). All add the
same decoded numbers to the same bits, so that L is what the left one is at any time:
an error of Q is in the next δ, and nothing has to be remembered. One message lost would
set them apart for ever; every `resync` exchanges neighbours send w itself, which
changes nothing where all went well.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.agreement.decentralised import OwnSteps
from hpcsgd.agreement.flat import positions, put_positions
from hpcsgd.agreement.line import PURPOSE
from hpcsgd.agreement.means import Means
from hpcsgd.codecs.byte import from_bytes, to_bytes
from hpcsgd.codecs.chunks import SCALE_BYTES, Chunks
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import Array, State, Task

HEAD = 2 * SCALE_BYTES  # the least and the greatest word, float32


class LowPrecision(OwnSteps):
    """The own model and replicas of both neighbours'; codes travel through a step."""

    def __init__(self, grid: Grid, share: float, means: Means) -> None:
        super().__init__(grid, share, means)
        size, rank = grid.replicas.size, grid.replicas.rank
        self.peers = (rank - 1) % size, (rank + 1) % size
        own = means.rows[rank]
        self.shares = [towards(own, means.rows[peer]) for peer in self.peers]
        self.resync = means.settings.resync
        self._land: Callable[[], None] | None = None

    def prepare(self, state: State) -> None:
        """Neighbours are asked once the state is in place."""
        super().prepare(state)
        own = positions(state, self.columns)
        self.words = len(own) - self.buffer.sums  # what is encoded
        self.neighbours = [own.copy(), own.copy()]

    def start(self, state: State, exchanges: int) -> None:
        """What neighbours are, word for word: no checkpoint has to keep it."""
        self._ask(state, "control")

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Now and then with the weights themselves."""
        super().after_exchange(state, exchanges)
        if self.resync and exchanges % self.resync == 0:
            self._arrive()
            self._ask(state, PURPOSE)

    def arrive(self, state: State) -> None:
        """What neighbours said last, before anybody lets go of this agreement."""
        self._arrive()

    def settle(self, state: State, exchanges: int) -> None:
        """Nothing may be under way at the end."""
        self._arrive()
        super().settle(state, exchanges)

    def _depart(self, state: State) -> None:
        """What has to be said is known after the step; it travels through the next."""

    def _step(self, state: State, task: Task | None) -> None:
        before = positions(state, self.columns)
        if self.buffer.tail[-1]:
            self._whole_gradient(state)
            self._descend(state)
        if self.grid.replicas.size == 1:
            return
        self._arrive()
        change = positions(state, self.columns) - before
        for share, theirs in zip(self.shares, self.neighbours, strict=True):
            change += change.dtype.type(share) * (theirs - before)
        record = self._encode(change)
        put_positions(state, before + self._decode(record), self.columns)
        with self.overlap.posting():
            self._land = self._send(record)

    def _send(self, record: NDArray[np.uint8]) -> Callable[[], None]:
        """The same to both; what comes back waits for theirs."""
        rooms = [np.empty_like(record) for _ in self.peers]
        pending = [
            self.grid.replicas.start_swap(record, room, peer, PURPOSE)
            for room, peer in zip(rooms, self.peers, strict=True)
        ]

        def land() -> None:
            for number, arriving in enumerate(pending):
                self.neighbours[number] += self._decode(arriving.wait())

        return land

    def _arrive(self) -> None:
        """Neighbours are where they were after their last step."""
        land, self._land = self._land, None
        if land is not None:
            with self.overlap.waiting():
                land()

    def _ask(self, state: State, purpose: str) -> None:
        own, replicas = positions(state, self.columns), self.grid.replicas
        # Both at once: around a ring, one after the other would wait for ever.
        pending = [
            replicas.start_swap(own, theirs, peer, purpose)
            for theirs, peer in zip(self.neighbours, self.peers, strict=True)
        ]
        for arriving in pending:
            arriving.wait()

    def _encode(self, change: Array) -> NDArray[np.uint8]:
        """Least, greatest, a byte a word; the intercept's words as they are."""
        coded, plain = change[: self.words], change[self.words :]
        ends, codes = to_bytes(coded, self._chunks())
        parts = ends.reshape(-1).view(np.uint8), codes, plain.view(np.uint8)
        return np.concatenate(parts)

    def _decode(self, record: NDArray[np.uint8]) -> Array:
        """Of whoever encoded it, in the type of the weights: the same bits."""
        kind, last = self.buffer.flat.dtype, HEAD + self.words
        ends = record[:HEAD].copy().view(np.float32).reshape(2, 1)
        coded = from_bytes(ends, record[HEAD:last], self._chunks()).astype(kind)
        return np.concatenate([coded, record[last:].copy().view(kind)])

    def _chunks(self) -> Chunks:
        return Chunks(self.words, self.words)

    def facts(self) -> dict[str, Any]:
        """Bytes of a message to one neighbour."""
        tail = self.buffer.sums * self.buffer.flat.dtype.itemsize
        return {"record_bytes": HEAD + self.words + tail, **super().facts()}


def towards(own: int, other: int) -> float:
    """How far a replica goes to a neighbour's weights: n_i a_ij = n_j a_ji.

    So Σ n_i w_i is left alone, as it is by a third where all have as many rows.
    """
    return min(1.0, other / own if own else 1.0) / 3.0
