"""Full passes over all rows: gradients, curvature, scaling, optimality."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.backends.numpy_rows import add_combined, add_moments, exact_scores
from hpcsgd.comm.grid import Grid
from hpcsgd.formats import Array
from hpcsgd.glm.families import SQUARED, Family, least_losses
from hpcsgd.glm.penalties import Penalty
from hpcsgd.solvers.objective import Objective

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)

if TYPE_CHECKING:
    from concurrent.futures import Future

# All rows of the data as two products, in float64 on their exact values.
#
# Each is one pass over the rows of this rank. Scores are summed over members, gradients
# over replicas; both are booked as "evaluate", as every pass over all rows is.


@dataclass(frozen=True)
class WeightedMoments:
    """Moments of the columns under row weights h: sums over all rows."""

    first: Array  # Σ h a, (d_c, K)
    second: Array  # Σ h a², (d_c, K)
    total: Array  # Σ h, (K,)


class LossTerms(NamedTuple):
    """The losses of the local rows at some scores, and their derivatives."""

    loss: float  # Σ p ℓ
    slope: float  # Σ p r·q along the direction q of the scores
    size: float  # Σ p |ℓ|
    residuals: Array  # r, (n, K)
    bends: Array | None  # ∂r/∂t, (n, 1); None: nothing has computed them


@dataclass(frozen=True)
class AllRows:
    """The rows of an objective, with targets, and row weights whose sum is 1."""

    objective: Objective
    columns: int  # K
    targets: Array  # (n, 1)
    share: Array  # c / Σc, the sum over all rows: a mean is a sum of these; (n, 1)

    @property
    def grid(self) -> Grid:
        """Return the grid of the ranks that store the rows."""
        return self.objective.grid

    @property
    def height(self) -> int:
        """Return the number of rows of this replica."""
        return self.objective.shard.height

    @property
    def width(self) -> int:
        """Return the number of columns of this member."""
        return self.objective.shard.width

    @cached_property
    def cancelled(self) -> float:
        """The rounding error of Σ p r that the differences μ − y cause.

        No residual of a row that fits is more exact than its target.
        """
        is_label = self.objective.family.targets == "classes"  # whose y are indicators
        size = 1.0 if is_label else np.abs(self.targets)
        return float(np.finfo(float).eps * (self.share * size).sum())

    def terms(self, scores: Array, along: Array | None = None) -> LossTerms:
        """Return losses, residuals and curvatures of the local rows at these scores.

        A compiled kernel, if there is one for the family, takes one exponential for
        each score. If there is none, the result has no curvatures. Without a direction
        `along` the slope of the result has no meaning.
        """
        family = self.objective.family
        along = scores if along is None else along
        if compiled_calls.has_loss_terms(family, scores.shape[1]):
            sums, residuals, bends = compiled_calls.loss_terms(
                family, scores, self.targets, self.share, along
            )
            loss, slope, size = sums.tolist()
            return LossTerms(loss, slope, size, residuals, bends)
        losses = self.share * family.loss(scores, self.targets)
        residuals = family.residual(scores, self.targets)
        return LossTerms(
            loss=float(losses.sum()),
            slope=float(np.vdot(self.share * residuals, along)),
            size=float(np.abs(losses).sum()),
            residuals=residuals,
            bends=None,
        )

    def residuals(self, scores: Array, terms: LossTerms | None = None) -> Array:
        """Return c ∂ℓ/∂t / Σc of the local rows at these scores, (n, K).

        Σc is the sum over all rows. A gradient is Aᵀ times this array, summed over all
        rows. `terms` are those of the scores if they are known.
        """
        residuals: Array = self.share * (terms or self.terms(scores)).residuals
        return residuals

    def loss(self, scores: Array) -> float:
        """Return Σ c ℓ of the local rows, divided by Σc of all rows."""
        return self.terms(scores).loss

    def value(
        self, scores: Array, weights: Array, terms: LossTerms | None = None
    ) -> tuple[float, int]:
        """Return F, and how many exponents were clipped. Collective.

        `weights` are those of this member, `scores` those of all columns, and `terms`
        the loss terms at these scores if they are known. No pass over the rows, and one
        message of two words.
        """
        words = np.zeros(2)
        grid = self.grid
        if grid.member == 0:
            clips = self.objective.family.clipped(scores)
            words[:] = (terms or self.terms(scores)).loss, clips
        if grid.replica == 0:
            words[0] += self.objective.penalty.value(weights)
        grid.world.sum(words, "evaluate")
        return float(words[0]), int(words[1])

    def start(self, weights: Array, intercept: Array | None) -> Array:
        """Return the scores t = A w + β + offset of the local rows, (n, K).

        One pass over the rows. Collective over members.
        """
        scores, _ = self.scores(weights, np.empty(0))
        if intercept is not None:
            scores += intercept
        if self.objective.shard.offsets is not None:
            scores += self.objective.shard.offsets
        return scores

    def scores(self, weights: Array, words: Array) -> tuple[Array, Array]:
        """Return A w of the local rows, and the sum over members of `words`.

        One pass over the rows, and one message over members, of nK words and those of
        `words`.
        """
        height = self.height
        buffer = np.empty(height * self.columns + words.size)
        scores = buffer[: height * self.columns].reshape(height, self.columns)
        for rows, block in self.read_blocks():
            scores[rows] = exact_scores(block, weights)
        buffer[scores.size :] = words
        self.grid.members.sum(buffer, "evaluate")
        return scores, buffer[scores.size :]

    def gradient(self, residuals: Array) -> tuple[Array, Array]:
        """Return (Aᵀr, 1ᵀr) over all rows: one pass, one message of d_c·K + K words."""
        buffer = np.zeros((self.width + 1, residuals.shape[1]))
        buffer[-1] = column_sums(residuals)
        for rows, block in self.read_blocks():
            add_combined(block, residuals[rows], buffer[:-1])
        self.grid.replicas.sum(buffer, "evaluate")
        return buffer[:-1], buffer[-1]

    def moments(self, h: Array) -> WeightedMoments:
        """Return the moments of the columns under row weights h, (n, k).

        One pass over the rows, and one message of 2 d_c·k + k words.
        """
        buffer = np.zeros((2 * self.width + 1, h.shape[1]))
        first = buffer[: self.width]
        second = buffer[self.width : -1]
        buffer[-1] = h.sum(axis=0)
        for rows, block in self.read_blocks():
            add_moments(block, h[rows], first, second)
        self.grid.replicas.sum(buffer, "evaluate")
        return WeightedMoments(first, second, buffer[-1])

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """Return the range of local rows of each block."""
        return tuple(self.objective.blocks())

    def read_blocks(self) -> Iterator[tuple[slice, Any]]:
        """Yield the range of local rows of each block, and their exact values.

        Rows that stay in their file are read by a thread, one block ahead.
        """
        read = self.objective.read
        if self.objective.shard.matrix.is_in_memory:
            for rows in self.blocks:
                yield rows, read(rows)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1, "read-ahead") as ahead:
            expected: deque[tuple[slice, Future[Any]]] = deque()
            for rows in self.blocks:
                expected.append((rows, ahead.submit(read, rows)))
                if len(expected) > 1:
                    before, block = expected.popleft()
                    yield before, block.result()
            for before, block in expected:
                yield before, block.result()


def column_sums(values: Array) -> Array:
    """Return the sum of each column of (n, K) values, (K,).

    NumPy adds up short rows ten times as slowly as BLAS.
    """
    is_column = values.shape[1] == 1
    sums: Array = values.sum(axis=0) if is_column else np.ones(len(values)) @ values
    return sums


def open_rows(objective: Objective) -> AllRows:
    """Return the rows of an objective. Collective: one word is summed."""
    shard = objective.shard
    weights = np.ones((shard.height, 1)) if shard.weights is None else shard.weights
    total = np.array([weights.sum(dtype=np.float64)])
    objective.grid.replicas.sum(total, "evaluate")
    share = weights.astype(np.float64) / total[0]
    return AllRows(
        objective, objective.columns, shard.targets.astype(np.float64), share
    )


# The best intercept for the scores at hand: Newton on K numbers, no pass over rows.
#
# F is convex in β: the slope at the end of each Newton step shows whether the step is
# too long, and it is halved then. A trial is 2 + K + K² words over all ranks.

LOOKS = 60
DONE = 1e-14  # of the mean size of residuals: the accuracy of their sum
SINGULAR = 1e-7  # of the largest curvature: the error of a difference quotient
STEP = 1e-5  # of the difference quotient for the curvature
GRAIN = 2.0**10  # units in the last place of a score, which that step is at least
REACH = 10.0  # of the first step
FURTHER = 8.0  # so many times as far after a step that was cut


@dataclass(frozen=True)
class InterceptLevel:
    """The shift to the best intercept, and the decrease of F."""

    shift: Array  # β* − β, (K,)
    gain: float  # F(w, β) − F(w, β*), at least 0
    is_found: bool  # False: there is no best one, or it was not reached
    # Of the local rows at the shifted scores; None on members other than the first.
    terms: LossTerms | None = field(default=None, compare=False)


@dataclass(frozen=True)
class _LevelTrial:
    loss: float
    slope: Array  # Σ p r, (K,)
    bend: Array  # ∂ of it, (K, K)
    worth: float  # what rounding leaves of a slope that is 0
    terms: LossTerms | None  # of the local rows


def level(
    rows: AllRows, scores: Array, terms: LossTerms | None = None
) -> InterceptLevel:
    """Return the shift of all scores (n, K) by K numbers at which F is least.

    `terms` are the loss terms at these scores, if they are known. Collective.
    """
    shift = np.zeros(scores.shape[1])
    first = here = _look(rows, scores, shift, terms)
    reach = REACH
    for _ in range(LOOKS):
        if _is_flat(here):
            break
        step = _newton(here, reach)
        ahead = _look(rows, scores, shift + step)
        while not _is_lower(ahead, here, step) and np.abs(step).max() >= 1e-16:
            reach = 0.5 * float(np.abs(step).max())
            step = 0.5 * step
            ahead = _look(rows, scores, shift + step)
        shift = shift + step
        here = ahead
        if np.abs(step).max() < 1e-16:  # no step is better: from here it is the same
            break
        if np.abs(step).max() >= reach:  # targets may be of any size
            reach *= FURTHER
    gain = max(first.loss - here.loss, 0.0)
    return InterceptLevel(shift, gain, _is_flat(here), here.terms)


def _is_flat(look: _LevelTrial) -> bool:
    return bool(np.abs(look.slope).max() <= look.worth)


def _is_lower(ahead: _LevelTrial, before: _LevelTrial, step: Array) -> bool:
    """Return whether a step ends not too far past the minimum along it."""
    if not np.isfinite(ahead.loss):
        return False
    slope_ahead = float(ahead.slope @ step)
    slope_before = abs(float(before.slope @ step))
    # Residuals that are all saturated have one size on both sides.
    return abs(slope_ahead) <= (
        slope_before if slope_ahead <= 0.0 else 0.5 * slope_before
    )


def _newton(look: _LevelTrial, reach: float) -> Array:
    """Return Newton's step, with no entry larger than `reach`.

    It contains no equal shift of all classes, which would change nothing.
    """
    if not look.bend.any():  # all residuals are saturated: the longest step
        downhill: Array = -look.slope * (reach / np.abs(look.slope).max())
        return downhill
    if look.bend.size == 1:
        inverse = 1.0 / look.bend
    else:
        inverse = np.linalg.pinv(look.bend, SINGULAR, hermitian=True)
    return np.clip(-inverse @ look.slope, -reach, reach)


def _look(
    rows: AllRows, scores: Array, shift: Array, terms: LossTerms | None = None
) -> _LevelTrial:
    """Return F and its derivatives by β at `scores` plus `shift`. Collective.

    `terms` are the loss terms there, if they are known.
    """
    columns = len(shift)
    words = np.zeros(2 + columns + columns * columns)
    if rows.grid.member == 0:
        moved = scores + shift
        terms = terms or rows.terms(moved)
        residuals = rows.share * terms.residuals
        slope = residuals.sum(axis=0)
        worth = 10 * DONE * np.abs(residuals).sum() + rows.cancelled
        if rows.grid.world.size == 1 and np.abs(slope).max() <= worth:
            # The slope is 0 up to rounding: nobody needs its derivatives.
            flat = np.zeros((columns, columns))
            return _LevelTrial(terms.loss, slope, flat, worth, terms)
        bend, rounding = _bend(rows, moved, terms)
        words[0] = terms.loss
        words[1] = worth + rounding
        words[2 : 2 + columns] = slope
        words[2 + columns :] = bend.reshape(-1)
    rows.grid.world.sum(words, "evaluate")
    bend = words[2 + columns :].reshape(columns, columns)
    return _LevelTrial(
        loss=float(words[0]),
        slope=words[2 : 2 + columns],
        bend=(bend + bend.T) / 2,
        worth=float(words[1]),
        terms=terms,
    )


def _bend(rows: AllRows, scores: Array, terms: LossTerms) -> tuple[Array, float]:
    """Return ∂(Σ p r)/∂β, (K, K), and what the rounding of scores adds to Σ p r.

    p are the shares of the rows, r their residuals, and β the K intercepts. The
    curvatures come from `terms`; if it has none, from the formula of the softmax,
    μ_k (δ_kq − μ_q), or from difference quotients for other families.
    """
    columns = scores.shape[1]
    family = rows.objective.family
    grain = np.spacing(np.abs(scores))
    if terms.bends is not None:
        each = rows.share * terms.bends
        return each.sum(axis=0)[:, None], float((each * grain).sum())
    if family.targets == "classes":
        mean = terms.residuals + (rows.targets == np.arange(columns))
        each = rows.share * mean
        derivatives = np.diag(each.sum(axis=0)) - mean.T @ each
        return derivatives, 2.0 * float((each * (1.0 - mean) * grain).sum())
    derivatives = np.empty((columns, columns))
    rounding = 0.0
    width = max(STEP, GRAIN * float(np.spacing(np.abs(scores).max(initial=0.0))))
    for k in range(columns):
        away = np.zeros(columns)
        away[k] = width
        ahead = rows.residuals(scores + away) - rows.residuals(scores - away)
        derivatives[k] = ahead.sum(axis=0) / (2 * width)
        rounding += float(np.abs(ahead * np.spacing(scores)).sum()) / (2 * width)
    return derivatives, rounding


# Other variables, in which badly scaled columns are no harder than good ones.
#
# Where the objective is about quadratic its curvature along a column is that of the
# column's weighted values: with h = c ∂r/∂t / Σc, e = Σh and the mean m = Σ h a / e,
#
#   D = Σ h a² − e m² + λ        (columns centred by the intercept, where there is one)
#
# so that u = √D w and ν = √e (β + m·w) see a curvature of about 1 in every direction.
# With these variables L-BFGS begins as if all columns were standardised, sparse ones
# too: nothing is subtracted from the matrix. No message is needed to change gradients:
#
#     ∂F/∂u = (∂F/∂w − m ∂F/∂β) / √D        ∂F/∂ν = ∂F/∂β / √e

SCALING_STEP = 1e-3  # of the difference quotient that curvatures are taken by
LEAST = 1e-3  # of the family's largest curvature: rows beyond a kink still count
FLOOR = 1e-10  # of a column's second moment: what centring leaves of a constant


@dataclass(frozen=True)
class VariableScaling:
    """The change of variables from w and β to u = √D w and ν = √e (β + m·w).

    `centers` are zero where there is no intercept.
    """

    roots: Array  # √D, (d_c, K)
    centers: Array  # m, (d_c, K)
    level: Array  # √e, (K,)

    def gradient(self, weights: Array, intercept: Array) -> tuple[Array, Array]:
        """Return the gradient in the new variables, ∂F/∂u and ∂F/∂ν."""
        return (weights - self.centers * intercept) / self.roots, intercept / self.level

    def weights(self, moved: Array) -> Array:
        """Return the move of w that corresponds to a move of u."""
        return moved / self.roots

    def pull(self, weights: Array) -> Array:
        """Return this member's part of m·w, (K,), for a move `weights` of w.

        The move of β is less by the sum of these parts.
        """
        taken: Array = (self.centers * weights).sum(axis=0)
        return taken


def make_scaling(
    moments: WeightedMoments, l2: float, has_intercept: bool
) -> VariableScaling:
    """Return the scaling for these moments of curvature-weighted columns."""
    total = np.maximum(moments.total, TINY)
    centers = moments.first / total * has_intercept
    second = moments.second - total * np.square(centers)
    spread = np.maximum(second, FLOOR * moments.second) + l2
    # A column of zeros has no curvature, and no gradient either.
    spread[spread == 0.0] = 1.0
    return VariableScaling(np.sqrt(spread), centers, np.sqrt(total))


def bends(
    family: Family, scores: Array, targets: Array, terms: LossTerms | None = None
) -> Array:
    """Return the derivatives ∂r_k/∂t_q at these scores, (n, K, K).

    They are taken from `terms` if it has them.
    """
    if terms is not None and terms.bends is not None:
        return terms.bends[:, :, None]
    if family.targets == "classes":
        mean = family.mean(scores)
        derivatives: Array = -mean[:, :, None] * mean[:, None, :]
        diagonal = np.arange(scores.shape[1])
        derivatives[:, diagonal, diagonal] += mean
        return derivatives
    return _quotient(family, scores, targets)[:, :, None]


def _quotient(
    family: Family, scores: Array, targets: Array, step: float = SCALING_STEP
) -> Array:
    ahead = family.residual(scores + step, targets)
    quotient: Array = (ahead - family.residual(scores - step, targets)) / (2 * step)
    return quotient


def exact_bends(family: Family, scores: Array, targets: Array) -> Array:
    """Return the derivatives ∂r_k/∂t_q at these scores, (n, K, K).

    Their error is about 1e-11 for a smooth family: two difference quotients, of one
    step and of two, cancel the error of the first.
    """
    if family.targets == "classes":
        return bends(family, scores, targets)
    near = _quotient(family, scores, targets)
    far = _quotient(family, scores, targets, 2 * SCALING_STEP)
    derivatives: Array = (near + (near - far) / 3.0)[:, :, None]
    return derivatives


def curvatures(
    family: Family,
    scores: Array,
    targets: Array,
    floor: float = LEAST,
    known: Array | None = None,
) -> Array:
    """Return the derivatives ∂r_k/∂t_k about these scores, (n, K).

    `known` are these derivatives if they have been computed before. All are raised by
    `floor` times the family's largest curvature, if that is finite. Of classes, each is
    the mean over all classes.
    """
    diagonal: Array
    if family.targets == "classes":
        mean = family.mean(scores)
        # The same for all classes: a scaling of each class would turn gradients towards
        # equal shifts of all scores, which change nothing.
        each = (mean * (1.0 - mean)).mean(axis=1, keepdims=True)
        diagonal = np.broadcast_to(each, scores.shape).copy()
    else:
        diagonal = _quotient(family, scores, targets) if known is None else known.copy()
    if np.isfinite(family.curvature):
        diagonal += floor * family.curvature
    return diagonal


# How far weights are from the optimum: the norm of ∇F, and a bound of F − F*.
#
# Every loss lies above its tangents: with p_i = c_i/Σc, residuals r and g = Σ p_i r_i
# a_i
#
#     F(u, γ) ≥ Σ p_i ℓ_i(t_i) + g·(u − w) + (Σ p_i r_i)·(γ − β) + penalty(u)
#
# for all u, γ. Where Σ p_i r_i = 0 the right side has a minimum in u, column by column:
# a bound of F* from below. With a ridge alone it is F − F* ≤ ‖∇_w F‖²/(2λ). It is the
# dual of Fenchel at θ = r. An intercept that is not penalised is first moved to its own
# optimum β* on the scores at hand, which takes no pass over the matrix:
#
#     F(w, β) − F*  ≤  F(w, β) − F(w, β*)  +  Σ_j [φ_j(w_j) − min_u φ_j(u)]   at β*
#     φ_j(u) = g_j u + (λ/2) u² + l1 |u|    within the bounds of column j
#
# Without a ridge the minimum may be −∞, where a column without an end has |g_j| > l1.
# The dual point θ = τ r with τ = l1 / max |g_j| is feasible then, and the bound at β*
# is
#
#     Σ p_i B_i(τ) + Σ_j [l1 |w_j| + τ g_j w_j + max_u (−τ g_j u − l1 |u|)]
#     B_i(τ) = ℓ_i(t_i) + ℓ_i*(τ r_i) − τ r_i t_i  ≤  (1 − τ) (ℓ_i(t_i) − min ℓ_i)
#
# with ℓ* the conjugate of the loss (Ndiaye, Fercoq, Gramfort and Salmon, 2017, JMLR
# 18(128), scale a dual point so). B_i is convex in τ, 0 at τ = 1 and ℓ_i − min ℓ_i at
# τ = 0: the chord bounds it for every family, and vanishes as τ comes to 1. Where
# ℓ = r²/2 it is (1 − τ)² ℓ_i: with a small l1 the rounding of g in 1 − τ = 1 − l1/max
# |g_j| is then squared, and not multiplied by F. Without l1 no τ above 0 is feasible:
# no gap is known.

NULL_SHARE = 1e-3  # of F of the null model above its bound: what counts as F at least
FINEST = 1e-13  # gap, relative to F, that float64 sums can show


@dataclass(frozen=True)
class Optimality:
    """Gradient norm and gap of weights, the same on all ranks."""

    gradient: float  # ‖∇F‖; of its smallest subgradient where l1 or bounds bend F
    gap: float | None = None  # F − F* is at most that; None: nothing is known
    # Of the smooth part by this member's columns, (d_c, K).
    slope: Array | None = field(default=None, compare=False)

    def as_dict(self, with_gap: bool) -> dict[str, float | None]:
        """Return the entries of a record of the history.

        They are `gradient` and, if `with_gap` is set, `gap`.
        """
        entries: dict[str, float | None] = {"gradient": self.gradient}
        return entries | ({"gap": self.gap} if with_gap else {})


def gradient_of(
    objective: Objective, weights: Array, intercept: Array | None
) -> Optimality:
    """Return the norm of the gradient alone: one pass. Collective."""
    return Optimality(objective.norm(objective.slope(weights, intercept)))


def gap_limit(tol: float, loss: float, null_excess: float) -> float:
    """Return the largest certified gap F − F* that counts as converged.

        tol · max(|F|, 1e-3 · F₀)

    F is `loss`, and tol counts as at least 1e-13. F₀, the `null_excess`, is F of the
    null model less the least that F could be. It keeps the limit above zero where F
    itself vanishes, as on separable data.
    """
    return max(tol, FINEST) * gap_scale(loss, null_excess)


def gap_scale(loss: float, null_excess: float) -> float:
    """Return max(|F|, 1e-3 · F₀), which a gap is relative to.

    F is `loss`, and F₀ is F of the null model less the least that F could be.
    """
    return max(abs(loss), NULL_SHARE * null_excess)


def gap_of(objective: Objective, weights: Array, intercept: Array | None) -> Optimality:
    """Return gradient norm and gap by two passes over the rows. Collective.

    The first pass computes the scores, the second both gradients.
    """
    rows = open_rows(objective)
    weights = weights.astype(np.float64)
    return gap_at(rows, weights, intercept, rows.start(weights, intercept))


@dataclass(frozen=True)
class Tangents:
    """The tangents of all losses at scores t̂, which bound F from below."""

    scores: Array  # t̂ of the local rows, (n, K)
    terms: LossTerms  # of the local rows there
    slope: Array  # Σ p_i r_i a_i by this member's columns, (d_c, K)
    best: InterceptLevel | None  # from which t̂ has the best intercept, if there is one


def tangents_at(
    rows: AllRows,
    scores: Array,
    terms: LossTerms,
    slope: Array,
    has_intercept: bool,
) -> Tangents:
    """Return the tangents at `scores` with the best intercept. Collective.

    `terms` are the loss terms at `scores`, and `slope` is Σ p_i r_i a_i there. If the
    intercept is the best one already there is no pass over the rows, else one.
    """
    best = level(rows, scores, terms) if has_intercept else None
    if best is None or not best.shift.any():
        return Tangents(scores, terms, slope, best)
    touched = scores + best.shift
    at_best = best.terms or rows.terms(touched)
    slope, _ = rows.gradient(rows.share * at_best.residuals)
    return Tangents(touched, at_best, slope, best)


def gap_at(
    rows: AllRows,
    weights: Array,
    intercept: Array | None,
    scores: Array,
    best: InterceptLevel | None = None,
) -> Optimality:
    """Return gradient and gap where the local scores (n, K) are known: one pass.

    `best` is the level of `scores`, if it is known.
    """
    terms = None
    if best is None and intercept is not None:
        terms = rows.terms(scores)
        best = level(rows, scores, terms)
    touched = scores
    at_best = None if best is None else best.terms
    if best is not None and best.shift.any():
        touched = scores + best.shift
        at_best = at_best or rows.terms(touched)
        both = [rows.residuals(scores, terms), rows.share * at_best.residuals]
    else:
        at_best = at_best or terms or rows.terms(scores)
        both = [rows.share * at_best.residuals]
    slope, drift = rows.gradient(np.hstack(both))
    columns = weights.shape[1]
    tangents = Tangents(touched, at_best, slope[:, -columns:], best)
    gradient = slope[:, :columns], None if intercept is None else drift[:columns]
    gain = 0.0 if best is None else best.gain
    return _optimality(rows, weights, gradient, tangents, lambda: gain)


def gap_above(
    rows: AllRows,
    weights: Array,
    intercept: Array | None,
    exact: tuple[Array, LossTerms],
    tangents: Tangents,
) -> Optimality:
    """Return gradient and gap by the tangents at other scores: one pass.

    `exact` are the scores of the weights, and the loss terms there. The tangents touch
    at scores that were added up step by step, and differ from `exact` by rounding. The
    gradient that is returned is the one at `exact`. Huge rows multiply rounding errors
    in it, so the gap is bounded by the tangents, and grows for this by Σ p_i [ℓ_i(t_i)
    − ℓ_i(t̂_i) − r_i (t_i − t̂_i)] alone.
    """
    scores, terms = exact
    slope, drift = rows.gradient(rows.share * terms.residuals)
    gradient = slope, None if intercept is None else drift
    return _optimality(
        rows, weights, gradient, tangents, lambda: _above(rows, scores, tangents)
    )


def gap_of_tangents(rows: AllRows, weights: Array, tangents: Tangents) -> float | None:
    """Return the gap of weights at whose scores the tangents touch. Collective.

    The intercept may be another one than the best. No pass over the rows.
    """
    gradient = tangents.slope, None
    best = tangents.best
    gain = 0.0 if best is None else best.gain
    return _optimality(rows, weights, gradient, tangents, lambda: gain).gap


def _optimality(
    rows: AllRows,
    weights: Array,
    gradient: tuple[Array, Array | None],
    tangents: Tangents,
    above_tangents: Callable[[], float],
) -> Optimality:
    """Return the norm of a gradient, and the gap by tangents. Collective.

    `gradient` is that of the losses by the weights and the intercept. `above_tangents`
    returns how far the losses are above the tangents. No pass over the rows.
    """
    slope, drift = gradient
    penalty = rows.objective.penalty
    smooth = slope + penalty.l2 * weights
    least = penalty.least(*penalty.unsettled(weights, smooth))
    above = above_least(penalty, weights, tangents.slope)
    words = np.array([np.sum(np.square(least)), above])
    rows.grid.members.sum(words, "evaluate")
    if drift is not None:
        words[0] += np.sum(np.square(drift))
    gap = float(words[1])
    if not np.isfinite(gap):
        gap = _scaled_gap(rows, weights, tangents)
    gap += above_tangents()
    best = tangents.best
    is_known = np.isfinite(gap) and (best is None or best.is_found)
    return Optimality(float(np.sqrt(words[0])), gap if is_known else None, smooth)


def _above(rows: AllRows, exact: Array, tangents: Tangents) -> float:
    """Return Σ p [ℓ(t) − ℓ(t̂) − r(t̂)·(t − t̂)] of all rows, at least 0. One message."""
    word = np.zeros(1)
    if rows.grid.member == 0:
        family = rows.objective.family
        targets = rows.targets
        scores = tangents.scores
        above = family.loss(exact, targets) - family.loss(scores, targets)
        above -= (tangents.terms.residuals * (exact - scores)).sum(
            axis=1, keepdims=True
        )
        word[0] = float((rows.share * np.maximum(above, 0.0)).sum())
    rows.grid.world.sum(word, "evaluate")
    return float(word[0])


def _scaled_gap(rows: AllRows, weights: Array, tangents: Tangents) -> float:
    """Return the bound of the gap at the dual point θ = τ r; inf if there is no τ.

    It takes no pass over the matrix.
    """
    objective = rows.objective
    penalty = objective.penalty
    grid = objective.grid
    weights, slope = penalty.unsettled(weights, tangents.slope)
    endless = slope
    if penalty.is_bounded:
        lower, upper = penalty.bounds(weights)
        is_endless = (slope < 0.0) & np.isinf(upper)
        is_endless |= (slope > 0.0) & np.isinf(lower)
        endless = slope[is_endless]
    largest = np.abs(endless).max(initial=0.0)
    steepest = grid.members.max_number(float(largest), "evaluate")
    if penalty.l1 == 0.0 or not np.isfinite(steepest):
        return float("inf")
    # Slightly less than the limit, which rounding could exceed otherwise.
    tau = 1.0 if steepest <= penalty.l1 else penalty.l1 / steepest * (1 - 1e-15)
    words = np.zeros(2)
    words[0] = above_least(penalty, weights, tau * slope)
    if grid.member == 0:
        least = least_losses(objective.family, rows.targets)
        words[1] = tangents.terms.loss - float((rows.share * least).sum())
    grid.members.sum(words[:1], "evaluate")
    grid.world.sum(words[1:], "evaluate")
    share = (1.0 - tau) ** (2 if objective.family.name in SQUARED else 1)
    return float(words[0] + share * words[1])


def above_least(penalty: Penalty, weights: Array, slope: Array) -> float:
    """Return Σ_j [φ_j(w_j) − min φ_j] of these columns; inf if there is no minimum.

    Each term is at least 0. With u the minimum and v = g + λu a term is v(w − u) +
    l1(|w| − |u|) + (λ/2)(w − u)². Written so, small gaps keep their digits.
    """
    weights, slope = penalty.unsettled(weights, slope)
    if penalty.is_smooth and penalty.l2:  # v is 0, whatever rounding makes of it
        away = weights + slope / penalty.l2
        above = float((0.5 * penalty.l2 * np.square(away)).sum())
        return above if np.isfinite(above) else float("inf")
    is_endless = penalty.l2 == 0.0 and not penalty.is_bounded
    if is_endless and not np.abs(slope).max(initial=0.0) <= penalty.l1:
        return float("inf")
    best = penalty.minimum(weights, slope)
    if not np.isfinite(best).all():
        return float("inf")
    away = weights - best
    tangent = (slope + penalty.l2 * best) * away
    tangent += penalty.l1 * (np.abs(weights) - np.abs(best))
    if penalty.is_smooth:
        tangent = np.zeros_like(away)
    return float(np.sum(np.maximum(tangent, 0.0) + 0.5 * penalty.l2 * np.square(away)))


# Columns far from zero, which lose their digits unless a constant is subtracted.
#
# Scores of a column with mean m and standard deviation σ lose log10(|m|/σ) digits to
# m·w, which the intercept only takes back. Where |m| > 1000 σ for a dense column, and
# there is an intercept, the finisher works on
#
#     a' = a − m,   β' = β + m·w        the same F, the same w
#
# Columns that are constant up to rounding become zeros, as they are for the best
# intercept. Sparse rows are left as they are: subtracting would fill them.

FAR = 1e3  # standard deviations from zero: three digits of every score are lost
CONSTANT = 16 * EPS  # of |m|: a deviation of rounding


@dataclass(frozen=True)
class Centers:
    """The means that are subtracted from this member's columns."""

    means: Array  # (d_c,), 0 where nothing is subtracted
    is_constant: Array  # (d_c,), columns that become zeros

    def centred(self, block: Array) -> Array:
        """Return the rows `block` in float64, less the means of the columns."""
        centred = block.astype(np.float64)
        centred -= self.means
        centred[:, self.is_constant] = 0.0
        return centred

    def moved(self, objective: Objective, weights: Array) -> Array:
        """Return m·w over the columns of all members, (K,). Collective."""
        words = np.zeros(weights.shape[1])
        words += self.means @ weights.astype(np.longdouble)
        objective.grid.members.sum(words, "evaluate")
        return words


