"""Two pieces of work on one rank that take turns: one computes while the other waits.

They run in threads of their own, but never at the same time. Whoever is about to wait
for a transfer hands over, and goes on when it is its turn again. What decides the turns
is the program alone, never a clock, so that they are the same on all ranks and
collectives come in one order everywhere.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.ledger import Ledger


class Ended(BaseException):
    """Raised in the work that waits for its turn when the other one has failed."""


class Turns:
    """Whose turn it is; works are 0 and 1, and 0 begins."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.turn = 0
        self.there = {0, 1}
        self.failed = False
        self.handovers = 0

    def wait_for(self, own: int) -> None:
        """Until it is the turn of `own`."""
        with self.changed:
            self.changed.wait_for(lambda: self.failed or self.turn == own)
            if self.failed:
                raise Ended

    def hand_over(self, own: int) -> None:
        """Let the other one go on, and wait until it does the same."""
        with self.changed:
            if 1 - own not in self.there:
                return
            self.turn = 1 - own
            self.handovers += 1
            self.changed.notify_all()
        self.wait_for(own)

    def leave(self, own: int, failed: bool) -> None:
        """It is done: the other one goes on alone, or not at all."""
        with self.changed:
            self.there.discard(own)
            self.turn, self.failed = 1 - own, self.failed or failed
            self.changed.notify_all()


def in_turns(works: Sequence[Callable[[Turns], Any]]) -> list[Any]:
    """Run two works, each told of the turns; their results, or the first error."""
    turns = Turns()
    results: list[Any] = [None, None]
    errors: list[BaseException] = []

    def run(own: int) -> None:
        failed = True
        try:
            turns.wait_for(own)
            results[own] = works[own](turns)
            failed = False
        except Ended:
            pass
        except BaseException as error:  # whatever it is, the other must not wait
            errors.append(error)
        finally:
            turns.leave(own, failed)

    threads = [threading.Thread(target=run, args=(own,)) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def twin(world: Communicator) -> Communicator:
    """The same ranks, who count what they say in a ledger of their own."""
    one: Communicator | None = world.split(0, world.rank)
    found, ledger = one, Ledger()
    while one is not None:  # through what it is wrapped in
        one.ledger = ledger
        one = getattr(one, "inner", None)
    assert found is not None
    return found
