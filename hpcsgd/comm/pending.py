"""A sum that was started and is not waited for yet."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Arrival:
    """The finish of a transfer that can be asked whether it would have to wait."""

    wait: Callable[[], Any]
    has_come: Callable[[], bool]

    def __call__(self) -> None:
        """Block until it is here."""
        self.wait()


class Pending:
    """A sum under way; `wait` gives the buffer back, as often as it is asked."""

    def __init__(
        self,
        buffer: Array,
        finish: Callable[[], None] | None = None,
        has_come: Callable[[], bool] | None = None,
    ) -> None:
        self.buffer = buffer
        self._finish = finish
        self._has_come = has_come

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

    def has_arrived(self) -> bool:
        """Whether `wait` would return at once; False where nobody can tell.

        Ranks hear of it at different times: what they say next must not depend on it.
        """
        if self._finish is None:
            return True
        return self._has_come is not None and self._has_come()


def has_come_of(finish: Callable[[], None]) -> Callable[[], bool] | None:
    """How to ask whether a transfer is here, of transports that can say so."""
    return finish.has_come if isinstance(finish, Arrival) else None
