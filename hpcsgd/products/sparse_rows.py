"""Sparse rows between members: one message of exactly what is stored.

How many values every row has on every member is exchanged once, before the first
group. A member then sends its k values of m rows as k column numbers and k values
behind each other, k·(4 + e_Y) bytes, and everybody knows how much to expect.
"""

from itertools import accumulate

import numpy as np

from hpcsgd.csr import Csr, edges_of, index_dtype, side_by_side
from hpcsgd.products.base import Array, Group, Task


def piece_of(storage: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """What is sent is counted in these: 16 bits, 8 where values are as short."""
    return np.dtype(np.uint8 if storage.itemsize == 1 else np.uint16)


class SparseGather:
    """Whole rows of all members from the columns that each holds."""

    def __init__(self, task: Task, widths: tuple[int, ...]) -> None:
        self.task = task
        self.widths = widths
        self.column = index_dtype(max(widths))
        self.lengths: Array | None = None  # (members, rows), what each row has there

    def gather(self, group: Group) -> Csr:
        """The sampled rows with the columns of all members, as they are stored."""
        task = self.task
        lengths = self._all_lengths()[:, group.rows]
        own = task.backend.pick(task.shard.matrix, group.rows)
        message = pack(own, self.column)
        task.clock.lap("gather")
        piece = message.dtype
        each = (self.column.itemsize + own.dtype.itemsize) // piece.itemsize
        counts = [int(count) * each for count in lengths.sum(axis=1)]
        flat = np.empty(sum(counts), dtype=piece)
        task.members.gather(message, counts, flat, "products")
        task.clock.lap("communicate")
        whole = self._assemble(flat, counts, lengths)
        task.clock.lap("gather")
        return whole

    def _assemble(self, flat: Array, counts: list[int], lengths: Array) -> Csr:
        parts = np.split(flat, list(accumulate(counts))[:-1])
        storage = self.task.shard.matrix.dtype
        return side_by_side(
            [
                unpack(part, length, width, self.column, storage)
                for part, length, width in zip(parts, lengths, self.widths, strict=True)
            ]
        )

    def _all_lengths(self) -> Array:
        if self.lengths is None:
            task, height = self.task, self.task.shard.height
            own = np.diff(task.shard.matrix.indptr).astype(self.column)  # type: ignore[union-attr]
            flat = np.empty(task.members.size * height, dtype=self.column)
            counts = [height] * task.members.size
            task.members.gather(own, counts, flat, "control")
            self.lengths = task.members.keep(flat.reshape(-1, height))
        return self.lengths


def pack(rows: Csr, column: np.dtype[np.generic]) -> Array:
    """Column numbers, then values, in pieces of one size."""
    piece = piece_of(rows.data.dtype)
    numbers = rows.indices.astype(column, copy=False).view(piece)
    return np.concatenate([numbers, np.ascontiguousarray(rows.data).view(piece)])


def unpack(
    flat: Array,
    lengths: Array,
    width: int,
    column: np.dtype[np.generic],
    storage: np.dtype[np.generic],
) -> Csr:
    """What `pack` made, as rows of these lengths."""
    indptr = edges_of(lengths)
    cut = int(indptr[-1]) * column.itemsize // flat.itemsize
    # Copies: a part of a message need not begin where wider words may.
    numbers, values = flat[:cut].copy(), flat[cut:].copy()
    return Csr(indptr, numbers.view(column), values.view(storage), width)
