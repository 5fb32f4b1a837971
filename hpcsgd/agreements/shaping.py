"""Clipping, centring and noise of gradients, and the privacy that noise buys."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.codecs.base import Moment
from hpcsgd.backends.task import State
from hpcsgd.formats import Array

# Changes of the mean gradient before the step.


@dataclass(frozen=True)
class GradientFacts:
    """The columns of a gradient on this rank, its rows, and a sum over ranks."""

    columns: slice | Array  # the local ones of all columns, or their numbers
    total: Callable[[Array], Array]  # sums words over the ranks with other parts
    rows: float = 0.0  # over which the gradient of DP-SGD is a mean; else not used

    def runs(self) -> list[tuple[int, slice]]:
        """Return each run of consecutive local columns as (first row, columns).

        The first row counts in the local part of a gradient, which has a row for each
        column.
        """
        if isinstance(self.columns, slice):
            return [(0, self.columns)]
        breaks = np.flatnonzero(np.diff(self.columns) != 1) + 1
        parts = [part for part in np.split(self.columns, breaks) if part.size]
        places = np.cumsum([0, *(part.size for part in parts)])
        return [
            (int(place), slice(int(part[0]), int(part[-1]) + 1))
            for place, part in zip(places, parts, strict=False)
        ]


class Shaper(ABC):
    """Base class of changes of the mean gradient before a step, in place.

    The gradient has neither the penalty nor the part of the intercept.
    """

    def prepare(self, state: State) -> None:  # noqa: B027
        """Allocate in `state` the arrays of this shaper, which checkpoints save."""

    @abstractmethod
    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Change the mean gradient of the local columns, (columns, K), in place.

        All ranks call it once in an exchange, each with all columns that it has.
        """

    def shape_intercept(self, mean: Array) -> None:  # noqa: B027
        """Change the mean gradient of the intercept, (K,), in place; here nothing."""

    def finish(self, whole: GradientFacts, moment: Moment) -> None:  # noqa: B027
        """Change weights and intercept after a step of the kind gradient."""

    def facts(self) -> dict[str, Any]:
        """Return the entries of this shaper in the report of a run."""
        return {}


# Clipping of the mean gradient before replicas step.
#
# Value, norm and percentile mean the same as in `hpcsgd.products.base`, which clips if
# one replica steps alone: a norm is that of the mean gradient of all rows of a batch,
# over all columns and scores.

HISTORY = 100  # norms from which a percentile is computed
KEPT = "clip_norms"
NONE = -1.0  # in place of a missing norm: checkpoints take no NaN


@dataclass
class ByValue(Shaper):
    """Clipping of every value of the gradient to [−at, at]."""

    at: float
    clipped: int = 0

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Clip the local values one by one; this needs no message."""
        self.clipped += int((np.abs(gradient) > self.at).any())
        np.clip(gradient, -self.at, self.at, out=gradient)

    def facts(self) -> dict[str, Any]:
        """Return `clipped_updates`, the number of steps that clipped a value here."""
        return {"clipped_updates": self.clipped}


@dataclass
class ByNorm(Shaper):
    """Clipping by norm: g ← g · min(1, at / ‖g‖)."""

    at: float
    clipped: int = 0

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Multiply the gradient by limit / ‖g‖ if ‖g‖ exceeds what `limit` returns."""
        size = norm_of(gradient, whole)
        limit = self.limit(moment)
        if size > limit:
            gradient *= gradient.dtype.type(limit / size)
            self.clipped += 1

    def limit(self, moment: Moment) -> float:
        """Return the largest norm that is not clipped in this exchange."""
        return self.at

    def facts(self) -> dict[str, Any]:
        """Return `clipped_updates`, the number of steps whose gradient was clipped."""
        return {"clipped_updates": self.clipped}


