"""Losses along the way, stopping, averages of iterates, the best weights."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.agreements.base import Agreement
from hpcsgd.backends.base import Backend, LossScale
from hpcsgd.backends.task import Group, Snapshot, State
from hpcsgd.comm.communicator import Collective
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Ledger
from hpcsgd.formats import Array
from hpcsgd.products.observers import Observer
from hpcsgd.settings import Settings, setting
from hpcsgd.solvers.callbacks import View
from hpcsgd.solvers.full_passes import (
    NO_MINIMUM,
    gap_limit,
    gap_of,
    gradient_of,
    is_separated,
    may_lack_minimum,
    open_rows,
)
from hpcsgd.solvers.lbfgs import null_excess
from hpcsgd.solvers.objective import Losses, Objective, Slope

# Full losses along the way, and the last weights that had a good one.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # the loss is that of all ranks together
BLOW_UP = 1e3  # times the scale of the first loss: no useful step goes that far up


class HistoryRecords(Observer):
    """Adds a record to the history of a run at each evaluation, with traffic so far."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def after_evaluation(self, state: Any, view: View) -> None:
        view.note(self.ledger)


class Evaluation:
    """Measures loss, gradient and gap of the model that a run would return now."""

    def __init__(
        self,
        objective: Objective,
        agreement: Agreement,
        own: slice,
        takes: str = "loss",
        has_intercept: bool = False,
        stop: "StopConfig | None" = None,
    ) -> None:
        self.objective = objective
        self.has_intercept = has_intercept
        self.stop = StopConfig() if stop is None else stop
        self.has_minimum = True  # False: F was found to fall without end
        self._null_excess: float | None = None
        self.known: Slope | None = None  # at the last evaluation, where it was taken
        self.takes = takes  # gradient, gap: what is taken beside the loss
        self.agreement = agreement
        self.columns = objective.columns  # K
        self.own = own  # this member's columns within the weights it holds
        self.first_loss: float | None = None
        self.good: Snapshot | None = None  # the last model with a good loss
        self.measured_at = -1
        self.is_good = False  # whether the last loss was good
        self.clipped = 0  # scores beyond the range of exp at the last evaluation

    def measure(self, state: State, view: View) -> bool:
        """Write the loss of the present model into the view. Collective.

        Gradient norm and gap follow if they are requested. Return False if the loss
        shows that the run has diverged.
        """
        seen = self.agreement.consensus(state, view.exchanges).host_state()
        intercept = None if seen.intercept is None else seen.intercept[0]
        weights = seen.weights[self.own, : self.columns]
        with np.errstate(all="ignore"):
            losses = self._losses(weights, intercept)
            self._show(losses, view)
            view.more |= self._optimality(weights, intercept)
        if self.clipped and view.exchanges:
            log.warning(
                "%d scores lie beyond the range of exp and were clipped;"
                " lower the rate or scale the columns",
                self.clipped,
                extra=ONCE,
            )
        figures = (view.epoch, view.exchanges, view.loss)
        log.debug("epoch %d, exchange %d: loss %.8g", *figures, extra=ONCE)
        self.measured_at = view.exchanges
        if self.first_loss is None:
            self.first_loss = view.loss
        good = self.is_good = is_good(view.loss, self.first_loss)
        if good:
            model = State(seen.weights, seen.intercept)
            self.good = Snapshot.of(model, {"loss": view.loss})
        return good

    def _losses(self, own: Array, intercept: Array | None) -> Losses:
        """Return the losses of these weights.

        If the gradient is requested, too, and no rows are held out, one pass over the
        rows computes both.
        """
        self.known = None
        if self.takes != "gradient" or self.objective.shard.held is not None:
            return self.objective.measure(own, intercept)
        slope = self.known = self.objective.slope(own, intercept)
        return Losses(np.array([slope.loss]), None, slope.clips)

    def slope_of(self, state: State, exchanges: int) -> tuple[State, Slope]:
        """Return the state that replicas agree on now, and F with its gradient there.

        Collective. Where the last evaluation was of this state and took the gradient,
        no pass is made for it.
        """
        seen = self.agreement.consensus(state, exchanges).host_state()
        if self.known is not None and self.measured_at == exchanges:
            return seen, self.known
        intercept = None if seen.intercept is None else seen.intercept[0]
        weights = seen.weights[self.own, : self.columns]
        return seen, self.objective.slope(weights, intercept)

    def _optimality(self, own: Array, intercept: Array | None) -> dict[str, Any]:
        """Return the entries `gradient` and `gap` of a record, if they are requested.

        With a gap there is always a gradient; if neither is requested, the result is
        {}.
        """
        if self.takes == "loss":
            return {}
        if self.known is not None:
            return {"gradient": self.objective.norm(self.known)}
        if self.takes == "gradient":
            return gradient_of(self.objective, own, intercept).as_dict(with_gap=False)
        return gap_of(self.objective, own, intercept).as_dict(with_gap=True)

    def has_reached_goal(self, view: View) -> bool:
        """Return whether the last evaluation reaches the goal of an early stop.

        Collective, where there is a goal.
        """
        if self.stop.on == "none":
            return False
        reached = self.stop.is_reached(view.history, self._null_excess_for_goal())
        return bool(self.objective.grid.world.max_flag(reached))

    def warn_of_goal(self, state: State, view: View, has_converged: bool) -> None:
        """Warn if the goal was not reached, or if F has no minimum. Collective.

        Without a goal of an early stop nothing is done. `has_converged`: whether the
        goal was reached after the last exchange.
        """
        if self.stop.on == "none":
            return
        if self.lacks_minimum(state, view.exchanges):
            self.has_minimum = False
            log.warning("%s (--l2)", NO_MINIMUM, extra=ONCE)
        elif not has_converged:
            self.stop.warn(view.history, self._null_excess_for_goal())

    def _null_excess_for_goal(self) -> float:
        """Return F of the null model less the least F if the goal is a gap, else 0."""
        return self.null_excess() if self.stop.on == "gap" else 0.0

    def null_excess(self) -> float:
        """Return F of the null model less the least that F could be, computed once.

        Collective: a few words, and no pass over the rows.
        """
        if self._null_excess is None:
            rows = open_rows(self.objective)
            self._null_excess = null_excess(rows, self.has_intercept)
        return self._null_excess

    def lacks_minimum(self, state: State, exchanges: int) -> bool:
        """Return whether F has no minimum, since the model makes no error on any row.

        Collective. One pass over the rows, where no penalty or bound limits the
        weights.
        """
        objective = self.objective
        is_plain = type(objective) is Objective and objective.models is None
        if not is_plain or not may_lack_minimum(
            objective.family.name, objective.penalty
        ):
            return False
        seen = self.agreement.consensus(state, exchanges).host_state()
        intercept = None if seen.intercept is None else seen.intercept[0]
        rows = open_rows(objective)
        weights = seen.weights[self.own, : self.columns].astype(np.float64)
        return is_separated(rows, rows.start(weights, intercept))

    def _show(self, found: Losses, view: View) -> None:
        """Write losses and clips into the view.

        Of several models the view gets the least loss, since a run continues for the
        best of them.
        """
        self.clipped = found.clips
        finite = found.each[np.isfinite(found.each)]
        is_one = self.objective.models is None
        view.loss = float(found.each[0] if is_one else min(finite, default=np.nan))
        view.more = {} if is_one else {"losses": numbers(found.each)}
        if found.held is not None:
            holdout = numbers(found.held)
            view.more["held"] = holdout[0] if is_one else holdout

    def has_broken_weights(self, state: State) -> bool:
        """Return whether no model is left to train.

        That is so if the weights of every model contain a NaN or an infinite value.
        """
        weights = state.host_array("weights")
        return self.objective.has_broken(weights, weights.shape[1] // self.columns)

    def is_fresh(self, view: View) -> bool:
        """Return whether the loss in the view is that of the present state."""
        return self.measured_at == view.exchanges

    def facts(self) -> dict[str, Any]:
        """Return the facts on evaluations that a checkpoint saves for `resume`."""
        return {
            "first_loss": self.first_loss,
            "good_loss": None if self.good is None else self.good.document["loss"],
            "measured_at": self.measured_at,
            "clipped": self.clipped,
        }

    def resume(self, facts: Mapping[str, Any], good: State | None) -> None:
        """Resume with the `facts` of a checkpoint and its model with a good loss."""
        self.first_loss = facts["first_loss"]
        self.measured_at = facts["measured_at"]
        self.clipped = facts["clipped"]
        if good is not None:
            self.good = Snapshot.of(good, {"loss": facts["good_loss"]})

    def restore(self, state: State) -> float:
        """Write the last good model into `state`, and return its loss.

        Return NaN if no evaluation had a good loss.
        """
        if self.good is None:
            return math.nan
        self.good.put_into(state)
        return float(self.good.document["loss"])


def is_good(loss: float, first: float | None) -> bool:
    """Return whether `loss` is finite and at most first + 1000 (1 + |first|).

    `first` is the first loss of the run; None counts as 0.
    """
    first = first or 0.0
    return math.isfinite(loss) and loss - first <= BLOW_UP * (1.0 + abs(first))


def numbers(values: Array) -> list[float | None]:
    """Return the values for a record, with None for those that are not finite."""
    return [float(value) if math.isfinite(value) else None for value in values]


def held_out_loss(record: Mapping[str, Any]) -> float:
    """Return the loss of a record on held-out rows; infinity where it is no number.

    NaN would make the least of several losses depend on their order.
    """
    loss = record.get("held")
    return float(loss) if loss is not None and math.isfinite(loss) else math.inf


def falls_no_more(losses: Sequence[float], patience: int, tol: float) -> bool:
    """Return whether the losses have stopped falling.

    They have if none of the last `patience` losses is below the best loss before by the
    share `tol`.
    """
    if len(losses) <= patience:
        return False
    before = losses[:-patience]
    since = losses[-patience:]
    best = min((loss for loss in before if math.isfinite(loss)), default=math.inf)
    return min(since) >= best - tol * abs(best)


@dataclass
class PlateauWatch(Observer):
    """Calls `note_plateau` after evaluations at which the loss has stopped falling."""

    history: Sequence[Mapping[str, Any]]  # of the run, also after it was resumed
    is_held: bool  # whether the loss is that of held-out rows
    patience: int
    tol: float
    note_plateau: Callable[[], None]

    def start(self, state: State, exchanges: int) -> None:
        """Look at all evaluations before, since a plateau that was left counts."""
        for count in range(len(self.history)):
            self._look(count + 1)

    def after_evaluation(self, state: State, view: View) -> None:
        """Look at the newest evaluation."""
        self._look(len(self.history))

    def _look(self, count: int) -> None:
        """Call `note_plateau` if the first `count` losses end with a plateau."""
        losses = [
            held_out_loss(record) if self.is_held else float(record["loss"])
            for record in self.history[:count]
        ]
        if falls_no_more(losses, self.patience, self.tol):
            self.note_plateau()


# When to stop: the goals that an evaluation may reach.

GOALS = ("none", "gradient", "gap", "loss", "validation")
MEASURES = ("loss", "gradient", "gap")  # of an evaluation; each includes the former


@dataclass(frozen=True)
class StopConfig(Settings, section="stop"):
    """Early stop at an evaluation that reaches a goal."""

    on: str = setting(
        "none",
        "measure that stops the run at the first evaluation that reaches the tolerance:"
        " norm of the gradient (gradient), optimality gap (gap), decrease of the loss"
        " (loss) or of the loss on the rows of sampling.hold_out (validation)",
        choices=GOALS,
    )
    tol: float = setting(
        1e-4,
        "relative tolerance of the measure that stops the run; a smaller tolerance"
        " stops later",
        at_least=0,
        below=1,
        remedy="1e-4 is usual",
        read_if={"stop.on": ("gap", "gradient", "loss", "validation")},
    )
    patience: int = setting(
        5,
        "evaluations without a decrease after which loss and validation stop the run",
        at_least=1,
        remedy="5 is usual",
        read_if={"stop.on": ("loss", "validation")},
    )

    def is_reached(
        self, history: Sequence[Mapping[str, Any]], null_excess: float = 0.0
    ) -> bool:
        """Return whether the last record of `history` reaches the goal.

        `null_excess` is needed where the goal is a gap: it is F of the null model less
        the least that F could be.
        """
        if self.on == "none" or not history:
            return False
        if self.on == "loss":
            losses = [float(record["loss"]) for record in history]
            return falls_no_more(losses, self.patience, self.tol)
        if self.on == "validation":
            losses = [held_out_loss(record) for record in history]
            return falls_no_more(losses, self.patience, self.tol)
        value = history[-1].get(self.on)
        return value is not None and float(value) <= self.limit(history, null_excess)

    def limit(
        self, history: Sequence[Mapping[str, Any]], null_excess: float = 0.0
    ) -> float:
        """Return the largest gap that stops the run, if that is the measure.

        Otherwise return the largest norm of the gradient.
        """
        if self.on == "gap":
            return gap_limit(self.tol, float(history[-1]["loss"]), null_excess)
        return self.tol * max(1.0, float(history[0].get("gradient") or 0.0))

    def warn(
        self, history: Sequence[Mapping[str, Any]], null_excess: float = 0.0
    ) -> None:
        """Warn that the goal is not reached after the last epoch."""
        remedy = (
            "raise --epochs, lower the rate, or go on to the optimum with --polish or"
            " --update svrg"
        )
        if self.on in ("loss", "validation"):
            log.warning(
                "the %s had not stopped falling after the last epoch, as [stop] judges"
                " it; %s",
                "loss" if self.on == "loss" else "loss of validation rows",
                remedy,
                extra=ONCE,
            )
            return
        value = history[-1].get(self.on) if history else None
        if value is None:
            remedy = "a gap needs a penalty (--l2, --l1); stop on the gradient instead"
        log.warning(
            "the goal is not reached: %s is %s, and [stop] asks for %.3g; %s",
            self.on,
            "unknown" if value is None else f"{value:.3g}",
            self.limit(history, null_excess) if history else self.tol,
            remedy,
            extra=ONCE,
        )


# The weights with the least loss on held-out rows, which an early stop returns.

WEIGHTS, INTERCEPT = "best_held", "best_held_intercept"  # in `state.memory`


@dataclass
class BestWeights(Observer):
    """A copy of the weights at the evaluation with the least loss on held-out rows."""

    evaluation: Evaluation
    columns: int  # K
    history: Sequence[Mapping[str, Any]]  # of the run, also after it was resumed
    figures: dict[str, Any] = field(default_factory=dict)

    def prepare(self, state: State) -> None:
        """Allocate the copy in `state.memory`, which checkpoints contain."""
        height = len(state.weights)
        state.memory[WEIGHTS] = np.zeros((height, self.columns))
        if state.intercept is not None:
            state.memory[INTERCEPT] = np.zeros((height, self.columns))

    def after_evaluation(self, state: State, view: View) -> None:
        """Copy the weights if the newest record is the best of all."""
        good = self.evaluation.good
        newest = self.history[-1]
        if self._best() is not newest or good is None:
            return
        state.memory[WEIGHTS][...] = good.arrays["weights"][:, : self.columns]
        if "intercept" in good.arrays:
            state.memory[INTERCEPT][...] = good.arrays["intercept"][:1]

    def at_end(self, state: State, exchanges: int, is_finished: bool) -> None:
        """Write the best weights into the state, unless the last ones are better.

        The last ones are measured if they were not yet. Nothing is done if the run is
        not finished.
        """
        best = self._best() if is_finished else None
        if best is None:
            return
        is_seen = self.evaluation.measured_at == exchanges  # and not averaged since
        unseen = None if is_seen else self._held_now(state)
        if unseen is not None and unseen < best["held"]:
            self.figures |= {"held": unseen}
            return
        self.figures |= {"epoch": best["epoch"], "held": best["held"]}
        if is_seen and best["exchanges"] == exchanges:
            return
        state.weights[:, : self.columns] = state.memory[WEIGHTS]
        if state.intercept is not None:
            state.intercept[:1] = state.memory[INTERCEPT][:1]
        self.evaluation.measured_at = -1  # the loss at hand is not of these

    def _held_now(self, state: State) -> float | None:
        """Return the loss on held-out rows of weights that were not yet evaluated.

        All ranks return the value of rank 0; None without held-out rows.
        """
        evaluation = self.evaluation
        seen = state.host_state()
        intercept = None if seen.intercept is None else seen.intercept[0]
        weights = seen.weights[evaluation.own, : self.columns]
        with np.errstate(all="ignore"):
            holdout = evaluation.objective.measure(weights, intercept).held
        loss = None if holdout is None else float(holdout[0])
        first: float | None = evaluation.objective.grid.world.share_object(loss)
        return first

    def facts(self) -> dict[str, Any]:
        """Return epoch and held-out loss of the best weights, for the report.

        If the best ones are the last, evaluated only at the end, there is no epoch. The
        result is {} without a finite held-out loss.
        """
        return {"best_held": dict(self.figures)} if self.figures else {}

    def _best(self) -> Mapping[str, Any] | None:
        """Return the first record with the least loss on held-out rows, or None.

        All ranks return the record that rank 0 chooses: sums need not give all ranks
        the same last bits.
        """
        losses = [held_out_loss(record) for record in self.history]
        local_number = (
            int(np.argmin(losses)) if min(losses, default=math.inf) < math.inf else None
        )
        number = self.evaluation.objective.grid.world.share_object(local_number)
        return None if number is None else self.history[number]


# The mean of the last iterates: less noise than any of them, at no message.
#
# With a constant rate SGD ends by wandering around the optimum; the mean over the last
# part of a run lies closer to its middle. It is one more array beside the weights, and
# a run keeps whichever has the lower F, the mean or the last iterate.

KINDS = ("none", "tail")
AVERAGED_WEIGHTS, AVERAGED_INTERCEPT = (
    "average",
    "average_intercept",
)  # in `state.memory`
COUNT = "averaged"  # in `state.memory`, too: a resumed run may be longer or shorter


@dataclass(frozen=True)
class AverageConfig(Settings, section="average"):
    """Averaging of the iterates."""

    kind: str = setting(
        "none",
        "iterates whose mean is the result: none takes the last iterate, tail averages"
        " the last part of the run",
        choices=KINDS,
    )
    share: float = setting(
        0.5,
        "share of the run that is averaged; a larger one has less noise and more of the"
        " early iterates",
        above=0,
        at_most=1,
        remedy="0.5 averages the last half of a run",
        read_if={"average.kind": ("tail",)},
    )


@dataclass
class TailAverage(Observer):
    """Averages the weights after every `every`-th exchange, without the first `first`.

    Replicas agree at these exchanges.
    """

    evaluation: Evaluation
    backend: Backend
    first: int  # exchanges that are left out
    every: int  # exchanges between two iterates of the mean
    columns: int  # K
    own: slice  # this member's columns within the weights it holds
    figures: dict[str, Any] = field(default_factory=dict)

    def prepare(self, state: State) -> None:
        """Allocate the mean in the memory of the state, so that checkpoints contain it.

        The mean of the intercept is repeated in every row, since all memory has one row
        for each column.
        """
        height = len(state.weights)
        state.memory[AVERAGED_WEIGHTS] = np.zeros((height, self.columns))
        state.memory[COUNT] = np.zeros((height, 1))
        if state.intercept is not None:
            state.memory[AVERAGED_INTERCEPT] = np.zeros((height, self.columns))

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Add an iterate to the mean if it is due: mean ← mean + (w − mean) / count."""
        place = self._place(exchanges)
        if not place or exchanges % self.every:
            return
        self.evaluation.agreement.arrive(state)
        count = 1 if place == 1 else self._count(state) + 1
        state.memory[COUNT][...] = count
        seen = state.host_state()
        _move(
            state.memory[AVERAGED_WEIGHTS], seen.weights[:, : self.columns], 1.0 / count
        )
        if seen.intercept is not None:
            _move(state.memory[AVERAGED_INTERCEPT], seen.intercept[:1], 1.0 / count)

    def at_end(self, state: State, exchanges: int, is_finished: bool) -> None:
        """Replace the last iterate of each model by the mean if F is lower at the mean.

        Nothing is done if the run is not finished.
        """
        if not is_finished or not self._place(exchanges) or not self._count(state):
            return
        weights, intercept = self._rounded(state)
        last = self._losses_now(state, exchanges)
        mean = self.losses(weights, intercept)
        better = self._alike(np.isfinite(mean) & ~(mean >= last))
        self._tell(better, mean, last, self._count(state))
        if not better.any():
            return
        chosen = np.flatnonzero(np.repeat(better, self.columns // len(better)))
        state.weights[:, chosen] = weights[:, chosen]
        if state.intercept is not None and intercept is not None:
            state.intercept[0, chosen] = intercept[0, chosen]
        self.evaluation.measured_at = -1  # the loss at hand is not of these

    def facts(self) -> dict[str, Any]:
        """Return for the report whether the mean or the last iterate is the result."""
        return {"average": dict(self.figures)}

    def _alike(self, better: Array) -> Array:
        """Return `better` of rank 0 on all ranks.

        Where both losses are equal up to rounding, ranks could choose differently.
        """
        return np.asarray(self.evaluation.objective.grid.world.share_object(better))

    def _count(self, state: State) -> int:
        """Return the number of iterates in the mean."""
        return int(state.memory[COUNT][0, 0])

    def _place(self, exchanges: int) -> int:
        """Return the number of the iterate in the averaged part of the run, from 1.

        Return 0 if this part has not begun.
        """
        return max(exchanges // self.every - self.first // self.every, 0)

    def _rounded(self, state: State) -> tuple[Array, Array | None]:
        """Return the mean, rounded to the format of the weights, and its intercept."""
        weights = state.memory[AVERAGED_WEIGHTS].astype(state.weights.dtype)
        self.backend.round(weights, self.backend.precision.weights)
        if state.intercept is None:
            return weights, None
        return weights, state.memory[AVERAGED_INTERCEPT][:1].copy()

    def _losses_now(self, state: State, exchanges: int) -> Array:
        """Return F of the last iterate for every model, evaluated if not yet known."""
        evaluation = self.evaluation
        is_one = evaluation.objective.models is None
        if (
            is_one
            and evaluation.measured_at == exchanges
            and evaluation.good is not None
        ):
            return np.array([evaluation.good.document["loss"]])
        seen = state.host_state()
        return self.losses(seen.weights[:, : self.columns], seen.intercept)

    def losses(self, weights: Array, intercept: Array | None) -> Array:
        """Return F of every model at these weights."""
        first = None if intercept is None else intercept[0]
        with np.errstate(all="ignore"):
            return self.evaluation.objective.measure(weights[self.own], first).each

    def _tell(self, better: Array, mean: Array, last: Array, count: int) -> None:
        choices = ["mean" if is_better else "last" for is_better in better]
        figures: dict[str, Any] = {"kept": choices, "loss_of_mean": numbers(mean)}
        figures["loss_of_last"] = numbers(last)
        if self.evaluation.objective.models is None:
            figures = {name: values[0] for name, values in figures.items()}
        self.figures |= {"iterates": count, **figures}


def _move(mean: Array, towards: Array, share: float) -> None:
    mean += share * (towards - mean)


# Arrays with one row a column of the data: from members' slices to whole, and back.


# Words of a message to the writer of a checkpoint: MPI counts them in 32 bits.
MOST_WORDS = 2**30


@dataclass(frozen=True)
class Columns:
    """The distribution of the columns over the members of this grid."""

    grid: Grid
    parts: tuple[slice, ...]  # of all members
    whole: bool  # every member holds all of them, not a slice each

    @property
    def total(self) -> int:
        """Return the number of columns of the data."""
        return int(self.parts[-1].stop)

    @property
    def own(self) -> slice:
        """Return the columns that this member's arrays contain."""
        if self.whole:
            return slice(0, self.total)
        return self.parts[self.grid.member]

    def join(self, own: Array) -> Array:
        """Return an array of all columns of the data, (total, k). Collective.

        `own` has a row for each column that this member stores, (local columns, k). The
        members of a replica gather them, unless each of them stores all columns.
        """
        own = np.ascontiguousarray(own)
        members = self.grid.members
        width = own.shape[1]
        if self.whole or members.size == 1:
            return own.copy()
        counts = [(part.stop - part.start) * width for part in self.parts]
        out = np.empty(self.total * width, dtype=own.dtype)
        members.gather(own.reshape(-1), counts, out, "control")
        return out.reshape(self.total, width)

    def sizes(self, width: int) -> list[int] | None:
        """Return the words that each member stores of an array with `width` columns.

        The array has a row for each column of the data. None: every member stores all.
        """
        if self.whole:
            return None
        return [(part.stop - part.start) * width for part in self.parts]

    def assemble(
        self, own: Array, sizes: Sequence[int] | None, apart: bool, everywhere: bool
    ) -> Array | None:
        """Return words of all members, and of all replicas if `apart`. Collective.

        Parameters
        ----------
        own : ndarray
            The words of this rank, which stay as they are.
        sizes : sequence of int or None
            Words of each member of a replica. None: all members store the same ones.
        apart : bool
            Whether replicas have different words. Else those of replica 0 are taken.
        everywhere : bool
            Whether all ranks get the result, or only rank 0 of the run, to which the
            other ranks send their words, and which needs no more than the result.

        Returns
        -------
        ndarray of shape (R or 1, words of a replica), or None
            A row for each replica, or one row. None on the ranks that get nothing.
        """
        grid = self.grid
        returns = everywhere or grid.world.rank == 0
        sent = np.ascontiguousarray(own).reshape(-1)
        if not apart and (sizes is None or not (everywhere or grid.replica == 0)):
            return sent[None].copy() if returns else None
        each = [sent.size, *[0] * (grid.members.size - 1)] if sizes is None else sizes
        group = grid.world if apart else grid.members
        rows = grid.replicas.size if apart else 1
        out = np.empty((rows if returns else 0, sum(each)), dtype=own.dtype)
        step = max(MOST_WORDS // max(sum(each), 1), 1)
        for first in range(0, rows, step):
            part = range(first, min(first + step, rows))
            counts = [n if row in part else 0 for row in range(rows) for n in each]
            message = Collective(
                kind="gather" if everywhere else "collect",
                send=sent[: counts[group.rank]],
                receive=out[part.start : part.stop].reshape(-1),
                counts=counts,
            )
            group.run(message, "control")
        return out if returns else None


# Snapshots of SVRG: where the run stands, with the gradient of all rows there.


class SvrgSnapshots(Observer):
    """Takes the snapshot w̃ of the weights, and the gradient μ̃ of all rows at w̃.

    It does so before the first exchange of every `every` epochs. μ̃ is the gradient of
    the exact values in float64, whatever format the steps compute in: the rounding of
    r(w) − r(w̃) vanishes as w comes to w̃, and μ̃ alone determines where the steps come
    to rest. All replicas take it at the mean of their weights.
    """

    def __init__(
        self,
        every: int,
        exchanges_per_epoch: int,
        evaluation: Evaluation,
        columns: Columns,
    ) -> None:
        self.every = every
        self.exchanges_per_epoch = exchanges_per_epoch
        self.evaluation = evaluation
        self.columns = columns
        self.kept: tuple[Array, Array | None] | None = None

    def before_epoch(self, state: State, epoch: int) -> None:
        """Set w̃ ← w and μ̃ ← ∂F/∂w − λw, every `every` epochs."""
        if epoch % self.every:
            return
        K = self.evaluation.columns
        evaluation = self.evaluation
        seen, slope = evaluation.slope_of(state, epoch * self.exchanges_per_epoch)
        weights = seen.weights[evaluation.own, :K].astype(np.float64)
        data = slope.weights - evaluation.objective.penalty.l2 * weights
        if self.columns.whole:
            grid = self.columns.grid
            parts = self.columns.parts
            data = Columns(grid, parts, whole=False).join(data)
        state.weights[:, K : 2 * K] = seen.weights[:, :K]
        state.weights[:, 2 * K :] = data
        if state.intercept is not None and seen.intercept is not None:
            state.intercept[1] = seen.intercept[0]
            state.intercept[2] = slope.intercept

    def after_steps(self, state: State, number: int, group: Group | None) -> None:
        """Save this replica's w̃ and μ̃, which `after_exchange` puts back.

        Replicas have the same, and the average of equal numbers may be rounded.
        """
        if self.columns.grid.replicas.size == 1:
            return
        rest = slice(self.evaluation.columns, None)
        intercept = None if state.intercept is None else state.intercept[1:].copy()
        self.kept = state.weights[:, rest].copy(), intercept

    def after_exchange(self, state: State, exchanges: int) -> None:
        """Restore w̃ and μ̃ from the copies, after replicas have averaged."""
        if self.kept is None:
            return
        weights, intercept = self.kept
        state.weights[:, self.evaluation.columns :] = weights
        if state.intercept is not None:
            state.intercept[1:] = intercept


# The scale of narrow residuals, saved where each replica has its own.

NAME = "loss_scale"


@dataclass
class ReplicaLossScale(Observer):
    """Saves the loss scale of a replica that adapts its own.

    Residuals in a narrow format are multiplied by the loss scale, so that they do not
    underflow.
    """

    scale: LossScale

    def prepare(self, state: State) -> None:
        """Allocate the loss scale in the state, with which it is saved."""
        state.rank_arrays[NAME] = self.scale.kept()

    def start(self, state: State, exchanges: int) -> None:
        """Restore the loss scale that was saved with the state."""
        self.scale.restore(state.rank_arrays[NAME])

    def after_steps(self, state: State, number: int, group: Group | None) -> None:
        """Save the loss scale as it is after the steps."""
        state.rank_arrays[NAME][...] = self.scale.kept()
