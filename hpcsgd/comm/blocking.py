"""What ranks say to each other and wait for until it is said."""

import pickle
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from hpcsgd.comm import sizes, wire
from hpcsgd.comm.booked import Booked
from hpcsgd.comm.hooks import Array


class Blocking(Booked):
    """Collectives that are over when they return; groups of one have none."""

    def sum(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, in place.

        Reproducible groups reduce to rank 0 and broadcast, so that every rank holds
        the same bits: two collectives, booked as two.
        """
        if self.size == 1:
            return buffer
        if self.reproducible:
            return self._sum_in_one_place(buffer, purpose)
        sizes.check_summable(buffer.dtype)
        began = perf_counter()
        with self._inside("sum", purpose):
            self._sum(buffer)
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        return buffer

    def reduce(self, buffer: Array, purpose: str) -> Array:
        """buffer ← Σ over ranks, on rank 0 alone; the others' keep what they held."""
        if self.size == 1:
            return buffer
        sizes.check_summable(buffer.dtype)
        began = perf_counter()
        with self._inside("reduction", purpose):
            self._reduce(buffer)
        self._book(purpose, buffer, wire.reduce_bytes(buffer.nbytes, self.size), began)
        return buffer

    def gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """out ← the flat parts of all ranks in rank order, counts[r] elements each."""
        if self.size == 1:
            out[...] = part
            return out
        sizes.check_parts(self.rank, part, counts, out)
        began = perf_counter()
        with self._inside("gather", purpose):
            self._gather(part, counts, out)
        self._book(purpose, part, wire.gather_bytes(out.nbytes, self.size), began)
        return out

    def exchange_pieces(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Array:
        """Piece r of every rank goes to rank r, counts[r] elements each.

        out ← in rank order, what all ranks have for this one.
        """
        if self.size == 1:
            out[...] = pieces
            return out
        sizes.check_pieces(self.rank, self.size, pieces, counts, out)
        began = perf_counter()
        with self._inside("exchange of pieces", purpose):
            self._exchange(pieces, counts, out)
        moved = wire.exchange_bytes(pieces.nbytes, self.size)
        self._book(purpose, pieces, moved, began)
        return out

    def deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
        purpose: str,
    ) -> Array:
        """Piece r goes to rank r, counts[r] elements; others may have other counts.

        out ← in rank order, what all ranks have for this one: received[r] of rank r.
        """
        sizes.check_dealt(self.rank, pieces, counts, out, received)
        if self.size == 1:
            out[...] = pieces
            return out
        began = perf_counter()
        with self._inside("deal of pieces", purpose):
            self._deal(pieces, counts, out, received)
        itself = counts[self.rank] * pieces.itemsize
        self._book(purpose, pieces, float(pieces.nbytes - itself), began)
        return out

    def collect(
        self, part: Array, counts: Sequence[int], purpose: str = "control"
    ) -> Array | None:
        """The flat parts of all ranks in rank order, on rank 0; None elsewhere."""
        if self.size == 1:
            return part
        sizes.check_part(self.rank, part, counts)
        out = np.empty(sum(counts) if self.rank == 0 else 0, dtype=part.dtype)
        began = perf_counter()
        with self._inside("collection", purpose):
            self._collect(part, counts, out)
        self._book(purpose, part, float(part.nbytes) if self.rank else 0.0, began)
        return out if self.rank == 0 else None

    def broadcast(
        self, buffer: Array, root: int = 0, purpose: str = "control"
    ) -> Array:
        """buffer ← that of `root`."""
        if self.size == 1:
            return buffer
        began = perf_counter()
        with self._inside("broadcast", purpose):
            self._broadcast(buffer, root)
        self._book(
            purpose, buffer, wire.broadcast_bytes(buffer.nbytes, self.size), began
        )
        return buffer

    def max_flag(self, value: int, purpose: str = "control") -> int:
        """The largest value that any rank gave."""
        if self.size == 1:
            return value
        began = perf_counter()
        with self._inside("largest flag", purpose):
            largest = self._max(value)
        self.ledger.record(
            purpose, 1, 8, wire.sum_bytes(8, self.size), perf_counter() - began
        )
        return largest

    def exchange_objects(self, item: Any, purpose: str = "control") -> list[Any]:
        """The items of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [item]
        began = perf_counter()
        size = len(pickle.dumps(item))
        with self._inside("exchange of objects", purpose):
            items = self._objects(item)
        self.ledger.record(
            purpose, size, size, (self.size - 1) * size, perf_counter() - began
        )
        return items

    def _sum_in_one_place(self, buffer: Array, purpose: str) -> Array:
        return self.broadcast(self.reduce(buffer, purpose), 0, purpose)
