"""The monitor of the recurrence error, which compares it with the error of rounding."""

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
from hpcsgd.glm.families import NUMBERS, Family, exp_bound
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

SAFETY = 10.0  # standard deviations: a run makes very many checks


def unit(name: str) -> float:
    """Return the unit roundoff of the format `name`."""
    return get_format(name).unit_roundoff


def grown(u: float, terms: float) -> float:
    """Return u (1 + n u), the roundoff of a sum of n = `terms` terms.

    The factor accounts for the bias of a sum that stops growing.
    """
    return u * (1.0 + terms * u)


@dataclass(frozen=True)
class RoundoffModel:
    """Variances, by rounding, of recomputed scores minus those of the recurrence.

    `of_weights` and `of_steps` are in units of `unit`².
    """

    precision: Precision
    blocks: Blocks
    terms: float  # of the sum that a member makes for a score
    members: int

    def _unit(self, *fields: str) -> float:
        return max(unit(getattr(self.precision, name)) for name in fields)

    @cached_property
    def unit(self) -> float:
        """Return the coarsest unit roundoff of sums, weights and recurrence.

        The value is the same on all members.
        """
        used = [n for n in FIELDS if n not in ("matrix", "margin", "residual")]
        return self._unit(*used)

    @cached_property
    def of_weights(self) -> float:
        """Return the factor of ‖y∘w‖² in the variance of the score of a row y.

        It covers the sum of a member, the sum over members, and w rounded in every
        step. Its unit is `unit`²; ∘ multiplies element by element.
        """
        add = grown(self._unit("margin_sum"), self.terms)
        summed = add**2 * (self.terms / 6 + self.members)
        rounded = len(self.blocks.sizes) * self._unit("weights") ** 2
        return float((summed + rounded) / self.unit**2)

    @cached_property
    def of_steps(self) -> float:
        """Return the factor of ‖y∘Δw‖² in the variance of the score of a row y.

        Δw is the change of w in an exchange. The factor covers the sums of the Gram,
        its message, gradients and their factors. Its unit is `unit`²; ∘ multiplies
        element by element.
        """
        m = self.blocks.rows
        largest = max(self.blocks.sizes)
        gram = grown(self._unit("gram_sum"), self.terms) ** 2 * self.terms / 6
        wire = self._unit("gram_wire") ** 2 * self.members
        step = grown(self._unit("gradient_sum"), largest) ** 2 * (1 + largest / 6)
        factors = self._unit("inner", "weights") ** 2
        # Errors of m rows meet with signs of their own; those of a step do not.
        return float((gram + wire + step * min(m, largest) + factors) / self.unit**2)

    def of_products(self, led: Array, correction: Array, total: Array) -> Array:
        """Return the variance of every score of the recurrence, (m, K).

        It is that of rounding in the summed margins and Gram, absolute and not in units
        of `unit`². `led` is the size of the terms of the margins (`lead_size`),
        `correction` that of the terms of the Gram (`Corrections.size`), and `total` the
        scores.
        """
        sums = grown(self._unit("margin_sum"), self.terms) ** 2
        gram = grown(self._unit("gram_sum"), self.terms) ** 2
        wire = self._unit("gram_wire") ** 2
        of_margins = sums * (self.terms / 9 + self.members) * (led**2 + total**2)
        of_gram = (gram * self.terms / 9 + wire * self.members) * correction**2
        whole: Array = of_margins + of_gram
        return whole

    def flushed(self, pushed: Array) -> Array:
        """Return an estimate, for each row, of what sums lose to underflow, (m, 1).

        `pushed` is the size of the factors of the Gram in each row
        (`Corrections.pushed`).
        """
        root = sqrt(self.terms)
        margin = _tiny(self.precision, ("margin_sum",)) * root
        gram = _tiny(self.precision, ("gram_sum", "gram_wire")) * root
        least: Array = margin + gram * np.abs(pushed)
        return least


def recurrence_error(
    precision: Precision, blocks: Blocks, parts: Iterable[Any], size: Array
) -> Array:
    """Return the standard deviation of every score, (m, K), by rounding to `inner`.

    `inner` is the format of the recurrence in `precision`. A score is the sum of
    `parts` and of a correction, whose terms have the size `size`.
    """
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
    """Return the `RoundoffModel` of these arguments, which is cached."""
    return RoundoffModel(precision, blocks, terms, members)


def _tiny(precision: Precision, fields: Iterable[str]) -> float:
    return max(get_format(getattr(precision, name)).tiny for name in fields)


# Scores that the steps should have had, recomputed step by step, and folded into few
# words.

PROBES = 64  # least rows in an estimate of sizes; fewer rows are repeated


