"""L-BFGS on all rows, and the certified gap that ends it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite, sqrt
from typing import NamedTuple

import numpy as np

from hpcsgd.backends import compiled_calls
from hpcsgd.formats import Array
from hpcsgd.glm.families import least_losses
from hpcsgd.settings import Settings, setting
from hpcsgd.solvers.callbacks import Request
from hpcsgd.solvers.full_passes import (
    EPS,
    LEAST,
    TINY,
    AllRows,
    Centers,
    LossTerms,
    Tangents,
    VariableScaling,
    WeightedMoments,
    centre,
    curvatures,
    find_centers,
    gap_limit,
    gap_of_tangents,
    level,
    make_scaling,
    tangents_at,
)

# The two-loop recursion of L-BFGS on inner products alone.
#
# The direction is a combination of 2M + 1 vectors: the gradient g, the last M moves s,
# and the changes y of the gradient over them. Each rank holds its part of these; the
# recursion needs nothing but their inner products, of which an iteration has 3(2M + 1)
# new ones, in one message (Chen, Wang, Zhou 2014).

CURVED = 1e-14  # of ‖s‖‖y‖: a pair with a smaller s·y is not used


class CurvaturePairs:
    """This rank's part of the vectors of L-BFGS, and inner products of whole vectors.

    The vectors are the gradient g, and for each of M slots the move s of the point and
    the change y of the gradient over this move.
    """

    def __init__(self, depth: int, length: int) -> None:
        self.depth = depth
        self.vectors = np.zeros((2 * depth + 1, length))
        self.products = np.zeros((2 * depth + 1, 2 * depth + 1))
        self.order: list[int] = []  # slots of good pairs, the oldest first
        self.slot = depth - 1  # of the newest pair
        self.filled = 0  # slots that have been used

    @property
    def words(self) -> int:
        """Return the number of new inner products in one iteration."""
        return 3 * len(self.vectors)

    @property
    def gradient(self) -> Array:
        """Return this rank's part of the gradient g."""
        gradient: Array = self.vectors[0]
        return gradient

    @property
    def square(self) -> float:
        """Return g·g of the whole gradient."""
        return float(self.products[0, 0])

    @property
    def newest(self) -> tuple[int, int, int]:
        """Return the places of the vectors that are new in each iteration: g, s, y."""
        return 0, 1 + 2 * self.slot, 2 + 2 * self.slot

    def begin(self, gradient: Array) -> None:
        """Store this rank's part of the gradient at the first point."""
        self.vectors[0] = gradient

    def put(self, move: Array, gradient: Array) -> None:
        """Store the pair of an iteration: the move s, and the change y of the gradient.

        `gradient` is this rank's part of the gradient after the move.
        """
        self.slot = (self.slot + 1) % self.depth
        self.filled = max(self.filled, self.slot + 1)
        if self.slot in self.order:
            self.order.remove(self.slot)
        _, s, y = self.newest
        self.vectors[s] = move
        np.subtract(gradient, self.gradient, out=self.vectors[y])
        self.vectors[0] = gradient

    def parts(self, own: slice) -> Array:
        """Return what the entries `own` of the vectors add to the new products, flat.

        The sums over all members are the new inner products.
        """
        used = self.vectors[: 1 + 2 * self.filled, own]
        parts = np.zeros((3, len(self.vectors)))
        for part, number in zip(parts, self.newest, strict=True):
            # One product of a matrix with three columns takes twice as long.
            part[: len(used)] = used @ self.vectors[number, own]
        return parts.reshape(-1)

    def add_products(self, total: Array) -> None:
        """Store the new inner products: the sums of `parts` over all members."""
        products = self.products
        for new, number in zip(total.reshape(3, -1), self.newest, strict=True):
            products[number] = products[:, number] = new
        _, s, y = self.newest
        size = sqrt(products[s, s] * products[y, y])
        if products[s, y] > CURVED * size:
            self.order.append(self.slot)

    def forget(self) -> None:
        """Remove all pairs; the gradient remains."""
        self.order.clear()

    def all_parts(self, own: slice) -> Array:
        """Return what the entries `own` of the vectors add to all products.

        The sums over all members are the inner products.
        """
        vectors = self.vectors[:, own]
        products: Array = vectors @ vectors.T
        return products

    def direction(self) -> tuple[Array, float]:
        """Return this rank's part of the direction p = −H g, and g·p of whole vectors.

        H is the approximation of the inverse Hessian by the stored pairs.
        """
        if compiled_calls.available():
            coefficients = compiled_calls.two_loops(self.order, self.products)
        else:
            coefficients = two_loops(self.order, self.products)
        used = 1 + 2 * self.filled
        slope = float(coefficients @ self.products[0])
        return coefficients[:used] @ self.vectors[:used], slope