@dataclass
class ByPercentile(ByNorm):
    """Clipping by norm to the percentile `at` of the last hundred norms.

    The norms are those before clipping, including the norm of this exchange. If `at` is
    5, the limit is the norm that the smallest 5 % of them do not exceed. A step that
    was left out, as after an overflow, adds no norm.
    """

    _norms: Array = field(default_factory=lambda: np.full((1, HISTORY), NONE))

    def prepare(self, state: State) -> None:
        """Store the history of norms in the state, so that checkpoints save it."""
        self._norms = state.shared.setdefault(KEPT, self._norms)

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Add the norm to the history, and clip to the percentile of the history."""
        norms = self._norms[0]
        size = norm_of(gradient, whole)
        norms[moment.number % HISTORY] = size
        seen = norms[norms >= 0.0]
        limit = float(np.percentile(seen, self.at)) if len(seen) else size
        if size > limit:
            gradient *= gradient.dtype.type(limit / size)
            self.clipped += 1


def norm_of(gradient: Array, whole: GradientFacts) -> float:
    """Return the norm ‖g‖ over all columns; `gradient` has the local columns only."""
    word = np.array([np.square(gradient, dtype=np.float64).sum()])
    return float(np.sqrt(whole.total(word)[0]))


# Centred gradients, and gradients of length one.


class OverClasses(Shaper):
    """Centring over classes: subtract the mean over the K scores of each column.

    With softmax this mean is 0 except for rounding, so the optimum does not change.
    """

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Subtract from the gradient of each column its mean over the K scores."""
        gradient -= gradient.mean(axis=1, keepdims=True, dtype=gradient.dtype)


@dataclass
class OverColumns(Shaper):
    """Gradient centralisation: subtract the mean over all columns, score by score."""

    total: int  # columns

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Subtract the mean over all columns of each score; this sums K words."""
        sums = whole.total(gradient.sum(axis=0, dtype=np.float64))
        gradient -= (sums / self.total).astype(gradient.dtype)


class ToLengthOne(Shaper):
    """Normalisation: g / ‖g‖, so that the length of a step is the learning rate.

    A gradient of zeros stays as it is.
    """

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Divide the gradient by its norm over all columns, unless the norm is 0."""
        size = norm_of(gradient, whole)
        if size > 0.0:
            # In float64: 1 / size would overflow for a size near the smallest number.
            gradient[...] = gradient.astype(np.float64) / size


# LARS and LAMB: steps in proportion to the weights, layer by layer.
#
# The weights are one layer, the intercept another, with λ = 0. With the trust
# coefficient c, the penalty λ, and the rate η in front of the velocity,
#
#     r = c |w| / (|g| + λ |w|);    v ← μ v + r (g + λ w);    w ← w − η v
#
# is LARS (Y. You, I. Gitman and B. Ginsburg, "Large Batch Training of Convolutional
# Networks", 2017, equation 6 and algorithm 1), and with m̂ and v̂ of Adam
#
#     u = m̂ / (√v̂ + ε) + λ w;    r = c |w| / |u|;    w ← w − η r u
#
# is LAMB (Y. You et al., "Large Batch Optimization for Deep Learning", ICLR 2020,
# algorithm 2, φ(x) = c x, c = 1 there). Where a norm is zero, as before the first step
# of a run, r is 1.


@dataclass
class LayerRates(Shaper):
    """LARS: the gradient with its penalty times the trust ratio of the weights."""

    trust: float
    l2: float

    def prepare(self, state: State) -> None:
        """Store the state, whose weights and intercept have the norms."""
        self._state = state

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Change g so that g + λw becomes r (g + λw); this sums two words."""
        weights = self._state.weights[:, : gradient.shape[1]]
        size, slope = norms_of(weights, gradient, whole)
        ratio = self.ratio(size, slope, slope + self.l2 * size)
        gradient *= gradient.dtype.type(ratio)
        if self.l2:
            gradient += gradient.dtype.type((ratio - 1.0) * self.l2) * weights

    def shape_intercept(self, mean: Array) -> None:
        """Multiply the mean gradient of the intercept by its own trust ratio."""
        intercept = self._state.intercept
        assert intercept is not None  # it has a gradient
        slope = float(np.linalg.norm(mean))
        mean *= self.ratio(float(np.linalg.norm(intercept[0])), slope, slope)

    def ratio(self, size: float, slope: float, below: float) -> float:
        """Return c · `size` / `below`, or 1 if the norm `size` or `slope` is zero."""
        return self.trust * size / below if size and slope else 1.0


class DirectionRates(LayerRates):
    """LAMB: the step of Adam, with a penalty of its own, times the trust ratio."""

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Keep w, and take λw from g: the rule, which adds it, then steps by g."""
        weights = self._state.weights[:, : gradient.shape[1]]
        self._before = weights.copy()
        if self.l2:
            gradient -= gradient.dtype.type(self.l2) * weights

    def shape_intercept(self, mean: Array) -> None:
        """Keep the intercept as it is before the step."""
        intercept = self._state.intercept
        assert intercept is not None  # it has a gradient
        self._intercept = intercept[0].copy()

    def finish(self, whole: GradientFacts, moment: Moment) -> None:
        """Take the step again, r times as far; this sums two words."""
        if not moment.rate:
            return
        state = self._state
        before = self._before
        weights = state.weights[:, : before.shape[1]]
        along = (before - weights) / before.dtype.type(moment.rate)
        along += before.dtype.type(self.l2) * before
        size, slope = norms_of(before, along, whole)
        reach = moment.rate * self.ratio(size, slope, slope)
        state.weights[:, : before.shape[1]] = before - before.dtype.type(reach) * along
        if state.intercept is not None:
            along = (self._intercept - state.intercept[0]) / moment.rate
            slope = float(np.linalg.norm(along))
            size = float(np.linalg.norm(self._intercept))
            reach = moment.rate * self.ratio(size, slope, slope)
            state.intercept[0] = self._intercept - reach * along


