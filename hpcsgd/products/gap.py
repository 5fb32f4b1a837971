"""The gap monitor: the scores of the recurrence against fresh products, now and then.

After the residuals of an exchange are known, every member walks its slice of the
weights through the steps as plain SGD would, and forms the scores that the steps
should have seen. These partial scores, folded with random signs into as many words as
a batch has rows, travel in the next message; their sum is compared with the same fold
of what the recurrence gives. Rounding to `margin` is in neither of the two. That the
residuals in use are those of the recurrence is seen at once, by every member alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.formats import get_format
from hpcsgd.products import rerun
from hpcsgd.products.base import Group, Rows, State, Task, batch_of, store_margins
from hpcsgd.products.fresh import Fold, terms, walked, words_of
from hpcsgd.products.one_of_many import columns_of, one_of, state_of
from hpcsgd.products.roundoff import SAFETY, model_of, recurrence_error, unit
from hpcsgd.products.watcher import Unwatched

Array = NDArray[Any]


@dataclass(frozen=True)
class Seen:
    """What the steps began with."""

    number: int
    margins: Array  # before they were rounded to their storage
    intercept: Array | None

    def of(self, number: int, task: Task) -> "Seen":
        """What one of several models began with."""
        start = self.intercept
        return Seen(
            self.number,
            columns_of(number, task, self.margins),
            None if start is None else columns_of(number, task, start),
        )


@dataclass(frozen=True)
class Waiting:
    """What the next message is compared with."""

    number: int
    own: Array  # this member's words
    expected: Array
    variance: Array  # of rounding, what the members' sizes do not say
    flushed: Array
    unit: float


class GapMonitor(Unwatched):
    """Looks every so many exchanges; of one member, and its alarm is for all ranks."""

    def __init__(self, every: int, exchanges_per_epoch: int, seed: int) -> None:
        self.every = every
        self.exchanges_per_epoch = exchanges_per_epoch
        self.seed = seed
        self.last = 0  # the exchange before this one
        self.waiting: Waiting | None = None
        self.blank = 0  # words that nobody will read
        self.looks = 0

    @property
    def words(self) -> int:  # type: ignore[override]
        """Of this member that wait for the next message."""
        return self.blank if self.waiting is None else len(self.waiting.own)

    def begin(
        self,
        done: int,
        plans: list[tuple[int, ...]],
        trains: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """Look where the run that is gone on with would have.

        Messages keep their sizes, so that sums have the same bits: words of a look
        that was not judged any more are sent, and mean nothing.
        """
        each, count = self.exchanges_per_epoch, len(plans)
        # Where this replica had rows, and did not rest.
        worked = (
            number
            for number in range(done, 0, -1)
            if (number - 1) % each < count and trains(number)
        )
        self.last, before = next(worked, 0), next(worked, 0)
        if self.last and self._is_due(self.last, before):
            self.blank = words_of(plans[(self.last - 1) % each])

    def post(self, room: Array) -> None:
        """Put what waits into its place in the message."""
        room[...] = 0.0 if self.waiting is None else self.waiting.own

    def judge(self, total: Array) -> None:
        """Compare, and note where the difference is more than rounding."""
        found, self.waiting, self.blank = self.waiting, None, 0
        if found is None:
            return
        self.looks += 1
        fresh, size = total[:-1].astype(np.float64), float(total[-1])
        gap = np.abs(fresh - found.expected)
        spread = np.sqrt(found.variance + (found.unit * size) ** 2)
        self._note("scores", found.number, gap, SAFETY * spread + found.flushed)

    def before(self, state: State, group: Group, margins: Array) -> Seen | None:
        """Copies of what the steps begin with, where a look is due."""
        number = self._number(group)
        last, self.last = self.last, number
        if not self._is_due(number, last):
            return None
        intercept = None if state.intercept is None else state.intercept.copy()
        return Seen(number, margins.copy(), intercept)

    def after(
        self,
        seen: Seen,
        task: Task,
        state: State,
        group: Group,
        rows: Rows,
        gram: Array,
    ) -> None:
        """Check the residuals, walk, and leave words for the next message."""
        if task.models is not None:  # one of them a look: they share what may be wrong
            number = seen.number // self.every % len(task.models)
            seen, state = seen.of(number, task), state_of(number, task, state)
            task, group = one_of(number, task, group)
        assert state.residuals is not None
        if not np.isfinite(state.residuals).all():
            # Left out by the scale of residuals, or a divergence that others see; the
            # message has the length that it would have had.
            self.blank = words_of(group.blocks.sizes)
            return
        exact = Exact.of(task, seen, group, gram, state.residuals)
        gap, allowed = exact.residual_gap(task, group, state.residuals)
        self._note("residuals", seen.number, gap, allowed)
        fold = Fold(group.blocks, task.columns, (self.seed, seen.number))
        model = model_of(task.precision, group.blocks, terms(task), task.members.size)
        fresh, size = walked(task, state, group, rows, fold, model, seen.number)
        variance = model.of_products(
            exact.led_size, exact.corrections.size, exact.scores
        )
        self.waiting = Waiting(
            number=seen.number,
            own=np.append(fresh, size),
            expected=fold.signed(exact.scores),
            variance=fold.added(variance),
            flushed=fold.added(model.flushed(exact.corrections.pushed)),
            unit=model.unit,
        )
        task.clock.lap("gap")

    def is_due(self, group: Group) -> bool:
        """Whether this exchange is looked at."""
        return self._is_due(self._number(group), self.last)

    def _number(self, group: Group) -> int:
        return group.epoch * self.exchanges_per_epoch + group.index + 1

    def _is_due(self, number: int, last: int) -> bool:
        # Not "number % every": a replica with fewer rows has no exchange of some.
        return number // self.every > last // self.every

    def _note(self, what: str, number: int, gap: Array, allowed: Array) -> None:
        """The place where it is worst; what is beyond judging is left to other eyes."""
        wrong = ~(gap <= allowed)
        if self.alarm is not None or not wrong.any():
            return
        wrong &= np.isfinite(allowed)
        if not wrong.any():
            return
        worst = np.argmax(np.where(wrong, gap / np.maximum(allowed, 1e-300), -1.0))
        self.alarm = {
            "of": what,
            "exchange": number,
            "gap": float(gap.flat[worst]),
            "tolerance": float(allowed.flat[worst]),
        }


@dataclass(frozen=True)
class Exact:
    """The recurrence in float64, from the products and residuals of the run."""

    scores: Array  # (m, K), of the margins as they were summed
    led_size: Array  # Σ_k |lead_k z_k|
    corrections: rerun.Corrections
    used: Array  # Σ_k lead_k z_k of the margins as they were stored
    shift: Array | float  # q·β

    @classmethod
    def of(
        cls, task: Task, seen: Seen, group: Group, gram: Array, residuals: Array
    ) -> "Exact":
        """What exchange `seen` had."""
        unrolled, blocks = group.coefficients.whole, group.blocks
        found = rerun.corrections(unrolled, blocks, gram, residuals)
        stored = store_margins(task, seen.margins.copy())
        return cls(
            scores=rerun.lead(unrolled, blocks, seen.margins) + found.total,
            led_size=rerun.lead_size(unrolled, blocks, seen.margins),
            corrections=found,
            used=rerun.lead(unrolled, blocks, stored),
            shift=rerun.intercepts(unrolled, blocks, seen.intercept, residuals),
        )

    def residual_gap(
        self, task: Task, group: Group, residuals: Array
    ) -> tuple[Array, Array]:
        """How far residuals are from those of the scores, and may be."""
        batch, form = batch_of(task, group.rows), task.precision
        offset = 0.0 if batch.offsets is None else batch.offsets.astype(np.float64)
        parts = (self.led_size, self.shift, offset)
        at = self.used + self.corrections.total + self.shift + offset
        own = unit(form.residual)
        slack = recurrence_error(form, group.blocks, parts, self.corrections.size)
        slack = SAFETY * (slack + own * np.abs(at))
        dtype = np.dtype("float64" if form.residual == "fp64" else "float32")

        def there(scores: Array) -> Array:
            settings = (batch.targets, batch.weights, dtype)
            return rerun.residuals_at(task.family, scores, *settings)

        expected = there(at)
        if task.family.targets == "classes":  # Σ |∂softmax/∂t| is at most 1/2
            moved = 0.5 * slack.max(axis=1, keepdims=True)
            moved = moved * (1.0 if batch.weights is None else batch.weights)
        else:  # residuals rise with their score
            moved = np.maximum(
                there(at + slack) - expected, expected - there(at - slack)
            )
        rounded = _rounded(task, batch.targets, batch.weights, expected)
        return np.abs(residuals - expected), moved + rounded


def _rounded(
    task: Task, targets: Array, weights: Array | None, expected: Array
) -> Array:
    """What a residual loses where it is the difference of a mean and a target."""
    form = task.precision
    real = task.family.targets in ("real", "counts", "positive")
    target = np.maximum(np.abs(targets), 1.0) if real else 1.0
    c = 1.0 if weights is None else weights
    u = max(unit(form.residual), unit(form.inner))
    least = max(get_format(name).tiny for name in (form.residual, form.inner))
    allowed: Array = SAFETY * (u * (2 * np.abs(expected) + c * target) + c * least)
    return allowed
