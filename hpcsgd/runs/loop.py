"""The training loop, the times at which ranks poll, and events."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from hpcsgd.agreements.base import Agreement
from hpcsgd.backends.task import NO_MONITOR, Group, NoMonitor, State
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Clock
from hpcsgd.config import RunConfig
from hpcsgd.formats import Array
from hpcsgd.products.base import Product
from hpcsgd.products.hooks import NO_HOOKS, HookList
from hpcsgd.runs.checkpoint import Saver
from hpcsgd.runs.energy import EnergyMeter
from hpcsgd.runs.recording import MemberCheck, Recorder
from hpcsgd.runs.result import Status, judge_rise
from hpcsgd.solvers.callbacks import Callback, Request, View, request_of
from hpcsgd.solvers.evaluation import Evaluation, StopConfig
from hpcsgd.solvers.full_passes import NO_MINIMUM
from hpcsgd.solvers.newton import UNFINISHED, NoFinisher

# How long a run is: epochs, exchanges, evaluations.


@dataclass(frozen=True)
class RunLength:
    """How long a run is, and how often its loss is taken."""

    epochs: int
    exchanges_per_epoch: int
    evaluate_every: int

    @property
    def exchanges(self) -> int:
        """Of the whole run."""
        return self.epochs * self.exchanges_per_epoch


# When all ranks look up together, and what they then say with one word.
#
# A look is one message, so it comes every `check_every` exchanges; where exchanges are
# slow it comes about once a second, so that a signal is never kept waiting. Both are
# settled by the same message: the word carries the gravest flag of any rank, and among
# those who raise it the shortest way to the next look.

BROKEN = 7  # weights are not finite; graver than any wish
GAP = 6  # the recurrence is off by more than rounding; graver than any wish, too
PATIENCE = 1.0  # seconds between looks where exchanges are slow
SPAN = 2**20  # more exchanges than any way to the next look


class PollSchedule:
    """The next look, the same on every rank."""

    def __init__(self, world: Communicator, every: int) -> None:
        self.world = world
        self.every = every
        self.begin(0, 0.0)

    def begin(self, number: int, seconds: float) -> None:
        """Training goes on after exchange `number`, with `seconds` behind it.

        The next exchange is looked at: it says how slow they are.
        """
        self.next = number + 1
        self.last = (number, seconds)

    def is_due(self, number: int) -> bool:
        """True after the exchange that all ranks look up from."""
        return number >= self.next

    def ask(self, flag: int, number: int, seconds: float) -> int:
        """The gravest flag of any rank, after exchange `number`."""
        word = flag * SPAN + SPAN - 1 - self._way(number, seconds)
        answer, rest = divmod(self.world.max_flag(word), SPAN)
        self.next = number + SPAN - 1 - rest
        self.last = (number, seconds)
        return answer

    def _way(self, number: int, seconds: float) -> int:
        """Exchanges until the next look, as this rank would have it."""
        count, spent = number - self.last[0], seconds - self.last[1]
        if spent * self.every <= PATIENCE * count:
            return self.every
        return max(int(PATIENCE * count / spent), 1)


# Copies of the state at moments when all was well: what a run falls back to.
#
# The gap monitor's verdict on an exchange comes with the next one, and all ranks hear
# of it when they look up. A copy is made where a look at the recurrence is begun, on
# all ranks after the same exchange, and counts from the next time they all look up and
# nobody has found anything.


@dataclass(frozen=True)
class GoodState:
    """This rank's part of the state after an exchange, and where the run stood."""

    exchanges: int
    epoch: int
    loss: float
    evaluations: int
    weights: Array
    intercept: Array | None
    memory: dict[str, Array]
    rank_arrays: dict[str, Array]
    shared: dict[str, Array]

    @classmethod
    def of(cls, state: State, view: View) -> "GoodState":
        """A copy of how it is now."""
        state = state.host_state()
        return cls(
            exchanges=view.exchanges,
            epoch=view.epoch,
            loss=view.loss,
            evaluations=len(view.history),
            weights=state.weights.copy(),
            intercept=None if state.intercept is None else state.intercept.copy(),
            memory=_copies(state.memory),
            rank_arrays=_copies(state.rank_arrays),
            shared=_copies(state.shared),
        )

    def restore(self, state: State, view: View) -> None:
        """Restore state and view from this snapshot; seconds are not taken back."""
        state.weights[...] = self.weights
        if state.intercept is not None and self.intercept is not None:
            state.intercept[...] = self.intercept
        for own, held in (
            (state.memory, self.memory),
            (state.rank_arrays, self.rank_arrays),
            (state.shared, self.shared),
        ):
            for name, array in held.items():
                own[name][...] = array
        view.exchanges, view.epoch = self.exchanges, self.epoch
        view.loss = self.loss
        del view.history[self.evaluations :]


