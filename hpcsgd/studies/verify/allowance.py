"""Bounds on the difference of an exchange from its replay in longdouble."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.shard import split_range
from hpcsgd.formats import Array, get_format, round_through
from hpcsgd.glm.families import NUMBERS, Family, exp_bound, steepest_slopes
from hpcsgd.precision import FIELDS, Precision

# One step of SGD from the textbook, in longdouble.
#
# This module uses neither the updates nor the products of the package, so that it finds
# errors in them.

L = np.longdouble
PARTS = ("w", "v", "b", "bv")
Point = dict[str, NDArray[Any]]  # w and v (d, K), b and bv (K,)


@dataclass(frozen=True)
class Sides:
    """The targets, weights and offsets of rows.

    Attributes
    ----------
    targets : ndarray of shape (n, 1)
        Targets, encoded for the family.
    weights : ndarray of shape (n, 1)
        Sample weights, with mean 1 over the whole data; ones where there are none.
    offsets : ndarray of shape (n, 1)
        Offsets of the scores.
    """

    targets: Array
    weights: Array
    offsets: Array

    def of_rows(self, rows: Array) -> "Sides":
        """Return the targets, weights and offsets of some of the rows."""
        return Sides(self.targets[rows], self.weights[rows], self.offsets[rows])

    def rounded(self, dtype: Any) -> "Sides":
        """Return targets, weights and offsets as steps in `dtype` use them."""
        columns = (self.targets, self.weights, self.offsets)
        return Sides(*(column.astype(dtype) for column in columns))


@dataclass(frozen=True)
class RecordedSteps:
    """The steps of one exchange: their batches, rates, penalty and update.

    Attributes
    ----------
    sizes : tuple of int
        Rows of each batch.
    rates : ndarray of shape (s,)
        Rate of each step.
    l2 : float
        The ridge penalty λ.
    update : str
        Name of the update.
    momentum : float
        Coefficient of the momentum, 0 for plain SGD.
    """

    sizes: tuple[int, ...]
    rates: Array
    l2: float
    update: str
    momentum: float


@dataclass(frozen=True)
class ExchangeSums:
    """The sums over ranks from which a run computed an exchange.

    Attributes
    ----------
    in_steps : bool
        Whether scores are summed in every step, without a Gram matrix.
    members : int
        Ranks that sum their parts of a score.
    replicas : int
        Replicas that sum their gradients.
    """

    in_steps: bool
    members: int
    replicas: int


@dataclass(frozen=True)
class RecordedExchange:
    """Rows, steps and settings of one exchange, as the run stored them.

    Attributes
    ----------
    family : Family
        The GLM.
    rows : ndarray of shape (m, d)
        The sampled rows, in longdouble.
    sides : Sides
        Targets, weights and offsets of these rows, in longdouble.
    steps : RecordedSteps
        Batches, rates, penalty and update.
    intercept : bool
        Whether the model learns an intercept.
    clip : float
        The score beyond which families with an exponential clip.
    precision : Precision
        The number formats of the run.
    sums : ExchangeSums
        The sums over members and replicas.
    """

    family: Family
    rows: Array
    sides: Sides
    steps: RecordedSteps
    intercept: bool
    clip: float
    precision: Precision
    sums: ExchangeSums


def look(steps: RecordedSteps, at: Array, speed: Array) -> Array:
    """Return the point at which the gradient is evaluated.

    It is `at`, or with nesterov-classic `at` moved by the momentum `speed`.
    """
    ahead = steps.update == "nesterov-classic"
    return at + L(steps.momentum) * speed if ahead else at


def update(
    steps: RecordedSteps, w: Array, v: Array, g: Array, rate: Any
) -> tuple[Array, Array]:
    """Return weights and momentum after one step, as in a textbook."""
    mu = L(steps.momentum)
    if steps.update == "sgd":
        return w - rate * g, v
    if steps.update == "nesterov-classic":
        v = mu * v - rate * g
        return w + v, v
    v = mu * v + g
    return w - rate * (v if steps.update == "momentum" else g + mu * v), v


def step(
    exchange: RecordedExchange, at: Point, g: Array, pull: Array, rate: Any
) -> Point:
    """Return the point after one update of weights and of a learnt intercept.

    `g` is the gradient in the weights, `pull` that in the intercept.
    """
    w, v = update(exchange.steps, at["w"], at["v"], g, rate)
    b = at["b"]
    bv = at["bv"]
    if exchange.intercept:
        b, bv = update(exchange.steps, b, bv, pull, rate)
    return {"w": w, "v": v, "b": b, "bv": bv}


def target_size(family: Family, y: Array) -> Array:
    """Return the size of each of the two terms whose difference is a residual."""
    real = family.targets in NUMBERS
    return np.maximum(np.abs(y), 1) if real else np.ones_like(y)


def residual(family: Family, t: Array, y: Array, clip: float) -> Array:
    """Return ∂ℓ/∂t, in longdouble.

    It is computed in float64 if the family has nothing wider. Families with an
    exponential clip the scores `t` to ±`clip`.
    """
    if not np.isfinite(family.curvature):
        t = np.clip(t, -clip, clip)
    try:
        return np.asarray(family.residual(t.copy(), y), dtype=L)
    except TypeError:  # a special function without a longdouble form
        narrow = family.residual(t.astype(np.float64), y.astype(np.float64))
        return narrow.astype(L)


def clip_of(dtype: Any) -> float:
    """Return the score at which a run in `dtype` clips its exponentials."""
    return exp_bound(np.dtype(dtype))


# A bound on the distance of the run from the replay, by the rounding errors of the run.
#
# Let ŵ_j be the weights of the run, δ_j = ŵ_j − w_j, h = η/b, ρ = 1 − ηλ. In step j the
# scores have an error Y_j δ_j + e_j, the residuals have an error σ_j beside that of the
# scores, the gradient has an error γ_j, and storing the weights has an error ω_j. With
# slopes 0 ≤ D ≤ l of the residuals (mean value theorem), plain SGD obeys
#
#     ‖δ_{j+1}‖ ≤ max(ρ, |ρ − h l ‖Y_j‖²|) ‖δ_j‖ + h ‖Y_j‖ E_j + η ‖γ_j‖ + ‖ω_j‖,
#     E_j = ‖l e_j‖ + ‖σ_j‖,
#
# where the intercept is one more column of ones that has no penalty: the first ρ is 1.
# For at most `MOST` scores, `ErrorPropagation` follows every error through all steps,
# to first order. Longer exchanges with momentum are followed step by step: with C_ji
# and F_i, the response of the point of step j and of the end to a unit in the gradient
# of step i,
#
#     R_j ≤ E_j + l (‖Y_j‖ Σ_{i<j} |C_ji| (‖Y_i‖ R_i / b_i + ‖γ_i‖) + ...),
#     ‖δ_s‖ ≤ Σ_i |F_i| (‖Y_i‖ R_i / b_i + ‖γ_i‖) + ....
#
# The errors are those of sums in any order (N. J. Higham, Accuracy and Stability of
# Numerical Algorithms, 2002, section 3.1), γ_k(u) = k u / (1 − k u), with k additions
# in a sum and the unit roundoff u of the format of the field:
#
#     margin_sum    γ_k |Y| |w|, k the stored values of a member's part, and members
#     gram_sum      γ_k |Y_j| Σ_{i<j} |C_ji| |Y_i|ᵀ|r_i| / b_i, with a Gram matrix only
#     gram_wire     included in k; the replay rounds a Gram matrix of few bits itself
#     inner         γ_k Σ |C_ji| |G_ji| |r_i| / b_i, k the rows before; γ_8 of the score
#     residual      u |t| in scores, u (6 |μ| + |r|) in residuals, twice u |c r|
#     gradient_sum  γ_k |Y|ᵀ|r|, k the rows and the replicas
#     weights       2 u |w⁺|; γ_k (|w| + |w⁺| + |Δw|) if sums begin with the weights
#
# The slopes of log links are not bounded. Their bound is that within `ROOM` of
# the replayed scores; if scores may have a larger error, the tolerance is infinite.

MOST = 2048  # the most scores of an exchange whose errors are followed as a matrix
SMALL = 512  # the most rows or columns of a matrix whose spectral norm is computed
ROOM = 0.5  # the largest error of a score of a family whose slopes are not bounded
LIBRARY = 6  # roundoffs of the exponential of a library and of a quotient
FEW = 8  # roundings of a number beside those of its sum: factors, conversions, ends


class Allowance:
    """The tolerance of an exchange, accumulated step by step."""

    def __init__(
        self, exchange: RecordedExchange, start: Point, choices: tuple[bool, ...] = ()
    ) -> None:
        self.exchange = exchange
        self.start = start
        self.doubtful = (
            0  # margins that the run may have stored as either of two numbers
        )
        self.choices = choices  # for the first of them, whether the larger one is used
        self.rows: Array = exchange.rows.astype(np.float64)
        starts = np.cumsum((0, *exchange.steps.sizes))
        self.batches = [slice(a, b) for a, b in pairwise(starts)]
        precision = exchange.precision
        self.unit = {
            name: get_format(getattr(precision, name)).unit_roundoff for name in FIELDS
        }
        self.working = 2.0**-53 if precision.working == np.float64 else 2.0**-24
        self.parts = [
            split_range(self.rows.shape[1], exchange.sums.members, member)
            for member in range(exchange.sums.members)
        ]
        stored = [np.count_nonzero(self.rows[:, part], axis=1) for part in self.parts]
        self.words = np.max(stored, axis=0)[:, None] + exchange.sums.members + FEW
        self.norms = [_norm(self.rows[batch]) for batch in self.batches]
        self.of_weights = Response(exchange.steps, exchange.steps.l2)
        self.of_intercept = Response(exchange.steps, 0.0)
        # Errors of the gradient, the weights and the momentum in every step.
        self.kicks = np.zeros((3, len(exchange.steps.sizes)))
        self.intercept_kicks = np.zeros((3, len(exchange.steps.sizes)))
        self.joint = 0.0  # for plain SGD: the error of (w, b) so far
        self.pulls: list[Array] = []  # |Y_i|ᵀ|r_i| / b_i of every step
        self.signed: list[Array] = []  # r_i / b_i
        self.errors: list[float] = []  # E_i
        self.steepest: list[float] = []  # l_i
        # A margin that is summed anew and rounded no longer has the error of w.
        low = self.unit["margin"] > self.unit["margin_sum"]
        self.forgets = exchange.sums.in_steps and low
        size = len(self.rows) * start["w"].shape[1]
        self.linear = None
        if size <= MOST and not self.forgets:
            self.linear = ErrorPropagation(self)
        wire = get_format(precision.gram_wire)
        self.rounds_wire = not wire.is_wide and exchange.sums.members > 1
        with np.errstate(all="ignore"):
            self.stored = None if exchange.sums.in_steps else self._store_states()

    def margins(self, j: int, at: Array) -> tuple[Array, Array]:
        """Return the margins of step j as the run has them, and bounds on their errors.

        Parameters
        ----------
        j : int
            The step, from 0.
        at : array of shape (d, K)
            The point at which its gradient is evaluated.
        """
        batch = self.batches[j]
        exact = self.exchange.rows[batch] @ at
        if self.stored is None:
            drift = (
                np.linalg.norm(self.rows[batch], axis=1)[:, None] * self._drift(j)[0]
            )
            return self._stored(exact, self._summed(batch, _wide(at)) + drift, drift)
        shifts, radii = self.stored
        lead = self.of_weights.lead[:, j]
        shift = sum(L(f) * s[batch] for f, s in zip(lead, shifts, strict=True))
        radius = sum(abs(f) * r[batch] for f, r in zip(lead, radii, strict=True))
        if j and self.rounds_wire:
            moved, off = self._of_wire(j)
            shift = shift + moved
            radius = radius + off
        return exact + shift, np.asarray(radius)

    def take(
        self,
        j: int,
        before: Point,
        after: Point,
        scores: tuple[Array, Array],
        off: Array,
        residuals: Array,
    ) -> None:
        """Add the bounds on the errors of step j.

        Parameters
        ----------
        j : int
            The step, from 0.
        before, after : mapping
            The replayed points before and after the step.
        scores : pair of arrays of shape (b, K)
            The scores t, and the part of t that is not the margin.
        off : array of shape (b, K)
            Errors of the margins.
        residuals : array of shape (b, K)
            Residuals of the replay, times the sample weights.
        """
        of = self.exchange
        batch = self.batches[j]
        unit = self.unit
        t, shift = (np.abs(_wide(s)) for s in scores)
        r = np.abs(_wide(residuals))
        c = _wide(of.sides.weights[batch])
        e = off + gamma(FEW, unit["inner"]) * (t + 3 * shift) + unit["residual"] * t
        if self.stored is not None:
            e = e + gamma(FEW, unit["inner"]) * np.abs(t - shift) + self._of_gram(j)
        bare = np.where(c > 0, r / np.where(c > 0, c, 1), 0)
        mean = bare + _wide(target_size(of.family, of.sides.targets[batch]))
        sigma = unit["residual"] * (c * (LIBRARY * mean + bare) + 2 * r)
        slopes = c * self._slopes(j, _wide(scores[0]), e)
        error = np.linalg.norm(slopes * e) + np.linalg.norm(sigma)
        self.signed.append(_wide(residuals) / len(r))
        self.errors.append(float(error))
        self.steepest.append(float(slopes.max(initial=0.0)))
        self.pulls.append(np.abs(self.rows[batch]).T @ r / len(r))
        self._move(j, before, after)
        if self.linear is not None:
            self.linear.add(j, scores[0])

    def bounds(self, end: Point) -> dict[str, float]:
        """Return the tolerance of each part of the state at the end of the replay."""
        bounds = dict(zip(PARTS, self._bounds(), strict=True))
        if self.stored is not None:
            for k, name in enumerate(("w", "v")):
                bounds[name] += self._of_sums(k, end[name])
        return {n: float(b) if np.isfinite(b) else np.inf for n, b in bounds.items()}

    # ------------------------------------------------------------ rounding errors

    def _store_states(self) -> tuple[list[Array], list[Array]]:
        """Return what storing adds to the margins at the start, with error bounds.

        Both are lists for the margins of the weights and of the momentum.
        """
        whole = slice(0, len(self.rows))
        shifts = []
        radii = []
        for name in ("w", "v"):
            exact = self.exchange.rows @ self.start[name].astype(L)
            size = self._summed(whole, _wide(self.start[name]))
            value, radius = self._stored(exact, size, np.zeros(1))
            shifts.append(value - exact)
            radii.append(radius)
        return shifts, radii

    def _summed(self, batch: slice, at: Array) -> Array:
        """Return bounds on the rounding errors of the sums Y · `at`."""
        name = self.exchange.precision.margin_sum
        size = np.abs(self.rows[batch]) @ np.abs(at)
        factor = gamma(self.words[batch], self.unit["margin_sum"])
        return factor * (size + self._least(name, size))

    def _least(self, name: str, size: Array) -> float:
        """Return the size that a bound on a rounding adds because of underflow.

        It is 0 for formats that need no scale.
        """
        form = get_format(name)
        if not form.wants_scale:
            return 0.0
        loudest = max(np.square(self.rows).sum(axis=1).max(), size.max(initial=0.0))
        return float(2.0**form.least * max(1.0, 2.0 * loudest / form.largest))

    def _stored(self, exact: Array, off: Array, known: Array) -> tuple[Array, Array]:
        """Return margins in their stored format, and bounds of their errors.

        Parameters
        ----------
        exact : (b, K)
        off : (b, K), bound on the errors of the computed margins
        known : the part of `off` that is not an error of the margins
        """
        precision = self.exchange.precision
        if self.unit["margin"] <= self.unit["margin_sum"]:
            return exact, off - known
        ends = [_wide(exact) - off, _wide(exact) + off]
        for end in ends:
            round_through(end, precision.margin)
        low, high = (end.astype(L) for end in ends)
        radius = np.maximum(high - exact, exact - low).astype(np.float64)
        stored = exact.copy()
        is_known = low == high
        stored[is_known], radius[is_known] = low[is_known], 0.0
        for place in np.argwhere(~is_known):
            at = tuple(place)
            if self.doubtful < len(self.choices):
                stored[at] = (high if self.choices[self.doubtful] else low)[at]
                radius[at] = 0.0
            self.doubtful += 1
        return stored, radius

    def _of_gram(self, j: int) -> Array:
        """Return a bound on the error of step j's correction by the Gram matrix G.

        It is that of the sums of G, of its format in messages, and of its use.
        """
        batch = self.batches[j]
        unit = self.unit
        if not j:
            return np.zeros((batch.stop - batch.start, 1))
        couple = np.abs(self.of_weights.look[0, j, :j])
        pairs = list(zip(couple, self.signed, strict=True))
        r = np.concatenate([factor * np.abs(residuals) for factor, residuals in pairs])
        gram = np.abs(self.rows[batch] @ self.rows[: batch.start].T)
        used = gamma(batch.start + FEW, unit["inner"]) * (gram @ r)
        if self.rounds_wire:
            return np.asarray(used)
        pulls = np.zeros_like(self.start["w"], dtype=np.float64)
        for factor, pull in zip(couple, self.pulls, strict=True):
            pulls += factor * pull
        wire = get_format(self.exchange.precision.gram_wire)
        u_wire = 2.0**-53 if wire.name == "fp64" else 2.0**-24
        summed = gamma(self.words[batch], max(unit["gram_sum"], u_wire))
        return np.asarray(used + summed * (np.abs(self.rows[batch]) @ pulls))

    def _of_wire(self, j: int) -> tuple[Array, Array]:
        """Return the change of step j's scores if G is sent in few bits, and its error.

        The part of each member is rounded, and so is their sum. The rounded number is
        known if all numbers in the interval of its error are rounded to it.
        """
        batch = self.batches[j]
        name = self.exchange.precision.gram_wire
        low = high = exact = np.zeros((1, 1))
        for part in self.parts:
            left = self.rows[batch, part]
            right = self.rows[: batch.start, part].T
            gram = left @ right
            size = np.abs(left) @ np.abs(right)
            unit = max(self.unit["gram_sum"], 2.0**-24)
            off = gamma(self.words[batch], unit) * size
            ends = [gram - off, gram + off]
            least = self.unit["gram_wire"] * self._least(name, gram)
            for end in ends:
                round_through(end, name)
            low = low + ends[0] - least
            high = high + ends[1] + least
            exact = exact + gram
        spread = gamma(len(self.parts), 2.0**-24) * np.maximum(abs(low), abs(high))
        low = low - spread - least
        high = high + spread + least
        for end in (low, high):
            round_through(end, name)
        is_known = low == high
        radius = np.maximum(high - exact, exact - low)
        couple = self.of_weights.look[0, j, :j]
        pairs = list(zip(couple, self.signed, strict=True))
        r = np.concatenate([f * r for f, r in pairs])
        shift = np.where(is_known, low - exact, 0.0) @ r
        return shift.astype(L), np.where(is_known, 0.0, radius) @ np.abs(r)

    def _slopes(self, j: int, t: Array, e: Array) -> Array:
        """Return bounds on the slopes of the residuals of step j, of shape (b, 1).

        `t` are the replayed scores, `e` bounds on their errors.
        """
        family = self.exchange.family
        batch = self.batches[j]
        if np.isfinite(family.curvature):
            return np.full((len(t), 1), family.curvature)
        y = _wide(self.exchange.sides.targets[batch])
        drift, b_drift = self._drift(j)
        reach = np.linalg.norm(self.rows[batch], axis=1)[:, None] * drift + b_drift
        steepest = steepest_slopes(family, t, y, ROOM)
        bounded = np.where(e + reach <= ROOM, steepest, np.inf)
        return np.asarray(bounded.max(axis=1, keepdims=True))

    # ------------------------------------------------------------ propagation

    def _drift(self, j: int) -> tuple[float, float]:
        """Return bounds on the errors of weights and intercept.

        They hold before the gradient of step j.
        """
        if self.is_joint:
            return self.joint, self.joint
        w = np.sum(np.abs(self.of_weights.look[:, j, :j]) * self.kicks[:, :j])
        look = np.abs(self.of_intercept.look[:, j, :j])
        return float(w), float(np.sum(look * self.intercept_kicks[:, :j]))

    @property
    def is_joint(self) -> bool:
        """Return whether weights and intercept have one error bound (plain SGD)."""
        plain = self.exchange.steps.update == "sgd"
        return plain and self.linear is None and not self.forgets

    def _move(self, j: int, before: Point, after: Point) -> None:
        """Add the errors of step j to the bounds for the points after it."""
        of = self.exchange
        batch = self.batches[j]
        unit = self.unit
        rate = float(of.steps.rates[j])
        b = batch.stop - batch.start
        count = b + of.sums.replicas + FEW
        error = self.errors[j]
        slope = self.steepest[j]
        gradient = weights = speed = 0.0
        if self.stored is None:
            pull = self.pulls[j]
            gradient = gamma(count, unit["gradient_sum"]) * np.linalg.norm(pull)
            gradient += gamma(FEW, self.working) * of.steps.l2 * _size(before["w"])
            weights = self._kept(before["w"], after["w"], rate * pull, count)
            if of.steps.update != "sgd":
                pull = max(rate, 1.0) * pull
                speed = self._kept(before["v"], after["v"], pull, count)
        shift = 0.0
        if of.intercept:
            u = max(unit["inner"], unit["gradient_sum"], unit["residual"])
            sizes = [_size(p[name]) for p in (before, after) for name in ("b", "bv")]
            pulled = np.linalg.norm(np.abs(self.signed[j]).sum(axis=0))
            shift = gamma(count, u) * (pulled + sum(sizes))
        if self.is_joint:
            norm = self.norms[j]
            norm = np.hypot(norm, np.sqrt(b)) if of.intercept else norm
            rho = 1.0 - rate * of.steps.l2
            h = rate / b
            low = rho - h * slope * norm**2
            growth = max(abs(rho), abs(low), 1.0 if of.intercept else 0.0)
            self.joint = growth * self.joint + h * norm * error
            self.joint += rate * gradient + weights + max(rate, 1.0) * shift
            return
        drift, intercept_drift = self._drift(j)
        drift = 0.0 if self.forgets else drift
        whole = error + slope * (self.norms[j] * drift + np.sqrt(b) * intercept_drift)
        if self.linear is not None:  # feedback is in its matrices
            self.errors[j], whole = whole, 0.0
        self.kicks[:, j] = (self.norms[j] * whole / b + gradient, weights, speed)
        if of.intercept:
            self.intercept_kicks[:, j] = (whole / np.sqrt(b) + shift, shift, shift)

    def _kept(self, before: Array, after: Array, pull: Array, count: int) -> float:
        """Return a bound on the rounding error of weights or momentum in one step.

        `pull` has the sizes of what was added, and `count` is the number of roundings.
        """
        if self.exchange.steps.update == "sgd" and not before.any() and not after.any():
            return 0.0
        sizes = np.abs(_wide(before)) + np.abs(_wide(after)) + pull
        summed = gamma(count, self.working) * np.linalg.norm(sizes)
        return float(summed + self._rounded(after))

    def _rounded(self, after: Array) -> float:
        """Return a bound on the error of storing weights.

        It holds for rounding to nearest and for random rounding.
        """
        form = get_format(self.exchange.precision.weights)
        size = np.abs(_wide(after))
        size = np.where(size > 0, np.maximum(size, 2.0**form.least), 0.0)
        return float(2 * form.unit_roundoff * np.linalg.norm(size))

    def _of_sums(self, state: int, after: Array) -> float:
        """Return a bound on the error of a sum of all steps, added to the state.

        `state` is 0 for the weights and 1 for the momentum.
        """
        of = self.exchange
        count = len(self.rows) + FEW
        gains = np.abs(self.of_weights.end[0, state])
        pull = sum(f * p for f, p in zip(gains, self.pulls, strict=True))
        carried = np.abs(self.of_weights.carry[state])
        begun = carried[0] * np.abs(_wide(self.start["w"]))
        begun = begun + carried[1] * np.abs(_wide(self.start["v"]))
        if state and of.steps.update == "sgd":
            return 0.0
        summed = gamma(count, self.unit["gradient_sum"]) * np.linalg.norm(pull)
        sizes = begun + np.abs(_wide(after)) + pull
        summed += gamma(count, self.working) * np.linalg.norm(sizes)
        return float(summed + self._rounded(after))

    def _bounds(self) -> list[float]:
        """Return bounds on the errors of w, v, b and bv at the end of the exchange."""
        if self.is_joint:
            return [self.joint, 0.0, self.joint, 0.0]
        w = np.einsum("ksi,ki->s", np.abs(self.of_weights.end), self.kicks)
        end = np.abs(self.of_intercept.end)
        bounds = [*w, *np.einsum("ksi,ki->s", end, self.intercept_kicks)]
        if self.linear is None:
            return bounds
        return [a + b for a, b in zip(bounds, self.linear.bounds(), strict=True)]


class ErrorPropagation:
    """The effect of errors of the residuals on the end of the exchange.

    With ρ_j the error of the residuals of step j, e and σ as above, D_j the slopes,

        ρ_j = D_j ( e_j + Σ_{i<j} (C_ji G_ji + C°_ji) ρ_i / b_i ) + σ_j,

    so that ρ = T u, u_j = D_j e_j + σ_j, and δw = B u, B = Σ_i F_i Y_iᵀ T_i / b_i, with
    ‖δw‖ ≤ Σ_j ‖B_j‖ ‖u_j‖. C° and the sums of ρ belong to the intercept. The bound is
    of first order, because D is evaluated at the replayed scores.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.of = allowance
        rows = len(allowance.rows)
        columns = allowance.start["w"].shape[1]
        self.columns = columns
        self.turned = np.zeros((rows, columns, rows * columns))  # T

    def add(self, j: int, scores: Array) -> None:
        """Add step j with its replayed scores, of shape (b, K)."""
        of = self.of
        exchange = self.of.exchange
        batch = of.batches[j]
        first = batch.start * self.columns
        last = batch.stop * self.columns
        identity = np.eye(last - first).reshape(-1, self.columns, last - first)
        self.turned[batch, :, first:last] = identity
        if not j:
            return
        earlier = exchange.steps.sizes[:j]
        sizes = np.repeat(earlier, earlier)
        couple = np.repeat(of.of_weights.look[0, j, :j], earlier) / sizes
        reach = (of.rows[batch] @ of.rows[: batch.start].T) * couple
        if exchange.intercept:
            couple = of.of_intercept.look[0, j, :j]
            reach = reach + np.repeat(couple, earlier) / sizes
        before = self.turned[: batch.start, :, :first]
        fed = np.tensordot(reach, before, axes=1)
        slopes = self._slopes(batch, _wide(scores))
        self.turned[batch, :, :first] = slopes @ fed

    def _slopes(self, batch: slice, t: Array) -> Array:
        """Return ∂r/∂t of every row times its weight, of shape (b, K, K)."""
        exchange = self.of.exchange
        step = 2.0**-17
        y = _wide(exchange.sides.targets[batch])
        c = _wide(exchange.sides.weights[batch])
        slopes = []
        for k in range(self.columns):
            shift = step * (np.arange(self.columns) == k)
            above = residual(exchange.family, t + shift, y, exchange.clip)
            below = residual(exchange.family, t - shift, y, exchange.clip)
            slopes.append(_wide(above - below) / (2 * step) * c)
        return np.stack(slopes, axis=2)

    def bounds(self) -> list[float]:
        """Return the bounds Σ_j ‖B_j‖ ‖u_j‖ on the errors of w, v, b and bv."""
        of = self.of
        sizes = self.of.exchange.steps.sizes
        bounds = []
        for rows, response in (
            (of.rows, of.of_weights),
            (np.ones((len(of.rows), 1)), of.of_intercept),
        ):
            for state in (0, 1):
                gain = np.repeat(response.end[0, state] / np.array(sizes), sizes)
                total = 0.0
                for j, batch in enumerate(of.batches if gain.any() else ()):
                    part = slice(batch.start * self.columns, batch.stop * self.columns)
                    behind = slice(batch.start, None)
                    pulled = (rows[behind] * gain[behind, None]).T
                    image = np.tensordot(pulled, self.turned[behind, :, part], axes=1)
                    total += (
                        _norm(image.reshape(-1, part.stop - part.start))
                        * (of.errors[j])
                    )
                bounds.append(total)
        return bounds


