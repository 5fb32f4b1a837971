"""Stochastic gradient descent as a solver of the training loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hpcsgd.agreements.base import Agreement
from hpcsgd.backends.task import Group, State
from hpcsgd.comm.ledger import Clock
from hpcsgd.products.base import Product
from hpcsgd.products.observers import Observers
from hpcsgd.solvers.callbacks import Request, View


@dataclass(frozen=True)
class RunLength:
    """The length of a run whose epochs have the same number of exchanges."""

    epochs: int
    exchanges_per_epoch: int
    evaluate_every: int  # epochs; 0 = no evaluation before the end

    def is_over(self, done: int) -> bool:
        """Return whether exchange `done` was the last one."""
        return done >= self.epochs * self.exchanges_per_epoch

    def epoch_beginning_at(self, number: int) -> int | None:
        """Return the index of the epoch that begins with exchange `number`, if any."""
        epoch, offset = divmod(number - 1, self.exchanges_per_epoch)
        return None if offset else epoch

    def epochs_done_after(self, number: int) -> int | None:
        """Return the epochs done if exchange `number` ends an epoch, else None."""
        epochs, offset = divmod(number, self.exchanges_per_epoch)
        return None if offset else epochs

    def is_evaluated_after(self, number: int) -> bool:
        """Return whether the model is evaluated after exchange `number`."""
        every = self.evaluate_every
        return every > 0 and number % (every * self.exchanges_per_epoch) == 0


class SgdSolver:
    """Takes the s steps of each exchange through a product; then replicas agree."""

    is_resumable = True
    request = Request.NONE  # the loop polls all ranks
    facts: dict[str, Any] | None = None  # SGD ends with its last exchange

    def __init__(
        self,
        product: Product,
        agreement: Agreement,
        clock: Clock,
        observers: Observers,
        groups_after: Callable[[int], Iterator[Group | None]],
        length: RunLength,
    ) -> None:
        self.product = product
        self.agreement = agreement
        self.clock = clock
        self.observers = observers
        # Exchange -> the groups of all exchanges after it; None: no rows are left.
        self.groups_after = groups_after
        self.length = length
        self.group: Group | None = None  # of the next exchange; None: it has no rows
        self._groups: Iterator[Group | None] = iter(())

    def begin(self, state: State, view: View) -> None:
        """Prepare to continue from `state` after exchange `view.exchanges`."""
        self.agreement.start(state, view.exchanges)
        self.feed(self.groups_after(view.exchanges), self.length)

    def feed(self, groups: Iterator[Group | None], length: RunLength) -> None:
        """Take the batches of the next exchanges from `groups`; set the run's length.

        `groups` has one group of batches for each exchange; None where this replica has
        no rows.
        """
        self._groups = groups
        self.group = next(groups, None)
        self.length = length

    def advance(self, state: State, view: View) -> State:
        """Do the next exchange, count it in the view, and return the new state."""
        number = view.exchanges + 1
        observers = self.observers
        observers.before_exchange(state, number)
        epoch = self.length.epoch_beginning_at(number)
        if epoch is not None:
            observers.before_epoch(state, epoch)

        # 1. The rows of the exchange after this one, which a product may look ahead to.
        self.clock.start()
        group = self.group
        upcoming = self.group = next(self._groups, None)
        self.clock.lap("sample")

        # 2. The steps, where this replica has rows and takes part.
        agreement = self.agreement
        trained: Group | None = None
        if group is not None:
            view.steps += agreement.updates(len(group.blocks.sizes))
            if agreement.trains(number):
                ahead = upcoming if agreement.trains(number + 1) else None
                state = self.product.advance(state, group, ahead)
                trained = group
            view.rows += agreement.visited(len(group.rows))
        observers.after_steps(state, number, trained)
        view.exchanges = number

        # 3. Replicas agree, where that is due.
        agreement.after_exchange(state, number)
        observers.after_exchange(state, number)
        return state

    def finish(self, state: State, view: View) -> State:
        """Wait for pending messages; return the state that replicas agree on."""
        self.product.finish()
        self.agreement.settle(state, view.exchanges)
        return state
