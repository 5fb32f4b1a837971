"""Federated averaging: in every round of τ exchanges a part of the replicas trains.

Round k = 0, 1, ... is exchanges kτ + 1 .. (k + 1)τ. m = max(⌊fraction · R + 1/2⌋, 1)
replicas are drawn without replacement, by seed and round alone, so that nobody has to
ask. The others keep the weights of the round's beginning; then all replicas take

    w ← Σ_{r drawn} (n_r / Σ_{q drawn} n_q) w_r
"""

from functools import lru_cache
from typing import Any

import numpy as np

from hpcsgd.agreement.average import Average
from hpcsgd.agreement.terms import Terms
from hpcsgd.comm.grid import Grid
from hpcsgd.products.base import State

ROUNDS = 0xFEDA  # where row orders have the replica: no replica has this number


class FedAvg(Average):
    """The drawn replicas train and are averaged by their rows; all receive it.

    One sum over all replicas, to which those that rest give zeros: an all-reduce is
    the message in which everybody gets the result, and it moves these words whoever
    drew them up. They are booked as what they are, words on the wire.
    """

    def __init__(
        self,
        grid: Grid,
        rows: tuple[int, ...],
        period: int,
        fraction: float,
        seed: int,
        momentum: str = "average",
        classes: int = 0,
    ) -> None:
        share = rows[grid.replica] / sum(rows)
        super().__init__(grid, share, period, momentum, classes)
        self.rows = rows
        self.count = drawn_of(len(rows), fraction)
        self.seed = seed

    @classmethod
    def of(cls, terms: Terms) -> "FedAvg":
        """The seed is that of the row order."""
        own = terms.grid, terms.rows, terms.period, terms.settings.fraction
        return cls(*own, terms.seed, *cls.buffers(terms))

    @property
    def workers(self) -> int:
        """m."""
        return self.count

    def facts(self) -> dict[str, Any]:
        """How many train in a round."""
        return {"workers": self.count}

    def trains(self, number: int) -> bool:
        """Whether it is drawn for the round of exchange `number`, from 1."""
        return self.grid.replica in self.clients(number)

    def clients(self, number: int) -> frozenset[int]:
        """The replicas that train in exchange `number`, from 1."""
        round_number = (number - 1) // self.period
        return draw(self.seed, round_number, len(self.rows), self.count)

    def weight(self, exchanges: int) -> float:
        """Its rows among those of the round's replicas; nothing where it rested."""
        drawn = self.clients(max(exchanges, 1))
        if self.grid.replica not in drawn:
            return 0.0
        return self.rows[self.grid.replica] / sum(self.rows[r] for r in drawn)

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """Average over those that trained."""
        share = self.weight(exchanges)
        self.average(state, share, self.grid.replicas, purpose)


def drawn_of(replicas: int, fraction: float) -> int:
    """m, one at least."""
    return max(int(fraction * replicas + 0.5), 1)


@lru_cache(maxsize=64)
def draw(seed: int, round_number: int, replicas: int, count: int) -> frozenset[int]:
    """The replicas of a round: a function of its arguments, and of no message."""
    rng = np.random.default_rng((seed, ROUNDS, round_number))
    return frozenset(rng.choice(replicas, size=count, replace=False).tolist())