class Response:
    """The linear response of all later steps to a unit of error.

    The error is in the gradient of step i, in the weights or the momentum after it, or
    in the weights or the momentum at the start.
    """

    def __init__(self, steps: RecordedSteps, l2: float) -> None:
        count = len(steps.sizes)
        w = np.zeros((3, count), dtype=L)
        v = np.zeros((3, count), dtype=L)
        w0 = np.array([1.0, 0.0], dtype=L)
        v0 = np.array([0.0, 1.0], dtype=L)
        self.look = np.zeros((3, count, count))  # (where, step j, step i)
        self.lead = np.zeros((2, count))  # (of w or v at the start, step j)
        for j, rate in enumerate(steps.rates):
            at = look(steps, w, v)
            at0 = look(steps, w0, v0)
            self.look[:, j], self.lead[:, j] = at, at0
            g = L(l2) * at
            g[0, j] += 1
            w, v = update(steps, w, v, g, L(rate))
            w0, v0 = update(steps, w0, v0, L(l2) * at0, L(rate))
            w[1, j] += 1
            v[2, j] += 1
        # (where, w or v, step i); (w or v, of w or v at the start)
        self.end = np.stack([w, v], axis=1).astype(np.float64)
        self.carry = np.stack([w0, v0]).astype(np.float64)


def gamma(count: Array | float, unit: float) -> Array:
    """Return γ_k(u) = k u / (1 − k u), infinite where k u reaches 1."""
    share = np.asarray(count, dtype=np.float64) * unit
    return np.where(share < 1.0, share / np.maximum(1.0 - share, unit), np.inf)


def _wide(values: Array) -> Array:
    """Return a copy in float64."""
    return np.array(values, dtype=np.float64)


def _size(values: Array) -> float:
    return float(np.linalg.norm(_wide(values)))


def _norm(rows: Array) -> float:
    """Return the spectral norm ‖Y‖₂ of `rows`, or a bound on it for a large matrix."""
    if min(rows.shape) <= SMALL:
        square = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
        return float(np.sqrt(max(np.linalg.eigvalsh(square)[-1], 0.0)))
    sums = np.abs(rows).sum(axis=0).max() * np.abs(rows).sum(axis=1).max()
    return float(min(np.sqrt(sums), np.linalg.norm(rows)))
