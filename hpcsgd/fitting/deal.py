"""Rows that lie anywhere, dealt once to the ranks of a grid that want them.

Rank q has some rows with all columns, rank p wants the rows of its replica and the
columns of its member. The rows of a rank travel in rounds of at most `ROUND` bytes, so
that two such buffers are what is held beside the old and the new block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.devices import place_on_grid
from hpcsgd.csr import Csr, from_scipy, index_dtype, stack
from hpcsgd.data.partition import split_range

Array = NDArray[Any]
ROUND = 64 * 2**20  # bytes of one rank's rows that travel together


@dataclass(frozen=True)
class Deal:
    """Who has which rows, and who wants which block."""

    world: Communicator
    counts: tuple[int, ...]  # rows that each rank has; in rank order they are the data
    parts: tuple[slice, ...]  # columns of each member
    replicas: int

    @property
    def rows(self) -> int:
        """Of the whole data."""
        return sum(self.counts)

    def wanted(self, rank: int) -> tuple[slice, slice]:
        """Rows and columns of a rank of the grid."""
        replica, member = place_on_grid(rank, len(self.parts))
        return split_range(self.rows, self.replicas, replica), self.parts[member]

    def rounds(self, step: int) -> Iterator[list[slice]]:
        """The rows that each rank sends in a round, numbered as in the whole data."""
        edges = np.cumsum([0, *self.counts]).tolist()
        for number in range(max(-(-count // step) for count in self.counts)):
            yield [
                slice(min(a + number * step, b), min(a + (number + 1) * step, b))
                for a, b in pairwise(edges)
            ]

    def first(self) -> int:
        """The number of this rank's first row."""
        return sum(self.counts[: self.world.rank])


def common(one: slice, other: slice) -> slice:
    """The numbers in both, an empty range where there are none."""
    start = max(one.start, other.start)
    return slice(start, max(min(one.stop, other.stop), start))


def length(part: slice) -> int:
    """How many."""
    return int(part.stop - part.start)


def deal_dense(deal: Deal, own: Array) -> Array:
    """The dense block that this rank wants; `own` itself where that is all of it."""
    world, (rows, cols) = deal.world, deal.wanted(deal.world.rank)
    first, ranks = deal.first(), range(deal.world.size)
    block = np.empty((length(rows), length(cols)), dtype=own.dtype)
    step = max(ROUND // (own.itemsize * max(own.shape[1], 1)), 1)
    for sent in deal.rounds(step):
        pieces, counts = [], []
        for rank in ranks:
            its_rows, its_cols = deal.wanted(rank)
            part = common(sent[world.rank], its_rows)
            piece = own[part.start - first : part.stop - first, its_cols]
            pieces.append(piece.reshape(-1))
            counts.append(piece.size)
        taken = [common(sent[rank], rows) for rank in ranks]
        received = [length(part) * length(cols) for part in taken]
        out = np.empty(sum(received), dtype=own.dtype)
        world.deal(np.concatenate(pieces), counts, out, received, "control")
        edges = np.cumsum([0, *received]).tolist()
        for part, (a, b) in zip(taken, pairwise(edges), strict=True):
            place = slice(part.start - rows.start, part.stop - rows.start)
            if a < b:
                block[place] = out[a:b].reshape(length(part), -1)
    return block


def deal_sparse(deal: Deal, own: Any) -> Any:
    """The sparse block that this rank wants, from a SciPy CSR of its rows."""
    world, (rows, cols) = deal.world, deal.wanted(deal.world.rank)
    most = max(world.exchange_objects(int(own.nnz / max(own.shape[0], 1)) + 1))
    step = max(ROUND // (16 * most), 1)
    found: list[list[Csr]] = [[] for _ in range(world.size)]
    for sent in deal.rounds(step):
        pieces = [_piece(deal, own, sent[world.rank], r) for r in range(world.size)]
        taken = [length(common(sent[rank], rows)) for rank in range(world.size)]
        for rank, piece in enumerate(_swap(world, pieces, taken, length(cols))):
            found[rank].append(piece)
    return stack([piece for rank in found for piece in rank]).to_scipy()


def _piece(deal: Deal, own: Any, sent: slice, rank: int) -> Csr:
    """What `rank` wants of the rows that are sent now."""
    rows, cols = deal.wanted(rank)
    part, first = common(sent, rows), deal.first()
    block = own[part.start - first : part.stop - first][:, cols]
    block.sort_indices()
    return from_scipy(block)


def _swap(
    world: Communicator, pieces: list[Csr], taken: list[int], width: int
) -> list[Csr]:
    """The pieces that all ranks have for this one: lengths, then columns and values."""
    heights = [len(piece) for piece in pieces]
    lengths = np.empty(sum(taken), dtype=np.int64)
    said = np.concatenate([piece.lengths for piece in pieces]).astype(np.int64)
    world.deal(said, heights, lengths, taken, "control")
    each = np.split(lengths, np.cumsum(taken)[:-1])
    counts = [piece.nnz for piece in pieces]
    received = [int(part.sum()) for part in each]
    kinds = {"indices": np.dtype(np.int64), "data": pieces[0].dtype}
    arrays = {}
    for name, dtype in kinds.items():
        sent = np.concatenate([getattr(p, name) for p in pieces]).astype(dtype)
        out = np.empty(sum(received), dtype=dtype)
        world.deal(sent, counts, out, received, "control")
        arrays[name] = np.split(out, np.cumsum(received)[:-1])
    kind = index_dtype(width)
    return [
        Csr(np.concatenate([[0], np.cumsum(part)]), places.astype(kind), values, width)
        for part, places, values in zip(
            each, arrays["indices"], arrays["data"], strict=True
        )
    ]


__all__ = ["Deal", "deal_dense", "deal_sparse"]
