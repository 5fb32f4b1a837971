"""What is known where an agreement is made; every row takes what it needs of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcsgd.comm.grid import Grid


@dataclass(frozen=True)
class Terms:
    """Of one run, the same on all ranks but for the grid's own place."""

    grid: Grid
    rows: tuple[int, ...]  # of every replica
    classes: int  # K
    period: int  # τ, in exchanges
    exchanges_per_epoch: int
    seed: int
    settings: Any  # the section [agreement]
    # Exchanges done, from 1 -> rate of the last step of the replica with most rows.
    last_rate: Callable[[int], float]

    @property
    def share(self) -> float:
        """The part of all rows that this replica holds."""
        return self.rows[self.grid.replica] / sum(self.rows)