def two_loops(order: list[int], products: Array) -> Array:
    """Return the coefficients whose combination of the vectors is p = −H g.

    They follow from Nocedal's two loops, over the slots in `order`.
    """
    coefficients = np.zeros(len(products))
    coefficients[0] = -1.0
    shares = {}
    for slot in reversed(order):
        s, y = 1 + 2 * slot, 2 + 2 * slot
        shares[slot] = coefficients @ products[s] / products[s, y]
        coefficients[y] -= shares[slot]
    if order:
        s, y = 1 + 2 * order[-1], 2 + 2 * order[-1]
        coefficients *= products[s, y] / products[y, y]
    for slot in order:
        s, y = 1 + 2 * slot, 2 + 2 * slot
        coefficients[s] += shares[slot] - coefficients @ products[y] / products[s, y]
    return coefficients


# How far to go along a direction: no trial reads the matrix.
#
# Scores are linear, t(a) = t + a q, and the objective is convex along the line, so the
# search is for a root of its slope. A trial costs n exponentials and a few words.

STEEP = 0.5  # of the first slope: the search ends at a flatter one
TRIALS = 40
LONGER = 10.0  # at most so many times the step before
MARGIN = 0.1  # of a bracket that the next trial keeps off its ends


class Trial(NamedTuple):
    """The objective after a step a along a direction, at the scores t + a q."""

    step: float  # a
    value: float
    slope: float
    noise: float  # differences of values below it mean nothing

    @property
    def is_finite(self) -> bool:
        """Return whether the step was short enough that no number overflowed."""
        return isfinite(self.value) and isfinite(self.slope)


def search(look: Callable[[float], Trial], begin: Trial) -> tuple[Trial | None, int]:
    """Search along a direction; return (trial, number of trials).

    The size of the trial's slope is at most `STEEP` times that of `begin`, the trial of
    step 0, and its value is no higher; the trial is None if no such step is found.
    `look` returns the trial of a step; the first step is 1.
    """
    low = begin
    high = None
    step = 1.0
    for count in range(1, TRIALS + 1):
        trial = look(step)
        if _too_far(trial, begin):
            high = trial
        elif trial.slope < STEEP * begin.slope:
            low = trial
        else:
            return trial, count
        step = _next(begin, low, high)
        if step in (low.step, 0.0 if high is None else high.step):
            return None, count
    return None, TRIALS


def _too_far(trial: Trial, begin: Trial) -> bool:
    if not trial.is_finite:
        return True
    rises = trial.value > begin.value + begin.noise
    return rises or trial.slope > -STEEP * begin.slope


def _next(begin: Trial, low: Trial, high: Trial | None) -> float:
    """Return the next step to try.

    It is the root of the slope by linear interpolation between trials, within limits.
    """
    if high is None:
        share = begin.slope / min(begin.slope - low.slope, begin.slope / LONGER)
        return low.step * max(share, 2.0)
    width = high.step - low.step
    if not high.is_finite or high.slope <= low.slope:
        return low.step + MARGIN * width
    share = -low.slope / (high.slope - low.slope)
    return low.step + width * min(max(share, MARGIN), 1.0 - MARGIN)


# The point of a refinement, and F around it.

NOISE = 1e-14  # of the mean size of the losses: the accuracy of their sum


@dataclass
class RefinementPoint:
    """Weights and intercept, with their scores, loss terms and gradient."""

    weights: Array  # w, (d_c, K)
    intercept: Array  # β, (K,); zeros where there is none
    scores: Array  # t of the local rows, (n, K)
    terms: LossTerms  # of the local rows at these scores
    data_slope: Array  # ∂F/∂w without the ridge
    slope: Array  # ∂F/∂w
    drift: Array  # ∂F/∂β; zeros where there is no intercept


class SearchDirection(NamedTuple):
    """A direction: moves of weights, intercept and scores, and the ridge along it."""

    weights: Array  # p
    intercept: Array
    scores: Array  # q = A p + that of the intercept
    ridge: tuple[float, float, float]  # λ w·w / 2, λ w·p, λ p·p / 2


NO_TERMS = LossTerms(0.0, 0.0, 0.0, np.empty(0), None)


def _unevaluated(weights: Array, intercept: Array, scores: Array) -> RefinementPoint:
    no = np.empty(0)
    return RefinementPoint(weights, intercept, scores, NO_TERMS, no, no, no)


class LookedAt(NamedTuple):
    """The scores and the loss terms after one step along a direction."""

    direction: SearchDirection
    step: float
    scores: Array
    terms: LossTerms


