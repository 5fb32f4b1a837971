"""How many tasks of a round each rank gets.

Rank 0 also takes what all of them make. It gets fewer tasks the longer that takes, so
that it is ready when the others are; what is made of a task does not depend on who
does it.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import TypeVar

Task = TypeVar("Task")
MOST = 8  # tasks of one rank in a round: fewer wait for each other, more need memory


class Watch:
    """Seconds that one piece of work takes, on average."""

    def __init__(self) -> None:
        self.total, self.count, self.began = 0.0, 0, 0.0

    @property
    def mean(self) -> float:
        """0 as long as nothing is known."""
        return self.total / max(self.count, 1)

    def __enter__(self) -> None:
        self.began = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.total += perf_counter() - self.began
        self.count += 1


class Pace:
    """Rank 0 measures its work; all ranks deal by what it says."""

    def __init__(self, workers: int, most: int = MOST) -> None:
        self.workers, self.most = workers, most
        self.of_root = most  # tasks of rank 0 in the next round
        self.making, self.taking = Watch(), Watch()

    def advise(self) -> int:
        """Tasks for rank 0 in the round after this one."""
        make, take, others = self.making.mean, self.taking.mean, self.workers - 1
        if others == 0 or make + take == 0.0:
            return self.most
        # k make = n make + (n + others k) take, solved for n
        return max(round(self.most * (make - others * take) / (make + take)), 0)

    @property
    def shares(self) -> list[int]:
        """Tasks of each worker in a round."""
        return [self.of_root] + [self.most] * (self.workers - 1)


def own_part(dealt: Sequence[Task], shares: Sequence[int], rank: int) -> Sequence[Task]:
    """The tasks of one rank: ranks in order, what is too few spread alike."""
    if rank >= len(shares):
        return dealt[:0]
    before, whole = sum(shares[:rank]), sum(shares)
    first = before * len(dealt) // whole
    return dealt[first : (before + shares[rank]) * len(dealt) // whole]
