"""Batches one after the other, for as long as a round lasts.

Each replica works through a stream of its own rows: pass after pass in the order of its
sampler, one chunk after the other. A round begins where the last one ended. So a slow
replica leaves no row out; it only comes to it later, in another epoch of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from hpcsgd.data.sampling import Sampler
from hpcsgd.products.base import Array, Group, Product, State
from hpcsgd.products.plan import Planner


class Judge(Protocol):
    """Who says how long a round lasts."""

    def begin(self, epoch: int, index: int, batches: int) -> None:
        """A round begins, of up to so many chunks."""

    def goes_on(self) -> bool:
        """Whether another chunk is taken now."""


@dataclass
class Stream:
    """The chunks of one replica, as many as anybody asks for."""

    sampler: Sampler
    planner: Planner
    sizes: Sequence[int]  # rows of the chunks of one pass
    taken: int = 0  # chunks so far
    _order: tuple[int, Array] | None = field(default=None, repr=False)

    def next(self) -> Group:
        """The one after the last."""
        turn, place = divmod(self.taken, len(self.sizes))
        order, size = self._order_of(turn), self.sizes[place]
        first = sum(self.sizes[:place])
        self.taken += 1
        rows = order[first : first + size]
        return self.planner.group(place, turn, rows, (size,), 0, order, first)

    def rows_in(self, first: int, count: int) -> int:
        """Rows of `count` chunks from number `first` on."""
        return self._rows_of(first + count) - self._rows_of(first)

    def _rows_of(self, chunks: int) -> int:
        """Of that many from the beginning."""
        if not self.sizes:
            return 0
        turns, rest = divmod(chunks, len(self.sizes))
        ends = [0, *accumulate(self.sizes)]
        return turns * ends[-1] + ends[rest]

    def _order_of(self, turn: int) -> Array:
        """Shuffled once a pass."""
        if self._order is None or self._order[0] != turn:
            self._order = (turn, self.sampler.order(turn))
        return self._order[1]


class AnyBatches:
    """Any product that takes single steps; it never holds rows of more than a chunk."""

    def __init__(
        self, product: Product, judge: Judge, stream: Stream, most: int
    ) -> None:
        self.product = product
        self.judge = judge
        self.stream = stream
        self.most = most  # chunks of a round
        self.holds_all_columns = product.holds_all_columns

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Chunks of the stream at the weights it found; `group` says which round."""
        self.judge.begin(group.epoch, group.index, self.most)
        while self.judge.goes_on():
            state = self.product.advance(state, self.stream.next(), None)
        return state

    def finish(self) -> None:
        """Nothing is begun early."""
        self.product.finish()
