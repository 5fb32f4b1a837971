"""`gather` and `gather-once`: s steps after the sampled rows are gathered."""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from hpcsgd.backends.base import StepBatch
from hpcsgd.backends.exchange import Scratch, batch_of
from hpcsgd.data.sparse import Csr, edges_of, index_dtype, side_by_side
from hpcsgd.formats import Array
from hpcsgd.products.base import (
    ExchangeMessage,
    ExchangeShape,
    Group,
    MemoryShape,
    Rows,
    State,
    Task,
)
from hpcsgd.products.direct import run_plain_steps
from hpcsgd.products.gram import same_rows

# Sparse rows between members: one message of exactly what is stored.
#
# How many values every row has on every member is exchanged once, before the first
# group. A member then sends its k values of m rows as k column numbers and k values
# behind each other, k·(4 + e_Y) bytes, and everybody knows how much to expect.


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


# Narrow data: members exchange the sampled rows, then step without a message.


class Gather:
    """One all-gather of m·d_c words from each member, then s exact local steps.

    Rows travel as they are stored, so a 16-bit matrix costs half the bytes.
    Every member holds w whole.
    """

    holds_all_columns = True

    def __init__(self, task: Task, widths: tuple[int, ...]) -> None:
        self.task = task
        self.widths = widths  # d_c of every member, in rank order
        self.scratch = Scratch()
        self._numbers: Array = np.empty(0, dtype=np.int64)
        self.sparse = SparseGather(task, widths) if task.shard.is_sparse else None

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield a gather of the values of m rows; of sparse rows also their columns."""
        if shape.stored is None:
            words = sum(shape.sizes) * shape.local_columns
            yield ExchangeMessage(words, "matrix", is_gathered=True)
        else:
            index = index_dtype(shape.local_columns).itemsize
            yield ExchangeMessage(shape.stored, "matrix", is_gathered=True, index=index)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield rows as they are stored, as they come from all members, and widened."""
        if shape.density is not None:
            yield "rows", shape.sampled(shape.columns)
        else:
            received = shape.columns * (2 * shape.matrix + shape.working)
            own = shape.local_columns * shape.matrix
            yield "rows", int(shape.rows * (own + received))
        yield shape.vectors()

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Rows of all columns, then plain steps on them."""
        rows = self.for_products(self.gather(group))
        return run_plain_steps(self.task, state, group, rows, None)

    def finish(self) -> None:
        """Nothing is begun early."""

    def gather(self, group: Group, into: Array | None = None) -> Rows:
        """The sampled rows with the columns of all members, as they are stored.

        Dense ones in `into`, else where the next group's will be.
        """
        if self.sparse is not None:
            return self.sparse.gather(group)
        task, height = self.task, group.blocks.rows
        own = task.backend.pick(*task.shard.at(group.rows))
        task.clock.lap("gather")
        counts = [height * width for width in self.widths]
        flat = self.scratch.array("flat", (sum(counts),), own.dtype)
        task.members.gather(own.reshape(-1), counts, flat, "products")
        task.clock.lap("communicate")
        shape = (height, sum(self.widths))
        stored = (
            self.scratch.array("stored", shape, flat.dtype) if into is None else into
        )
        self._assemble(flat, counts, stored)
        task.clock.lap("gather")
        return stored

    def for_products(self, stored: Rows) -> Rows:
        """What was gathered, as the backend takes it."""
        task = self.task
        if self.sparse is not None:
            return task.backend.widen(stored, None)
        room = self.scratch.array("whole", stored.shape, task.precision.working)
        rows = task.backend.gather(stored, self._all(len(stored)), room)
        task.clock.lap("gather")
        return rows

    def _assemble(self, flat: Array, counts: list[int], stored: Array) -> None:
        """Put the members' column blocks side by side."""
        edges = [0, *accumulate(self.widths)]
        parts = np.split(flat, list(accumulate(counts))[:-1])
        for part, first, last in zip(parts, edges, edges[1:], strict=False):
            stored[:, first:last] = part.reshape(len(stored), last - first)

    def _all(self, height: int) -> Array:
        """The numbers of all rows, made once."""
        if len(self._numbers) < height:
            self._numbers = np.arange(height, dtype=np.int64)
        return self._numbers[:height]


# Rows that come again: members exchange them once, and then need each other no more.
#
# Under "shuffle once" every epoch has the same groups. After the first one every member
# holds all columns of all rows, in the order in which they are taken.


class GatherOnce:
    """Epoch 1 as gather; later no message at all."""

    holds_all_columns = True

    def __init__(self, task: Task, widths: tuple[int, ...]) -> None:
        self.task = task
        self.first = Gather(task, widths)
        # exchange -> its row numbers, its rows as they are stored, their targets
        self.kept: dict[int, tuple[Array, Rows, StepBatch]] = {}
        self._dtype = np.dtype(task.shard.matrix.dtype)
        self._all: Array | None = None
        self._filled = 0  # rows of it

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield what `gather` sends for rows that are not kept yet."""
        if not shape.is_kept:
            yield from Gather.messages(shape)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield what `gather` holds, and all rows, which are kept."""
        yield from Gather.holds(shape)
        yield "kept", int(shape.all_rows * shape.columns * shape.matrix)

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Look the rows up, or gather them and keep them; then plain steps."""
        task, known = self.task, self.kept.get(group.index)
        if known is None or not same_rows(known[0], group.rows):
            stored = self.first.gather(group, self._place(len(group.rows)))
            known = group.rows.copy(), stored, batch_of(task, group.rows)
            self.kept[group.index] = known
        rows = self.first.for_products(known[1])
        return run_plain_steps(task, state, group, rows, None, known[2])

    def finish(self) -> None:
        """Nothing is begun early."""

    def _place(self, rows: int) -> Array | None:
        """Where so many dense rows may stay, behind those that came before them.

        All in one array, which systems give large pages: a copy that the members of a
        node share would be written a page of 4 KiB at a time, and that takes longer
        than it saves.
        """
        if self.first.sparse is not None:
            return None
        if self._all is None:
            shape = (self.task.shard.height, sum(self.first.widths))
            self._all = np.empty(shape, dtype=self._dtype)
        first, self._filled = self._filled, self._filled + rows
        if self._filled > len(self._all):  # rows that were kept are no longer good
            self._all, self._filled = np.empty_like(self._all), rows
            first = 0
        return self._all[first : self._filled]
