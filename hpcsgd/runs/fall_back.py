"""Fall-backs of a run: good states, and settings that are more careful."""

import logging
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hpcsgd.backends.task import Snapshot, State
from hpcsgd.config import RunConfig
from hpcsgd.data.sampling import plan_groups
from hpcsgd.data.shard import split_range
from hpcsgd.formats import get_format, wider
from hpcsgd.precision import Precision
from hpcsgd.products.base import product_facts
from hpcsgd.products.observers import Observer
from hpcsgd.settings import remembered
from hpcsgd.solvers.callbacks import View
from hpcsgd.solvers.evaluation import Evaluation

# More careful settings, one level at a time: what a run falls back to.
#
# First fewer steps in an exchange, until there is one; then wider formats, field by
# field. Every level can be taken once, so there are not many.

RAISED = ("inner", "gram_wire", "margin", "matrix")  # in this order
NOT_OF_GRAMS = ("gram_wire",)  # fields that only a Gram has


@dataclass(frozen=True)
class FallbackLevel:
    """One change of a setting to a more careful value."""

    key: str  # schedule.steps or precision.FIELD
    before: int | str
    after: int | str

    @property
    def text(self) -> str:
        """Return the change in short: setting, old value, new value."""
        name = self.key.split(".")[1]
        return f"{name} {self.before} -> {self.after}"


@remembered
def next_fallback_level(config: RunConfig, product: str) -> FallbackLevel | None:
    """Return the next fallback level of a run with `config`; None if there is none.

    `product` is the name of the product that runs. The number of steps in `config` is
    decided, not automatic.
    """
    steps = config.schedule.steps
    recurs = product_facts(product).has_recurrence
    if recurs and steps > 1:
        return FallbackLevel("schedule.steps", steps, fewer_steps(steps))
    precision = config.precision.resolve()
    widest = widest_format(precision)
    for name in RAISED:
        before = getattr(precision, name)
        is_used = recurs or name not in NOT_OF_GRAMS
        if is_used and wider(before, widest) != before:
            return FallbackLevel(f"precision.{name}", before, widest)
    return None


