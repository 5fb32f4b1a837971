"""The training loop of all solvers, its polls, and a run with loop and refinement.

`TrainingLoop.train` is the loop; what SGD does in an exchange is in `solvers/sgd.py`.
"""

from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from hpcsgd.backends.task import Monitor
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.ledger import Clock
from hpcsgd.products.observers import Observers
from hpcsgd.runs.checkpoint import Saver
from hpcsgd.runs.energy import EnergyMeter, EnergyReport
from hpcsgd.runs.fall_back import GoodStates, alarm_text, note
from hpcsgd.runs.result import Status, judge_rise
from hpcsgd.solvers.callbacks import Callbacks, Request, View

# What takes the steps of a run, and what measures the model that it would return now.
#
# A step of the loop is an exchange: the s steps of a group of batches of SGD, or of
# blocks of coordinates, with the messages that they need. In the refinement after the
# last exchange it is a pass over all rows.

S = TypeVar("S")  # the state that a solver advances: a State, or a CoordinatePoint
S_contra = TypeVar("S_contra", contravariant=True)


class Length(Protocol):
    """The length of a run: where epochs end, when to evaluate, where the loop ends.

    All ranks get the same results. A refinement counts its passes itself.
    """

    def is_over(self, done: int) -> bool:
        """Return whether the loop is over after exchange `done`."""

    def epochs_done_after(self, number: int) -> int | None:
        """Return the epochs done if exchange `number` ends an epoch, else None."""

    def is_evaluated_after(self, number: int) -> bool:
        """Return whether the model is evaluated after exchange `number`."""


class Solver(Protocol[S]):
    """The part of a run that takes steps: SGD, coordinate descent, or a refinement."""

    clock: Clock
    is_resumable: bool  # False: what is interrupted cannot go on from a checkpoint
    # The request of a rank that ended a refinement, whose messages carry requests; the
    # requests that end other solvers are seen in polls.
    request: Request
    facts: dict[str, Any] | None  # how a refinement ended, for the report; else None

    @property
    def length(self) -> Length:
        """Return the length of the run: where its epochs and its loop end."""

    def begin(self, state: S, view: View) -> None:
        """Prepare to continue from `state` after exchange `view.exchanges`."""

    def advance(self, state: S, view: View) -> S:
        """Do the next exchange, and count it in `view`. Collective.

        A refinement does its next pass, which counts as no exchange.
        """

    def finish(self, state: S, view: View) -> S:
        """Wait for pending messages; return the final state. Collective."""


