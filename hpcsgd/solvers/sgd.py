"""Stochastic gradient descent as a solver of the training loop."""

from collections.abc import Callable, Iterator
from typing import Any

from hpcsgd.agreements.base import Agreement
from hpcsgd.backends.task import Group, Monitor, State
from hpcsgd.comm.ledger import Clock
from hpcsgd.products.base import Product
from hpcsgd.solvers.callbacks import View


class SgdSolver:
    """Takes the steps of each exchange through a product; then replicas agree."""

    def __init__(
        self,
        product: Product,
        agreement: Agreement,
        clock: Clock,
        monitor: Monitor | None,
        groups_after: Callable[[int], Iterator[Group | None]],
    ) -> None:
        self.product = product
        self.agreement = agreement
        self.clock = clock
        self.monitor = monitor  # of the recurrence; None: there is none
        # Exchange -> the groups of all exchanges after it; None: no rows are left.
        self.groups_after = groups_after
        self.group: Group | None = None  # of the next exchange; None: it has no rows
        self.last_group: Group | None = (
            None  # of the last exchange; None: it took no steps
        )
        self._groups: Iterator[Group | None] = iter(())

    def begin(self, state: State, done: int) -> None:
        """Go on from `state` after exchange `done`."""
        self.agreement.start(state, done)
        self.feed(self.groups_after(done))

    def feed(self, groups: Iterator[Group | None]) -> None:
        """Take the groups of the next exchanges from here on."""
        self._groups = groups
        self.group = next(groups, None)

    def advance(self, state: State, number: int, view: View) -> State:
        """Take the steps of exchange `number`, where this replica trains in it."""
        group, agreement = self.group, self.agreement
        self.clock.start()
        upcoming = self.group = next(self._groups, None)
        self.clock.lap("sample")
        self.last_group = None
        if group is None:
            return state
        view.steps += agreement.updates(len(group.blocks.sizes))
        if agreement.trains(number):
            ahead = upcoming if agreement.trains(number + 1) else None
            state = self.product.advance(state, group, ahead)
            self.last_group = group
        view.rows += agreement.visited(len(group.rows))
        return state

    def agree(self, state: State, number: int) -> None:
        """Let replicas agree behind the steps of exchange `number`, where it is due."""
        self.agreement.after_exchange(state, number)

    def finish(self, state: State, done: int) -> None:
        """Wait for what is under way, and make the state that of all replicas."""
        self.product.finish()
        self.agreement.settle(state, done)

    @property
    def alarm(self) -> dict[str, Any] | None:
        """Return what the monitor has found wrong since the last poll."""
        return None if self.monitor is None else self.monitor.alarm

    def clear_alarm(self) -> None:
        """Clear the alarm of the monitor; all ranks have seen it."""
        if self.monitor is not None:
            self.monitor.alarm = None
