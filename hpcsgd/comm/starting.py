"""The same, begun now and waited for later: work goes on in between."""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from hpcsgd.comm import sizes, wire
from hpcsgd.comm.blocking import Blocking
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.pending import Pending, has_come_of


class Starting(Blocking):
    """Collectives that give a `Pending`; their arrays belong to it until `wait`."""

    def start_sum(self, buffer: Array, purpose: str) -> Pending:
        """Begin a sum; the buffer belongs to it until `wait`."""
        if self.size == 1:
            return Pending(buffer)
        if self.reproducible:
            return Pending(self._sum_in_one_place(buffer, purpose))
        sizes.check_summable(buffer.dtype)
        began = perf_counter()
        with self._inside("start of the sum", purpose):
            finish = self._start_sum(buffer)
        number = self.begun
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        wait = lambda: self._wait(finish, purpose, number)  # noqa: E731
        return Pending(buffer, wait, has_come_of(finish))

    def start_gather(
        self, part: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if self.size == 1:
            return Pending(self.gather(part, counts, out, purpose))
        sizes.check_parts(self.rank, part, counts, out)
        began = perf_counter()
        with self._inside("start of the gather", purpose):
            finish = self._start_gather(part, counts, out)
        number = self.begun
        self._book(purpose, part, wire.gather_bytes(out.nbytes, self.size), began)
        return Pending(out, lambda: self._wait(finish, purpose, number, "gather"))

    def start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array, purpose: str
    ) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if self.size == 1:
            return Pending(self.exchange_pieces(pieces, counts, out, purpose))
        sizes.check_pieces(self.rank, self.size, pieces, counts, out)
        began = perf_counter()
        with self._inside("start of the exchange of pieces", purpose):
            finish = self._start_exchange(pieces, counts, out)
        number = self.begun
        moved = wire.exchange_bytes(pieces.nbytes, self.size)
        self._book(purpose, pieces, moved, began)
        what = "exchange of pieces"
        return Pending(out, lambda: self._wait(finish, purpose, number, what))

    def start_sum_parts(
        self, buffer: Array, counts: Sequence[int], purpose: str
    ) -> Pending:
        """Begin a sum of which each rank gets its part alone, counts[r] elements.

        In place: `wait` gives that part, a view that arrays of the host begin with; the
        rest of the buffer is then nobody's. Reproducible groups add in rank order.
        """
        sizes.check_cut(self.rank, self.size, buffer, counts)
        own = self._own_part(buffer, counts)
        if self.size == 1:
            return Pending(own)
        began = perf_counter()
        with self._inside("start of the sum of parts", purpose):
            if self.reproducible:
                finish = self._start_parts_in_order(buffer, counts)
            else:
                finish = self._start_sum_parts(buffer, counts)
        number = self.begun
        self._book(purpose, buffer, wire.reduce_bytes(buffer.nbytes, self.size), began)
        what = "sum of parts"
        return Pending(own, lambda: self._wait(finish, purpose, number, what))

    def swap(self, array: Array, out: Array, peer: int, purpose: str) -> Array:
        """out ← what rank `peer` gives this one, which gives it `array`.

        Both call it for each other; pairs need not wait for other pairs. With oneself
        nothing is sent. Swaps of the same two are in the order of their calls.
        """
        return self.start_swap(array, out, peer, purpose).wait()

    def start_swap(self, array: Array, out: Array, peer: int, purpose: str) -> Pending:
        """Begin it; both arrays belong to it until `wait`."""
        if peer == self.rank:
            np.copyto(out, array)
            return Pending(out)
        sizes.check_swap(self.rank, self.size, array, out, peer)
        began, what = perf_counter(), f"swap with rank {peer}"
        with self._inside(f"start of the {what}", purpose):
            finish = self._start_swap(array, out, peer)
        number = self.begun
        self._book(purpose, array, wire.swap_bytes(array.nbytes), began)
        return Pending(out, lambda: self._wait(finish, purpose, number, what))
