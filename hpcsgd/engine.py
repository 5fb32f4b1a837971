"""The training loop: exchanges, agreements, looks, in that order."""

import logging
from collections.abc import Iterator
from time import perf_counter
from typing import Any

from hpcsgd.agreement import Agreement
from hpcsgd.callbacks.base import Callback, View, Wish, wish_of
from hpcsgd.callbacks.guards import MemberCheck
from hpcsgd.comm.grid import Grid
from hpcsgd.energy import Meter
from hpcsgd.evaluation import Evaluation
from hpcsgd.events import alarm_text, note
from hpcsgd.finisher import UNFINISHED, Unfinished
from hpcsgd.good_states import GoodStates
from hpcsgd.looks import BROKEN, GAP, Looks
from hpcsgd.pace import Pace
from hpcsgd.polish.separation import NO_MINIMUM
from hpcsgd.products.base import Group, Product, State
from hpcsgd.products.hooks import NO_HOOKS, Hooks
from hpcsgd.products.watcher import UNWATCHED, Unwatched
from hpcsgd.recording import Recorder
from hpcsgd.result import Status
from hpcsgd.saving import Saver
from hpcsgd.stopping import StopConfig
from hpcsgd.timing import Clock

log = logging.getLogger(__name__)
ENDINGS = {
    Wish.STOP: Status.STOPPED,
    Wish.PREEMPT: Status.PREEMPTED,
    Wish.INTERRUPT: Status.INTERRUPTED,
}
NO_GOAL = StopConfig()
FALLING = "falling back"  # what callbacks see where it goes on with other settings


