"""One rank as one of many: its own work is real, what the others would say is not.

Sums leave what this rank wrote, and what it would gather from others is its own part
again: as many bytes are touched as there would be, and the numbers mean nothing. Behind
an emulated network this shows how long an exchange of many ranks takes.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.ledger import Ledger


class EmulatedCommunicator(Communicator):
    """Rank 0 of `size`, alone."""

    waits_busily = True
    processes = 1  # the others are elsewhere

    def __init__(
        self,
        size: int,
        parts: Sequence[int],
        ledger: Ledger | None = None,
        reproducible: bool = False,
    ) -> None:
        super().__init__(0, size, ledger or Ledger(), reproducible)
        self.transport = f"one process as one of {size}"
        self.parts = list(parts)  # sizes of the groups that will be split off, in order

    def split(self, color: int, key: int) -> "EmulatedCommunicator":
        """The next of the groups that were announced."""
        size = self.parts.pop(0)
        return EmulatedCommunicator(size, (), self.ledger, self.reproducible)

    def close(self) -> None:
        """Nothing is held."""

    def abort(self, code: int = 1) -> NoReturn:
        """Leave."""
        sys.exit(code)

    def _sum(self, buffer: Array) -> None: ...

    def _start_sum(self, buffer: Array) -> Callable[[], None]:
        return lambda: None

    def _reduce(self, buffer: Array) -> None: ...

    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None:
        out[...] = np.resize(part, out.shape)

    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        out[...] = np.resize(pieces[: counts[0]], out.shape)
        return lambda: None

    def _start_swap(self, array: Array, out: Array, peer: int) -> Callable[[], None]:
        out[...] = np.resize(array, out.shape)
        return lambda: None

    def _collect(self, part: Array, counts: Sequence[int], out: Array) -> None:
        self._gather(part, counts, out)

    def _broadcast(self, buffer: Array, root: int) -> None: ...

    def _max(self, value: int) -> int:
        return value

    def _objects(self, item: Any) -> list[Any]:
        return [item] * self.size