def find_centers(rows: AllRows, moments: WeightedMoments) -> Centers | None:
    """Return the means to subtract from columns that are far from zero, or None.

    None for sparse rows, and if there are no such columns, or all of them are constant.
    `moments` are those of the columns. Collective: a flag over all ranks, and if it is
    set a pass over the rows and a second flag.
    """
    world = rows.grid.world
    total = np.maximum(moments.total, TINY)
    means = (moments.first / total)[:, 0]
    far = _are_far(means, (moments.second / total)[:, 0] - np.square(means))
    if not world.max_flag(int(far.any() and not rows.objective.shard.is_sparse)):
        return None
    first_centers = Centers(np.where(far, means, 0.0), np.zeros(len(means), dtype=bool))
    centred = replace(rows, objective=centre(rows.objective, first_centers))
    exact = centred.moments(rows.share)
    spread = np.maximum(exact.second[:, 0] - np.square(exact.first[:, 0]), 0.0)
    is_constant = far & (np.sqrt(spread) <= CONSTANT * np.abs(means))
    if not world.max_flag(int((far & ~is_constant).any())):
        return None
    # The means of the centred columns are what cancellation left of the first ones.
    return Centers(np.where(far, means + exact.first[:, 0], 0.0), is_constant)


def _are_far(means: Array, variances: Array) -> Array:
    squares = FAR * FAR * np.maximum(variances, 0.0)
    far: Array = (np.square(means) > squares) & (means != 0.0)
    return far


