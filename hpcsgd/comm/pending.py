"""A sum that was started and is not waited for yet."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


class Pending:
    """A sum under way; `wait` gives the buffer back, as often as it is asked."""

    def __init__(self, buffer: Array, finish: Callable[[], None] | None = None) -> None:
        self.buffer = buffer
        self._finish = finish

    @property
    def is_under_way(self) -> bool:
        """Whether nobody has waited for it yet."""
        return self._finish is not None

    def wait(self) -> Array:
        """Block until the sum is in the buffer."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return self.buffer