def norms_of(first: Array, second: Array, whole: GradientFacts) -> tuple[float, float]:
    """Return the norms of two arrays over all columns, by one sum."""
    squares = [np.square(x, dtype=np.float64).sum() for x in (first, second)]
    sums = np.sqrt(whole.total(np.array(squares)))
    return float(sums[0]), float(sums[1])


# Noise that fades: N(0, σ² / (1 + t)^0.55) on every word of the mean gradient.
#
# It is added after replicas agreed, so all of them have to draw the same numbers. They
# are drawn for blocks of columns, so that a column has the same noise on any grid.

FADES = 0.55  # of the variance (arXiv 1511.06807)
BLOCK = 4096  # columns whose noise is drawn together
SALT = 0x6E6F697365  # of a stream of random numbers of its own


@dataclass
class Noise(Shaper):
    """Gaussian noise of variance `variance` / (1 + t)^0.55 in step t = 0, 1, ..."""

    variance: float
    seed: int
    salt: ClassVar[int] = SALT

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Add noise to the local columns; a column has the same noise on any grid."""
        self.add(gradient, whole, self.size(whole, moment), moment)

    def size(self, whole: GradientFacts, moment: Moment) -> float:
        """Return the standard deviation of the noise of this step."""
        return float(np.sqrt(self.variance / (1.0 + moment.number) ** FADES))

    def add(
        self, gradient: Array, whole: GradientFacts, size: float, moment: Moment
    ) -> None:
        """Add noise of standard deviation `size` to the local columns, in place."""
        for place, columns in whole.runs():
            height = columns.stop - columns.start
            self._add(gradient[place : place + height], columns, size, moment)

    def _add(self, gradient: Array, held: slice, size: float, moment: Moment) -> None:
        for block in range(held.start // BLOCK, -(-held.stop // BLOCK)):
            first = block * BLOCK
            last = (block + 1) * BLOCK
            here = slice(max(first, held.start), min(last, held.stop))
            drawn = self._dice(moment, block).normal(size=(BLOCK, gradient.shape[1]))
            noise = drawn[here.start - first : here.stop - first]
            part = gradient[here.start - held.start : here.stop - held.start]
            part += (size * noise).astype(gradient.dtype)

    def _dice(self, moment: Moment, block: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, self.salt, moment.number, block))


# DP-SGD: clipped gradients of single rows, and noise that hides each of them.
#
# M. Abadi et al., "Deep Learning with Differential Privacy" (CCS 2016), algorithm 1,
# with the norm C, the noise σ, the rows B of a step and their expected number L:
#
#     g_i ← g_i / max(1, |g_i| / C);    g ← (Σ_{i in B} g_i + N(0, σ²C² I)) / L
#
# The gradient of row i is the outer product of (a_i, 1) and its K residuals r_i, so
# that |g_i| = |r_i| √(|a_i|² + 1), without the 1 where there is no intercept: to clip
# it is to scale the residuals of the row. Norms of rows are summed over members once,
# before the first step.


@dataclass
class ClippedRows:
    """The clipping of the gradient of each row to the norm `at`.

    `norms` are those of the local rows over all columns and the intercept, `order`
    returns the row number of each place of an epoch, and `drawn` how many places of an
    exchange are filled. An exchange has `places` places.
    """

    at: float
    norms: Array
    order: Callable[[int], Array]
    drawn: Callable[[int, int], int]
    places: int
    clipped: int = 0
    _epoch: int = -1

    def begin(self, epoch: int, index: int) -> None:
        """Begin exchange `index` of `epoch`."""
        if epoch != self._epoch:
            self._rows = self.order(epoch)
            self._epoch = epoch
        self._first = index * self.places
        self._end = self._first + self.drawn(epoch, index)

    def scale(self, residuals: Array) -> Array:
        """Return the residuals of the next rows of the exchange, (rows, K), clipped.

        Those of places that are not filled become 0.
        """
        count = len(residuals)
        rows = self._rows[self._first : self._first + count]
        filled = min(max(self._end - self._first, 0), count)
        self._first += count
        sizes = np.linalg.norm(residuals.astype(np.float64), axis=1)
        sizes *= self.norms[rows]
        self.clipped += int((sizes[:filled] > self.at).sum())
        factors = self.at / np.maximum(sizes, self.at)
        factors[filled:] = 0.0
        clipped: Array = (residuals * factors[:, None]).astype(residuals.dtype)
        return clipped


@dataclass
class PrivateNoise(Noise):
    """The noise of DP-SGD: N(0, (σC)²) on every word of the sum of clipped gradients.

    `variance` is (σC)². `expected` is the number of rows by which the sum is divided;
    None divides it by the rows that were summed.
    """

    expected: float | None = None
    salt: ClassVar[int] = 0x70726976  # of streams of random numbers of its own

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Divide the sum by the expected rows, and add noise to the local columns."""
        self._moment = moment
        self._size = self.size(whole, moment)
        self._share = 1.0 if self.expected is None else whole.rows / self.expected
        gradient *= gradient.dtype.type(self._share)
        self.add(gradient, whole, self._size, moment)

    def size(self, whole: GradientFacts, moment: Moment) -> float:
        """Return σC divided by the number of rows that the sum is divided by."""
        return float(np.sqrt(self.variance)) / (self.expected or whole.rows)

    def shape_intercept(self, mean: Array) -> None:
        """Divide and disturb the gradient of the intercept as that of the weights."""
        dice = np.random.default_rng((self.seed, self.salt + 1, self._moment.number))
        mean *= self._share
        mean += self._size * dice.normal(size=mean.shape)