class Landscape:
    """The objective F, with methods that evaluate F and its gradient on all ranks.

    They evaluate at points or along directions, and exchange the messages for that. A
    pass reads all rows once.
    """

    def __init__(self, rows: AllRows, l2: float, has_intercept: bool) -> None:
        self.rows = rows
        self.family = rows.objective.family
        self.l2 = l2
        self.has_intercept = has_intercept
        grid = rows.grid
        self.world = grid.world
        self.is_member_0 = grid.member == 0  # for the rows of its replica
        self.is_first = self.is_member_0 and grid.replica == 0
        self.last: LookedAt | None = None  # which a search usually ends with

    def centred(self, centers: Centers) -> "Landscape":
        """Return F over centred rows, from which `centers` are subtracted.

        F has the same value for the same weights, with another intercept.
        """
        objective = centre(self.rows.objective, centers)
        return Landscape(replace(self.rows, objective=objective), self.l2, True)

    def start_at(self, weights: Array, intercept: Array | None) -> RefinementPoint:
        """Return the evaluated point of these weights, by two passes over the rows."""
        scores = self.rows.start(weights, intercept)
        columns = weights.shape[1]
        beta = np.zeros(columns) if intercept is None else intercept
        return self.evaluated(_unevaluated(weights, beta, scores))

    def zero_point(self, weights: Array, intercept: Array | None) -> RefinementPoint:
        """Return the point of `weights`, all zero, without a gradient or a pass."""
        columns = weights.shape[1]
        beta = np.zeros(columns) if intercept is None else intercept
        scores = np.zeros((self.rows.height, columns)) + beta
        if self.rows.objective.shard.offsets is not None:
            scores += self.rows.objective.shard.offsets
        return _unevaluated(weights, beta, scores)

    def evaluated(self, point: RefinementPoint) -> RefinementPoint:
        """Evaluate residuals and gradient at a point by one pass; return the point."""
        self.evaluate_gradient(point)
        return point

    def evaluate_gradient(
        self, point: RefinementPoint, terms: LossTerms | None = None
    ) -> None:
        """Evaluate the gradient at `point` by one pass.

        `terms` are the loss terms at the scores of the point, if they are known.
        """
        point.terms = self.rows.terms(point.scores) if terms is None else terms
        residuals = point.terms.residuals * self.rows.share
        point.data_slope, drift = self.rows.gradient(residuals)
        point.slope = point.data_slope + self.l2 * point.weights
        point.drift = drift * self.has_intercept

    def along(
        self, point: RefinementPoint, weights: Array, intercept: Array, pull: Array
    ) -> SearchDirection:
        """Return the direction of a move, by one pass.

        `weights` and `intercept` are the moves of the weights and of β; `pull` is this
        member's part of what is subtracted from the move of β. The message of the
        scores also contains the products for the ridge, and the move of β, to which one
        member alone adds `intercept`: all members have the same bits.
        """
        words = np.empty(3 + len(intercept))
        words[0] = np.vdot(point.weights, point.weights)
        words[1] = np.vdot(point.weights, weights)
        words[2] = np.vdot(weights, weights)
        words[3:] = intercept * self.is_member_0 - pull
        scores, total = self.rows.scores(weights, words)
        moved = total[3:] * self.has_intercept
        scores += moved
        still, first, second = (total[:3] * self.l2).tolist()
        ridge = (0.5 * still, first, 0.5 * second)
        return SearchDirection(weights, moved, scores, ridge)

    def look(
        self, point: RefinementPoint, direction: SearchDirection, step: float
    ) -> Trial:
        """Return F and its slope after `step` along a direction, without a pass.

        Collective: one sum of three words over all ranks.
        """
        words = np.zeros(3)
        if self.is_member_0:
            scores = point.scores + step * direction.scores
            terms = self.rows.terms(scores, direction.scores)
            words[:] = terms.loss, terms.slope, terms.size
            self.last = LookedAt(direction, step, scores, terms)
        if self.is_first:
            still, first, second = direction.ridge
            words[0] += still + step * first + step * step * second
            words[1] += first + 2.0 * step * second
        # One sum over all ranks, so that all of them decide alike.
        self.world.sum(words, "evaluate")
        value, slope, size = words.tolist()
        return Trial(step, value, slope, NOISE * (size + abs(value)))

    def go(
        self, point: RefinementPoint, direction: SearchDirection, step: float
    ) -> None:
        """Move `point` along the direction; evaluate the gradient there by one pass."""
        last = self.last
        self.last = None
        point.weights = point.weights + step * direction.weights
        point.intercept = point.intercept + step * direction.intercept
        if last is not None and last.direction is direction and last.step == step:
            point.scores = last.scores
            self.evaluate_gradient(point, last.terms)
            return
        point.scores = point.scores + step * direction.scores
        self.evaluate_gradient(point)

    def at(self, point: RefinementPoint) -> Trial:
        """Return F at a point, as a trial without a step. Collective, without a pass.

        The loss terms of the point are computed if it has none yet.
        """
        if point.terms is NO_TERMS:
            point.terms = self.rows.terms(point.scores)
        size = np.array([np.vdot(point.weights, point.weights)])
        self.rows.grid.members.sum(size, "evaluate")
        words = np.zeros(3)
        if self.is_member_0:
            words[0] = point.terms.loss
            words[2] = point.terms.size
        if self.is_first:
            words[0] += 0.5 * self.l2 * float(size[0])
        self.world.sum(words, "evaluate")
        value, _, size_of_losses = words.tolist()
        return Trial(0.0, value, 0.0, NOISE * (size_of_losses + abs(value)))


