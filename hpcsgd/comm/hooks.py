"""What a transport has to supply: nothing here is timed, booked or shortcut."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Hooks(ABC):
    """Collectives of a group of two ranks or more, each called by all of them.

    Swaps alone are of two ranks, whatever the others do.
    """

    rank: int
    size: int

    @property
    def mpi_handle(self) -> Any:
        """The communicator of mpi4py beneath, for libraries that want one, or None."""
        return None

    def has_lost_ranks(self, error: BaseException) -> bool:
        """True where `error` says that other ranks are gone and we may go on."""
        return False

    def vanish(self) -> None:
        """This rank is lost to the others, who may go on; returns where it cannot be.

        What they see is what a rank that was killed leaves behind.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Let go of what the transport holds."""

    @abstractmethod
    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks now."""

    @abstractmethod
    def _sum(self, buffer: Array) -> None: ...

    @abstractmethod
    def _start_sum(self, buffer: Array) -> Callable[[], None]: ...

    def _keep(self, array: Array) -> Array:
        """The transport's own kind of a lasting copy."""
        return array.copy()

    @abstractmethod
    def _reduce(self, buffer: Array) -> None:
        """Sum into the buffer of rank 0; the others' keep what they held."""

    @abstractmethod
    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None: ...

    def _start_gather(
        self, part: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        """Begin it; a transport that cannot has done it when this returns."""
        self._gather(part, counts, out)
        return lambda: None

    @abstractmethod
    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]: ...

    @abstractmethod
    def _start_swap(
        self, array: Array, out: Array, peer: int
    ) -> Callable[[], None]: ...

    def _exchange(self, pieces: Array, counts: Sequence[int], out: Array) -> None:
        """The same at once; a transport may have a shorter way."""
        self._start_exchange(pieces, counts, out)()

    def _own_part(self, buffer: Array, counts: Sequence[int]) -> Array:
        """Where a sum of parts leaves that of this rank."""
        return buffer[: counts[self.rank]]

    def _start_sum_parts(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        """Begin it; a transport that knows no better adds in rank order."""
        return self._start_parts_in_order(buffer, counts)

    def _start_parts_in_order(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        """By an exchange of pieces, which each rank then adds."""
        own = counts[self.rank]
        parts = np.empty((self.size, own), dtype=buffer.dtype)
        arrive = self._start_exchange(buffer, counts, parts.reshape(-1))

        def finish() -> None:
            arrive()
            total = buffer[:own]
            total[...] = parts[0]
            for part in parts[1:]:
                total += part

        return finish

    def _deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
    ) -> None:
        """Pieces of any sizes; a transport may know better than telling everybody."""
        ends = np.cumsum([0, *counts])
        own = [pieces[a:b].copy() for a, b in zip(ends, ends[1:], strict=False)]
        parts = [said[self.rank] for said in self._objects(own)]
        np.concatenate(parts, out=out)

    def _collect(self, part: Array, counts: Sequence[int], out: Array) -> None:
        """Into `out` of rank 0; a transport may know better than telling everybody."""
        everything = out if self.rank == 0 else np.empty(sum(counts), part.dtype)
        self._gather(part, counts, everything)

    @abstractmethod
    def _broadcast(self, buffer: Array, root: int) -> None: ...

    @abstractmethod
    def _max(self, value: int) -> int: ...

    @abstractmethod
    def _objects(self, item: Any) -> list[Any]: ...