def centre(objective: Objective, centers: Centers) -> Objective:
    """Return the objective of the centred rows."""
    read: Callable[[slice], Any] = objective.read
    return replace(objective, read=lambda rows: centers.centred(read(rows)))


# Separable data: a model makes no error on any row, and F has no minimum.
#
# Where every row of weight c_i > 0 is on the side of its own class by the score less
# its offset, so it is for any multiple of the weights: the loss falls to 0 as they
# grow, and no finite weights reach that. A penalty, or bounds, give F a minimum again.

# Losses of these families are above 0 at every score; those of binomial are where all
# trials of a row end alike.
ENDLESS = ("logistic", "probit", "softmax", "binomial")
NO_MINIMUM = (
    "the columns tell the classes apart without an error, so that F has no minimum: the"
    " coefficients grow without end; give a penalty"
)


def may_lack_minimum(family: str, penalty: Penalty) -> bool:
    """Return whether F may have no minimum.

    It may if the family is one of `ENDLESS`, and no penalty or bound limits the
    weights.
    """
    return family in ENDLESS and penalty.is_nothing and not penalty.is_bounded


def is_separated(rows: AllRows, scores: Array) -> bool:
    """Return whether the score of each row is on the side of its class. Collective.

    Offsets are subtracted from the scores, and rows without weight do not count. The
    result is that of all ranks together, by one flag. No pass over the matrix.
    """
    offsets = rows.objective.shard.offsets
    model_scores = scores if offsets is None else scores - offsets
    counts = rows.share[:, 0] > 0.0
    if rows.objective.family.targets == "classes":
        label = rows.targets.astype(np.intp)
        mine = np.take_along_axis(model_scores, label, axis=1)
        others = model_scores.copy()
        np.put_along_axis(others, label, -np.inf, axis=1)
        margins = mine[:, 0] - others.max(axis=1)
    else:
        side = 2.0 * rows.targets - 1.0
        # A proportion between 0 and 1 is on no side: its loss has a minimum.
        margins = np.where(np.abs(side) == 1.0, side * model_scores, -1.0)[:, 0]
    is_wrong = bool((counts & ~(margins > 0.0)).any())
    return not rows.grid.world.max_flag(int(is_wrong))
