"""The training loop: exchanges, agreements, looks, in that order."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from hpcsgd.agreement import Agreement
from hpcsgd.callbacks.base import Callback, View
from hpcsgd.callbacks.guards import MemberCheck
from hpcsgd.comm.grid import Grid
from hpcsgd.evaluation import Evaluation
from hpcsgd.products.base import Group, Product, State
from hpcsgd.result import Status
from hpcsgd.timing import Clock

STOP, BROKEN = 1, 2


@dataclass(frozen=True)
class Pace:
    """When the engine looks up from its work."""

    epochs: int
    exchanges_per_epoch: int
    check_every: int
    evaluate_every: int


class Engine:
    """Runs the groups of all epochs through the product, and watches."""

    def __init__(
        self,
        grid: Grid,
        product: Product,
        agreement: Agreement,
        guard: MemberCheck,
        evaluation: Evaluation,
        pace: Pace,
        view: View,
        callbacks: list[Callback],
        clock: Clock,
    ) -> None:
        self.grid = grid
        self.product = product
        self.agreement = agreement
        self.guard = guard
        self.evaluation = evaluation
        self.pace = pace
        self.view = view
        self.callbacks = callbacks
        self.clock = clock
        self.wish = 0

    def run(self, state: State, groups: Iterator[Group | None]) -> tuple[State, Status]:
        """Train; returns the last state, or the last good one."""
        self._tell("on_start")
        self._evaluate(state)
        status = self._train(state, groups)
        self.product.finish()
        self.agreement.settle(state, self.view.exchanges)
        if status is not Status.DIVERGED and not self.evaluation.is_fresh(self.view):
            status = self._evaluate(state) or status
        if status is Status.DIVERGED:
            self.view.loss = self.evaluation.restore(state)
        self.view.status = status.value
        self._tell("on_end")
        return state, status

    def _train(self, state: State, groups: Iterator[Group | None]) -> Status:
        group = next(groups, None)
        for number in range(1, self.pace.epochs * self.pace.exchanges_per_epoch + 1):
            began = perf_counter()
            self.clock.start()
            upcoming = next(groups, None)
            self.clock.lap("sample")
            if group is not None:
                state = self.product.advance(state, group, upcoming)
                self.view.steps += len(group.steps)
                self.view.rows += len(group.rows) * self.grid.replicas.size
            group = upcoming
            self.view.exchanges = number
            self.agreement.after_exchange(state, number)
            self.guard.after_exchange(state, number)
            self.view.seconds += perf_counter() - began
            self._tell("on_exchange")
            ending = self._look(state, number)
            if ending is not None:
                return ending
        return Status.COMPLETED

    def _look(self, state: State, number: int) -> Status | None:
        """Whether to end: asked of all ranks together, so that all leave together."""
        epoch_ends = number % self.pace.exchanges_per_epoch == 0
        if epoch_ends:
            self.view.epoch = number // self.pace.exchanges_per_epoch
        elif number % self.pace.check_every:
            return None
        began = perf_counter()
        bad = not (np.isfinite(state.weights).all())
        answer = self.grid.world.max_flag(BROKEN if bad else self.wish)
        self.view.seconds += perf_counter() - began
        if answer == BROKEN:
            return Status.DIVERGED
        every = self.pace.evaluate_every
        if epoch_ends and every and self.view.epoch % every == 0:
            ending = self._evaluate(state)
            if ending is not None:
                return ending
        return Status.STOPPED if answer == STOP else None

    def _evaluate(self, state: State) -> Status | None:
        self.clock.start()
        good = self.evaluation.measure(state, self.view)
        self.clock.lap("evaluate")
        self._tell("on_evaluate")
        return None if good else Status.DIVERGED

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            if getattr(callback, event)(self.view):
                self.wish = STOP
