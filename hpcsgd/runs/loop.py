"""The training loop, and the times at which ranks poll."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from hpcsgd.backends.task import Group
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.products.observers import Observers
from hpcsgd.runs.checkpoint import Saver
from hpcsgd.runs.energy import EnergyMeter
from hpcsgd.runs.fall_back import GoodStates, alarm_text, note
from hpcsgd.runs.result import Status, judge_rise
from hpcsgd.solvers.callbacks import Callbacks, Request, View
from hpcsgd.solvers.newton import Finisher

# How long a run is: epochs, exchanges, evaluations.


class Length(Protocol):
    """Where epochs begin and end, and how often the loss is taken."""

    @property
    def evaluate_every(self) -> int:
        """Return the epochs between evaluations; 0 = none before the end."""

    def is_over(self, done: int) -> bool:
        """Return whether the run is over after exchange `done`."""

    def begun_epoch(self, number: int) -> int | None:
        """Return the epoch (from 0 on) whose first exchange is `number`, if any is."""

    def epochs_done(self, number: int) -> int | None:
        """Return the epochs that exchange `number` completes; None: it ends none."""


@dataclass(frozen=True)
class RunLength:
    """The length of a run whose epochs have the same number of exchanges."""

    epochs: int
    exchanges_per_epoch: int
    evaluate_every: int

    @property
    def exchanges(self) -> int:
        """Return the exchanges of the whole run."""
        return self.epochs * self.exchanges_per_epoch

    def is_over(self, done: int) -> bool:
        """Return whether exchange `done` was the last one."""
        return done >= self.exchanges

    def begun_epoch(self, number: int) -> int | None:
        """Return the epoch whose first exchange is `number`; None: no epoch begins."""
        epoch, place = divmod(number - 1, self.exchanges_per_epoch)
        return None if place else epoch

    def epochs_done(self, number: int) -> int | None:
        """Return the epochs that exchange `number` completes; None: it ends none."""
        done, place = divmod(number, self.exchanges_per_epoch)
        return None if place else done


# Polls: one message in which all ranks learn the gravest flag of any of them.
#
# A poll comes every `check_every` exchanges. Where exchanges are slow it comes about
# once a second, so that a signal never waits long. The message also settles when the
# next poll comes: its word holds the flag of a rank and, below it, how soon that rank
# wants the next poll. Its maximum is the gravest flag, with the shortest time of those
# ranks that raise it.

BROKEN = 7  # weights are not finite; graver than any request
GAP = 6  # the recurrence is off by more than rounding; graver than any request, too
PATIENCE = 1.0  # seconds between polls where exchanges are slow
SPAN = 2**20  # more exchanges than lie between any two polls


class PollSchedule:
    """Takes the polls of a run, at the same exchanges on every rank."""

    def __init__(
        self,
        world: Communicator,
        every: int,
        ends_on_alarm: bool = False,
        at_epochs: bool = True,
    ) -> None:
        self.world = world
        self.every = every
        self.at_epochs = at_epochs  # also after the last exchange of every epoch
        self.ends_on_alarm = ends_on_alarm  # False: an alarm is noted, and no more
        self.begin(0, 0.0)

    def begin(self, number: int, seconds: float) -> None:
        """Begin behind exchange `number`, after `seconds` of training.

        A poll follows the next exchange, whose time says how slow exchanges are.
        """
        self.next = number + 1
        self.last = (number, seconds)

    def is_due(self, number: int, epoch_ends: bool) -> bool:
        """Return whether all ranks are polled after exchange `number`."""
        return number >= self.next or (epoch_ends and self.at_epochs)

    def ask(self, flag: int, number: int, seconds: float) -> int:
        """Return the gravest flag of any rank after exchange `number`. Collective."""
        word = flag * SPAN + SPAN - 1 - self._distance(number, seconds)
        answer, rest = divmod(self.world.max_flag(word), SPAN)
        self.next = number + SPAN - 1 - rest
        self.last = (number, seconds)
        return answer

    def _distance(self, number: int, seconds: float) -> int:
        """Return how many exchanges this rank would let pass until the next poll."""
        count = number - self.last[0]
        spent = seconds - self.last[1]
        if spent * self.every <= PATIENCE * count:
            return self.every
        return max(int(PATIENCE * count / spent), 1)


# The training loop.

SolverState = Any  # what its solver makes of it: a State, or a CoordinatePoint


class Solver(Protocol):
    """What takes the steps of a run: SGD, or coordinate descent."""

    clock: Clock

    @property
    def trained(self) -> Group | None:
        """Return the rows and steps of the last exchange, where observers need them."""

    @property
    def alarm(self) -> dict[str, Any] | None:
        """Return what was found wrong with the steps since the last poll."""

    def silence_alarm(self) -> None:
        """Forget it: all ranks know of it."""

    def begin(self, state: SolverState, done: int) -> None:
        """Go on from `state` after exchange `done`."""

    def advance(self, state: SolverState, number: int, view: View) -> SolverState:
        """Take the steps of exchange `number`, and count them in the view."""

    def agree(self, state: SolverState, number: int) -> None:
        """Let replicas agree behind the steps of exchange `number`, where it is due."""

    def finish(self, state: SolverState, done: int) -> None:
        """Wait for what is under way, and make the state whole."""


class Judge(Protocol):
    """What measures the model that a run would return now."""

    is_good: bool
    has_minimum: bool

    def measure(self, state: SolverState, view: View) -> bool:
        """Put the loss into the view; return False where the run diverged."""

    def is_broken(self, state: SolverState) -> bool:
        """Return whether nothing is left to train."""

    def is_fresh(self, view: View) -> bool:
        """Return whether the loss in the view is that of the state now."""

    def has_reached_goal(self, view: View) -> bool:
        """Return whether the last evaluation reaches the goal. Collective."""

    def judge_goal(self, state: SolverState, view: View, has_converged: bool) -> None:
        """Warn of a goal that is not reached. Collective."""

    def restore(self, state: SolverState) -> float:
        """Put the last good weights back; return their loss."""


ENDINGS = {
    Request.STOP: Status.STOPPED,
    Request.PREEMPT: Status.PREEMPTED,
    Request.INTERRUPT: Status.INTERRUPTED,
}


class TrainingLoop:
    """Exchanges of a solver, with what comes before and after each, until an ending."""

    def __init__(
        self,
        solver: Solver,
        observers: Observers,
        evaluation: Judge,
        callbacks: Callbacks,
        polls: PollSchedule,
        saver: Saver,
        length: Length,
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

    def train(self, state: SolverState) -> tuple[SolverState, Status]:
        """Go on from where the view stands; return the last state, and why it ended."""
        solver, observers, view = self.solver, self.observers, self.view
        if self.evaluation.has_reached_goal(view):
            return state, Status.CONVERGED
        self.polls.begin(view.exchanges, view.seconds)
        while not self.length.is_over(view.exchanges):
            number = view.exchanges + 1
            observers.before_exchange(state, number)
            began = perf_counter()
            epoch = self.length.begun_epoch(number)
            if epoch is not None:
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

    def train_for(self, state: SolverState, more: int) -> None:
        """Run so many exchanges and no more, to time them: no loss is evaluated."""
        self.length = RunLength(1, self.view.exchanges + more, 0)
        self.train(state)

    def _after_exchange(self, state: SolverState, number: int) -> Status | None:
        """Poll all ranks where it is due, evaluate, save; return an ending, if any.

        Whatever ends the loop is known to all ranks, so that all leave together.
        """
        epochs = self.length.epochs_done(number)
        self.view.epoch = self.view.epoch if epochs is None else epochs
        saves = self.saver.is_due(number, self.length.is_over(number))
        answer: int = Request.NONE
        if saves or self.polls.is_due(number, epochs is not None):
            answer = self._poll(state, number)
            if answer == BROKEN:
                return Status.DIVERGED
            if answer == GAP:
                if self._note_alarm():
                    return Status.DIVERGED
                answer = Request.NONE  # requests are heard at the next poll
            self.observers.after_poll(number)
        elif epochs is None:
            return None
        is_evaluated = epochs is not None and self._is_evaluated(epochs)
        if is_evaluated and not self._evaluate_amid(state):
            return Status.DIVERGED
        has_converged = is_evaluated and self.evaluation.has_reached_goal(self.view)
        began = perf_counter()
        if saves or has_converged or answer >= Request.SAVE:
            self.saver.save(state, self.view)
            self.callbacks.grant_save()
        self.view.seconds += perf_counter() - began
        return ENDINGS.get(Request(answer), Status.CONVERGED if has_converged else None)

    def _poll(self, state: SolverState, number: int) -> int:
        """Return the gravest flag of any rank."""
        began = perf_counter()
        self.meter.count_if_due()
        flag: int = max(self.callbacks.request, self.saver.request())
        if self.evaluation.is_broken(state):
            flag = BROKEN
        elif self.solver.alarm:
            flag = GAP
        answer = self.polls.ask(flag, number, self.view.seconds)
        self.view.seconds += perf_counter() - began
        return answer

    def _is_evaluated(self, epochs: int) -> bool:
        every = self.length.evaluate_every
        return bool(every) and epochs % every == 0

    def _note_alarm(self) -> bool:
        """Note what one of the ranks has found; return whether that ends the loop."""
        alarms = self.polls.world.exchange_objects(self.solver.alarm)
        alarm: dict[str, Any] = next(one for one in alarms if one is not None)
        self.solver.silence_alarm()
        facts = {name: alarm[name] for name in ("of", "gap", "tolerance")}
        note(self.view, "gap", alarm_text(alarm), looked_at=alarm["exchange"], **facts)
        self.alarm = alarm if self.polls.ends_on_alarm else None
        return self.polls.ends_on_alarm

    def _evaluate_amid(self, state: SolverState) -> bool:
        """Evaluate during training; its energy is not that of the solution."""
        self.meter.pause()
        is_good = self.evaluate(state)
        self.meter.resume()
        return is_good

    def evaluate(self, state: SolverState) -> bool:
        """Take the loss, and tell of it; False where it says that the run diverged."""
        clock = self.solver.clock
        clock.start()
        is_good = self.evaluation.measure(state, self.view)
        clock.lap("evaluate")
        self.view.note(self.polls.world.ledger)
        self.observers.after_evaluation(state, self.view)
        self.callbacks.call("on_evaluate")
        return is_good


# A run around its loop: what comes before the first step and after the last.

FALLING = "falling back"  # what callbacks see where it goes on with other settings


class Training:
    """Begins, trains, goes on to the optimum where that is asked for, and ends."""

    def __init__(
        self,
        loop: TrainingLoop,
        finisher: Finisher | None = None,
        good_states: GoodStates | None = None,
        has_own_loss: bool = True,
        keeps_checkpoints: bool = True,
    ) -> None:
        self.loop = loop
        self.finisher = finisher  # None: the run ends with its last step
        self.good_states = good_states  # None: there is nothing to fall back to
        self.has_own_loss = has_own_loss  # False: made up, or that of several models
        # False: a run that is interrupted cannot go on, so its loss is taken.
        self.keeps_checkpoints = keeps_checkpoints

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
        state: SolverState,
        meter: EnergyMeter | None = None,
        request: Request = Request.NONE,
    ) -> tuple[SolverState, Status]:
        """Train on from where the view stands; return the last (good) state.

        A run that fell back has a `meter` of energy and a `request` of callbacks from
        before.
        """
        loop, view = self.loop, self.loop.view
        loop.meter = meter or loop.meter
        loop.callbacks.renew(request)
        loop.callbacks.call("on_start")
        if not view.history:
            loop.evaluate(state)
        loop.solver.begin(state, view.exchanges)
        loop.observers.start(state, view.exchanges)
        loop.meter.resume()
        state, status = loop.train(state)
        loop.meter.pause()
        loop.solver.finish(state, view.exchanges)
        loop.observers.at_end(state, view.exchanges, status.is_finished)
        is_evaluated = status.is_finished or not self.keeps_checkpoints
        if is_evaluated and not loop.evaluation.is_fresh(view):
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

    def _finish(self, state: SolverState, status: Status) -> tuple[SolverState, Status]:
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
