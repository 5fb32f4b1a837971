"""The length of a run, its polls, its training loop, and what surrounds the loop.

An exchange is the s steps of a group of batches, with the messages that they need;
replicas may agree behind it.
"""

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

# The length of a run, and how often it is evaluated.


class Length(Protocol):
    """Where epochs begin and end, and how often the model is evaluated."""

    @property
    def evaluate_every(self) -> int:
        """Return the epochs between evaluations; 0 = none before the end."""

    def is_over(self, done: int) -> bool:
        """Return whether the run is over after exchange `done`."""

    def epoch_beginning_at(self, number: int) -> int | None:
        """Return the index (from 0) of the epoch that begins with exchange `number`.

        None: no epoch begins with it.
        """

    def epochs_done_after(self, number: int) -> int | None:
        """Return the count of epochs done where exchange `number` ends one, or None."""


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

    def epoch_beginning_at(self, number: int) -> int | None:
        """Return the index of the epoch that begins with exchange `number`, if any."""
        epoch, offset = divmod(number - 1, self.exchanges_per_epoch)
        return None if offset else epoch

    def epochs_done_after(self, number: int) -> int | None:
        """Return the count of epochs done where exchange `number` ends one, or None."""
        epochs, offset = divmod(number, self.exchanges_per_epoch)
        return None if offset else epochs


# Polls: one message in which all ranks learn the gravest flag of any of them.
#
# A poll comes every `check_every` exchanges. Where exchanges are slow it comes about
# once a second, so that a signal never waits long. The message also settles when the
# next poll comes. Each rank sends flag · DISTANCES + DISTANCES − 1 − n, and wants the
# next poll n exchanges later. The maximum of these words holds the gravest flag and, of
# the ranks that raise it, the nearest next poll.

# Flags above every `Request`:
BROKEN = 7  # weights are not finite
GAP = 6  # scores or residuals of the recurrence are off by more than rounding
SECONDS_BETWEEN_POLLS = 1.0  # where exchanges are slow
DISTANCES = 2**20  # no two polls are that many exchanges apart


class PollSchedule:
    """Takes the polls of a run, at the same exchanges on every rank."""

    def __init__(
        self,
        world: Communicator,
        every: int,
        ends_on_alarm: bool = False,
        at_epoch_end: bool = True,
    ) -> None:
        self.world = world
        self.every = every
        self.at_epoch_end = at_epoch_end  # each epoch ends with a poll
        self.ends_on_alarm = ends_on_alarm  # False: an alarm is only noted
        self.begin(0, 0.0)

    def begin(self, number: int, seconds: float) -> None:
        """Start after exchange `number` and `seconds` of training.

        The next exchange is always polled, to measure its duration.
        """
        self.next_poll = number + 1
        self.last_poll = (number, seconds)

    def is_due(self, number: int, epoch_ends: bool) -> bool:
        """Return whether all ranks are polled after exchange `number`."""
        return number >= self.next_poll or (epoch_ends and self.at_epoch_end)

    def ask(self, flag: int, number: int, seconds: float) -> int:
        """Return the gravest flag of any rank, and settle the next poll. Collective."""
        word = flag * DISTANCES + DISTANCES - 1 - self._distance(number, seconds)
        gravest, complement = divmod(self.world.max_flag(word), DISTANCES)
        self.next_poll = number + DISTANCES - 1 - complement
        self.last_poll = (number, seconds)
        return gravest

    def _distance(self, number: int, seconds: float) -> int:
        """Return how many exchanges this rank would let pass until the next poll."""
        count = number - self.last_poll[0]
        spent = seconds - self.last_poll[1]
        if spent * self.every <= SECONDS_BETWEEN_POLLS * count:
            return self.every  # that many take less than the time between polls
        return max(int(SECONDS_BETWEEN_POLLS * count / spent), 1)


# The training loop.

SolverState = Any  # a State of SGD, or a CoordinatePoint