class Engine:
    """Runs the groups of all epochs through the product, and watches."""

    def __init__(
        self,
        grid: Grid,
        product: Product,
        agreement: Agreement,
        guard: MemberCheck,
        evaluation: Evaluation,
        saver: Saver,
        looks: Looks,
        pace: Pace,
        view: View,
        callbacks: list[Callback],
        clock: Clock,
        recorder: Recorder,
        monitor: Unwatched = UNWATCHED,
        states: GoodStates | None = None,
        falls_back: bool = False,
        hooks: Hooks = NO_HOOKS,
        finisher: Unfinished = UNFINISHED,
        stop: StopConfig = NO_GOAL,
    ) -> None:
        self.grid = grid
        self.product = product
        self.agreement = agreement
        self.guard = guard
        self.evaluation = evaluation
        self.saver = saver
        self.looks = looks
        self.pace = pace
        self.view = view
        self.callbacks = callbacks
        self.clock = clock
        self.recorder = recorder
        self.monitor = monitor
        self.falls_back = falls_back  # False: an alarm is noted, and no more
        self.states = states or GoodStates(0, active=False)
        self.hooks = hooks
        self.finisher = finisher
        self.stop = stop
        self.meter = Meter(())  # of energy; the session has one that outlives legs
        self.alarm: dict[str, Any] | None = None  # that ended it
        self.wish = Wish.NONE
        self.has_minimum = True  # False: F was found to fall without end

    def run(self, state: State, groups: Iterator[Group | None]) -> tuple[State, Status]:
        """Train on from where the view stands; returns the last (good) state."""
        self._tell("on_start")
        if not self.view.history:
            self._evaluate(state)
        first = self.view.exchanges
        self.agreement.start(state, first)
        self.hooks.start(state)
        self.states.begin(state, self.view)
        self.meter.resume()
        status = self._train(state, groups)
        self.meter.pause()
        with self.grid.world.working("writing what was recorded"):
            self.recorder.finish(first, self.view.exchanges)
        self.product.finish()
        self.agreement.settle(state, self.view.exchanges)
        if status.is_finished:
            self.hooks.settle(state, self.view.exchanges)
        if status.is_finished and not self.evaluation.is_fresh(self.view):
            status = self._evaluate(state) or status
            if status is Status.COMPLETED and self._is_there():
                status = Status.CONVERGED
        if status is Status.DIVERGED:
            self.view.loss = self.evaluation.restore(state)
        elif status.is_good:
            state, status = self._finish(state, status)
        falls = status is Status.DIVERGED and self.states.active
        return self._end(state, status, FALLING if falls else status.value)

    def rehearse(self, state: State, groups: Iterator[Group | None], more: int) -> None:
        """So many exchanges and no more, for their time: no loss is taken."""
        self.pace = Pace(1, self.view.exchanges + more, 0)
        self._train(state, groups)
        self.agreement.arrive(state)

    def _finish(self, state: State, status: Status) -> tuple[State, Status]:
        """What comes after the last step, told pass by pass."""
        began, before = perf_counter(), self.view.seconds

        def tell(more: dict[str, Any]) -> Wish:
            self.view.more = {}  # of the last step
            self.view.seconds = before + perf_counter() - began
            self.view.note(self.grid.world.ledger, **more)
            self._tell("on_evaluate")
            return self.wish

        if self.finisher is UNFINISHED:
            self._judge_goal(state, status)
            return state, status
        self.clock.start()
        self.meter.resume()
        state, wish = self.finisher.finish(state, self.view, tell)
        self.meter.pause()
        self.clock.lap("polish")
        self.has_minimum = self.finisher.has_minimum
        return state, ENDINGS.get(wish, status)

    def _judge_goal(self, state: State, status: Status) -> None:
        """Warn where there is a goal and no minimum, or where it is not reached."""
        ended = status in (Status.COMPLETED, Status.CONVERGED)
        if self.stop.on == "none" or not ended:
            return
        if self.evaluation.lacks_minimum(state, self.view.exchanges):
            self.has_minimum = False
            log.warning("%s (--l2)", NO_MINIMUM, extra={"on_all_ranks": True})
        elif status is Status.COMPLETED:
            self.stop.warn(self.view.history, self._null_excess())

    def _is_there(self) -> bool:
        """Whether the last evaluation found the goal reached; asked of all ranks."""
        if self.stop.on == "none":
            return False
        reached = self.stop.is_reached(self.view.history, self._null_excess())
        return bool(self.grid.world.max_flag(reached))

    def _null_excess(self) -> float:
        """Return F of the null model above its bound, which a small gap is held to."""
        return self.evaluation.null_excess() if self.stop.on == "gap" else 0.0

    def _end(self, state: State, status: Status, said: str) -> tuple[State, Status]:
        self.view.status = said
        self._tell("on_end")
        self.saver.finish()
        return state, status

    def _train(self, state: State, groups: Iterator[Group | None]) -> Status:
        if self._is_there():
            return Status.CONVERGED
        group = next(groups, None)
        self.looks.begin(self.view.exchanges, self.view.seconds)
        for number in range(self.view.exchanges + 1, self.pace.exchanges + 1):
            self.recorder.before(state, number)
            began = perf_counter()
            epoch, place = divmod(number - 1, self.pace.exchanges_per_epoch)
            if place == 0:
                self.hooks.before_epoch(state, epoch)
            self.clock.start()
            upcoming = next(groups, None)
            self.clock.lap("sample")
            if group is not None:
                state, group = self._work(state, group, upcoming, number)
            self.recorder.after(state, number)
            self.hooks.after_steps(state, group)
            group = upcoming
            self.view.exchanges = number
            self.agreement.after_exchange(state, number)
            self.guard.after_exchange(state, number)
            self.hooks.after_exchange(state, number)
            self.states.after_exchange(state, self.view)
            self.view.seconds += perf_counter() - began
            self._tell("on_exchange")
            ending = self._look(state, number)
            if ending is not None:
                return ending
        return Status.COMPLETED

    def _work(
        self, state: State, group: Group, upcoming: Group | None, number: int
    ) -> tuple[State, Group | None]:
        """The steps of `group`, which is None behind a replica that rests."""
        agreement = self.agreement
        self.view.steps += agreement.updates(len(group.blocks.sizes))
        if agreement.trains(number):
            ahead = upcoming if agreement.trains(number + 1) else None
            state = self.product.advance(state, group, ahead)
        self.view.rows += agreement.visited(len(group.rows))
        return state, group if agreement.trains(number) else None

    def _look(self, state: State, number: int) -> Status | None:
        """Whether to end: asked of all ranks together, so that all leave together."""
        epoch_ends = number % self.pace.exchanges_per_epoch == 0
        if epoch_ends:
            self.view.epoch = number // self.pace.exchanges_per_epoch
        saves = self.saver.is_due(number, number == self.pace.exchanges)
        if not (epoch_ends or saves or self.looks.is_due(number)):
            return None
        began = perf_counter()
        self.meter.keep_up()
        wish = max(self.wish, self.saver.wish())
        bad = self.evaluation.are_broken(state.look_at("weights"))
        flag = BROKEN if bad else GAP if self.monitor.alarm else wish
        answer = self.looks.ask(flag, number, self.view.seconds)
        self.view.seconds += perf_counter() - began
        if answer == BROKEN:
            return Status.DIVERGED
        if answer == GAP:
            if self._alarm():
                return Status.DIVERGED
            answer = Wish.NONE  # wishes are heard the next time
        self.states.passed(number)
        measures = epoch_ends and self._evaluates(self.view.epoch)
        if measures and self._measure(state):
            return Status.DIVERGED
        is_there = measures and self._is_there()
        began = perf_counter()
        if saves or is_there or answer >= Wish.SAVE:
            self.saver.save(state, self.view)
            if self.wish is Wish.SAVE:
                self.wish = Wish.NONE  # granted; a wish to end stays
        self.view.seconds += perf_counter() - began
        return ENDINGS.get(Wish(answer), Status.CONVERGED if is_there else None)

    def _alarm(self) -> bool:
        """Note what one of the ranks has found; whether that ends this leg."""
        found = self.grid.world.exchange_objects(self.monitor.alarm)
        alarm = next(one for one in found if one is not None)
        self.monitor.alarm = None
        facts = {name: alarm[name] for name in ("of", "gap", "tolerance")}
        note(self.view, "gap", alarm_text(alarm), looked_at=alarm["exchange"], **facts)
        self.alarm = alarm if self.falls_back else None
        return self.falls_back

    def _evaluates(self, epoch: int) -> bool:
        every = self.pace.evaluate_every
        return bool(every) and epoch % every == 0

    def _measure(self, state: State) -> Status | None:
        """A loss amid training, whose energy is not that of the solution."""
        self.meter.pause()
        bad = self._evaluate(state)
        self.meter.resume()
        return bad

    def _evaluate(self, state: State) -> Status | None:
        self.clock.start()
        good = self.evaluation.measure(state, self.view)
        self.clock.lap("evaluate")
        self.view.note(self.grid.world.ledger)
        self.hooks.after_evaluation(state, self.view)
        self._tell("on_evaluate")
        if good:
            self.states.has_good_loss(state, self.view)
        return None if good else Status.DIVERGED

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            answer = getattr(callback, event)(self.view)
            if answer:
                self.wish = max(self.wish, wish_of(answer))