class ModelEvaluation(Protocol[S_contra]):
    """A measurement of the model that a run would return now.

    All ranks make the same calls and get the same results; only `has_broken_weights`
    checks the weights of one rank.
    """

    has_minimum: bool  # False: the objective is unbounded below

    def measure(self, state: S_contra, view: View) -> bool:
        """Evaluate the model, and store its loss in `view`. Collective.

        Return whether the loss is acceptable; a loss that is not means divergence.
        """

    def has_broken_weights(self, state: S_contra) -> bool:
        """Return whether weights of this rank are no longer finite.

        In a sweep, the weights of every model must be broken.
        """

    def is_fresh(self, view: View) -> bool:
        """Return whether the loss in `view` belongs to the present state."""

    def has_reached_goal(self, view: View) -> bool:
        """Return whether the last evaluation reaches the goal of an early stop.

        Collective.
        """

    def warn_of_goal(self, state: S_contra, view: View, has_converged: bool) -> None:
        """Log a warning if the run has a goal and has not reached it. Collective.

        It also warns if F has no minimum. `has_converged`: the goal was reached.
        """

    def restore(self, state: S_contra) -> float:
        """Overwrite `state` by the last model with an acceptable loss; return its loss.

        Solvers whose every step lowers F leave `state` as it is.
        """


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
    """Polls all ranks of a run, after the same exchanges on every rank."""

    def __init__(
        self,
        world: Communicator,
        every: int,
        monitor: Monitor | None = None,
        ends_on_alarm: bool = False,
        at_epoch_end: bool = True,
    ) -> None:
        self.world = world
        self.every = every
        self.monitor = monitor  # whose alarms are flags; None: there is none
        self.ends_on_alarm = ends_on_alarm  # False: an alarm is only noted
        self.at_epoch_end = at_epoch_end  # each epoch ends with a poll
        self.begin(0, 0.0)

    def begin(self, number: int, seconds: float) -> None:
        """Start the schedule after exchange `number` and `seconds` of training.

        The next exchange is always polled, to measure its duration.
        """
        self.next_poll = number + 1
        self.last_poll = (number, seconds)

    def is_due(self, number: int, epoch_ends: bool) -> bool:
        """Return whether all ranks are polled after exchange `number`."""
        return number >= self.next_poll or (epoch_ends and self.at_epoch_end)

    def ask(self, flag: int, number: int, seconds: float) -> int:
        """Poll all ranks with the `flag` of this rank, and schedule the next poll.

        Return the gravest flag of any rank. Collective. A flag is a `Request`, `GAP` or
        `BROKEN`; the larger, the graver. `seconds` are those of training.
        """
        word = flag * DISTANCES + DISTANCES - 1 - self._distance(number, seconds)
        gravest, complement = divmod(self.world.max_flag(word), DISTANCES)
        self.next_poll = number + DISTANCES - 1 - complement
        self.last_poll = (number, seconds)
        return gravest

    def has_alarm(self) -> bool:
        """Return whether this rank's monitor has an alarm that is not taken yet."""
        return self.monitor is not None and self.monitor.alarm is not None

    def take_alarm(self) -> dict[str, Any]:
        """Return the alarm of the first rank with one; clear all alarms. Collective.

        The keys are `of` (what is wrong), `gap` (the recurrence error), `tolerance` and
        `exchange`.
        """
        own_alarm = None if self.monitor is None else self.monitor.alarm
        alarms = self.world.exchange_objects(own_alarm)
        if self.monitor is not None:
            self.monitor.alarm = None
        alarm: dict[str, Any] = next(entry for entry in alarms if entry is not None)
        return alarm

    def _distance(self, number: int, seconds: float) -> int:
        """Return how many exchanges this rank would let pass until the next poll."""
        count = number - self.last_poll[0]
        spent = seconds - self.last_poll[1]
        if spent * self.every <= SECONDS_BETWEEN_POLLS * count:
            return self.every  # that many take less than the time between polls
        return max(int(SECONDS_BETWEEN_POLLS * count / spent), 1)


# The training loop.

STATUS_OF_REQUEST = {
    Request.STOP: Status.STOPPED,
    Request.PREEMPT: Status.PREEMPTED,
    Request.INTERRUPT: Status.INTERRUPTED,
}


