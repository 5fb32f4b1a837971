"""Any family with l1, l2 and bounds: a quadratic model again and again.

About weights w and intercept β, with scores t, residuals r and curvatures H = ∂r/∂t
(K × K for K classes, one number otherwise) of the rows,

    F(u, γ) ≈ (1/n) Σ c_i (r_i·δ_i + δ_i·H_i δ_i/2) + penalty(u),  δ = A(u − w) + γ − β

is least squares with weights c H (proximal Newton: Lee, Sun and Saunders, 2014, SIAM J.
Optim. 24(3), section 2). Its items are the weights (j, k), less what the intercept
takes of them: with H_i the curvature of a row, weights included,

    b = Σ_i a_ij H_i e_k      S = Σ_i H_i      γ − β = −S⁺ (Σ_i c_i r_i + Σ b (u − w))

An epoch makes the model (one sum of m K² + K² + K words for m columns), takes `SWEEPS`
sweeps over items, and goes from w towards where they end, as far as F falls (one sum of
`TRIALS` + 2 words, and a word that says how far).

With l1 an epoch takes a working set alone: the weights that are not 0, and those whose
slope is above `NEAR` l1. Every other weight is 0 and meets the condition of a minimum;
as the slopes of all weights are looked at in every epoch, none is missed (the check of
the strong rules: Tibshirani et al., 2012, J. R. Stat. Soc. B 74(2), section 7). The
Gram of a working set of up to `MOST_GRAM` items is one message for all sweeps of an
epoch (m (m + 1)/2 + m words), whatever the number of steps.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from hpcsgd.coordinate import sweep
from hpcsgd.coordinate.classes import ClassItems
from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.form import Form, Look
from hpcsgd.coordinate.items import Array, Items
from hpcsgd.coordinate.primal import columns_of, weights_of
from hpcsgd.coordinate.separable import ElasticNet
from hpcsgd.coordinate.whole_gram import MOST_SWEEPS, STILL, WholeGram, sum_gram
from hpcsgd.families.base import least_losses
from hpcsgd.objective import Objective
from hpcsgd.optimality import gap_of
from hpcsgd.penalties import Penalty
from hpcsgd.polish.level import level
from hpcsgd.polish.rows import open_rows
from hpcsgd.polish.scaling import bends

SWEEPS = 4  # larger = better steps, more messages for each
MOST_GRAM = 2048  # items of a working set whose Gram is summed at once
TRIALS = 12  # lengths 1, 1/2, 1/4, ... of a step
ENOUGH = 1e-2  # of the fall that the model promises
SLACK = 1e-14  # of F: what rounding hides
KINKED = ("huber", "squared-hinge")  # losses that are straight where ∂r/∂t is 0
LEAST_BEND = 1e-3  # of their largest curvature: rows beyond a kink still count
FLOOR = 1e-10  # of the largest curvature
LEAST_SHARE = 1e-12  # of a class: what keeps its curvature off zero
SINGULAR = 1e-12  # of the largest curvature of the intercept
FEW = 256  # weights up to which a working set costs more messages than it saves
NEAR = 0.9  # of l1: weights at 0 with such a slope may leave it next


class Newton(Form):
    """Every rank holds w whole, and the scores of its rows."""

    name = "newton"
    sweeps = SWEEPS
    renews = True

    def __init__(
        self, objective: Objective, intercept: bool, classes: int, one_by_one: bool
    ) -> None:
        shard, grid = objective.shard, objective.grid
        self.objective = objective
        self.members = grid.replicas
        self.scale = 1.0 / shard.total_rows
        self.classes = classes
        self.separable: ElasticNet = ElasticNet(_of_items(objective.penalty, classes))
        self.intercept = intercept
        self.weights = weights_of(shard)
        self.targets = shard.targets.astype(np.float64)
        self.columns = Items(columns_of(shard))
        self.items = self.columns
        self.values: sweep.Values | None = None
        if one_by_one and self.members.size == 1 and sweep.available():
            self.values = sweep.values_of(self.columns.matrix)
            self.sweeps = MOST_SWEEPS
        self.one_by_one = one_by_one
        self.whole: WholeGram | None = None  # of the working set, over several ranks
        self.slope: Array | None = None  # of the smooth part, (d, K), where it is known
        point = self.begin()
        slope = self.objective.slope(*self.model(point))
        self.worst = slope.loss - self._least()
        # Of the mean loss: what l1 holds of it would be another yardstick for each l1.
        self.steep = self.objective.norm(replace(slope, least=None))

    @property
    def is_alone(self) -> bool:
        """Return whether this rank knows all that sweeps of the epoch take."""
        return self.values is not None or self.whole is not None

    @property
    def count(self) -> int:
        """Return the number of items, d K."""
        return self.columns.count * self.classes

    def _least(self) -> float:
        """The mean of the least losses there can be: below 0 for log links."""
        least = least_losses(self.objective.family, self.targets[:, 0])
        word = np.array([self.weights @ least])
        self.members.sum(word, "control")
        return float(word[0]) * self.scale

    def begin(self, weights: Array | None = None) -> Point:
        """These weights, or 0, with the best intercept for them."""
        shape = (self.columns.count, self.classes)
        x = np.zeros(shape) if weights is None else weights.copy()
        self.objective.penalty.prox(x, 0.0)
        self._stand(x, np.zeros(self.classes))
        if self.intercept:
            rows = open_rows(self.objective, self.classes)
            self._stand(x, level(rows, self.scores).shift)
        width = self.columns.width * self.classes
        return Point(x.reshape(-1), np.zeros(width))

    def _stand(self, weights: Array, shift: Array) -> None:
        """At these weights and intercept, with the scores of this rank's rows."""
        self.shift = shift
        self.scores = self.columns.combined(weights) + shift
        if self.objective.shard.offsets is not None:
            self.scores += self.objective.shard.offsets

    def become(self, penalty: Penalty, point: Point) -> None:
        """Neither weights nor scores depend on the penalty."""
        self.objective = replace(self.objective, penalty=penalty)
        self.separable = ElasticNet(_of_items(penalty, self.classes))
        self.slope = None

    def model(self, point: Point) -> tuple[Array, Array | None]:
        """Where the last epoch ended."""
        intercept = self.shift.copy() if self.intercept else None
        return point.x.reshape(-1, self.classes).copy(), intercept

    def look(self, point: Point) -> Look:
        """One pass for the loss and the gradient; two more for a gap."""
        weights, intercept = self.model(point)
        slope = self.objective.slope(weights, intercept)
        self.slope = slope.weights
        gap = None
        penalty = self.objective.penalty
        if penalty.l2 or penalty.l1:
            gap = gap_of(self.objective, weights, intercept).gap
        return Look(slope.loss, self.objective.norm(slope), gap)

    def prepare(self, point: Point, order: Array) -> Array:
        """Make the model about the point; the items of this epoch, in their order."""
        self.anchor = point.x.reshape(-1, self.classes).copy()
        family, c = self.objective.family, self.weights[:, None]
        with np.errstate(all="ignore"):
            residuals = c * family.residual(self.scores.copy(), self.targets)
        self.residuals = residuals
        order = self._working_set(order)
        self.chosen = np.unique(order // self.classes)
        shares = self._shares()
        h = self._curvatures() if shares is None else c * shares
        bends, self.means, self.pull = self._centre(h, shares)
        if self.values is not None:
            numbers = self._numbers()
            self.x = point.x[numbers]
            model = sweep.Model(
                self.chosen, residuals, h, shares, bends, self.means, self.pull
            )
            penalty = self.separable.penalty.of(numbers)
            self.sweeper = sweep.Sweeper(
                self.values, model, self.x, penalty, self.scale
            )
            self.order = np.searchsorted(numbers, order)
            self.farthest = 0.0
            return order
        roots = np.sqrt(h)
        wanted = np.divide(residuals, roots, out=np.zeros_like(h), where=h > 0.0)
        if shares is None:
            self.items = Items(self.columns.matrix, self._shift(), roots[:, 0])
            wanted -= self.pull * roots
        else:
            items = ClassItems(
                matrix=self.columns.matrix,
                shift=self.means if self.intercept else None,
                roots=roots,
                shares=shares,
                columns=self.chosen,
            )
            self.items = items
            wanted -= (items.vectors() @ self.pull).reshape(wanted.shape)
        point.v[...] = self.scale * wanted.reshape(-1)
        self.whole = None
        if self.one_by_one and self._chooses and 0 < len(order) <= MOST_GRAM:
            self.whole = sum_gram(self.members, self.items.take(order), order, point.v)
        return order

    def sweep(self, point: Point) -> tuple[int, bool]:
        """Take a step over every item; with a Gram of all, until they move no more."""
        if self.whole is not None:
            return self._sweep_gram(self.whole, point), False
        farthest = self.sweeper.sweep(self.order)
        point.x[self._numbers()] = self.x
        self.farthest = max(farthest, self.farthest)
        return len(self.order), farthest > STILL * self.farthest

    def _sweep_gram(self, whole: WholeGram, point: Point) -> int:
        """Sweeps of rank 0, which all ranks take over."""
        words = np.empty(len(whole.order) + 1)
        if self.members.rank == 0:
            words[-1] = whole.sweep(point.x, self.separable, self.scale)
            words[:-1] = point.x[whole.order]
        self.members.broadcast(words, 0, "products")
        point.x[whole.order] = words[:-1]
        return int(words[-1])

    @property
    def _chooses(self) -> bool:
        """Return whether an epoch is about a working set."""
        return bool(self.objective.penalty.l1) and self.count > FEW

    def _working_set(self, order: Array) -> Array:
        """The items of `order` that a sweep may move, alike on all ranks."""
        if not self._chooses:
            return order
        slope = self._slope()
        near = np.abs(slope) >= NEAR * self.objective.penalty.l1
        taken = (near | (self.anchor != 0.0)).reshape(-1)
        chosen: Array = order[taken[order]]
        if self.members.size == 1:
            return chosen
        count = np.array([float(len(chosen))])
        self.members.broadcast(count, 0, "products")
        numbers = np.zeros(int(count[0]))
        if self.members.rank == 0:
            numbers[...] = chosen
        if len(numbers):
            self.members.broadcast(numbers, 0, "products")
        return numbers.astype(np.int64)

    def _slope(self) -> Array:
        """∇ of the smooth part at the point, (d, K); where a look has it, that one."""
        if self.slope is not None:
            return self.slope
        sums = self.columns.products(self.residuals)
        self.members.sum(sums, "products")
        return self.scale * sums + self.objective.penalty.l2 * self.anchor

    def _numbers(self) -> Array:
        """All items of the chosen columns."""
        every = np.arange(self.classes)
        numbers: Array = (self.chosen[:, None] * self.classes + every).reshape(-1)
        return numbers

    def _curvatures(self) -> Array:
        """c ∂r/∂t of one score a row, kept off zero; (n, 1)."""
        family, c = self.objective.family, self.weights[:, None]
        with np.errstate(all="ignore"):
            h: Array = bends(family, self.scores, self.targets)[:, :, 0]
        if family.name in KINKED:
            h += LEAST_BEND * family.curvature
        h = c * h
        top = h.max(initial=0.0)
        least = FLOOR * top + np.finfo(float).tiny
        return np.where(c > 0.0, np.maximum(h, least), 0.0)

    def _shares(self) -> Array | None:
        """p of classes, kept off zero, (n, K); None: one score a row."""
        if self.objective.family.targets != "classes":
            return None
        shares = np.maximum(self.objective.family.mean(self.scores), LEAST_SHARE)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares

    def _centre(self, h: Array, shares: Array | None) -> tuple[Array, Array, Array]:
        """b and S⁺ b of the items of chosen columns, (m K, K), and S⁺ Σ c r."""
        m, K = len(self.chosen), self.classes
        if not self.intercept:
            nothing = np.zeros((m * K, K))
            return nothing, nothing, np.zeros(K)
        sums = np.empty(m * K * K + K + K * K)
        bends = sums[: m * K * K].reshape(m, K, K)
        total = sums[m * K * K + K :].reshape(K, K)
        columns = self._chosen_columns()
        for k in range(K):
            row = h[:, k : k + 1]
            if shares is not None:
                row = row * (np.eye(K)[k] - shares)  # H_i e_k of all rows
            bends[:, k] = columns.products(row)
            total[k] = row.sum(axis=0)
        sums[m * K * K : m * K * K + K] = self.residuals.sum(axis=0)
        self.members.sum(sums, "products")
        pull = sums[m * K * K : m * K * K + K]
        flat = bends.reshape(m * K, K)
        if K == 1:
            return flat, flat / total, pull / total[0]
        inverse = np.linalg.pinv(total, SINGULAR, hermitian=True)
        return flat, flat @ inverse, inverse @ pull

    def _chosen_columns(self) -> Items:
        """Those that this epoch is about."""
        if len(self.chosen) == self.columns.count:
            return self.columns
        return Items(self.columns.matrix[self.chosen])

    def _shift(self) -> Array | None:
        """The means of columns, as items want them; those not chosen are not read."""
        if not self.intercept:
            return None
        whole = np.zeros(self.columns.count)
        whole[self.chosen] = self.means[:, 0]
        return whole

    def settle(self, point: Point) -> None:
        """From the anchor towards the point, as far as F falls; x is what was taken."""
        end = point.x.reshape(self.anchor.shape).copy()
        move = end - self.anchor
        few = move[self.chosen]
        lift = np.zeros(self.classes)
        if self.intercept:
            lift = -(few.reshape(-1) @ self.means + self.pull)
        away = self._chosen_columns().combined(few) + lift
        length = self._length(end, move, away)
        self.shift = self.shift + length * lift
        self.scores += length * away
        if length != 1.0:  # else zeros and bounds stay exact
            end = self.anchor + length * move
        point.x[...] = end.reshape(-1)
        self.slope = None

    def _length(self, end: Array, move: Array, away: Array) -> float:
        """The largest of the lengths at which F has fallen enough; the same on all."""
        penalty, family = self.objective.penalty, self.objective.family
        lengths = 0.5 ** np.arange(TRIALS)
        words = np.empty(TRIALS + 2)
        with np.errstate(all="ignore"):
            for number, length in enumerate((*lengths, 0.0)):
                scores = self.scores + length * away
                words[number] = self.weights @ family.loss(scores, self.targets)[:, 0]
        words[-1] = np.vdot(self.residuals, away)
        self.members.sum(words, "products")
        words *= self.scale
        added = [penalty.value(self.anchor + length * move) for length in lengths]
        here = words[TRIALS] + penalty.value(self.anchor)
        promised = words[-1] + penalty.value(end) - penalty.value(self.anchor)
        limits = here + ENOUGH * lengths * min(promised, 0.0) + SLACK * abs(here)
        good = np.flatnonzero(words[:TRIALS] + added <= limits)
        chosen = np.array([lengths[good[0]] if len(good) else 0.0])
        self.members.broadcast(chosen, 0, "products")
        return float(chosen[0])


def _of_items(penalty: Penalty, classes: int) -> Penalty:
    """Return the penalty with a bound for every item (j, k) instead of every column."""
    bounds: list[Any] = [
        bound if np.ndim(bound) == 0 else np.repeat(bound, classes)
        for bound in (penalty.lower, penalty.upper)
    ]
    return Penalty(penalty.l2, penalty.l1, bounds[0], bounds[1])
