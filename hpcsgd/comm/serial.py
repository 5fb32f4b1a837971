"""One rank: every collective is a shortcut, none of the hooks is ever reached."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.ledger import Ledger
from hpcsgd.errors import TransportError


class SerialCommunicator(Communicator):
    """The world of a program that was not launched on several ranks."""

    def __init__(
        self, ledger: Ledger | None = None, reproducible: bool = False
    ) -> None:
        super().__init__(0, 1, ledger or Ledger(), reproducible)

    def split(self, color: int, key: int) -> "SerialCommunicator":
        """Itself alone."""
        return SerialCommunicator(self.ledger, self.reproducible)

    def close(self) -> None:
        """Nothing is held."""

    def abort(self, code: int = 1) -> NoReturn:
        """Leave."""
        sys.exit(code)

    def _sum(self, buffer: Array) -> None:
        self._alone()

    def _start_sum(self, buffer: Array) -> Callable[[], None]:
        self._alone()

    def _reduce(self, buffer: Array) -> None:
        self._alone()

    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None:
        self._alone()

    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        self._alone()

    def _start_swap(self, array: Array, out: Array, peer: int) -> Callable[[], None]:
        self._alone()

    def _broadcast(self, buffer: Array, root: int) -> None:
        self._alone()

    def _max(self, value: int) -> int:
        self._alone()

    def _objects(self, item: Any) -> list[Any]:
        self._alone()

    def _alone(self) -> NoReturn:
        raise TransportError("one rank has nobody to talk to; start more with --ranks")