class Solver(Protocol):
    """What takes the steps of a run: SGD, or coordinate descent."""

    clock: Clock

    @property
    def last_group(self) -> Group | None:
        """Return the group of the last exchange; None: it took no steps, or no observer
        needs it.
        """

    @property
    def alarm(self) -> dict[str, Any] | None:
        """Return what the monitor has found since the last poll; None: nothing.

        The keys are `of`, `gap`, `tolerance` and `exchange`.
        """

    def clear_alarm(self) -> None:
        """Clear the alarm; all ranks have seen it."""

    def begin(self, state: SolverState, done: int) -> None:
        """Prepare to continue from `state` after exchange `done`."""

    def advance(self, state: SolverState, number: int, view: View) -> SolverState:
        """Take the steps of exchange `number`, and count them in the view."""

    def agree(self, state: SolverState, number: int) -> None:
        """Let replicas agree after the steps of exchange `number`, if it is due."""

    def finish(self, state: SolverState, done: int) -> None:
        """Wait for pending messages, and complete the state in place."""


class ModelEvaluation(Protocol):
    """What measures the model that a run would return now."""

    has_minimum: bool  # False: the objective is unbounded below

    def measure(self, state: SolverState, view: View) -> bool:
        """Evaluate into the view; return whether the loss is acceptable. Collective."""

    def has_broken_weights(self, state: SolverState) -> bool:
        """Return whether weights are no longer finite."""

    def is_fresh(self, view: View) -> bool:
        """Return whether the loss in the view is that of the state now."""

    def has_reached_goal(self, view: View) -> bool:
        """Return whether the last evaluation reaches the goal. Collective."""

    def warn_of_goal(self, state: SolverState, view: View, has_converged: bool) -> None:
        """Warn of a goal that is not reached. Collective."""

    def restore(self, state: SolverState) -> float:
        """Put the last good weights back; return their loss."""


STATUS_OF_REQUEST = {
    Request.STOP: Status.STOPPED,
    Request.PREEMPT: Status.PREEMPTED,
    Request.INTERRUPT: Status.INTERRUPTED,
}