class TrainingLoop(Generic[S]):
    """Advances a solver, with polls, evaluations and saves, until the run ends."""

    def __init__(
        self,
        solver: Solver[S],
        evaluation: ModelEvaluation[S],
        callbacks: Callbacks,
        observers: Observers,
        polls: PollSchedule | None = None,
        saver: Saver[S] | None = None,
    ) -> None:
        self.solver = solver
        self.evaluation = evaluation
        self.callbacks = callbacks
        self.view = callbacks.view
        self.observers = observers
        # None: messages of the solver carry requests, and nothing is saved.
        self.polls = polls
        self.saver = saver  # None: no checkpoints are made
        self.meter: EnergyMeter | None = None  # None: nobody counts the energy
        self.alarm: dict[str, Any] | None = None  # the one that ended the loop

    def begin(self, state: S, meter: EnergyMeter | None) -> None:
        """Prepare to train from `state` after exchange `view.exchanges`. Collective.

        `meter` counts the energy of training; None: the energy is not counted.
        """
        self.meter = meter
        self.solver.begin(state, self.view)
        self.observers.start(state, self.view.exchanges)
        if meter is not None:
            meter.resume()

    def train(self, state: S) -> tuple[S, Status]:
        """Train after exchange `view.exchanges`; return last state and status.

        Collective.
        """
        solver = self.solver
        view = self.view
        if self.evaluation.has_reached_goal(view):
            return state, Status.CONVERGED
        if self.polls is not None:
            self.polls.begin(view.exchanges, view.seconds)
        while not solver.length.is_over(view.exchanges):
            done = view.exchanges
            began = perf_counter()
            state = solver.advance(state, view)
            view.seconds += perf_counter() - began
            if view.exchanges > done:  # it was an exchange, not a pass of a refinement
                self.callbacks.call("on_exchange")
            ending = self._after_advance(state, view.exchanges)
            if ending is not None:
                return state, ending
        return state, STATUS_OF_REQUEST.get(solver.request, Status.COMPLETED)

    def end(self, state: S, status: Status) -> tuple[S, Status]:
        """Wait for pending messages; return last state and final status. Collective.

        `status` is that of `train`. The last state is evaluated, unless it has been, or
        a run that can resume was interrupted, preempted or diverged.
        """
        solver = self.solver
        view = self.view
        if self.meter is not None:
            self.meter.pause()
        state = solver.finish(state, view)
        self.observers.at_end(state, view.exchanges, status.is_finished)
        # A run that goes on later is evaluated at the end of its last leg alone.
        is_last = status.is_finished or not solver.is_resumable
        if is_last and not self.evaluation.is_fresh(view):
            if not self.evaluate(state):
                status = Status.DIVERGED
            elif status is Status.COMPLETED and self.evaluation.has_reached_goal(view):
                status = Status.CONVERGED
        return state, status

    def _after_advance(self, state: S, number: int) -> Status | None:
        """Poll all ranks, evaluate and save, each if it is due after `number`.

        Return the status with which the loop ends, or None if it continues. It is the
        same on all ranks: a poll gives them the gravest flag of any rank, and an
        evaluation the same loss.
        """
        length = self.solver.length
        polls = self.polls
        saver = self.saver
        epochs = length.epochs_done_after(number)
        self.view.epoch = self.view.epoch if epochs is None else epochs
        must_evaluate = length.is_evaluated_after(number)
        is_save_due = saver is not None and saver.is_due(number, length.is_over(number))

        # 1. Poll.
        gravest: int = Request.NONE
        is_epoch_end = epochs is not None
        if polls is not None and (is_save_due or polls.is_due(number, is_epoch_end)):
            gravest = self._poll(polls, state, number)
            if gravest == BROKEN:
                return Status.DIVERGED
            if gravest == GAP:
                if self._note_alarm(polls):
                    return Status.DIVERGED
                gravest = Request.NONE  # requests are seen at the next poll
            self.observers.after_poll(number)
        elif not must_evaluate:
            return None

        # 2. Evaluate.
        if must_evaluate and not self._evaluate_unmetered(state):
            return Status.DIVERGED
        has_converged = must_evaluate and self.evaluation.has_reached_goal(self.view)

        # 3. Save.
        began = perf_counter()
        if is_save_due or has_converged or gravest >= Request.SAVE:
            if saver is not None:
                saver.save(state, self.view)
            self.callbacks.clear_save_request()
        self.view.seconds += perf_counter() - began

        # 4. End: a request to end outranks the goal.
        otherwise = Status.CONVERGED if has_converged else None
        return STATUS_OF_REQUEST.get(Request(gravest), otherwise)

    def _poll(self, polls: PollSchedule, state: S, number: int) -> int:
        """Poll all ranks with the flag of this rank; return the gravest flag."""
        began = perf_counter()
        if self.meter is not None:
            self.meter.count_if_due()
        flag: int = self.callbacks.request
        if self.saver is not None:
            flag = max(flag, self.saver.request())
        if self.evaluation.has_broken_weights(state):
            flag = BROKEN
        elif polls.has_alarm():
            flag = GAP
        gravest = polls.ask(flag, number, self.view.seconds)
        self.view.seconds += perf_counter() - began
        return gravest

    def _note_alarm(self, polls: PollSchedule) -> bool:
        """Record the alarm of a rank as an event. Collective.

        Return whether the alarm ends the loop.
        """
        alarm = polls.take_alarm()
        facts = {name: alarm[name] for name in ("of", "gap", "tolerance")}
        note(self.view, "gap", alarm_text(alarm), looked_at=alarm["exchange"], **facts)
        self.alarm = alarm if polls.ends_on_alarm else None
        return polls.ends_on_alarm

    def _evaluate_unmetered(self, state: S) -> bool:
        """Evaluate during training, without counting the energy of the evaluation.

        Return what `evaluate` returns.
        """
        if self.meter is None:
            return self.evaluate(state)
        self.meter.pause()
        is_good = self.evaluate(state)
        self.meter.resume()
        return is_good

    def evaluate(self, state: S) -> bool:
        """Evaluate the model, and report it to observers and callbacks.

        Return False if the run diverged.
        """
        clock = self.solver.clock
        clock.start()
        is_good = self.evaluation.measure(state, self.view)
        clock.lap("evaluate")
        self.observers.after_evaluation(state, self.view)
        self.callbacks.call("on_evaluate")
        return is_good


