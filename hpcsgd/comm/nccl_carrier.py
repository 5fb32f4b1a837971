"""What ranks say to each other through NCCL, collective by collective."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from hpcsgd.comm.nccl_queue import NcclQueue

# What ncclDataType_t calls them, by NumPy's letters; bf16 is held as uint16.
KINDS = {"f": 7, "d": 8, "e": 6, "H": 9}
BYTES = 1  # ncclUint8: for what is moved and not added
SUM = 0


class Nccl(NcclQueue):
    """Collectives as calls of NCCL; those that give `_calls` may be part of a graph."""

    def sum_calls(self, buffer: Any) -> Callable[[int], None]:
        """What sums it, once it is given a stream; so are the other two."""
        return lambda to: self._add(buffer, to)

    def reduce_calls(self, buffer: Any) -> Callable[[int], None]:
        """The sum on rank 0 alone."""
        at, kind = self.layer.address(buffer), KINDS[buffer.dtype.char]
        return lambda to: self._comm.reduce(at, at, buffer.size, kind, SUM, 0, to)

    def broadcast_calls(self, buffer: Any, root: int) -> Callable[[int], None]:
        """That of one rank to all."""
        at, size = self.layer.address(buffer), buffer.nbytes
        return lambda to: self._comm.broadcast(at, at, size, BYTES, root, to)

    def _sum(self, buffer: Any) -> None:
        self._queue(self.stream, self.sum_calls(buffer))

    def _start_sum(self, buffer: Any) -> Callable[[], None]:
        return self._aside(self.sum_calls(buffer))

    def _start_sum_parts(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]:
        """Parts of one size as NCCL has them, others as one group of reductions."""
        at, kind = self.layer.address(buffer), KINDS[buffer.dtype.char]
        item, own = buffer.dtype.itemsize, counts[self.host.rank]
        sizes = [count * item for count in counts]

        def scatter(to: int) -> None:
            there = at + self.host.rank * own * item
            self._comm.reduceScatter(at, there, own, kind, SUM, to)

        def reduce(to: int) -> None:
            for root, (start, size) in enumerate(_places(at, sizes)):
                if size:
                    words = size // item
                    self._comm.reduce(start, start, words, kind, SUM, root, to)

        return self._aside(scatter if len(set(counts)) == 1 else reduce)

    def _start_parts_in_order(
        self, buffer: Any, counts: Sequence[int]
    ) -> Callable[[], None]:
        """The same: where all is reproducible, what NCCL chooses by is pinned."""
        return self._start_sum_parts(buffer, counts)

    def _reduce(self, buffer: Any) -> None:
        self._queue(self.stream, self.reduce_calls(buffer))

    def _broadcast(self, buffer: Any, root: int) -> None:
        self._queue(self.stream, self.broadcast_calls(buffer, root))

    def _gather(self, part: Any, counts: Sequence[int], out: Any) -> None:
        self._queue(self.stream, self._gather_calls(part, counts, out))

    def _start_gather(
        self, part: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        return self._aside(self._gather_calls(part, counts, out))

    def _gather_calls(
        self, part: Any, counts: Sequence[int], out: Any
    ) -> Callable[[int], None]:
        """Everybody's part to everybody, as one group of broadcasts."""
        sent, at = self.layer.address(part), self.layer.address(out)
        sizes = [count * out.dtype.itemsize for count in counts]

        def action(to: int) -> None:
            for root, (start, size) in enumerate(_places(at, sizes)):
                source = sent if root == self.host.rank else start
                if size:
                    self._comm.broadcast(source, start, size, BYTES, root, to)

        return action

    def _start_exchange(
        self, pieces: Any, counts: Sequence[int], out: Any
    ) -> Callable[[], None]:
        """One group of sends and receipts; the stream comes after it by itself."""
        own = counts[self.host.rank] * out.dtype.itemsize
        sizes = [count * pieces.dtype.itemsize for count in counts]
        sent, received = self.layer.address(pieces), self.layer.address(out)

        def action(to: int) -> None:
            for peer, (start, size) in enumerate(_places(sent, sizes)):
                if size:
                    self._comm.send(start, size, BYTES, peer, to)
                if own:
                    self._comm.recv(received + peer * own, own, BYTES, peer, to)

        self._queue(self.stream, action)
        return lambda: None

    def _add(self, buffer: Any, to: int) -> None:
        at, kind = self.layer.address(buffer), KINDS[buffer.dtype.char]
        self._comm.allReduce(at, at, buffer.size, kind, SUM, to)


def _places(start: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(address, bytes) of pieces one after the other."""
    starts = accumulate(sizes[:-1], initial=start)
    return zip(starts, sizes, strict=True)
