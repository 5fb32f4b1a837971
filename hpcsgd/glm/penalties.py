"""Penalties and bounds on weights, the settings of the problem, and sweep models."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hpcsgd.formats import Array
from hpcsgd.glm.families import LARGEST_DISPERSION, LEAST_DISPERSION
from hpcsgd.settings import Settings, setting

# What is added to the mean loss to keep weights small, few, or within bounds.
#
#     p(w) = l1 ‖w‖₁ + (l2/2) ‖w‖²   where lower ≤ w ≤ upper
#
# The gradient of the ridge is affine in w, so the ridge is part of the steps. l1 and
# bounds have a proximal map instead, which is applied after a step:
#
#     prox_η(w) = argmin_u ‖u − w‖²/(2η) + l1‖u‖₁, lower ≤ u ≤ upper
#               = clip(sign(w) max(|w| − η l1, 0), lower, upper)


@dataclass(frozen=True, eq=False)
class Penalty:
    """Penalty and bounds on weights (d,) or (d, K), not on the intercept.

    Bounds are a number for all columns or one for each, (d,).
    """

    l2: float = 0.0
    l1: float = 0.0
    lower: Any = -np.inf
    upper: Any = np.inf

    @property
    def _is_one_for_all(self) -> bool:
        return type(self.lower) is float and type(self.upper) is float

    @property
    def is_nothing(self) -> bool:
        """Return whether l1 and l2 are 0; there may be bounds."""
        return self.l1 == 0.0 and self.l2 == 0.0

    @cached_property
    def is_bounded(self) -> bool:
        """True if some column has a bound."""
        if self._is_one_for_all:
            return bool(self.lower != -np.inf or self.upper != np.inf)
        free = np.all(np.equal(self.lower, -np.inf)) and np.all(self.upper == np.inf)
        return not free

    @cached_property
    def is_smooth(self) -> bool:
        """True if there is neither l1 nor a bound, so that s steps are exact."""
        return self.l1 == 0.0 and not self.is_bounded

    def of(self, columns: Any) -> "Penalty":
        """Return this penalty for some columns; `columns` indexes its bounds."""
        if self._is_one_for_all:
            return self
        lower, upper = (
            bound if np.ndim(bound) == 0 else np.asarray(bound)[columns]
            for bound in (self.lower, self.upper)
        )
        return Penalty(self.l2, self.l1, lower, upper)

    def value(self, weights: Array) -> float:
        """Return l1‖w‖₁ + (l2/2)‖w‖², in float64."""
        value = 0.0
        if self.l2:
            value += 0.5 * self.l2 * float(np.sum(np.square(weights, dtype=np.float64)))
        if self.l1:
            value += self.l1 * float(np.sum(np.abs(weights), dtype=np.float64))
        return value

    def prox(self, weights: Array, step: float) -> Array:
        """Compute weights ← prox_η(weights) for η = `step`, in place, and return them.

        The weights keep their dtype, and zeros are exact.
        """
        if self.l1:
            small = weights.dtype.type(step * self.l1)
            weights -= np.clip(weights, -small, small)
        if self.is_bounded:
            lower, upper = self.bounds(weights)
            np.minimum(np.maximum(weights, lower, out=weights), upper, out=weights)
        return weights

    def unsettled(self, weights: Array, slope: Array) -> tuple[Array, Array]:
        """Return weights and slopes without those at 0 whose slope l1 outweighs.

        A weight w_j = 0 with a slope of at most l1 is at its minimum, and adds nothing
        to a gradient norm or a gap. With bounds or without l1 nothing is left out; else
        the result has shape (m, 1) or (m,).
        """
        if not self.l1 or self.is_bounded:
            return weights, slope
        matters = (weights != 0.0) | ~(np.abs(slope) <= self.l1)
        shape = (-1, *[1] * (weights.ndim - 1))
        return weights[matters].reshape(shape), slope[matters].reshape(shape)

    def least(self, weights: Array, slope: Array) -> Array:
        """Return the smallest subgradient of the objective F at w.

        `slope` is the gradient of the smooth part of F. The result is zero at the
        minimum and only there. At w_j = 0 it is the part of the slope beyond ±l1; at a
        bound it is 0 where descent would leave the bounds. Without l1 and bounds it is
        the slope.
        """
        if self.is_smooth:
            return slope
        pull = np.where(
            weights == 0.0,
            slope - np.clip(slope, -self.l1, self.l1),
            slope + self.l1 * np.sign(weights),
        )
        # Weights may have been rounded to float32, and with them those at a bound.
        lower, upper = self.bounds(weights, np.float32)
        rounded = weights.astype(np.float32)
        leaves_bounds = ((rounded <= lower) & (pull > 0.0)) | (
            (rounded >= upper) & (pull < 0.0)
        )
        return np.where(leaves_bounds, 0.0, pull)

    def minimum(self, weights: Array, slope: Array) -> Array:
        """Return argmin_u of slope·u + p(u) for each weight; ±inf where there is none.

        p is this penalty with its bounds. The result is shaped as the weights. Where
        l2 = 0 and |slope| = l1, minima are not unique: 0 is one, and so are all weights
        whose sign is not that of the slope. The result is the weight itself if it is
        one of these, else 0, clipped to the bounds.
        """
        pull = -(slope - np.clip(slope, -self.l1, self.l1))
        with np.errstate(divide="ignore", invalid="ignore"):
            free = pull / self.l2 if self.l2 else np.where(pull, pull * np.inf, weights)
        if self.l2 == 0.0 and self.l1:
            # 0 is a minimum where |slope| ≤ l1; if these are equal, others are too.
            rises = (np.abs(slope) < self.l1) | (np.sign(slope) == np.sign(weights))
            free = np.where(pull, free, np.where(rises, 0.0, weights))
        lower, upper = self.bounds(weights)
        return np.asarray(np.minimum(np.maximum(free, lower), upper))

    def bounds(self, weights: Array, dtype: Any = None) -> tuple[Array, Array]:
        """Return lower and upper bound, in shapes that broadcast with `weights`."""
        lower, upper = (
            np.asarray(bound, dtype=dtype or weights.dtype)
            for bound in (self.lower, self.upper)
        )
        if weights.ndim == 2:
            return _upright(lower), _upright(upper)
        return lower, upper


def _upright(bound: Array) -> Array:
    """Return a bound (d,) as (d, 1); a number stays a number."""
    return bound[:, None] if bound.ndim else bound


# The problem: the family of the loss, the penalties and the bounds.

STEP = "step"
EXCHANGE = "exchange"
PLACES = (STEP, EXCHANGE)  # l1 and bounds act after each step or exchange
Bound = float | tuple[float, ...] | None


def families() -> list[str]:
    """Return the names of all families, also of those that a program added."""
    from hpcsgd.glm import FAMILIES

    return sorted(FAMILIES)


@dataclass(frozen=True)
class ProblemConfig(Settings, section="problem"):
    """The model: its family, its penalties and its bounds."""

    family: str = setting(
        "logistic",
        "loss family of the generalized linear model",
        choices=families,
    )
    power: float = setting(
        1.5,
        "power p of the variance of tweedie, between 1 (poisson) and 2 (gamma)",
        above=1,
        below=2,
        remedy="1.5 is usual, 1 is --family poisson and 2 is --family gamma",
        read_if={"problem.family": ("tweedie",)},
    )
    dispersion: float = setting(
        1.0,
        "dispersion α of negative-binomial, whose variance is μ + α μ²",
        at_least=LEAST_DISPERSION,
        at_most=LARGEST_DISPERSION,
        remedy="1 is usual, 0 is --family poisson",
        read_if={"problem.family": ("negative-binomial",)},
    )
    l2: float = setting(
        0.0,
        "ridge penalty on the weights (not on the intercept)",
        at_least=0,
        remedy="0 is none, 1e-5 is usual",
    )
    intercept: bool = setting(False, "fit an intercept, which is never penalised")
    l1: float = setting(
        0.0,
        "lasso penalty on the weights; a larger penalty sets more weights to exactly 0",
        at_least=0,
        remedy="0 is none, 1e-5 is usual",
    )
    l1_at: str = setting(
        "step",
        "when l1 and the bounds act: after every step, or once for the s steps of an"
        " exchange (exchange), which is approximate",
        choices=PLACES,
    )
    lower: Bound = setting(
        None, "lower bound of all weights, or a list with one bound for each column"
    )
    upper: Bound = setting(
        None, "upper bound of all weights, or a list with one bound for each column"
    )

    def conflicts(self) -> Iterator[str]:
        """Yield a sentence if a column has no finite value within bounds.

        Lists of bounds with different lengths yield it too.
        """
        lower, upper = (
            np.atleast_1d(free if bound is None else bound)
            for bound, free in ((self.lower, -np.inf), (self.upper, np.inf))
        )
        fits = lower.size == 1 or upper.size == 1 or lower.size == upper.size
        if not (
            fits and np.all((lower <= upper) & (lower < np.inf) & (upper > -np.inf))
        ):
            yield (
                "[problem] lower and upper leave some weight no value, or differ in"
                " length; give lower <= upper, one number each, or one for each column"
            )

    @property
    def is_smooth(self) -> bool:
        """Return whether there is neither l1 nor a bound."""
        return self.l1 == 0.0 and self.lower is None and self.upper is None


# Models that are trained together: their settings, and their columns in the arrays.
#
# K models share rows, Gram matrix and messages. Weights, scores and residuals lie
# side by side, the columns of one model after those of the other.


@dataclass(frozen=True)
class SweepModel:
    """One of the models that a sweep trains together.

    Attributes
    ----------
    l2 : float, its ridge penalty λ
    rate : float, its first rate
    fold : int or None, the fold that it is not trained on; None: it has all rows
    """

    l2: float
    rate: float
    fold: int | None = None


@dataclass(frozen=True)
class Models:
    """The models that a sweep trains together, each with `scores` weight columns."""

    each: tuple[SweepModel, ...]
    scores: int = 1
    # For each model, its column of the shard's sample weights.
    weights: tuple[int, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.each)

    @property
    def columns(self) -> int:
        """Return the number of columns of weights of all models together."""
        return len(self.each) * self.scores

    @cached_property
    def l2(self) -> Array:
        """Return λ of each model, (models,)."""
        return np.array([model.l2 for model in self.each])

    @cached_property
    def settings(self) -> list[tuple[float, float]]:
        """Return the distinct pairs (l2, rate) of the models."""
        return list(dict.fromkeys((m.l2, m.rate) for m in self.each))

    @cached_property
    def setting_of(self) -> Array:
        """Return for every column of weights its index into `settings`, (columns,)."""
        number = {setting: k for k, setting in enumerate(self.settings)}
        indices = [number[m.l2, m.rate] for m in self.each]
        return np.repeat(np.array(indices), self.scores)

    @cached_property
    def weights_of(self) -> Array:
        """Return for every model its column of the sample weights, (models,)."""
        return np.array(self.weights or (0,) * len(self.each))

    def sample_weights(self, weights: Array | None) -> Array | None:
        """Return sample weights with a column for each model, (m, models).

        `weights` has a column for each distinct set of weights, (m, distinct). One
        column for all models, (m, 1), stays as it is.
        """
        if weights is None or weights.shape[1] == 1:
            return weights
        return np.take(weights, self.weights_of, axis=1)

    def of_columns(self, weights: Array | None) -> Array | None:
        """Return sample weights for each column of weights, (m, columns).

        `weights` has a column for each distinct set of weights, (m, distinct). One
        column for all models, (m, 1), stays as it is.
        """
        values = self.sample_weights(weights)
        if values is None or values.shape[1] == 1 or self.scores == 1:
            return values
        return np.repeat(values, self.scores, axis=1)

    def sums(self, values: Array) -> Array:
        """Return the sum of `values`, (columns,), over the columns of each model."""
        total: Array = values.reshape(len(self.each), self.scores).sum(axis=1)
        return total

    def are_finite(self, weights: Array, states: int) -> Array:
        """Return for each model whether its weights are finite, (models,).

        `weights` has shape (d, states · columns).
        """
        good = np.isfinite(weights).all(axis=0).reshape(states, len(self.each), -1)
        return np.asarray(good.all(axis=(0, 2)))