# The settings of refinements.

KINDS = ("none", "lbfgs", "newton", "auto")
REFINES = ("auto", "lbfgs", "newton")  # those that do something


@dataclass(frozen=True)
class PolishConfig(Settings, section="polish"):
    """Refinement to the optimum after the last step, with gradients of all rows."""

    kind: str = setting(
        "none",
        "method of the refinement: L-BFGS (lbfgs), Newton (newton), or L-BFGS followed"
        " by Newton if it is slow (auto)",
        choices=KINDS,
        placeholder="auto",
        becomes=("lbfgs, then newton", "newton only where lbfgs is slow"),
    )
    passes: int = setting(
        200,
        "largest number of full gradients; each reads the rows twice",
        at_least=1,
        remedy='200 is usual, and kind = "none" takes none',
        read_if={"polish.kind": REFINES},
    )
    tol: float = setting(
        1e-8,
        "tolerance of the gradient, relative to the residuals; a smaller one refines"
        " further",
        at_least=0,
        below=1,
        remedy="1e-8 is usual, 0 goes on to the last digit",
        read_if={"polish.kind": REFINES},
    )
    gap: bool = setting(
        True,
        "end at a certified optimality gap if there is a ridge penalty, for 2 more"
        " passes",
        read_if={"polish.kind": REFINES},
    )
    gap_tol: float = setting(
        0.0,
        "tolerance of the certified gap, relative to F; 0 takes that of the gradient",
        at_least=0,
        below=1,
        remedy="1e-8 is usual, 0 takes polish.tol",
        read_if={"polish.kind": REFINES},
        placeholder=0.0,
        becomes=lambda facts: (facts.config.polish.tol_of_gap, "that of the gradient"),
    )

    @property
    def tol_of_gap(self) -> float:
        """Return the tolerance of the certified gap, relative to F."""
        return self.gap_tol or self.tol


# Whether weights are at the optimum, by a certified gap.
#
# A point is converged where a bound of F(w) − F* from duality (`full_passes.py`) is
#
#     gap ≤ tol · max(|F|, 1e-3 · F₀),    F₀ = F(null model) − mean of min_t ℓ(t, y_i)
#
# The null model has no weights, but the best intercept. F₀ takes no pass over the rows,
# and is taken only where |F| alone does not show that the gap is small enough.


class GapCertificate:
    """The certified optimality gap of a point, and the limit that it has to meet."""

    def __init__(self, tol: float) -> None:
        self.tol = tol
        self.gap: float | None = None  # at the point that was judged last
        self.limit: float | None = None  # that a gap there has to meet
        self._null_excess: float | None = None
        self._last: tuple[Array, Tangents] | None = None  # of the scores of a point

    def judge(
        self, land: Landscape, point: RefinementPoint, loss: float
    ) -> bool | None:
        """Return whether the gap at a point meets its limit; None if no gap is known.

        Collective. The scores and the gradient are known: one pass over the rows if the
        intercept is not the best one, else none. The answer is the same on all ranks.
        """
        tangents = self.tangents(land, point)
        gap = gap_of_tangents(land.rows, point.weights, tangents)
        return self.meets(land, gap, loss)

    def tangents(self, land: Landscape, point: RefinementPoint) -> Tangents:
        """Return the tangents at the scores of a point. Collective.

        They are kept until `forget`.
        """
        if self._last is None or self._last[0] is not point.scores:
            tangents = tangents_at(
                land.rows,
                point.scores,
                point.terms,
                point.data_slope,
                land.has_intercept,
            )
            self._last = point.scores, tangents
        return self._last[1]

    def forget(self) -> None:
        """Forget the tangents of a point that is about to move."""
        self._last = None

    def meets(self, land: Landscape, gap: float | None, loss: float) -> bool | None:
        """Return whether `gap` meets its limit on every rank; None if there is no gap.

        Collective, for flags, and for F₀ if |F| alone does not decide.
        """
        self.gap = gap
        self.limit = None if gap is None else gap_limit(self.tol, loss, 0.0)
        if gap is None or self.limit is None:
            return None
        if land.world.max_flag(int(not gap <= self.limit)):
            if self._null_excess is None:
                self._null_excess = null_excess(land.rows, land.has_intercept)
            self.limit = gap_limit(self.tol, loss, self._null_excess)
            return not land.world.max_flag(int(not gap <= self.limit))
        return True