def words_of(sizes: tuple[int, ...]) -> int:
    """Return how many words a member sends for a check: the largest of `sizes`, or 2.

    `sizes` are the rows of each batch; 2 is the least number.
    """
    return max(*sizes, 2)


class Fold:
    """A map of (m, K) scores to few words, each a sum of scores with random signs.

    Equal `seed` on all members gives equal signs, so folds of partial scores add up.
    """

    def __init__(self, blocks: Blocks, columns: int, seed: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        # One of the words is the bound of the rounding errors.
        self.places = words_of(blocks.sizes) - 1
        drawn = rng.integers(0, 2, size=(blocks.rows, columns), dtype=np.int8)
        self.signs = 2.0 * drawn - 1.0
        rows = [np.arange(size) for size in blocks.sizes]
        self.place = np.concatenate(rows) % self.places

    def signed(self, values: Array) -> Array:
        """Return the words of the fold, sums of (m, K) `values` times random signs."""
        return self.added(self.signs * values)

    def added(self, values: Array) -> Array:
        """Return the words of the fold without signs: sums of (m, K) `values`."""
        total: Array = np.bincount(
            self.place, values.sum(axis=1, dtype=np.float64), self.places
        )
        return total


def terms(task: Task) -> float:
    """Return how many products a member adds up for one score, for rounding errors.

    With dense rows, it is the number of columns of the member with most of them. With
    sparse rows, it is an estimate: (1 + ν) C for C members, with ν stored values in a
    row of this member on average.
    """
    shard = task.shard
    if not shard.matrix.is_sparse:
        return float(shard.widest)
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
    """Return this member's recomputed scores as words of `fold`, and their error.

    The steps of `group` are applied one by one to a copy of this member's weights. The
    second result is the largest standard deviation of a word by rounding, estimated in
    units of `model.unit`. `number` is that of the exchange.
    """
    weights = state.weights.copy()
    starts = group.blocks.starts
    scores = np.empty((group.blocks.rows, task.columns), dtype=task.margin_dtype)
    for j, plan in enumerate(group.steps):
        part = slice(starts[j], starts[j + 1])
        task.backend.scores(rows[part], probed(task, weights), scores[part])
        if j + 1 < len(group.steps):
            residuals = state.residuals[part]  # type: ignore[index]
            task.backend.apply_update(weights, rows[part], residuals, plan)
    before = probed(task, state.weights)
    behind = probed(task, weights)
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
    """Return an estimate of ‖y ∘ spread‖² for every row y, (m, K).

    It is the mean square of y · (spread ∘ random signs), over as many signs as
    `PROBES` requires.
    """
    rng = np.random.default_rng(seed)
    m = len(fold.place)
    total = np.zeros((m, task.columns))
    out = np.empty(total.shape, dtype=task.margin_dtype)
    probes = max(1, PROBES // m)
    for _ in range(probes):
        signs = rng.integers(0, 2, size=(len(spread), 1), dtype=np.int8)
        signs = 2 * signs - 1
        task.backend.scores(rows, np.ascontiguousarray(spread * signs), out)
        total += np.square(out, dtype=np.float64)
    total /= probes
    return total


# The recurrence once more, in float64, from the products that the run had.


@dataclass(frozen=True)
class Corrections:
    """The corrections of scores by earlier steps, and how large their terms are.

    The correction of a row of step j is Σ_{i<j} g_ji G_ji r_i, with factors g_ji of the
    recurrence, the Gram G, and the residuals r_i of step i.
    """

    total: Array  # (m, K)
    size: Array  # (m, K), the root of the sum of squares of the terms
    pushed: Array  # (m, 1), the same of the factors g_ji r_i alone


def lead(unrolled: UnrolledSteps, blocks: Blocks, margins: Array) -> Array:
    """Return Σ_k lead_k z_k for all rows, (m, K).

    z_k are the margins at state k, and lead_k the factors of the recurrence.
    """
    return _led(unrolled.lead, blocks, margins)


def lead_size(unrolled: UnrolledSteps, blocks: Blocks, margins: Array) -> Array:
    """Return Σ_k |lead_k z_k| for all rows, (m, K): the size of the terms of `lead`."""
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
    """Return the corrections of all rows from the summed Gram and the residuals."""
    exact = residuals.astype(np.float64)
    total = np.zeros_like(exact)
    size = np.zeros_like(exact)
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
    """Return the intercept q·β at the step of every row, (m, K), in float64.

    β are the states of the intercept, which are `start` before the first step. Return 0
    if `start` is None (no intercept).
    """
    if start is None:
        return 0.0
    exact = residuals.astype(np.float64)
    at = start.astype(np.float64)
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
    """Return the residuals c ∂ℓ/∂t at the `scores` t, in float64.

    c are the sample `weights`, or 1 if None. If the curvature of `family` has no bound,
    scores are clipped to ± `exp_bound` of `dtype`.
    """
    at = scores
    if not np.isfinite(family.curvature):
        bound = exp_bound(np.dtype(dtype))
        at = np.clip(scores, -bound, bound)
    residuals = family.residual(at.copy(), targets.astype(np.float64))
    exact: Array = np.asarray(residuals, dtype=np.float64)
    return exact if weights is None else exact * weights


# One model of several, as a run of it alone would see an exchange.


def task_of_model(number: int, task: Task, group: Group) -> tuple[Task, Group]:
    """Return the task and the group of one model, `number`, of several."""
    models = task.models
    coefficients = group.coefficients
    assert models is not None and isinstance(coefficients, ManyCoefficients)
    model = Models((models.each[number],), models.scores, (models.weights[number],))
    return (
        replace(task, columns=models.scores, models=model),
        replace(group, coefficients=coefficients.only(number, model)),
    )


def state_of(number: int, task: Task, state: State) -> State:
    """Return a copy of the state of model `number`, with its residuals."""
    start = state.intercept
    residuals = state.residuals
    return State(
        weights=columns_of(number, task, state.weights),
        intercept=None if start is None else columns_of(number, task, start),
        residuals=None if residuals is None else columns_of(number, task, residuals),
    )


def columns_of(number: int, task: Task, values: Array) -> Array:
    """Return the columns of model `number` in `values`, an array of all models.

    Every state has columns for each model; the result has those of all states in order.
    """
    models = task.models
    assert models is not None
    parts = values.reshape(len(values), -1, len(models), models.scores)
    return parts[:, :, number].reshape(len(values), -1)


# The monitor: the scores of the recurrence against recomputed scores, now and then.
#
# After the residuals of an exchange are known, every member applies the steps to its
# part of the weights as plain SGD would, and computes the scores that the steps should
# have had. These partial scores, folded with random signs into as many words as a batch
# has rows, travel in the next message; their sum is compared with the same fold of the
# scores of the recurrence. Rounding to `margin` is in neither of the two. Every member
# checks at once and alone whether the residuals in use are those of the recurrence.


@dataclass(frozen=True)
class StepsBefore:
    """The margins and the intercept with which the steps of an exchange began."""

    number: int
    margins: Array  # before they were rounded to their storage
    intercept: Array | None

    def of(self, number: int, task: Task) -> "StepsBefore":
        """Return the margins and the intercept of model `number` of several."""
        start = self.intercept
        return StepsBefore(
            self.number,
            columns_of(number, task, self.margins),
            None if start is None else columns_of(number, task, start),
        )


@dataclass(frozen=True)
class PendingCheck:
    """A check whose words are sent in the next message, and their expected sums."""

    number: int
    own: Array  # this member's words
    expected: Array
    variance: Array  # of rounding, without that of the members' sizes
    flushed: Array
    unit: float


class GapMonitor:
    """The monitor of the recurrence error on one member.

    It checks one exchange in `every`; see `hpcsgd.backends.task.Monitor`. All ranks
    learn of an alarm of any member at their next poll.
    """

    def __init__(self, every: int, exchanges_per_epoch: int, seed: int) -> None:
        self.every = every
        self.exchanges_per_epoch = exchanges_per_epoch
        self.seed = seed
        self.last = 0  # the exchange before this one
        self.waiting: PendingCheck | None = None
        self.blank = 0  # words of the next message that are not compared
        self.checks = 0
        self.alarm: dict[str, Any] | None = None

    @property
    def words(self) -> int:
        """Return how many words of this member are to be sent in the next message."""
        return self.blank if self.waiting is None else len(self.waiting.own)

    def begin(
        self,
        done: int,
        plans: list[tuple[int, ...]],
        trains: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """Resume after exchange `done`, with the checks of a run without interruption.

        `plans` are the batch sizes of each exchange of an epoch, and `trains` returns
        whether this replica takes part in an exchange. If the words of a check were not
        sent before the interruption, zeros are sent in their place: messages keep their
        sizes, so that sums have the same bits.
        """
        each = self.exchanges_per_epoch
        count = len(plans)
        # The exchanges in which this replica had rows and trained, the last one first.
        worked = (
            number
            for number in range(done, 0, -1)
            if (number - 1) % each < count and trains(number)
        )
        self.last = next(worked, 0)
        before = next(worked, 0)
        if self.last and self._is_due(self.last, before):
            self.blank = words_of(plans[(self.last - 1) % each])

    def post(self, room: Array) -> None:
        """Write the words of the pending check to `room`, or zeros if there is none.

        `room` is the place of the words in the message.
        """
        room[...] = 0.0 if self.waiting is None else self.waiting.own

    def judge(self, total: Array) -> None:
        """Compare the words summed over members, `total`, with those of the recurrence.

        Set the alarm if they differ by more than rounding can explain. Do nothing if
        no check is pending.
        """
        check = self.waiting
        self.waiting = None
        self.blank = 0
        if check is None:
            return
        self.checks += 1
        fresh = total[:-1].astype(np.float64)
        size = float(total[-1])
        gap = np.abs(fresh - check.expected)
        spread = np.sqrt(check.variance + (check.unit * size) ** 2)
        self.note("scores", check.number, gap, SAFETY * spread + check.flushed)

    def before(self, state: State, group: Group, margins: Array) -> StepsBefore | None:
        """Return copies of `margins` and of the intercept from before the steps.

        Return None if no check of this exchange is due; `margins` are then not used.
        """
        number = self._number(group)
        last = self.last
        self.last = number
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
        """Check the residuals, recompute scores, and store words for the next message.

        `seen` is the result of `before`. If residuals are not finite, nothing is
        checked, and the words are zeros.
        """
        if task.models is not None:  # one model a check: models share their faults
            number = seen.number // self.every % len(task.models)
            seen = seen.of(number, task)
            state = state_of(number, task, state)
            task, group = task_of_model(number, task, group)
        assert state.residuals is not None
        if not np.isfinite(state.residuals).all():
            # The loss scale left the steps out, or the run diverged, which other checks
            # report; the message keeps its length.
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
        """Return whether `before` and `after` check the exchange of `group`."""
        return self._is_due(self._number(group), self.last)

    def _number(self, group: Group) -> int:
        return group.epoch * self.exchanges_per_epoch + group.index + 1

    def _is_due(self, number: int, last: int) -> bool:
        # Not "number % every": a replica with fewer rows takes part in fewer exchanges.
        return number // self.every > last // self.every

    def note(self, what: str, number: int, gap: Array, allowed: Array) -> None:
        """Set the alarm if an entry of the recurrence errors `gap` is above `allowed`.

        `what` was checked ("scores" or "residuals"), in exchange `number`. The alarm
        contains the two numbers of the entry with their largest ratio. Entries whose
        bound is not finite are ignored, and an alarm that is set already is kept.
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
    """The recurrence of one exchange in float64.

    It is computed from the run's own margins, Gram and residuals of the exchange.
    """

    scores: Array  # (m, K), of the margins as they were summed
    led_size: Array  # Σ_k |lead_k z_k|
    corrections: Corrections
    used: Array  # Σ_k lead_k z_k of the margins as they were stored
    shift: Array | float  # q·β

    @classmethod
    def of(
        cls, task: Task, seen: StepsBefore, group: Group, gram: Array, residuals: Array
    ) -> "Exact":
        """Return the recurrence of the exchange that began with `seen`."""
        unrolled = group.coefficients.whole
        blocks = group.blocks
        correction = corrections(unrolled, blocks, gram, residuals)
        stored = store_margins(task, seen.margins.copy())
        return cls(
            scores=lead(unrolled, blocks, seen.margins) + correction.total,
            led_size=lead_size(unrolled, blocks, seen.margins),
            corrections=correction,
            used=lead(unrolled, blocks, stored),
            shift=intercepts(unrolled, blocks, seen.intercept, residuals),
        )

    def residual_gap(
        self, task: Task, group: Group, residuals: Array
    ) -> tuple[Array, Array]:
        """Return the errors of the run's `residuals`, and their bounds by rounding.

        Both have the shape (m, K); the errors are absolute values.
        """
        batch = batch_of(task, group.rows)
        form = task.precision
        offset = 0.0 if batch.offsets is None else batch.offsets.astype(np.float64)
        parts = (self.led_size, self.shift, offset)
        at = self.used + self.corrections.total + self.shift + offset
        unit_roundoff = unit(form.residual)
        slack = recurrence_error(form, group.blocks, parts, self.corrections.size)
        slack = SAFETY * (slack + unit_roundoff * np.abs(at))
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
    """Return a bound of the rounding errors of the residuals `expected`, (m, K).

    A residual is a mean minus a target, times the sample weight.
    """
    form = task.precision
    real = task.family.targets in NUMBERS
    target = np.maximum(np.abs(targets), 1.0) if real else 1.0
    c = 1.0 if weights is None else weights
    u = max(unit(form.residual), unit(form.inner))
    least = max(get_format(name).tiny for name in (form.residual, form.inner))
    allowed: Array = SAFETY * (u * (2 * np.abs(expected) + c * target) + c * least)
    return allowed
