"""What watches the products from inside: here nobody does, `gap` has one who does."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


class Unwatched:
    """The protocol of a monitor, and the one of a run without.

    The message that carries margins has room for `words` more; `post` fills them and
    `judge` reads their sum. `before` and `after` stand around the residuals of every
    exchange.
    """

    words = 0  # of this member that wait for the next message
    looks = 0  # at the recurrence that ended in a verdict
    alarm: dict[str, Any] | None = None  # what was found, until somebody takes it

    def begin(
        self,
        done: int,
        plans: list[tuple[int, ...]],
        trains: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """A run goes on after exchange `done`; `plans` are the batches of an epoch.

        `trains` says of an exchange, from 1, whether this replica takes part in it.
        """

    def is_due(self, group: Any) -> bool:
        """Whether `before` will want to see this exchange."""
        return False

    def post(self, room: Array) -> None:
        """Put what waits into its place in the message."""

    def judge(self, total: Array) -> None:
        """Compare what the members' words add up to with what it should be."""

    def before(self, state: Any, group: Any, margins: Array) -> Any:
        """What `after` needs of the state ahead of the steps; None: no look is due."""

    def after(
        self, seen: Any, task: Any, state: Any, group: Any, rows: Any, gram: Array
    ) -> None:
        """Check residuals, and walk: the weights are still those before the steps."""


UNWATCHED = Unwatched()
