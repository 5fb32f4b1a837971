"""When all ranks look up together, and what they then say with one word.

A look is one message, so it comes every `check_every` exchanges; where exchanges are
slow it comes about once a second, so that a signal is never kept waiting. Both are
settled by the same message: the word carries the gravest flag of any rank, and among
those who raise it the shortest way to the next look.
"""

from hpcsgd.comm.base import Communicator

BROKEN = 7  # weights are not finite; graver than any wish
GAP = 6  # the recurrence is off by more than rounding; graver than any wish, too
PATIENCE = 1.0  # seconds between looks where exchanges are slow
SPAN = 2**20  # more exchanges than any way to the next look


class Looks:
    """The next look, the same on every rank."""

    def __init__(self, world: Communicator, every: int) -> None:
        self.world = world
        self.every = every
        self.begin(0, 0.0)

    def begin(self, number: int, seconds: float) -> None:
        """Training goes on after exchange `number`, with `seconds` behind it.

        The next exchange is looked at: it says how slow they are.
        """
        self.next = number + 1
        self.last = (number, seconds)

    def is_due(self, number: int) -> bool:
        """True after the exchange that all ranks look up from."""
        return number >= self.next

    def ask(self, flag: int, number: int, seconds: float) -> int:
        """The gravest flag of any rank, after exchange `number`."""
        word = flag * SPAN + SPAN - 1 - self._way(number, seconds)
        answer, rest = divmod(self.world.max_flag(word), SPAN)
        self.next = number + SPAN - 1 - rest
        self.last = (number, seconds)
        return answer

    def _way(self, number: int, seconds: float) -> int:
        """Exchanges until the next look, as this rank would have it."""
        count, spent = number - self.last[0], seconds - self.last[1]
        if spent * self.every <= PATIENCE * count:
            return self.every
        return max(int(PATIENCE * count / spent), 1)
