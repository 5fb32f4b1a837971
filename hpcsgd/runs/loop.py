"""The training loop, the times at which ranks poll, and events."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from hpcsgd.comm.communicator import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.formats import Array
from hpcsgd.products.base import Group, State
from hpcsgd.products.observers import Observer, Observers
from hpcsgd.runs.checkpoint import Saver
from hpcsgd.runs.energy import EnergyMeter
from hpcsgd.runs.result import Status, judge_rise
from hpcsgd.solvers.callbacks import Callbacks, Request, View
from hpcsgd.solvers.evaluation import Evaluation
from hpcsgd.solvers.newton import Finisher
from hpcsgd.solvers.sgd import Sgd

# How long a run is: epochs, exchanges, evaluations.


@dataclass(frozen=True)
class RunLength:
    """How long a run is, and how often its loss is taken."""

    epochs: int
    exchanges_per_epoch: int
    evaluate_every: int

    @property
    def exchanges(self) -> int:
        """Return the exchanges of the whole run."""
        return self.epochs * self.exchanges_per_epoch

    def evaluates(self, epoch: int) -> bool:
        """Return whether the loss is taken behind so many epochs."""
        return bool(self.evaluate_every) and epoch % self.evaluate_every == 0


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

    def __init__(
        self, world: Communicator, every: int, ends_on_alarm: bool = False
    ) -> None:
        self.world = world
        self.every = every
        self.ends_on_alarm = ends_on_alarm  # False: an alarm is noted, and no more
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


class GoodStates(Observer):
    """Keeps at most four copies: checked, being checked (two), and with a good loss."""

    def __init__(self, every: int, view: View, evaluation: Evaluation) -> None:
        self.every = every  # exchanges between looks at the recurrence; 0 = none
        self.view = view
        self.evaluation = evaluation
        self.checked: GoodState | None = None  # no alarm until then
        self.measured: GoodState | None = None  # a good loss, or where the run began
        self.candidates: list[GoodState] = []

    def start(self, state: State, exchanges: int) -> None:
        """Keep where the run begins, or goes on from: both are good states."""
        self.checked = self.measured = GoodState.of(state, self.view)

    def after_exchange(self, state: State, number: int) -> None:
        """Keep the state where a look at the recurrence is begun."""
        if self.every and number % self.every == 0:
            self.candidates.append(GoodState.of(state, self.view))

    def after_poll(self, number: int) -> None:
        """Count what was kept before exchange `number` as checked."""
        known = [kept for kept in self.candidates if kept.exchanges < number]
        if known:
            self.checked = known[-1]
            self.candidates = [k for k in self.candidates if k.exchanges >= number]

    def after_evaluation(self, state: State, view: View) -> None:
        """Keep the state if the loss was good."""
        if self.evaluation.is_good:
            self.measured = GoodState.of(state, view)

    def before(self, alarm: object) -> GoodState | None:
        """Return the last good state before an alarm, or before a divergence (None).

        A loss may be good in spite of a gap, and what grows may be without a gap.
        """
        return self.checked if alarm else self.measured


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


# The training loop.

ENDINGS = {
    Request.STOP: Status.STOPPED,
    Request.PREEMPT: Status.PREEMPTED,
    Request.INTERRUPT: Status.INTERRUPTED,
}


class TrainingLoop:
    """Exchanges of a solver, with what comes before and after each, until an ending."""

    def __init__(
        self,
        solver: Sgd,
        observers: Observers,
        evaluation: Evaluation,
        callbacks: Callbacks,
        polls: PollSchedule,
        saver: Saver,
        length: RunLength,
    ) -> None:
        self.solver = solver
        self.observers = observers
        self.evaluation = evaluation
        self.callbacks = callbacks
        self.view = callbacks.view
        self.polls = polls
        self.saver = saver
        self.length = length
        self.meter = EnergyMeter(())
        self.alarm: dict[str, Any] | None = None  # that ended the loop

    def train(self, state: State) -> tuple[State, Status]:
        """Go on from where the view stands; return the last state, and why it ended."""
        solver, observers, view = self.solver, self.observers, self.view
        if self.evaluation.has_reached_goal(view):
            return state, Status.CONVERGED
        self.polls.begin(view.exchanges, view.seconds)
        for number in range(view.exchanges + 1, self.length.exchanges + 1):
            observers.before_exchange(state, number)
            began = perf_counter()
            epoch, place = divmod(number - 1, self.length.exchanges_per_epoch)
            if place == 0:
                observers.before_epoch(state, epoch)
            state = solver.advance(state, number, view)
            observers.after_steps(state, number, solver.trained)
            view.exchanges = number
            solver.agree(state, number)
            observers.after_exchange(state, number)
            view.seconds += perf_counter() - began
            self.callbacks.call("on_exchange")
            ending = self._after_exchange(state, number)
            if ending is not None:
                return state, ending
        return state, Status.COMPLETED

    def _after_exchange(self, state: State, number: int) -> Status | None:
        """Poll all ranks where it is due, evaluate, save; return an ending, if any.

        Whatever ends the loop is known to all ranks, so that all leave together.
        """
        epoch_ends = number % self.length.exchanges_per_epoch == 0
        if epoch_ends:
            self.view.epoch = number // self.length.exchanges_per_epoch
        saves = self.saver.is_due(number, number == self.length.exchanges)
        if not (epoch_ends or saves or self.polls.is_due(number)):
            return None
        began = perf_counter()
        answer = self._poll(state, number)
        self.view.seconds += perf_counter() - began
        if answer == BROKEN:
            return Status.DIVERGED
        if answer == GAP:
            if self._note_alarm():
                return Status.DIVERGED
            answer = Request.NONE  # requests are heard at the next poll
        self.observers.after_poll(number)
        is_evaluated = epoch_ends and self.length.evaluates(self.view.epoch)
        if is_evaluated and not self._evaluate_amid(state):
            return Status.DIVERGED
        has_converged = is_evaluated and self.evaluation.has_reached_goal(self.view)
        began = perf_counter()
        if saves or has_converged or answer >= Request.SAVE:
            self.saver.save(state, self.view)
            self.callbacks.grant_save()
        self.view.seconds += perf_counter() - began
        return ENDINGS.get(Request(answer), Status.CONVERGED if has_converged else None)

    def _poll(self, state: State, number: int) -> int:
        """Return the gravest flag of any rank."""
        self.meter.count_if_due()
        flag: int = max(self.callbacks.request, self.saver.request())
        if self.evaluation.are_broken(state.host_array("weights")):
            flag = BROKEN
        elif self.solver.alarm:
            flag = GAP
        return self.polls.ask(flag, number, self.view.seconds)

    def _note_alarm(self) -> bool:
        """Note what one of the ranks has found; return whether that ends the loop."""
        alarms = self.polls.world.exchange_objects(self.solver.alarm)
        alarm: dict[str, Any] = next(one for one in alarms if one is not None)
        self.solver.silence_alarm()
        facts = {name: alarm[name] for name in ("of", "gap", "tolerance")}
        note(self.view, "gap", alarm_text(alarm), looked_at=alarm["exchange"], **facts)
        self.alarm = alarm if self.polls.ends_on_alarm else None
        return self.polls.ends_on_alarm

    def _evaluate_amid(self, state: State) -> bool:
        """Evaluate during training; its energy is not that of the solution."""
        self.meter.pause()
        is_good = self.evaluate(state)
        self.meter.resume()
        return is_good

    def evaluate(self, state: State) -> bool:
        """Take the loss, and tell of it; False where it says that the run diverged."""
        clock = self.solver.clock
        clock.start()
        is_good = self.evaluation.measure(state, self.view)
        clock.lap("evaluate")
        self.view.note(self.polls.world.ledger)
        self.observers.after_evaluation(state, self.view)
        self.callbacks.call("on_evaluate")
        return is_good


# A run of SGD around its loop: what comes before the first step and after the last.

FALLING = "falling back"  # what callbacks see where it goes on with other settings


class Training:
    """Begins, trains, goes on to the optimum where that is asked for, and ends."""

    def __init__(
        self,
        loop: TrainingLoop,
        finisher: Finisher | None,
        good_states: GoodStates | None,
        has_own_loss: bool = True,
    ) -> None:
        self.loop = loop
        self.finisher = finisher  # None: the run ends with its last step
        self.good_states = good_states  # None: there is nothing to fall back to
        self.has_own_loss = has_own_loss  # False: made up, or that of several models

    @property
    def polish_facts(self) -> dict[str, Any] | None:
        """Return what was done after the last step; None: nothing was to be done."""
        return None if self.finisher is None else self.finisher.facts

    @property
    def has_minimum(self) -> bool:
        """Return False where F was found to fall without end."""
        judge = self.finisher or self.loop.evaluation
        return judge.has_minimum

    def run(
        self,
        state: State,
        groups: Iterator[Group | None],
        meter: EnergyMeter | None = None,
    ) -> tuple[State, Status]:
        """Train on from where the view stands; returns the last (good) state."""
        loop, view = self.loop, self.loop.view
        loop.meter = meter or loop.meter
        loop.callbacks.call("on_start")
        if not view.history:
            loop.evaluate(state)
        loop.solver.begin(state, groups, view.exchanges)
        loop.observers.start(state, view.exchanges)
        loop.meter.resume()
        state, status = loop.train(state)
        loop.meter.pause()
        loop.solver.finish(state, view.exchanges)
        loop.observers.at_end(state, view.exchanges, status.is_finished)
        if status.is_finished and not loop.evaluation.is_fresh(view):
            if not loop.evaluate(state):
                status = Status.DIVERGED
            elif status is Status.COMPLETED and loop.evaluation.has_reached_goal(view):
                status = Status.CONVERGED
        if status is Status.DIVERGED:
            view.loss = loop.evaluation.restore(state)
        elif status.is_good:
            state, status = self._finish(state, status)
            if self.has_own_loss:
                status = judge_rise(status, view.loss, view.history)
        falls = status is Status.DIVERGED and self.good_states is not None
        view.status = FALLING if falls else status.value
        loop.callbacks.call("on_end")
        loop.saver.finish()
        return state, status

    def run_exchanges(
        self, state: State, groups: Iterator[Group | None], more: int
    ) -> None:
        """Run so many exchanges and no more, to time them: no loss is evaluated."""
        loop = self.loop
        loop.length = RunLength(1, loop.view.exchanges + more, 0)
        loop.solver.feed(groups)
        loop.train(state)
        loop.solver.agreement.arrive(state)

    def _finish(self, state: State, status: Status) -> tuple[State, Status]:
        """Go on to the optimum, or judge how near it is."""
        loop, view = self.loop, self.loop.view
        if self.finisher is None:
            loop.evaluation.judge_goal(state, view, status is Status.CONVERGED)
            return state, status
        began, before = perf_counter(), view.seconds

        def note_pass(more: dict[str, Any]) -> Request:
            view.more = {}  # of the last step
            view.seconds = before + perf_counter() - began
            view.note(loop.polls.world.ledger, **more)
            loop.callbacks.call("on_evaluate")
            return loop.callbacks.request

        loop.solver.clock.start()
        loop.meter.resume()
        state, request = self.finisher.finish(state, view, note_pass)
        loop.meter.pause()
        loop.solver.clock.lap("polish")
        return state, ENDINGS.get(request, status)