def null_excess(rows: AllRows, has_intercept: bool) -> float:
    """Return F₀: F of the model without weights, less the mean of the least losses.

    The least loss of a row is the smallest at any score. Collective: two words over all
    ranks, and the trials of `level` for the intercept.
    """
    scores = np.zeros((rows.height, rows.columns))
    if rows.objective.shard.offsets is not None:
        scores += rows.objective.shard.offsets
    if has_intercept:
        scores += level(rows, scores).shift
    sums = np.zeros(2)
    if rows.grid.member == 0:
        least: Array = least_losses(rows.objective.family, rows.targets)
        sums[:] = rows.loss(scores), float((rows.share * least).sum())
    rows.grid.world.sum(sums, "evaluate")
    return float(sums[0] - sums[1])


# L-BFGS on the grid of ranks: from wherever the steps ended to the optimum.
#
# An iteration takes two passes over the rows, A p for the scores of its direction and
# Aᵀr for the gradient where it arrives, and these messages ("evaluate"):
#
#     over members     nK + K + 3 words    scores of the direction
#     over all ranks   3 words a trial     the value and slope of the line search
#     over replicas    (d_c + 1) K words   the direction, and again for the gradient
#     over all ranks   3(2M + 1) + 6 words inner products, and requests to stop
#
# The scaling of the variables is that of the point where it was taken. It is taken anew
# after 10, 20, 40, ... iterations, where pairs are converted to the new variables, and
# where the gradient is small but the certified gap is not: pairs are forgotten then.

DEPTH = 20  # pairs that are kept; larger = fewer passes, more memory
LEAST_DEPTH = 5
KEPT_WORDS = 2**25  # of all pairs together, over all columns: fewer of wide ones
STALE = 40  # iterations without a gain that a float64 can show
RESCALED_FIRST = 10  # iterations before the first check of the scaling; then doubled
RESCALED_BY = 4.0  # change of a column's curvature for which the scaling is replaced
# Of the mean curvature, what that of each row is raised by: rows that fit well now may
# not do so for long, and do not count nothing.
RAISED = 0.1
REFINEMENTS = 6  # of a point whose certified gap is above its limit
FORECASTS = 3  # of the gradient that would do, before other variables are tried
FORECAST = 0.7  # of that gradient
TIGHTER = 0.1  # of a gradient that a refinement begins with
SHRINKS = 0.5  # of the gap: a refinement that leaves more of it was the last
STUCK = 1e-6  # of the residuals: a gradient above it is no matter of rounding


class StopReason(Enum):
    """The reason why a refinement ended."""

    CONVERGED = "converged"
    ROUNDING = "at rounding"
    STUCK = "stuck"
    PASSES = "passes used up"
    UNCERTIFIED = "gap above its limit"
    HIDDEN = "small gradient, but F would fall"
    ASKED = "asked to stop"

    @property
    def is_good(self) -> bool:
        """Return whether the point is the optimum, as far as float64 can show."""
        return self in (StopReason.CONVERGED, StopReason.ROUNDING)


class LbfgsStatus(NamedTuple):
    """Loss, gradient and requests after an L-BFGS iteration, the same on all ranks."""

    passes: int
    trials: int
    loss: float
    gradient: float  # ‖∇F‖
    relative: float  # ‖g‖ of the scaled variables, over the size of the residuals
    floor: float  # of the latter: below it there are no digits
    requests: tuple[int, ...]  # how many ranks have each of `REQUESTS`

    @property
    def request(self) -> Request:
        """Return the largest request of any rank."""
        counted = zip(REQUESTS, self.requests, strict=True)
        return max(
            (request for request, count in counted if count), default=Request.NONE
        )


# The requests that end a refinement: a word for each travels with the inner products.
REQUESTS = (Request.STOP, Request.PREEMPT, Request.INTERRUPT)