def _copies(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


@dataclass
class GoodStates:
    """At most four copies: checked, being checked (two), and with a good loss."""

    every: int  # exchanges between looks at the recurrence; 0 = there are none
    active: bool = True  # False: there is nothing that a run could fall back to
    checked: GoodState | None = None  # no alarm until then
    measured: GoodState | None = None  # its loss was good, or the run began there
    candidates: list[GoodState] = field(default_factory=list)

    def begin(self, state: State, view: View) -> None:
        """A run begins well, and one that goes on does from a good state."""
        if self.active:
            self.checked = self.measured = GoodState.of(state, view)

    def after_exchange(self, state: State, view: View) -> None:
        """A copy where a look at the recurrence is begun."""
        if self.active and self.every and view.exchanges % self.every == 0:
            self.candidates.append(GoodState.of(state, view))

    def passed(self, exchanges: int) -> None:
        """All ranks looked up after `exchanges`, and nobody had found anything."""
        known = [kept for kept in self.candidates if kept.exchanges < exchanges]
        if known:
            self.checked = known[-1]
            self.candidates = [k for k in self.candidates if k.exchanges >= exchanges]

    def has_good_loss(self, state: State, view: View) -> None:
        """The loss was taken just now."""
        if self.active:
            self.measured = GoodState.of(state, view)

    def after_alarm(self) -> GoodState | None:
        """The last state that was checked: a loss may be good in spite of a gap."""
        return self.checked

    def after_divergence(self) -> GoodState | None:
        """The last one with a good loss: what grows may be without a gap."""
        return self.measured


# What happened to a run besides its losses: alarms, and what was done about them.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks note the same events
Event = dict[str, Any]


@dataclass(frozen=True)
class FallbackLevel:
    """One change."""

    config: RunConfig
    key: str  # schedule.steps or precision.FIELD
    before: int | str
    after: int | str

    @property
    def text(self) -> str:
        """What changes, in short."""
        name = self.key.split(".")[1]
        return f"{name} {self.before} -> {self.after}"


def note(view: View, event: str, text: str, **facts: Any) -> Event:
    """Add it to the history of the run, and warn."""
    found = {
        "kind": "event",
        "event": event,
        "exchange": view.exchanges,
        # Between which losses it stands in the history.
        "evaluations": len(view.history),
        "text": text,
        **facts,
    }
    view.events.append(found)
    log.warning("%s", text, extra=ONCE)
    return found


def alarm_text(alarm: dict[str, Any]) -> str:
    """What the monitor found, as a sentence."""
    what = {
        "scores": "the scores of the recurrence are off from fresh products",
        "residuals": "residuals are off from those of their scores",
    }[alarm["of"]]
    return (
        f"exchange {alarm['exchange']}: {what} by {alarm['gap']:.3g}, and rounding"
        f" explains {alarm['tolerance']:.3g}"
    )


Cause = dict[str, Any] | None  # an alarm, or a divergence


def fallback_event(
    view: View, rung: FallbackLevel, cause: Cause, stopped: int, there: int
) -> Event:
    """Return the event of a fall-back: its cause, from where, to where, and what is
    changed.

    `stopped` counts exchanges as before, `there` as from now on.
    """
    reason, why, figures = _reason(cause)
    text = (
        f"fell back after exchange {stopped} ({why}): goes on after exchange"
        f" {view.exchanges} with {rung.text}"
    )
    if there != view.exchanges:
        text += f", which is now exchange {there}"
    return note(
        view,
        "fall-back",
        text,
        change=rung.text,
        key=rung.key,
        before=rung.before,
        after=rung.after,
        reason=reason,
        stopped=stopped,
        now=there,
        **figures,
    )


def _reason(cause: Cause) -> tuple[str, str, dict[str, float]]:
    """In a word, in a phrase, in figures."""
    if cause is None:
        return "diverged", "weights or a loss without bound", {}
    return "gap", "a gap", {key: cause[key] for key in ("gap", "tolerance")}


# The training loop: exchanges, agreements, looks, in that order.

ENDINGS = {
    Request.STOP: Status.STOPPED,
    Request.PREEMPT: Status.PREEMPTED,
    Request.INTERRUPT: Status.INTERRUPTED,
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
        polls: PollSchedule,
        pace: RunLength,
        view: View,
        callbacks: list[Callback],
        clock: Clock,
        recorder: Recorder,
        monitor: NoMonitor = NO_MONITOR,
        states: GoodStates | None = None,
        falls_back: bool = False,
        hooks: HookList = NO_HOOKS,
        finisher: NoFinisher = UNFINISHED,
        stop: StopConfig = NO_GOAL,
        has_own_loss: bool = True,
    ) -> None:
        self.grid = grid
        self.product = product
        self.agreement = agreement
        self.guard = guard
        self.evaluation = evaluation
        self.saver = saver
        self.polls = polls
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
        self.has_own_loss = has_own_loss  # False: made up, or that of several models
        self.meter = EnergyMeter(
            ()
        )  # of energy; the session has one that outlives legs
        self.alarm: dict[str, Any] | None = None  # that ended it
        self.request = Request.NONE
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
            if self.has_own_loss:
                status = judge_rise(status, self.view.loss, self.view.history)
        falls = status is Status.DIVERGED and self.states.active
        return self._end(state, status, FALLING if falls else status.value)

    def run_exchanges(
        self, state: State, groups: Iterator[Group | None], more: int
    ) -> None:
        """Run so many exchanges and no more, to time them: no loss is evaluated."""
        self.pace = RunLength(1, self.view.exchanges + more, 0)
        self._train(state, groups)
        self.agreement.arrive(state)

    def _finish(self, state: State, status: Status) -> tuple[State, Status]:
        """What comes after the last step, told pass by pass."""
        began, before = perf_counter(), self.view.seconds

        def tell(more: dict[str, Any]) -> Request:
            self.view.more = {}  # of the last step
            self.view.seconds = before + perf_counter() - began
            self.view.note(self.grid.world.ledger, **more)
            self._tell("on_evaluate")
            return self.request

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
        self.polls.begin(self.view.exchanges, self.view.seconds)
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
        if not (epoch_ends or saves or self.polls.is_due(number)):
            return None
        began = perf_counter()
        self.meter.count_if_due()
        wish = max(self.request, self.saver.request())
        bad = self.evaluation.are_broken(state.host_array("weights"))
        flag = BROKEN if bad else GAP if self.monitor.alarm else wish
        answer = self.polls.ask(flag, number, self.view.seconds)
        self.view.seconds += perf_counter() - began
        if answer == BROKEN:
            return Status.DIVERGED
        if answer == GAP:
            if self._alarm():
                return Status.DIVERGED
            answer = Request.NONE  # wishes are heard the next time
        self.states.passed(number)
        measures = epoch_ends and self._evaluates(self.view.epoch)
        if measures and self._measure(state):
            return Status.DIVERGED
        is_there = measures and self._is_there()
        began = perf_counter()
        if saves or is_there or answer >= Request.SAVE:
            self.saver.save(state, self.view)
            if self.request is Request.SAVE:
                self.request = Request.NONE  # granted; a wish to end stays
        self.view.seconds += perf_counter() - began
        return ENDINGS.get(Request(answer), Status.CONVERGED if is_there else None)

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
                self.request = max(self.request, request_of(answer))
