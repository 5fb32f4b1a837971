"""The gap monitor: recurrence against fresh products, and what rounding allows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from hpcsgd.backends.base import Rows
from hpcsgd.backends.exchange import batch_of, probed, store_margins
from hpcsgd.backends.task import Group, ManyCoefficients, State, Task
from hpcsgd.formats import Array, get_format
from hpcsgd.glm.families import Family, exp_bound
from hpcsgd.glm.penalties import Models
from hpcsgd.glm.unrolling import Blocks, UnrolledSteps
from hpcsgd.precision import FIELDS, Precision

# How far rounding alone may take the recurrence from fresh products.
#
# A sum of n terms x, added one after the other with unit roundoff u, is off by about
#
#     u √(n/6) ‖x‖   where signs vary,     u (√n/3) |Σx|   where they do not,
#
# and by (1 + n u) times as much where u is so coarse that sums stop growing. These are
# standard deviations of the usual model (each rounding is independent and uniform);
# what is allowed is `SAFETY` of them. No other number enters.

SAFETY = 10.0  # standard deviations: a run takes very many looks
UNIFORM = 1 / 3  # variance of what is uniform between -1 and 1


def unit(name: str) -> float:
    """The unit roundoff of a format."""
    return get_format(name).unit_roundoff


def grown(u: float, terms: float) -> float:
    """u (1 + n u): the roundoff of a sum, with the bias of one that stops growing."""
    return u * (1.0 + terms * u)


@dataclass(frozen=True)
class RoundoffModel:
    """Variances of fresh products less the recurrence, in units of `unit`²."""

    precision: Precision
    blocks: Blocks
    terms: float  # of the sum that a member makes for a score
    members: int

    def _unit(self, *fields: str) -> float:
        return max(unit(getattr(self.precision, name)) for name in fields)

    @cached_property
    def unit(self) -> float:
        """The coarsest roundoff there is, which all members know."""
        used = [n for n in FIELDS if n not in ("matrix", "margin", "residual")]
        return self._unit(*used)

    @cached_property
    def of_weights(self) -> float:
        """Of ‖y∘w‖²: its sum, that over members, and w rounded in every step."""
        add = grown(self._unit("margin_sum"), self.terms)
        summed = add**2 * (self.terms / 6 + self.members)
        rounded = len(self.blocks.sizes) * self._unit("weights") ** 2
        return float((summed + rounded) / self.unit**2)

    @cached_property
    def of_steps(self) -> float:
        """Of ‖y∘Δw‖²: the Gram's sums, its message, gradients and their factors."""
        m, largest = self.blocks.rows, max(self.blocks.sizes)
        gram = grown(self._unit("gram_sum"), self.terms) ** 2 * self.terms / 6
        wire = self._unit("gram_wire") ** 2 * self.members
        step = grown(self._unit("gradient_sum"), largest) ** 2 * (1 + largest / 6)
        factors = self._unit("inner", "weights") ** 2
        # Errors of m rows meet with signs of their own; those of a step do not.
        return float((gram + wire + step * min(m, largest) + factors) / self.unit**2)

    def of_products(self, led: Array, correction: Array, total: Array) -> Array:
        """Variance of every row from the summed products themselves, absolute."""
        sums = grown(self._unit("margin_sum"), self.terms) ** 2
        gram = grown(self._unit("gram_sum"), self.terms) ** 2
        wire = self._unit("gram_wire") ** 2
        of_margins = sums * (self.terms / 9 + self.members) * (led**2 + total**2)
        of_gram = (gram * self.terms / 9 + wire * self.members) * correction**2
        whole: Array = of_margins + of_gram
        return whole

    def flushed(self, pushed: Array) -> Array:
        """What disappears below the smallest numbers of the formats, by row."""
        root = sqrt(self.terms)
        margin = _tiny(self.precision, ("margin_sum",)) * root
        gram = _tiny(self.precision, ("gram_sum", "gram_wire")) * root
        least: Array = margin + gram * np.abs(pushed)
        return least


def recurrence_error(
    precision: Precision, blocks: Blocks, parts: Iterable[Any], size: Array
) -> Array:
    """What `inner` may be off by at every score: `parts` are added, `size` corrects."""
    u = unit(precision.inner)
    before = np.repeat(blocks.starts[:-1], blocks.sizes)[:, None]
    spread = 1.0 + np.sqrt(before / 6) * (1.0 + before * u)
    added = sum(np.abs(part) for part in parts)
    tiny = _tiny(precision, ("inner",))
    allowed: Array = u * (added + spread * size) + tiny * np.sqrt(1.0 + before)
    return allowed


