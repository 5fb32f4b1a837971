"""Any family of one score a row, with l1, l2 and bounds: least squares again and again.

About weights w and intercept β, with scores t, residuals r and curvatures h = ∂r/∂t,

    F(u, γ) ≈ (1/n) Σ c_i (r_i δ_i + h_i δ_i²/2) + penalty(u),   δ = A(u − w) + γ − β

is least squares with weights c h: a primal form, whose columns are those of the data
times √(c h), less their means. An epoch makes it (one sum of d + 2 words), takes
`SWEEPS` sweeps over the columns, and goes from w towards where they end, as far as F
falls (one sum of `TRIALS` + 2 words, and a word that says how far). The Gram lasts
for the sweeps of one epoch.
"""

from dataclasses import replace

import numpy as np

from hpcsgd.assessment import LEAST
from hpcsgd.coordinate.exchange import Point
from hpcsgd.coordinate.form import Form, Look
from hpcsgd.coordinate.items import Array, Items
from hpcsgd.coordinate.primal import columns_of, weights_of
from hpcsgd.coordinate.separable import ElasticNet
from hpcsgd.objective import Objective
from hpcsgd.optimality import gap_of
from hpcsgd.penalties import Penalty
from hpcsgd.polish.level import level
from hpcsgd.polish.rows import open_rows
from hpcsgd.polish.scaling import curvatures

SWEEPS = 4  # larger = better steps, more messages for each
TRIALS = 12  # lengths 1, 1/2, 1/4, ... of a step
ENOUGH = 1e-2  # of the fall that the model promises
SLACK = 1e-14  # of F: what rounding hides
FLOOR = 1e-10  # of the largest curvature


class Newton(Form):
    """Every rank holds w whole, and the scores of its rows."""

    name = "newton"
    sweeps = SWEEPS

    def __init__(self, objective: Objective, intercept: bool) -> None:
        shard, grid = objective.shard, objective.grid
        self.objective = objective
        self.members = grid.replicas
        self.scale = 1.0 / shard.total_rows
        self.separable: ElasticNet = ElasticNet(objective.penalty)
        self.intercept = intercept
        self.weights = weights_of(shard)
        self.targets = shard.targets.astype(np.float64)
        self.columns = Items(columns_of(shard))
        self.items = self.columns
        point = self.begin()
        slope = self.objective.slope(*self.model(point))
        self.worst = slope.loss - self._least()
        # Of the mean loss: what l1 holds of it would be another yardstick for each l1.
        self.steep = self.objective.norm(replace(slope, least=None))

    def _least(self) -> float:
        """The mean of the least losses there can be: below 0 for log links."""
        least = LEAST.get(self.objective.family.name, np.zeros_like)
        word = np.array([self.weights @ least(self.targets[:, 0])])
        self.members.sum(word, "control")
        return float(word[0]) * self.scale

    def begin(self, weights: Array | None = None) -> Point:
        """These weights, or 0, with the best intercept for them."""
        x = np.zeros(self.columns.count) if weights is None else weights.copy()
        self.objective.penalty.prox(x, 0.0)
        self._stand(x, 0.0)
        if self.intercept:
            rows = open_rows(self.objective, 1)
            self._stand(x, float(level(rows, self.scores[:, None]).shift[0]))
        return Point(x, np.zeros(self.columns.width))

    def _stand(self, weights: Array, shift: float) -> None:
        """At these weights and intercept, with the scores of this rank's rows."""
        self.anchor, self.shift = weights.copy(), shift
        self.scores = self.columns.combined(weights) + shift
        if self.objective.shard.offsets is not None:
            self.scores += self.objective.shard.offsets[:, 0]

    def become(self, penalty: Penalty, point: Point) -> None:
        """Neither weights nor scores depend on the penalty."""
        self.objective = replace(self.objective, penalty=penalty)
        self.separable = ElasticNet(penalty)

    def model(self, point: Point) -> tuple[Array, Array | None]:
        """Where the last epoch ended."""
        intercept = np.array([self.shift]) if self.intercept else None
        return self.anchor[:, None], intercept

    def look(self, point: Point) -> Look:
        """One pass for the loss and the gradient; two more for a gap, with a ridge."""
        weights, intercept = self.model(point)
        slope = self.objective.slope(weights, intercept)
        gap = None
        if self.objective.penalty.l2:
            gap = gap_of(self.objective, weights, intercept).gap
        return Look(slope.loss, self.objective.norm(slope), gap)

    def prepare(self, point: Point) -> bool:
        """Least squares about where it stands; the Gram is another one then."""
        scores = self.scores[:, None]
        family, c = self.objective.family, self.weights
        with np.errstate(all="ignore"):
            self.residuals = c * family.residual(scores.copy(), self.targets)[:, 0]
            h = c * curvatures(family, scores, self.targets)[:, 0]
        top = h.max(initial=0.0)
        h = np.where(c > 0.0, np.maximum(h, FLOOR * top + np.finfo(float).tiny), 0.0)
        roots = np.sqrt(h)
        self.means, self.pull = self._means(h)
        shift = self.means if self.intercept else None
        self.items = Items(self.columns.matrix, shift, roots)
        wanted = np.divide(self.residuals, roots, out=np.zeros_like(h), where=h > 0.0)
        point.v[...] = self.scale * (wanted - self.pull * roots)
        return True

    def _means(self, h: Array) -> tuple[Array, float]:
        """Of the columns and of r/h, weighted by h; zero without an intercept."""
        d = self.columns.count
        if not self.intercept:
            return np.zeros(d), 0.0
        sums = np.empty(d + 2)
        sums[:d] = self.columns.products(h)
        sums[d:] = self.residuals.sum(), h.sum()
        self.members.sum(sums, "products")
        sums /= sums[-1]
        return sums[:d], float(sums[d])

    def settle(self, point: Point) -> None:
        """From the anchor towards the point, as far as F falls; x is what was taken."""
        move = point.x - self.anchor
        lift = -(float(self.means @ move) + self.pull) if self.intercept else 0.0
        away = self.columns.combined(move) + lift
        length = self._length(point.x, move, away)
        self.anchor = self.anchor + length * move
        self.shift += length * lift
        self.scores += length * away
        if length == 1.0:
            self.anchor = point.x.copy()  # zeros and bounds stay exact
        point.x[...] = self.anchor

    def _length(self, end: Array, move: Array, away: Array) -> float:
        """The largest of the lengths at which F has fallen enough; the same on all."""
        penalty, family = self.objective.penalty, self.objective.family
        lengths = 0.5 ** np.arange(TRIALS)
        words = np.empty(TRIALS + 2)
        with np.errstate(all="ignore"):
            for number, length in enumerate((*lengths, 0.0)):
                scores = (self.scores + length * away)[:, None]
                words[number] = self.weights @ family.loss(scores, self.targets)[:, 0]
        words[-1] = self.residuals @ away
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
