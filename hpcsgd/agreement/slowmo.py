"""Slow momentum over any agreement that averages.

Where a slow step is due, all replicas agree on x̄ by the base's own full average, and

    u ← β u + (x_old − x̄)        x ← x_old − α u        x_old ← x

u here is the paper's times the rate, which both of its lines have: nothing is divided
by a rate that may be zero or change between the lines. α = 1, β = 0 is the base, to the
bit. With one replica it is a look-ahead optimiser, with `fedavg` below it FedAvgM.
"""

from typing import Any

from hpcsgd.agreement.average import Average
from hpcsgd.agreement.base import Agreement
from hpcsgd.agreement.fedavg import FedAvg
from hpcsgd.agreement.hierarchical import Hierarchical
from hpcsgd.agreement.postlocal import PostLocal
from hpcsgd.agreement.slow_shards import Shards
from hpcsgd.agreement.terms import Terms
from hpcsgd.products.base import Array, State

BASES: dict[str, type[Average]] = {
    "average": Average,
    "postlocal": PostLocal,
    "hierarchical": Hierarchical,
    "fedavg": FedAvg,
}
START, MOMENTUM = "slow_start", "slow_momentum"  # x_old and u


class SlowMo(Agreement):
    """`rate` α and `momentum` β of the slow steps, every `slow_period` exchanges.

    A `slow_period` of 0 is whenever the base agrees. The slow state is one array a
    replica, or with `shards` a part on each: then the average is a reduce-scatter and
    a gather, with the slow step between them.
    """

    def __init__(
        self,
        base: Average,
        classes: int,
        rate: float,
        momentum: float,
        slow_period: int = 0,
        sharded: bool = False,
    ) -> None:
        super().__init__(base.grid, base.share, base.period)
        self.base = base
        self.classes = classes
        self.rate = rate
        self.momentum = momentum
        self.slow_period = slow_period
        self.shards = Shards(base, classes) if sharded else None

    @classmethod
    def of(cls, terms: Terms) -> "SlowMo":
        """The base is another row, one that averages."""
        asked = terms.settings
        return cls(
            BASES[asked.base].of(terms),
            terms.classes,
            asked.slow_rate,
            asked.slow_momentum,
            asked.slow_period,
            asked.slow_sharded,
        )

    @property
    def workers(self) -> int:
        """As the base has it."""
        return self.base.workers

    @property
    def circle_sizes(self) -> list[int]:
        """As the base has it."""
        return self.base.circle_sizes

    def facts(self) -> dict[str, Any]:
        """As the base has it."""
        return self.base.facts()

    def trains(self, number: int) -> bool:
        """As the base has it."""
        return self.base.trains(number)

    def prepare(self, state: State) -> None:
        """x_old and u of the weights, and of the intercept beside them."""
        self.base.prepare(state)
        own = self._own(state.weights[:, : self.classes])
        for name in (START, MOMENTUM):
            state.memory[name] = own * 0.0
            if state.intercept is not None:
                state.shared[name] = state.intercept[:1] * 0.0

    def start(self, state: State, exchanges: int) -> None:
        """A run that begins has its first x_old from where it does."""
        self.base.start(state, exchanges)
        if exchanges:
            return
        state.memory[START][...] = self._own(state.weights[:, : self.classes])
        if state.intercept is not None:
            state.shared[START][...] = state.intercept[:1]

    def is_whole(self, exchanges: int) -> bool:
        """When the base is, and after a slow step."""
        return self.is_slow(exchanges) or self.base.is_whole(exchanges)

    def is_slow(self, exchanges: int) -> bool:
        """Whether a slow step is due after so many exchanges."""
        if self.slow_period:
            return exchanges % self.slow_period == 0
        return self.base.is_whole(exchanges)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """The base's own doing, but where a slow step is due: then one full average."""
        if not self.is_slow(exchanges):
            self.base.after_exchange(state, exchanges)
        elif self.shards is not None:
            self.shards.average(state, exchanges, self._walk)
            self._walk_intercept(state)
        else:
            self.base.conclude(state, exchanges, "agreement")
            self._walk(state, state.weights[:, : self.classes])
            self._walk_intercept(state)

    def conclude(self, state: State, exchanges: int, purpose: str) -> None:
        """The base's average: what is left at the end of a run is no slow step."""
        self.base.conclude(state, exchanges, purpose)

    def agree(self, state: State, purpose: str) -> None:
        """As the base does."""
        self.base.agree(state, purpose)

    def keeps_own(self, state: State) -> bool:
        """The slow state is alike everywhere; what else is kept is the base's."""
        rest = {n: a for n, a in state.memory.items() if n not in (START, MOMENTUM)}
        seen = State(state.weights, state.intercept, memory=rest)
        return self.base.keeps_own(seen)

    def memory(self, state: State) -> dict[str, Array]:
        """Parts are put together: a checkpoint knows no shards."""
        kept = dict(self.base.memory(state))
        if self.shards is not None:
            for name in (START, MOMENTUM):
                kept[name] = self.shards.join(state.memory[name], state, "control")
        return kept

    def remember(self, state: State, name: str, kept: Array) -> None:
        """This replica's part of it."""
        if name in (START, MOMENTUM):
            state.memory[name][...] = self._own(kept)
        else:
            self.base.remember(state, name, kept)

    def close(self) -> None:
        """What the base opened."""
        self.base.close()

    def _own(self, rows: Array) -> Array:
        """The rows that this replica keeps of one row a column held."""
        if self.shards is not None:
            return rows[self.shards.part(len(rows))]
        return rows

    def _walk(self, state: State, weights: Array) -> None:
        slow = state.memory
        slow_step(weights, slow[START], slow[MOMENTUM], self.rate, self.momentum)

    def _walk_intercept(self, state: State) -> None:
        if state.intercept is not None:
            slow, own = state.shared, state.intercept[:1]
            slow_step(own, slow[START], slow[MOMENTUM], self.rate, self.momentum)


def slow_step(mean: Array, start: Array, slow: Array, rate: float, beta: float) -> None:
    """x̄ becomes x in place, as x̄ + (1 − α) Δ − α β u with Δ = x_old − x̄.

    The same as x_old − α (β u + Δ), and x̄ itself where α = 1 and β = 0.
    """
    change = start - mean
    if rate != 1.0:
        mean += (1.0 - rate) * change
    if beta:
        mean -= (rate * beta) * slow
    slow *= beta
    slow += change
    start[...] = mean