@lru_cache(maxsize=64)
def model_of(
    precision: Precision, blocks: Blocks, terms: float, members: int
) -> RoundoffModel:
    """The one `RoundoffModel` of these: a run has two or three."""
    return RoundoffModel(precision, blocks, terms, members)


def _tiny(precision: Precision, fields: Iterable[str]) -> float:
    return max(get_format(getattr(precision, name)).tiny for name in fields)


# Scores that steps should have seen: a walk through them, folded into few words.

PROBES = 64  # rows whose sizes are estimated at least, by more than one look if need be


def words_of(sizes: tuple[int, ...]) -> int:
    """b of them, and two where batches are single rows."""
    return max(*sizes, 2)


class Fold:
    """All m rows as few words: rows of one place, and their K scores, with signs."""

    def __init__(self, blocks: Blocks, columns: int, seed: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        # One of the words says how large the partial scores are.
        self.places = words_of(blocks.sizes) - 1
        drawn = rng.integers(0, 2, size=(blocks.rows, columns), dtype=np.int8)
        self.signs = 2.0 * drawn - 1.0
        rows = [np.arange(size) for size in blocks.sizes]
        self.place = np.concatenate(rows) % self.places

    def signed(self, values: Array) -> Array:
        """One word for each place."""
        return self.added(self.signs * values)

    def added(self, values: Array) -> Array:
        """The same without signs."""
        total: Array = np.bincount(
            self.place, values.sum(axis=1, dtype=np.float64), self.places
        )
        return total


def terms(task: Task) -> float:
    """How many products a member adds for one score: those of the widest."""
    shard = task.shard
    if not shard.matrix.is_sparse:
        return float(max(part.stop - part.start for part in shard.parts))
    mean = shard.matrix.nnz / max(shard.height, 1)
    return float(1.0 + mean) * len(shard.parts)


def recompute_scores(
    task: Task,
    state: State,
    group: Group,
    rows: Rows,
    fold: Fold,
    model: RoundoffModel,
    number: int,
) -> tuple[Array, float]:
    """Return this member's recomputed scores, folded, and a bound of their rounding
    errors.

    The size is in units of `model.unit`, the largest of all places.
    """
    weights, starts = state.weights.copy(), group.blocks.starts
    scores = np.empty((group.blocks.rows, task.columns), dtype=task.margin_dtype)
    for j, plan in enumerate(group.steps):
        part = slice(starts[j], starts[j + 1])
        task.backend.scores(rows[part], probed(task, weights), scores[part])
        if j + 1 < len(group.steps):
            residuals = state.residuals[part]  # type: ignore[index]
            task.backend.apply_update(weights, rows[part], residuals, plan)
    before, behind = probed(task, state.weights), probed(task, weights)
    spread = np.sqrt(
        model.of_weights * (before**2 + behind**2)
        + model.of_steps * (behind - before) ** 2
    ).astype(weights.dtype, copy=False)
    squares = _squares(task, rows, spread, fold, (number, task.members.rank))
    squares += model.of_weights * np.square(scores, dtype=np.float64)
    return fold.signed(scores), float(np.sqrt(fold.added(squares).max()))


def _squares(
    task: Task, rows: Rows, spread: Array, fold: Fold, seed: tuple[int, ...]
) -> Array:
    """‖y ∘ spread‖² of every row: the mean square of products with random signs."""
    rng = np.random.default_rng(seed)
    m = len(fold.place)
    total = np.zeros((m, task.columns))
    out = np.empty(total.shape, dtype=task.margin_dtype)
    looks = max(1, PROBES // m)
    for _ in range(looks):
        signs = rng.integers(0, 2, size=(len(spread), 1), dtype=np.int8)
        signs = 2 * signs - 1
        task.backend.scores(rows, np.ascontiguousarray(spread * signs), out)
        total += np.square(out, dtype=np.float64)
    total /= looks
    return total


# The recurrence once more, in float64, from the products that the run had.


@dataclass(frozen=True)
class Corrections:
    """Σ_{i<j} g_ji G_ji r_i of every row, and how large its terms are."""

    total: Array  # (m, K)
    size: Array  # (m, K), the root of the sum of squares of the terms
    pushed: Array  # (m, 1), the same of the factors g_ji r_i alone


def lead(unrolled: UnrolledSteps, blocks: Blocks, margins: Array) -> Array:
    """Σ_k lead_k z_k for all rows."""
    return _led(unrolled.lead, blocks, margins)


def lead_size(unrolled: UnrolledSteps, blocks: Blocks, margins: Array) -> Array:
    """Σ_k |lead_k z_k|: what that is a sum of."""
    return _led(np.abs(unrolled.lead), blocks, np.abs(margins))


def _led(factors: Array, blocks: Blocks, margins: Array) -> Array:
    states = factors.shape[1]
    spread = np.repeat(factors, blocks.sizes, axis=0)
    parts = margins.astype(np.float64).reshape(len(margins), states, -1)
    columns = "k" * (spread.ndim - 2)  # several models have factors of their own
    total: Array = np.einsum(f"ms{columns},msk->mk", spread, parts)
    return total


def corrections(
    unrolled: UnrolledSteps, blocks: Blocks, gram: Array, residuals: Array
) -> Corrections:
    """From G as it was summed and the residuals as they were used."""
    exact = residuals.astype(np.float64)
    total, size = np.zeros_like(exact), np.zeros_like(exact)
    pushed = np.zeros((len(exact), 1))
    for j, (first, last) in enumerate(pairwise(blocks.starts)):
        if not j:
            continue
        words = gram[blocks.gram_starts[j] : blocks.gram_starts[j + 1]]
        panel = words.astype(np.float64).reshape(last - first, first)
        couple = np.repeat(unrolled.couple[j], blocks.sizes[:j], axis=0)
        couple = couple.reshape(first, -1)
        scaled = exact[:first] * couple
        total[first:last] = panel @ scaled
        size[first:last] = np.sqrt(np.square(panel) @ np.square(scaled))
        pushed[first:last] = np.sqrt(np.sum(np.square(scaled)))
    return Corrections(total, size, pushed)


def intercepts(
    unrolled: UnrolledSteps, blocks: Blocks, start: Array | None, residuals: Array
) -> Array | float:
    """q·β at the step of every row, from where the exchange began."""
    if start is None:
        return 0.0
    exact, at = residuals.astype(np.float64), start.astype(np.float64)
    out = np.empty_like(exact)
    for j, (first, last) in enumerate(pairwise(blocks.starts)):
        out[first:last] = unrolled.probe @ at
        pull = exact[first:last].sum(axis=0)
        free = unrolled.free[j]
        if free.ndim > 2:  # of several models
            at = np.einsum("pqk,qk->pk", free, at) + unrolled.push[j] * pull
        else:
            at = free @ at + np.multiply.outer(unrolled.push[j], pull)
    return out


def residuals_at(
    family: Family, scores: Array, targets: Array, weights: Array | None, dtype: Any
) -> Array:
    """∂ℓ/∂t · c in float64, with exponentials clipped where a run in `dtype` clips."""
    at = scores
    if not np.isfinite(family.curvature):
        bound = exp_bound(np.dtype(dtype))
        at = np.clip(scores, -bound, bound)
    found = family.residual(at.copy(), targets.astype(np.float64))
    exact: Array = np.asarray(found, dtype=np.float64)
    return exact if weights is None else exact * weights


# One model of several, as a run of it alone would see an exchange.


def task_of_model(number: int, task: Task, group: Group) -> tuple[Task, Group]:
    """Return the task and the group of model `number`."""
    models, coefficients = task.models, group.coefficients
    assert models is not None and isinstance(coefficients, ManyCoefficients)
    one = Models((models.each[number],), models.scores, (models.weights[number],))
    return (
        replace(task, columns=models.scores, models=one),
        replace(group, coefficients=coefficients.only(number, one)),
    )


def state_of(number: int, task: Task, state: State) -> State:
    """A copy of its state, and its residuals."""
    start, residuals = state.intercept, state.residuals
    return State(
        weights=columns_of(number, task, state.weights),
        intercept=None if start is None else columns_of(number, task, start),
        residuals=None if residuals is None else columns_of(number, task, residuals),
    )


def columns_of(number: int, task: Task, values: Array) -> Array:
    """Of all models' columns, state by state, those of that model."""
    models = task.models
    assert models is not None
    parts = values.reshape(len(values), -1, len(models), models.scores)
    return parts[:, :, number].reshape(len(values), -1)


# The gap monitor: the scores of the recurrence against fresh products, now and then.
#
# After the residuals of an exchange are known, every member walks its slice of the
# weights through the steps as plain SGD would, and forms the scores that the steps
# should have seen. These partial scores, folded with random signs into as many words as
# a batch has rows, travel in the next message; their sum is compared with the same fold
# of what the recurrence gives. Rounding to `margin` is in neither of the two. That the
# residuals in use are those of the recurrence is seen at once, by every member alone.


@dataclass(frozen=True)
class StepsBefore:
    """What the steps began with."""

    number: int
    margins: Array  # before they were rounded to their storage
    intercept: Array | None

    def of(self, number: int, task: Task) -> "StepsBefore":
        """What one of several models began with."""
        start = self.intercept
        return StepsBefore(
            self.number,
            columns_of(number, task, self.margins),
            None if start is None else columns_of(number, task, start),
        )


@dataclass(frozen=True)
class PendingCheck:
    """What the next message is compared with."""

    number: int
    own: Array  # this member's words
    expected: Array
    variance: Array  # of rounding, what the members' sizes do not say
    flushed: Array
    unit: float


class GapMonitor:
    """The monitor of one member, which checks one exchange in `every`.

    See `hpcsgd.backends.task.Monitor`. Its alarm is for all ranks.
    """

    def __init__(self, every: int, exchanges_per_epoch: int, seed: int) -> None:
        self.every = every
        self.exchanges_per_epoch = exchanges_per_epoch
        self.seed = seed
        self.last = 0  # the exchange before this one
        self.waiting: PendingCheck | None = None
        self.blank = 0  # words that nobody will read
        self.checks = 0
        self.alarm: dict[str, Any] | None = None

    @property
    def words(self) -> int:
        """Return how many words of this member wait for the next message."""
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
        self.checks += 1
        fresh, size = total[:-1].astype(np.float64), float(total[-1])
        gap = np.abs(fresh - found.expected)
        spread = np.sqrt(found.variance + (found.unit * size) ** 2)
        self.note("scores", found.number, gap, SAFETY * spread + found.flushed)

    def before(self, state: State, group: Group, margins: Array) -> StepsBefore | None:
        """Copies of what the steps begin with, where a look is due."""
        number = self._number(group)
        last, self.last = self.last, number
        if not self._is_due(number, last):
            return None
        intercept = None if state.intercept is None else state.intercept.copy()
        return StepsBefore(number, margins.copy(), intercept)

    def after(
        self,
        seen: StepsBefore,
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
            task, group = task_of_model(number, task, group)
        assert state.residuals is not None
        if not np.isfinite(state.residuals).all():
            # Left out by the scale of residuals, or a divergence that others see; the
            # message has the length that it would have had.
            self.blank = words_of(group.blocks.sizes)
            return
        exact = Exact.of(task, seen, group, gram, state.residuals)
        gap, allowed = exact.residual_gap(task, group, state.residuals)
        self.note("residuals", seen.number, gap, allowed)
        fold = Fold(group.blocks, task.columns, (self.seed, seen.number))
        model = model_of(task.precision, group.blocks, terms(task), task.members.size)
        fresh, size = recompute_scores(
            task, state, group, rows, fold, model, seen.number
        )
        variance = model.of_products(
            exact.led_size, exact.corrections.size, exact.scores
        )
        self.waiting = PendingCheck(
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

    def note(self, what: str, number: int, gap: Array, allowed: Array) -> None:
        """Raise the alarm where the recurrence error `gap` is above what is `allowed`.

        The alarm names the worst place. Entries whose bound is not finite are left to
        other checks, and only the first alarm of a run is kept.
        """
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
    corrections: Corrections
    used: Array  # Σ_k lead_k z_k of the margins as they were stored
    shift: Array | float  # q·β

    @classmethod
    def of(
        cls, task: Task, seen: StepsBefore, group: Group, gram: Array, residuals: Array
    ) -> "Exact":
        """What exchange `seen` had."""
        unrolled, blocks = group.coefficients.whole, group.blocks
        found = corrections(unrolled, blocks, gram, residuals)
        stored = store_margins(task, seen.margins.copy())
        return cls(
            scores=lead(unrolled, blocks, seen.margins) + found.total,
            led_size=lead_size(unrolled, blocks, seen.margins),
            corrections=found,
            used=lead(unrolled, blocks, stored),
            shift=intercepts(unrolled, blocks, seen.intercept, residuals),
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
            return residuals_at(task.family, scores, *settings)

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