# A run around its loop: what comes before the first exchange and after the last.

# The status that callbacks see where a run starts again from a good state.
FALLING = "falling back"


class Training(Generic[S]):
    """A whole run: it trains a model, and refines it if there is a refinement."""

    def __init__(
        self,
        loop: TrainingLoop[S],
        refinement: TrainingLoop[S] | None = None,
        good_states: GoodStates | None = None,
        has_own_loss: bool = True,
    ) -> None:
        self.loop = loop
        self.refinement = refinement  # None: the run ends with its last exchange
        self.good_states = good_states  # None: there is nothing to fall back to
        self.has_own_loss = has_own_loss  # False: a rise of the loss is not judged

    @property
    def polish_facts(self) -> dict[str, Any] | None:
        """Return the facts of the refinement; None until one has ended."""
        return None if self.refinement is None else self.refinement.solver.facts

    @property
    def has_minimum(self) -> bool:
        """Return False if the objective F was found to be unbounded below."""
        last = self.loop if self.refinement is None else self.refinement
        return last.evaluation.has_minimum

    @property
    def energy(self) -> EnergyReport:
        """Return the energy of the run, as far as this rank has counted it."""
        meter = self.loop.meter
        return EnergyReport() if meter is None else meter.report()

    # Weights that diverge may overflow before the loop sees it.
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def run(
        self,
        state: S,
        meter: EnergyMeter | None = None,
        request: Request = Request.NONE,
    ) -> tuple[S, Status]:
        """Train and refine; return the last state and the status. Collective.

        A run that diverged returns the last state with an acceptable loss, if there
        is one. `request` is pending at the start. After a fall-back, `meter` and
        `request` are those of the run that fell back.
        """
        loop = self.loop
        view = self.loop.view
        loop.callbacks.renew(request)
        loop.callbacks.call("on_start")
        if not view.history:
            loop.evaluate(state)
        loop.begin(state, meter)
        state, status = loop.train(state)
        state, status = loop.end(state, status)
        if status is Status.DIVERGED:
            view.loss = loop.evaluation.restore(state)
        elif status.is_good:
            state, status = self._refine(state, status, meter)
            if self.has_own_loss:
                status = judge_rise(status, view.loss, view.history)
        falls = status is Status.DIVERGED and self.good_states is not None
        view.status = FALLING if falls else status.value
        loop.callbacks.call("on_end")
        if loop.saver is not None:
            loop.saver.finish()
        return state, status

    def _refine(
        self, state: S, status: Status, meter: EnergyMeter | None
    ) -> tuple[S, Status]:
        """Run the refinement if there is one, and warn of a goal that was not reached.

        Return the state and the status after it. A refinement that completes leaves
        `status` as it is.
        """
        last = self.loop
        if self.refinement is not None:
            last = self.refinement
            last.begin(state, meter)
            state, ending = last.train(state)
            state, ending = last.end(state, ending)
            status = status if ending is Status.COMPLETED else ending
        has_converged = status is Status.CONVERGED
        last.evaluation.warn_of_goal(state, self.loop.view, has_converged)
        return state, status