def depth_for(columns: int) -> int:
    """Return how many pairs are stored for `columns` variables, on all ranks alike."""
    return max(LEAST_DEPTH, min(DEPTH, KEPT_WORDS // (2 * columns)))


def bytes_of_lbfgs(rows: int, cols: int, columns: int) -> int:
    """Return the bytes that L-BFGS takes on a rank.

    These are scores, residuals, temporaries of a pass and pairs of vectors, for `rows`
    rows and `cols` of all `columns` columns.
    """
    return 8 * (8 * rows + (2 * depth_for(columns) + 8) * cols)


class Lbfgs:
    """L-BFGS from a start point; `advance` takes one iteration. Collective."""

    # What a step of Newton expects, where one is tried.
    fall: GapCertificate | None = None
    hessians: int | None = None  # that were taken; None: of a solver that takes none

    def __init__(
        self,
        land: Landscape,
        settings: PolishConfig,
        start: RefinementPoint,
        certificate: GapCertificate | None,
    ) -> None:
        self.landscape = land
        self.settings = settings
        self.certificate = certificate  # None: the gradient alone decides
        self.tol = settings.tol  # refinements lower it
        self.forecasts = 0  # of gradients at which the gap would meet its limit
        self.refined_at: list[float] = []  # how far above points were that were refined
        self.rescaled_at = RESCALED_FIRST
        self.centers: Centers | None = None  # what the columns of `landscape` lack
        self.passes = self.trials = 0
        self.ending: StopReason | None = None  # None: it continues
        self.point = start
        self._look_around()
        self.first = self.status = self._take_status(Request.NONE)
        self.best = _Best(self.status)

    def advance(self, request: Request) -> None:
        """Take an iteration, or set `ending` if none is to follow. Collective.

        `request` is that of this rank. All ranks receive it with the inner products of
        this iteration, and begin no further iteration if it is one to end.
        """
        ending = self._ending()
        if ending is None and not self._step():
            ending = _given_up(self.status)
        if ending is None:
            if self.passes == self.rescaled_at:
                self.rescaled_at *= 2
                self._rescale(at_least=RESCALED_BY, keeps_pairs=True)
            self.status = self._take_status(request)
            self.best.look(self.status, self.here.noise)
            return
        forecasts = self.forecasts
        self.ending = self._certified(ending)
        if self.ending is None and self.forecasts == forecasts:
            # A point that looked optimal has to move on in the new variables.
            self.status = self._take_status(request)
            self.tol = min(self.tol, TIGHTER * self.status.relative)
            self.best = _Best(self.status)

    def _look_around(self) -> None:
        """Find the scaling and F at the start; centre columns whose means are large."""
        moments = self._moments()
        if self.landscape.has_intercept:
            self.centers = find_centers(self.landscape.rows, moments)
        if self.centers is not None:
            weights = self.point.weights
            intercept = self.point.intercept
            self.landscape = self.landscape.centred(self.centers)
            moved = self.centers.moved(self.landscape.rows.objective, weights)
            self.point = self.landscape.start_at(weights, intercept + moved)
            moments = self._moments()
        self.scaling = make_scaling(
            moments, self.landscape.l2, self.landscape.has_intercept
        )
        self._forget()
        self.here = self.landscape.at(self.point)

    def _moments(self, floor: float = LEAST, raised: float = 0.0) -> WeightedMoments:
        """Return moments of the columns, weighted by curvatures at the point: one pass.

        Each curvature is raised by `floor` times the family's largest, then by `raised`
        times the mean of all rows.
        """
        rows = self.landscape.rows
        point = self.point
        derivatives = point.terms.bends
        h = curvatures(
            self.landscape.family, point.scores, rows.targets, floor, derivatives
        )
        if raised:
            mean = rows.share.T @ h
            rows.grid.replicas.sum(mean, "evaluate")
            h += raised * mean
        return rows.moments(h * rows.share)

    def _forget(self) -> None:
        """Forget all pairs; begin with the gradient in the present scaled variables."""
        rows = self.landscape.rows
        gradient = self._scaled()
        total = rows.objective.shard.total_columns * rows.columns
        self.memory = CurvaturePairs(depth_for(total), len(gradient))
        self.memory.begin(gradient)

    def _rescale(self, at_least: float = 1.0, keeps_pairs: bool = False) -> None:
        """Scale the variables by the curvatures at the point.

        This is done only if the curvature of some variable has changed by the factor
        `at_least`. All pairs are converted if `keeps_pairs` is set, else forgotten.
        With a ridge no row's curvature needs a floor: λ keeps every column off zero.
        """
        floor = 0.0 if self.landscape.l2 else LEAST
        moments = self._moments(floor, RAISED if keeps_pairs else 0.0)
        fresh = make_scaling(moments, self.landscape.l2, self.landscape.has_intercept)
        change = np.square(np.log(fresh.roots / self.scaling.roots)).max(initial=0.0)
        change = max(change, np.square(np.log(fresh.level / self.scaling.level)).max())
        is_changed = bool(2.0 * np.sqrt(change) >= np.log(at_least))
        if not self.landscape.world.max_flag(int(is_changed)):
            return
        before = self.scaling
        self.scaling = fresh
        if keeps_pairs:
            self._convert(before)
        else:
            self._forget()

    def _convert(self, before: VariableScaling) -> None:
        """Convert all pairs from the variables of `before` to those of now. Collective.

        One message over members has the moves of the intercept; one over all ranks the
        inner products.
        """
        rows = self.landscape.rows
        memory = self.memory
        fresh = self.scaling
        width = self.point.weights.size
        weights = memory.vectors[:, :width].reshape(-1, *self.point.weights.shape)
        rest = memory.vectors[:, width:]
        moved = slice(1, None, 2)
        # 1. Moves: of w as they are, of β by the centers of now.
        moves = weights[moved] / before.roots
        shifts = np.sum((fresh.centers - before.centers) * moves, axis=1)
        rows.grid.members.sum(shifts, "evaluate")
        weights[moved] = moves * fresh.roots
        rest[moved] = (rest[moved] / before.level + shifts) * fresh.level
        # 2. Gradient and its changes.
        drifts = rest[::2] * before.level
        slopes = weights[::2] * before.roots + before.centers * drifts[:, None]
        weights[::2] = (slopes - fresh.centers * drifts[:, None]) / fresh.roots
        rest[::2] = drifts / fresh.level
        # 3. Their inner products.
        products = np.zeros_like(memory.products)
        if rows.grid.replica == 0:
            products[:] = memory.all_parts(self._own())
        self.landscape.world.sum(products, "evaluate")
        memory.products[:] = products

    def _certified(self, ending: StopReason) -> StopReason | None:
        """Return the ending after a check of the certified gap; None: iterations go on.

        `ending` is the one by the gradient. The gap decides if it is known: the
        gradient is relative to residuals, which mislead where a few rows are huge, and
        vanish on separable data.
        """
        if self.certificate is None or ending is StopReason.ASKED:
            return ending
        is_met = self.certificate.judge(self.landscape, self.point, self.status.loss)
        if is_met is None or (is_met and ending.is_good):
            return ending
        if is_met:
            return StopReason.CONVERGED
        if ending is StopReason.PASSES:
            return ending
        if self._forecast_gradient(self.certificate):
            return None
        if not self._goes_on(self.certificate.gap):
            return StopReason.UNCERTIFIED if ending.is_good else ending
        self._rescale()
        return None

    def _forecast_gradient(self, certificate: GapCertificate) -> bool:
        """Lower `tol` to a gradient at which the gap may meet its limit. Collective.

        A gap falls with the square of the gradient. Return whether `tol` was lowered:
        not if a few such forecasts did not come true, if no passes are left, or if
        float64 has no digits for the next one.
        """
        gap = certificate.gap
        limit = certificate.limit
        goes_on = self.forecasts < FORECASTS and self.passes < self.settings.passes
        tol = 0.0
        if gap is not None and limit is not None:
            share = np.sqrt(limit / gap) if 0.0 < gap < np.inf else 0.0
            tol = self.status.relative * FORECAST * float(share)
        goes_on &= tol > self.status.floor
        if self.landscape.world.max_flag(int(not goes_on)):
            return False
        self.forecasts += 1
        self.tol = tol
        return True

    def _goes_on(self, gap: float | None) -> bool:
        """Return whether a point with this gap is refined, and note it. Collective.

        It is not if no passes are left, after `REFINEMENTS` refinements, or if the last
        one left more than half of the gap.
        """
        gap = gap or 0.0
        refined = self.refined_at
        gains = not refined or gap <= SHRINKS * refined[-1]
        goes_on = gains and len(refined) < REFINEMENTS
        goes_on &= self.passes < self.settings.passes
        if self.landscape.world.max_flag(int(not goes_on)):
            return False
        refined.append(gap)
        return True

    def _scaled(self) -> Array:
        """Return the gradient in the scaled variables, flat.

        First are the entries of this member's weights, then those of the scaled
        intercept.
        """
        weights, intercept = self.scaling.gradient(self.point.slope, self.point.drift)
        return np.concatenate([weights.reshape(-1), intercept])

    def _step(self) -> bool:
        """Move the point to a lower F, and store the pair of the move.

        Return False if no step lowers F by more than rounding.
        """
        self.passes += 1
        if self.certificate is not None:
            self.certificate.forget()
        for move, slope in self._directions():
            trial = self._walk(move, slope) if slope < 0.0 else None
            if trial is not None:
                self.memory.put(trial.step * move, self._scaled())
                return True
        return False

    def _directions(self) -> Iterator[tuple[Array, float]]:
        """Yield the directions p to try in turn: this rank's part of p, and g·p.

        The second direction is that of the gradient, without pairs.
        """
        yield self._combined()
        if self.memory.order:
            self.memory.forget()
            yield self._combined()

    def _combined(self) -> tuple[Array, float]:
        """Return this rank's part of the direction p by the stored pairs, and g·p.

        Replica 0 broadcasts its p to all replicas. Where columns are nearly alike,
        steps are long: replicas that differ by rounding would soon have different
        models.
        """
        move, slope = self.memory.direction()
        return self.landscape.rows.grid.replicas.broadcast(move, 0, "evaluate"), slope

    def _walk(self, move: Array, slope: float) -> Trial | None:
        """Move the point by a line search along `move`; return its last trial.

        `slope` is that of F at the start, g·p. The result is None, and the point does
        not move, if no step is found.
        """
        land = self.landscape
        point = self.point
        width = point.weights.size
        weights = self.scaling.weights(move[:width].reshape(point.weights.shape))
        intercept = move[width:] / self.scaling.level
        direction = land.along(point, weights, intercept, self.scaling.pull(weights))
        begin = Trial(0.0, self.here.value, slope, self.here.noise)
        trial, trials = search(lambda step: land.look(point, direction, step), begin)
        self.trials += trials
        if trial is not None:
            land.go(point, direction, trial.step)
            self.here = trial
        return trial

    def _take_status(self, request: Request) -> LbfgsStatus:
        """Return the status after an iteration. Collective, in one message.

        It sums inner products, sizes and requests over all ranks.
        """
        words = self.memory.words
        message = np.zeros(words + 3 + len(REQUESTS))
        message[words : words + 3] = self._sizes()
        message[words + 3 :] = [request is kind for kind in REQUESTS]
        if self.landscape.rows.grid.replica == 0:
            message[:words] = self.memory.parts(self._own())
        self.landscape.world.sum(message, "evaluate")
        self.memory.add_products(message[:words])
        return self._judged(message[words:])

    def _own(self) -> slice:
        """Return the entries that this rank sums; the intercept counts once."""
        width = self.point.weights.size
        return slice(None) if self.landscape.is_first else slice(width)

    def _sizes(self) -> tuple[float, float, float]:
        """Return this rank's terms of ‖∇F‖², ‖residuals‖² and ‖scores‖².

        Residuals and scores are in the units of scaled gradients.
        """
        point = self.point
        square = 0.0
        residuals = 0.0
        scores = 0.0
        if self.landscape.rows.grid.replica == 0:
            square = float(np.vdot(point.slope, point.slope))
        if self.landscape.is_first:
            square += float(np.vdot(point.drift, point.drift))
        if self.landscape.is_member_0:
            share = self.landscape.rows.share.T
            level = np.square(self.scaling.level)
            residuals = float((share @ np.square(point.terms.residuals) / level).sum())
            scores = float((share @ np.square(point.scores) * level).sum())
        return square, residuals, scores

    def _judged(self, heard: Array) -> LbfgsStatus:
        square, residuals, scores, *requests = heard.tolist()
        size = max(sqrt(max(residuals, 0.0)), TINY)
        return LbfgsStatus(
            passes=self.passes,
            trials=self.trials,
            loss=self.here.value,
            gradient=sqrt(max(square, 0.0)),
            relative=sqrt(max(self.memory.square, 0.0)) / size,
            floor=4.0 * EPS * (1.0 + sqrt(max(scores, 0.0)) / size),
            requests=tuple(map(int, requests)),
        )

    def _ending(self) -> StopReason | None:
        """Return why iterations end here; None if another one is needed and allowed."""
        status = self.status
        if status.relative <= self.tol:
            return StopReason.CONVERGED
        if status.relative <= status.floor:
            return StopReason.ROUNDING
        if self.best.age >= STALE:
            return _given_up(status)
        if any(status.requests):
            return StopReason.ASKED
        return StopReason.PASSES if self.passes >= self.settings.passes else None


def _given_up(status: LbfgsStatus) -> StopReason:
    return StopReason.ROUNDING if status.relative <= STUCK else StopReason.STUCK


class _Best:
    """The least loss and gradient so far, and the iterations since one of them fell.

    A loss counts as lower only by more than `noise`, a gradient only by a tenth.
    """

    def __init__(self, status: LbfgsStatus) -> None:
        self.loss = status.loss
        self.relative = status.relative
        self.age = 0

    def look(self, status: LbfgsStatus, noise: float) -> None:
        """Update the least loss and gradient by the status after an iteration."""
        self.age += 1
        if status.loss < self.loss - noise:
            self.loss = status.loss
            self.age = 0
        if status.relative < 0.9 * self.relative:
            self.relative = status.relative
            self.age = 0