# How much privacy such steps spend: Rényi divergences that add up over steps.
#
# With the order α, a step that draws each row with probability q spends
#
#     ε_α = log A_α / (α − 1),    A_α = E [((1 − q) + q e^((2z − 1)/2σ²))^α],
#
# with z from N(0, σ²), for data sets that are equal but for one row, which has no
# gradient in one of them (I. Mironov, K. Talwar and L. Zhang, "Rényi Differential
# Privacy of the Sampled Gaussian Mechanism", 2019, section 3.3): a binomial sum for
# whole orders, two series for others. With q = 1 it is α / 2σ². All steps together are
# (ε, δ)-private with
#
#     ε = min over α of  Σ ε_α + log((α − 1)/α) − (log δ + log α)/(α − 1)
#
# (C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential
# Privacy", 2020, proposition 12).

ORDERS: Array = np.concatenate(
    [
        1.0 + np.arange(1, 30) / 10.0,
        np.arange(4.0, 11.0, 0.5),
        np.arange(11, 33),
        [36, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 384, 512],
    ]
)
TERMS = 256  # of the series of an order that is not whole, which is below 100


def spent_by_step(share: float, noise: float, orders: Array = ORDERS) -> Array:
    """Return ε_α of one step for each order α.

    `share` is the probability q with which the step draws a row, `noise` is σ.
    """
    if share == 0.0:
        return np.zeros(len(orders))
    if share == 1.0:
        return orders / (2.0 * noise**2)
    logs = np.empty(len(orders))
    whole = orders == np.rint(orders)
    logs[whole] = _log_of_whole(share, noise, orders[whole, None])
    logs[~whole] = _log_of_fractions(share, noise, orders[~whole, None])
    spent: Array = np.maximum(logs, 0.0) / (orders - 1.0)
    return spent


