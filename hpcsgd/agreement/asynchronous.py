"""Averages that travel while replicas go on (BAGUA's asynchronous model average).

After exchange t = τ, 2τ, ... each replica says what it is, and goes on. After exchange
t + `delay` all know the average, and move by what it would have changed at t:

    w ← Σ_r (n_r / n) w_r(t) + (w − w_own(t))

which is what taking a lock, averaging and letting go amounts to, at exchanges instead
of at times: every run is the same. A delay of 0 is `average`, to the bit. Averages have
a communicator of their own: what else replicas say does not queue behind them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.agreement.average import Average, clear_momentum
from hpcsgd.agreement.flat import (
    positions,
    put_positions,
    share_intercept,
)
from hpcsgd.agreement.overlap import Overlap
from hpcsgd.agreement.terms import Terms
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.on_device import of_hosts
from hpcsgd.comm.pending import Pending
from hpcsgd.products.base import Array, State

PURPOSE = "agreement"
MEAN, OWN, SINCE = "async_mean", "async_own", "async_since"


@dataclass(frozen=True)
class Travelling:
    """One average under way."""

    since: int  # the exchange after which it set out
    own: Array  # what this replica said
    pending: Pending


class AsyncAverage(Average):
    """One average at a time is under way; `aside` carries it."""

    def __init__(
        self,
        grid: Grid,
        share: float,
        period: int,
        delay: int,
        aside: Communicator,
        momentum: str = "average",
        classes: int = 0,
    ) -> None:
        super().__init__(grid, share, period, momentum, classes)
        self.delay = delay
        self.aside = aside
        self.overlap = Overlap(aside)
        self._travelling: Travelling | None = None

    @classmethod
    def of(cls, terms: Terms) -> "AsyncAverage":
        """A group of all replicas is split off, here, by all ranks together."""
        terms.grid.meet()
        replicas = terms.grid.replicas
        aside = of_hosts(replicas).split(0, replicas.rank)
        own = terms.grid, terms.share, terms.period, terms.settings.delay, aside
        return cls(*own, *cls.buffers(terms))

    def prepare(self, state: State) -> None:
        """Room for a checkpoint to keep what travels and what was said.

        Only the same replicas can go on with them: others begin at the mean of all,
        which an average does not change.
        """
        words = self._said(state)
        state.kept[MEAN] = np.zeros_like(words)
        state.kept[OWN] = np.zeros_like(words)
        state.kept[SINCE] = np.zeros(1, dtype=np.int64)  # 0: nothing is under way

    def start(self, state: State, exchanges: int) -> None:
        """A checkpoint has waited for what was under way."""
        kept, since = state.kept, int(state.kept[SINCE][0])
        if since:
            arrived = Pending(kept[MEAN].copy())
            self._travelling = Travelling(since, kept[OWN].copy(), arrived)

    def is_whole(self, exchanges: int) -> bool:
        """Only where nothing is done while an average travels."""
        return self.delay == 0 and super().is_whole(exchanges)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """What is due arrives, and then the next sets out."""
        if self.grid.replicas.size == 1:
            return
        if self._is_due(exchanges):
            self._apply(state)
        if exchanges % self.period == 0:
            self._send(state, exchanges)
            if self.delay == 0:
                self._apply(state)

    def arrive(self, state: State) -> None:
        """The sum, which is still applied when it is due: its words stay here."""
        if self._travelling is not None:
            self._arrive(self._travelling)

    def settle(self, state: State, exchanges: int) -> None:
        """The mean of all is the same with what travels or without: it is let go."""
        if self._travelling is not None:
            self._arrive(self._travelling)
            self._travelling = None
        super().settle(state, exchanges)

    def memory(self, state: State) -> dict[str, Array]:
        """A checkpoint has what was under way: all ranks wait for it here."""
        now = self._travelling
        state.kept[SINCE][0] = 0 if now is None else now.since
        if now is not None:
            state.kept[MEAN][...] = self._arrive(now)
            state.kept[OWN][...] = now.own
        return super().memory(state)

    def facts(self) -> dict[str, Any]:
        """How much of the averages was hidden."""
        return {"delay": self.delay, **self.overlap.facts()}

    def close(self) -> None:
        """The group that was split off."""
        self.aside.close()

    def _is_due(self, exchanges: int) -> bool:
        now = self._travelling
        return now is not None and exchanges == now.since + self.delay

    def _send(self, state: State, exchanges: int) -> None:
        own = self._said(state)
        words = own * own.dtype.type(self.share)
        with self.overlap.posting():
            pending = self.aside.start_sum(words, PURPOSE)
        self._travelling = Travelling(exchanges, own, pending)

    def _arrive(self, now: Travelling) -> Array:
        """Wait for what travels, the first time."""
        if now.pending.is_under_way:
            with self.overlap.waiting():
                now.pending.wait()
        return now.pending.buffer

    def _apply(self, state: State) -> None:
        now, self._travelling = self._travelling, None
        assert now is not None
        state.kept[SINCE][0] = 0
        # In this order: where nothing was done meanwhile, it is the mean, to the bit.
        moved = self._arrive(now) + (self._said(state) - now.own)
        if self._says_all(state):
            state.become(moved)
        else:
            put_positions(state, moved, self.classes)
            if self.momentum == "reset":
                clear_momentum(state, self.classes)
        share_intercept(state, self.grid)

    def _said(self, state: State) -> Array:
        """A copy of what travels, in one row."""
        if self._says_all(state):
            return state.portion(1.0, self.aside)
        return positions(state, self.classes)

    def _says_all(self, state: State) -> bool:
        width = state.look_at("weights").shape[1]
        return self.momentum == "average" or width <= self.classes