def fewer_steps(steps: int) -> int:
    """Return the largest divisor of s that is at most s/2.

    With a divisor, an exchange of fewer steps begins wherever one of s steps began.
    """
    return max(n for n in range(1, steps // 2 + 1) if steps % n == 0)


def widest_format(precision: Precision) -> str:
    """Return the name of the widest format of the arithmetic, fp32 at least."""
    formats = {*precision.arithmetic, "fp32"}
    return min(formats, key=lambda name: get_format(name).unit_roundoff)


def convert_checkpoint(
    checkpoint: Snapshot, before: RunConfig, after: RunConfig
) -> Snapshot:
    """Return the checkpoint as one of a run with the settings `after`.

    Exchange k of s steps is exchange k·s/s' of s' steps. Settings that count exchanges
    keep their values.
    """
    document = deepcopy(checkpoint.document)
    s = before.schedule.steps
    fewer = after.schedule.steps
    epochs, rest = divmod(document["exchanges"], document["exchanges_per_epoch"])
    largest = split_range(document["rows"], document["replicas"], 0).stop
    each = len(plan_groups(largest, after.schedule.batch, fewer))
    document |= {
        "exchanges": epochs * each + rest * s // fewer,
        "exchanges_per_epoch": each,
        "config": after.tables(),
        # A fall-back is no resume: `restore` will count one.
        "resumes": document["resumes"] - 1,
    }
    measured = document["evaluation"]["measured_at"]
    same = measured == checkpoint.exchanges
    document["evaluation"]["measured_at"] = document["exchanges"] if same else -1
    return Snapshot(document, checkpoint.arrays)


# Copies of the state at moments when all was well: what a run falls back to.
#
# The result of the monitor for an exchange comes with the next exchange, and all ranks
# receive it in a poll. A copy is made where a check of the recurrence begins, on all
# ranks after the same exchange. It counts as checked after the next poll without an
# alarm.


class GoodStates(Observer):
    """Keeps at most four copies: checked, being checked (two), and with a good loss."""

    def __init__(self, every: int, view: View, evaluation: Evaluation) -> None:
        self.every = every  # exchanges between checks of the recurrence; 0 = none
        self.view = view
        self.evaluation = evaluation
        self.checked: Snapshot | None = None  # no alarm until then
        self.measured: Snapshot | None = None  # a good loss, or where the run began
        self.candidates: list[Snapshot] = []

    def start(self, state: State, exchanges: int) -> None:
        """Keep the state in which the run begins or resumes as checked and good."""
        self.checked = self.measured = _snapshot(state, self.view)

    def after_exchange(self, state: State, number: int) -> None:
        """Keep the state as a candidate if a check of the recurrence begins here."""
        if self.every and number % self.every == 0:
            self.candidates.append(_snapshot(state, self.view))

    def after_poll(self, number: int) -> None:
        """Count the last candidate before exchange `number` as checked.

        The poll after this exchange had no alarm. Earlier candidates are dropped.
        """
        snapshots = [
            snapshot for snapshot in self.candidates if snapshot.exchanges < number
        ]
        if snapshots:
            self.checked = snapshots[-1]
            self.candidates = [k for k in self.candidates if k.exchanges >= number]

    def after_evaluation(self, state: State, view: View) -> None:
        """Keep the state if its loss is finite and not far above the first loss."""
        if self.evaluation.is_good:
            self.measured = _snapshot(state, view)

    def put_back(self, state: State, view: View, has_gap: bool) -> bool:
        """Put back a good state into `state` and `view`; return whether there is one.

        With `has_gap`, after an alarm on the recurrence error, it is the last state
        that was checked; otherwise, after a divergence, the last one with a good loss.
        A loss may be good in spite of a recurrence error, and a run may diverge without
        one. The seconds of the run stay as they are.
        """
        good = self.checked if has_gap else self.measured
        if good is None:
            return False
        good.put_into(state)
        view.exchanges = good.exchanges
        view.epoch = good.document["epoch"]
        view.loss = good.document["loss"]
        del view.history[good.document["evaluations"] :]
        return True


def _snapshot(state: State, view: View) -> Snapshot:
    """Copy this rank's part of the state, and note where the run stands.

    The notes are exchanges, epoch, loss and the number of evaluations.
    """
    where = {
        "exchanges": view.exchanges,
        "epoch": view.epoch,
        "loss": view.loss,
        "evaluations": len(view.history),
    }
    return Snapshot.of(state, where)


# What happened to a run besides its losses: alarms, and what was done about them.

log = logging.getLogger(__name__)
ONCE = {"on_all_ranks": True}  # all ranks note the same events
Event = dict[str, Any]


def note(view: View, event: str, text: str, **facts: Any) -> Event:
    """Add an event to the events of the run, log it as a warning, and return it."""
    entry = {
        "kind": "event",
        "event": event,
        "exchange": view.exchanges,
        # The number of evaluations before it gives its place in the history.
        "evaluations": len(view.history),
        "text": text,
        **facts,
    }
    view.events.append(entry)
    log.warning("%s", text, extra=ONCE)
    return entry


def alarm_text(alarm: dict[str, Any]) -> str:
    """Return the alarm of a monitor as a sentence."""
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
    """Add a fall-back to the events of the run, and return its event.

    It has the cause, the changed setting `rung`, and the exchanges at which the run
    stopped and continues: `stopped` in exchanges of the old settings, `there` in those
    of the new ones. `view` is already at the good state, in exchanges of the old
    settings.
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
    """Return the cause of a fall-back in a word, in a phrase and in figures."""
    if cause is None:
        return "diverged", "weights or a loss without bound", {}
    return (
        "gap",
        "a recurrence error",
        {key: cause[key] for key in ("gap", "tolerance")},
    )