def _log_of_whole(share: float, noise: float, orders: Array) -> Array:
    """Return log A_α of whole orders, (orders, 1): a binomial sum."""
    from scipy.special import logsumexp

    k = np.arange(orders.max(initial=1.0) + 1.0)
    rest = orders - k  # below zero beyond α, where the coefficient is 0
    chosen, _ = _binomials(tuple(orders.flat), len(k))
    drawn = k * np.log(share) + rest * np.log1p(-share)
    grown = drawn + k * (k - 1.0) / (2.0 * noise**2)
    logs: Array = logsumexp(chosen + grown, axis=1)
    return logs


def _log_of_fractions(share: float, noise: float, orders: Array) -> Array:
    """Return log A_α, or a little more, of orders (orders, 1) that are not whole.

    A_α is an integral from −∞ to z₀ = σ² log(1/q − 1) + 1/2, where both parts of the
    mixture are equal, and one from there on. Each is a series, whose terms change their
    sign beyond α, so that the rest is smaller than the last term, which is added once
    more.
    """
    from scipy.special import log_ndtr

    k = np.arange(float(TERMS))
    rest = orders - k
    chosen, signs = _binomials(tuple(orders.flat), TERMS)
    middle = noise**2 * np.log(1.0 / share - 1.0) + 0.5
    parts = []
    for power, below in ((k, middle - k), (rest, rest - middle)):
        drawn = power * np.log(share) + (orders - power) * np.log1p(-share)
        grown = drawn + power * (power - 1.0) / (2.0 * noise**2)
        parts.append(chosen + grown + log_ndtr(below / noise))
    top = np.max(parts, axis=(0, 2))
    first, second = (np.exp(part - top[:, None]) for part in parts)
    terms = first + second
    total = (terms * signs).sum(axis=1) + terms[:, -1]
    logs: Array = np.where(total > 0.0, top + np.log(np.abs(total)), np.inf)
    return logs


@lru_cache(maxsize=4)
def _binomials(orders: tuple[float, ...], terms: int) -> tuple[Array, Array]:
    """Return log |C(α, k)|, and the signs of C(α, k), for orders α and k < `terms`."""
    from scipy.special import gammaln, gammasgn

    order = np.array(orders)[:, None]
    k = np.arange(float(terms))
    rest = order - k + 1.0
    logs: Array = gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(rest)
    return logs, gammasgn(rest)


def epsilon_of(
    spent: Array, delta: float, orders: Array = ORDERS, overflow: float = 0.0
) -> float:
    """Return the ε of mechanisms that spend `spent`, Σ ε_α for each order α, at δ.

    `delta` is δ. With a probability of up to `overflow` more rows are drawn than have a
    place, which takes (1 + e^ε) times that probability from δ. ε is infinite where
    nothing of δ is left.
    """
    lifts = np.log1p(-1.0 / orders) - np.log(orders) / (orders - 1.0)
    epsilon = 0.0
    for _ in range(50):
        left = delta - overflow * (1.0 + np.exp(min(epsilon, 700.0)))
        if left <= 0.0:
            return float("inf")
        before = epsilon
        epsilon = max(float(np.min(spent + lifts - np.log(left) / (orders - 1.0))), 0.0)
        if epsilon <= before * (1.0 + 1e-9):
            break
    return max(epsilon, before)


DIGITS = 1e4  # a noise that is found is a multiple of 1 / DIGITS
MOST_NOISE = 1e5


def least_noise(epsilon: Callable[[float], float], target: float) -> float | None:
    """Return the smallest noise σ with `epsilon`(σ) ≤ `target`; None if there is none.

    It is found by bisection, to a multiple of 0.0001.
    """
    low, high = 0.0, 1.0
    while epsilon(high) > target:
        low, high = high, 2.0 * high
        if high > MOST_NOISE:
            return None
    while high - low > 0.5 / DIGITS:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if epsilon(middle) > target else (low, middle)
    return float(np.ceil(high * DIGITS) / DIGITS)