class TrainingLoop:
    """Runs exchanges, with observers, polls, evaluations and saves, until an ending."""

    def __init__(
        self,
        solver: Solver,
        observers: Observers,
        evaluation: ModelEvaluation,
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
        self.alarm: dict[str, Any] | None = None  # the one that ended the loop

    def train(self, state: SolverState) -> tuple[SolverState, Status]:
        """Go on after exchange `view.exchanges`; return the last state and status."""
        solver, observers, view = self.solver, self.observers, self.view
        if self.evaluation.has_reached_goal(view):
            return state, Status.CONVERGED
        self.polls.begin(view.exchanges, view.seconds)
        while not self.length.is_over(view.exchanges):
            number = view.exchanges + 1
            observers.before_exchange(state, number)
            began = perf_counter()
            epoch = self.length.epoch_beginning_at(number)
            if epoch is not None:
                observers.before_epoch(state, epoch)
            state = solver.advance(state, number, view)
            observers.after_steps(state, number, solver.last_group)
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
        """Run `more` exchanges without an evaluation, to time them.

        The rest of the run is lost: its length is now one epoch that ends there.
        """
        self.length = RunLength(1, self.view.exchanges + more, 0)
        self.train(state)

    def _after_exchange(self, state: SolverState, number: int) -> Status | None:
        """Poll all ranks where it is due, evaluate, save; return an ending, if any.

        Whatever ends the loop is known to all ranks, so that all leave together.
        """
        epochs = self.length.epochs_done_after(number)
        self.view.epoch = self.view.epoch if epochs is None else epochs
        is_save_due = self.saver.is_due(number, self.length.is_over(number))
        gravest: int = Request.NONE
        if is_save_due or self.polls.is_due(number, epochs is not None):
            gravest = self._poll(state, number)
            if gravest == BROKEN:
                return Status.DIVERGED
            if gravest == GAP:
                if self._note_alarm():
                    return Status.DIVERGED
                gravest = Request.NONE  # requests are heard at the next poll
            self.observers.after_poll(number)
        elif epochs is None:
            return None  # neither a poll nor the end of an epoch
        must_evaluate = epochs is not None and self._is_evaluated(epochs)
        if must_evaluate and not self._evaluate_unmetered(state):
            return Status.DIVERGED
        has_converged = must_evaluate and self.evaluation.has_reached_goal(self.view)
        began = perf_counter()
        if is_save_due or has_converged or gravest >= Request.SAVE:
            self.saver.save(state, self.view)
            self.callbacks.clear_save_request()
        self.view.seconds += perf_counter() - began
        # A request to end outranks the goal.
        otherwise = Status.CONVERGED if has_converged else None
        return STATUS_OF_REQUEST.get(Request(gravest), otherwise)

    def _poll(self, state: SolverState, number: int) -> int:
        """Poll with the flag of this rank; return the gravest flag of any rank."""
        began = perf_counter()
        self.meter.count_if_due()
        flag: int = max(self.callbacks.request, self.saver.request())
        if self.evaluation.has_broken_weights(state):
            flag = BROKEN
        elif self.solver.alarm:
            flag = GAP
        gravest = self.polls.ask(flag, number, self.view.seconds)
        self.view.seconds += perf_counter() - began
        return gravest

    def _is_evaluated(self, epochs: int) -> bool:
        every = self.length.evaluate_every
        return bool(every) and epochs % every == 0

    def _note_alarm(self) -> bool:
        """Note the alarm of the first rank with one; say whether it ends the loop."""
        alarms = self.polls.world.exchange_objects(self.solver.alarm)
        alarm: dict[str, Any] = next(one for one in alarms if one is not None)
        self.solver.clear_alarm()
        facts = {name: alarm[name] for name in ("of", "gap", "tolerance")}
        note(self.view, "gap", alarm_text(alarm), looked_at=alarm["exchange"], **facts)
        self.alarm = alarm if self.polls.ends_on_alarm else None
        return self.polls.ends_on_alarm

    def _evaluate_unmetered(self, state: SolverState) -> bool:
        """Evaluate during training, without counting the energy."""
        self.meter.pause()
        is_good = self.evaluate(state)
        self.meter.resume()
        return is_good

    def evaluate(self, state: SolverState) -> bool:
        """Evaluate the model and report it; return False where the run diverged."""
        clock = self.solver.clock
        clock.start()
        is_good = self.evaluation.measure(state, self.view)
        clock.lap("evaluate")
        self.view.note(self.polls.world.ledger)
        self.observers.after_evaluation(state, self.view)
        self.callbacks.call("on_evaluate")
        return is_good


# A run around its loop: what comes before the first step and after the last.

# The status that callbacks see where a run starts again from a good state.
FALLING = "falling back"


class Training:
    """Begins a run, trains, polishes the model where that is asked for, and ends."""

    def __init__(
        self,
        loop: TrainingLoop,
        finisher: Finisher | None = None,
        good_states: GoodStates | None = None,
        has_own_loss: bool = True,
        keeps_checkpoints: bool = True,
    ) -> None:
        self.loop = loop
        self.finisher = finisher  # of the polish; None: the run ends with its last step
        self.good_states = good_states  # None: there is nothing to fall back to
        self.has_own_loss = has_own_loss  # False: a rise of the loss is not judged
        # False: a run that is interrupted cannot go on, so its loss is taken.
        self.keeps_checkpoints = keeps_checkpoints

    @property
    def polish_facts(self) -> dict[str, Any] | None:
        """Return the facts of the polish; None: there was none."""
        return None if self.finisher is None else self.finisher.facts

    @property
    def has_minimum(self) -> bool:
        """Return False where F was found to be unbounded below."""
        if self.finisher is not None:
            return self.finisher.has_minimum
        return self.loop.evaluation.has_minimum

    def run(
        self,
        state: SolverState,
        meter: EnergyMeter | None = None,
        request: Request = Request.NONE,
    ) -> tuple[SolverState, Status]:
        """Train; return the last state, or the last good one of a run that diverged.

        After a fall-back, `meter` and `request` are those of the run before it.
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
        must_evaluate = status.is_finished or not self.keeps_checkpoints
        if must_evaluate and not loop.evaluation.is_fresh(view):
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
        """Polish the model, or warn of a goal that is not reached."""
        loop, view = self.loop, self.loop.view
        if self.finisher is None:
            loop.evaluation.warn_of_goal(state, view, status is Status.CONVERGED)
            return state, status
        began, seconds_before = perf_counter(), view.seconds

        def report_pass(facts: dict[str, Any]) -> Request:
            view.more = {}  # what the last step noted is out of date
            view.seconds = seconds_before + perf_counter() - began
            view.note(loop.polls.world.ledger, **facts)
            loop.callbacks.call("on_evaluate")
            return loop.callbacks.request

        loop.solver.clock.start()
        loop.meter.resume()
        state, request = self.finisher.finish(state, view, report_pass)
        loop.meter.pause()
        loop.solver.clock.lap("polish")
        return state, STATUS_OF_REQUEST.get(request, status)
