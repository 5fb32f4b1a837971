"""Families of generalized linear models: loss, residual and curvature of a row.

A family is a row of the table `FAMILIES`; kernels/cuda/families.cuh has the same
formulas for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array

# The protocol of a family: one GLM in its score t.
#
# Scores t and residuals are (m, K), targets y and losses (m, 1); K = 1 but for softmax.
# Everything keeps the dtype it is given.


class Family(Protocol):
    """The loss ℓ(t, y) of a row with score t = a·w + β, and its derivative.

    A subclass defines three attributes and three methods;
    `hpcsgd.glm.register` makes it a family. Scores are arrays of shape (m, 1) for m
    rows, or (m, K) for K scores a row, in float32 or float64. A method returns the
    dtype of the scores that it is given. ℓ must be convex in t.

    Attributes
    ----------
    name : str
        The name by which settings choose the family.
    targets : str
        What y may be: "real", "counts" (0, 1, 2, ...), "positive", "nonnegative",
        "proportions" (0 ≤ y ≤ 1), "binary" (two labels, given to the methods as 0 and
        1), "signed" (two labels, given as −1 and 1) or "classes" (K labels, given as
        0..K−1).
    curvature : float
        An upper bound of ∂²ℓ/∂t², from which the learning rate follows; inf where
        there is none.

    Notes
    -----
    A family may also define `least_loss(y)`, the least loss of a target (0 without it),
    and `deviance(y, mean)`, from which `score` computes D². `parameter` names an
    argument of the class that is a setting of [problem].

    Examples
    --------
    >>> import numpy as np
    >>> from hpcsgd.glm import get_family
    >>> family = get_family("logistic")
    >>> t, y = np.array([[0.0], [2.0]]), np.array([[1.0], [1.0]])
    >>> family.residual(t, y).round(4).tolist()
    [[-0.5], [-0.1192]]
    """

    name: str
    targets: str
    curvature: float

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ(t, y) of every row.

        Parameters
        ----------
        t : ndarray of shape (m, K)
            Scores.
        y : ndarray of shape (m, 1)
            Targets.

        Returns
        -------
        ndarray of shape (m, 1)
        """

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = ∂ℓ/∂t of every score.

        Parameters
        ----------
        t : ndarray of shape (m, K)
            Scores.
        y : ndarray of shape (m, 1)
            Targets.
        out : ndarray of shape (m, K), optional
            The array to write r into, which may be `t` itself.

        Returns
        -------
        ndarray of shape (m, K)
            `out` where it is given.
        """

    def mean(self, t: Array) -> Array:
        """Return μ(t), the prediction for every score.

        Parameters
        ----------
        t : ndarray of shape (m, K)
            Scores.

        Returns
        -------
        ndarray of shape (m, K)
        """

    def clipped(self, t: Array) -> int:
        """Return how many scores have an inexact residual, from a clipped exponential.

        Parameters
        ----------
        t : ndarray of shape (m, K)
            Scores.

        Returns
        -------
        int
            0 unless the family overrides it.
        """
        return 0


# Families with a likelihood, f(y; t, φ), of which summaries of a fit are made.
#
# ℓ is −φ log f but for terms without t: the information of a row is ∂²ℓ/∂t² / φ.


@runtime_checkable
class LikelihoodFamily(Family, Protocol):
    """A family whose loss is a negative log-likelihood times the dispersion φ.

    A family that defines these members has information matrices, log-likelihoods and
    deviances in `hpcsgd.Result.summary`; any other family has sandwich covariances
    alone.

    Attributes
    ----------
    dispersion_rule : {"one", "pearson", "profile"}
        What φ is: 1; Pearson's estimate χ²/(n − P), which the log-likelihood takes as
        well; or that estimate, where the log-likelihood takes its own maximum D/n.
    """

    dispersion_rule: str

    def variance(self, mean: Array) -> Array:
        """Return V(μ), the variance of y divided by φ.

        Parameters
        ----------
        mean : ndarray of shape (m, K)
            The means μ.

        Returns
        -------
        ndarray of shape (m, K)
        """

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """Return log f(y; t, φ) of every row, with all its constants.

        Parameters
        ----------
        t : ndarray of shape (m, K)
            Scores.
        y : ndarray of shape (m, 1)
            Targets.
        dispersion : float
            φ.

        Returns
        -------
        ndarray of shape (m, 1)
        """


def likelihood_of(family: Family) -> LikelihoodFamily | None:
    """Return the family if it has a likelihood, else None."""
    return family if isinstance(family, LikelihoodFamily) else None


# What other libraries call a family -> its name here.
SYNONYMS = {
    "bernoulli": "logistic",
    "binary": "logistic",
    "logit": "logistic",
    "log-loss": "logistic",
    "normal": "gaussian",
    "linear": "gaussian",
    "least-squares": "gaussian",
    "ols": "gaussian",
    "mse": "gaussian",
    "squared": "gaussian",
    "squared-error": "gaussian",
    "ridge": "gaussian",
    "lasso": "gaussian",
    "multinomial": "softmax",
    "categorical": "softmax",
    "multiclass": "softmax",
    "cross-entropy": "softmax",
    "svm": "squared-hinge",
    "svc": "squared-hinge",
    "hinge": "squared-hinge",
    "count": "poisson",
    "counts": "poisson",
    "robust": "huber",
    "compound-poisson": "tweedie",
    "nb2": "negative-binomial",
    "negbin": "negative-binomial",
    "proportion": "binomial",
}

# Kinds of targets that are numbers of any size, and those of a log link.
LOG_LINK_TARGETS = ("counts", "positive", "nonnegative")
NUMBERS = ("real", *LOG_LINK_TARGETS)

# Families whose loss is half the square of its residual, ℓ = r²/2.
SQUARED = ("gaussian", "squared-hinge")

# Beside what a family must define, it may define
#
#     least_loss(y)      min over t of ℓ(t, y); without it the least loss is 0
#     deviance(y, μ)     2 (ℓ(t, y) − min ℓ) at the mean μ of t; without it (y − μ)²
#     variance(μ)        the variance of y with mean μ, up to a constant factor
#     peak, largest_slope(y)   the score at which ∂²ℓ/∂t² is largest, and its value
#     parameter          the name of the argument of its class, a setting of [problem]


def least_losses(family: Family, targets: Array) -> Array:
    """Return min over t of ℓ(t, y) for every target, in the shape of `targets`."""
    least: Callable[[Array], Array] = getattr(family, "least_loss", np.zeros_like)
    return least(targets)


def steepest_slopes(family: Family, t: Array, y: Array, room: float) -> Array:
    """Return an upper bound of ∂²ℓ/∂t² within `room` of every score.

    `t` are the scores. ∂²ℓ/∂t² of a family without a common bound is convex in t, or
    rises to a peak and falls. If the peak is in reach, the bound is the value there.
    Else ∂²ℓ/∂t² is largest at one end, and a secant of the residual outside of that end
    is steeper still.
    """
    step = 2.0**-10
    above = family.residual(t + room + step, y) - family.residual(t + room, y)
    below = family.residual(t - room, y) - family.residual(t - room - step, y)
    steepest = np.asarray(np.maximum(above, below) / step)
    largest: Callable[[Array], Array] | None = getattr(family, "largest_slope", None)
    if largest is None:
        return steepest
    has_peak = np.abs(t - getattr(family, "peak", 0.0)) <= room + step
    return np.where(has_peak, largest(y), steepest)


def kernel_setting(family: Family, dtype: Any) -> float:
    """Return the number that kernels take beside scores and targets.

    It is the parameter of a family that has one (δ, the power, the dispersion), and
    `exp_bound` of `dtype` for every other family.
    """
    name = getattr(family, "parameter", "")
    return float(getattr(family, name)) if name else exp_bound(dtype)


def no_clips(self: Any, t: Array) -> int:
    """Return 0, for a family whose residual is exact at every score."""
    return 0


def exp_mean(self: Any, t: Array) -> Array:
    """Return exp(min(t, `exp_bound`)), the mean eᵗ of a family with a log link."""
    return np.exp(np.minimum(t, exp_bound(t.dtype)))


def class_variance(self: Any, mean: Array) -> Array:
    """Return V(μ) = μ (1 − μ), the variance of the indicator of a class."""
    variance: Array = mean * (1 - mean)
    return variance


def minus_loss(self: Any, t: Array, y: Array, dispersion: float) -> Array:
    """Return log f = −ℓ, for a family whose loss is the negative log density.

    For `Binomial` it is that of one trial, without the binomial coefficient.
    """
    density: Array = -self.loss(t, y)
    return density


@lru_cache(maxsize=8)
def exp_bound(dtype: Any) -> float:
    """Return the largest score whose exponential is not clipped.

    It is half the exponent range, 44.4 in float32 and 354.9 in float64, so that
    exp(t)·y, and a sum of such terms, stay finite in the same dtype. For larger scores
    the residual keeps its value at the bound, which is no longer the derivative of the
    loss.
    """
    return float(np.log(np.finfo(dtype).max) / 2)


# Least squares: ℓ = (t − y)² / 2.


class Gaussian:
    """Real targets, identity link."""

    name = "gaussian"
    targets = "real"
    curvature = 1.0
    clipped = no_clips
    dispersion_rule = "profile"

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = (t − y)² / 2."""
        return (t - y) ** 2 / 2

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = t − y."""
        return np.subtract(t, y, out=out)

    def mean(self, t: Array) -> Array:
        """Return μ = t."""
        return t

    def variance(self, mean: Array) -> Array:
        """Return V(μ) = 1."""
        return np.ones_like(mean)

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """Return log f = −((t − y)²/φ + log 2πφ) / 2."""
        constant = np.log(2.0 * np.pi * dispersion) / 2
        density: Array = -((t - y) ** 2) / (2.0 * dispersion) - constant
        return density


# Logistic regression: ℓ = softplus(t) − y t, y in {0, 1}.


class Logistic:
    """Two classes, logit link."""

    name = "logistic"
    targets = "binary"
    curvature = 0.25
    clipped = no_clips
    variance = class_variance
    log_density = minus_loss
    dispersion_rule = "one"

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = log(1 + eᵗ) − y t.

        The larger of 0 and t is taken out of the logarithm, so that nothing overflows.
        """
        small = np.log1p(np.exp(-np.abs(t)))
        losses: Array = np.maximum(t, 0) + small - y * t
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = sigmoid(t) − y."""
        from scipy.special import expit

        mean: Array = expit(t, out=out)
        return np.subtract(mean, y, out=mean)

    def mean(self, t: Array) -> Array:
        """Return μ = sigmoid(t)."""
        from scipy.special import expit

        probability: Array = expit(t)
        return probability


# Poisson regression with log link: ℓ = eᵗ − y t.


class Poisson:
    """Counts; scores above `exp_bound` are clipped inside the exponential."""

    name = "poisson"
    targets = "counts"
    curvature = float("inf")
    dispersion_rule = "one"
    mean = exp_mean

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = eᵗ − y t."""
        losses: Array = self.mean(t) - y * t
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = eᵗ − y."""
        mean = np.minimum(t, exp_bound(t.dtype), out=out)
        np.exp(mean, out=mean)
        return np.subtract(mean, y, out=mean)

    def clipped(self, t: Array) -> int:
        """Return the number of scores above `exp_bound`."""
        return int(np.count_nonzero(t > exp_bound(t.dtype)))

    def variance(self, mean: Array) -> Array:
        """Return V(μ) = μ."""
        return mean

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """Return log f = −ℓ − log y!."""
        from scipy.special import gammaln

        density: Array = -self.loss(t, y) - gammaln(y + 1)
        return density

    def least_loss(self, y: Array) -> Array:
        """Return min ℓ = y − y log y."""
        from scipy.special import xlogy

        return np.asarray(y - xlogy(y, y))

    def deviance(self, y: Array, mean: Array) -> Array:
        """Return D = 2 (y log(y/μ) − y + μ)."""
        from scipy.special import xlogy

        return np.asarray(2.0 * (xlogy(y, y / mean) - y + mean))


# Gamma regression with log link: ℓ = y e⁻ᵗ + t.


class Gamma:
    """Positive targets; scores below −`exp_bound` are clipped in the exponential."""

    name = "gamma"
    targets = "positive"
    curvature = float("inf")
    dispersion_rule = "pearson"
    mean = exp_mean

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = y e⁻ᵗ + t."""
        return y * np.exp(-np.maximum(t, -exp_bound(t.dtype))) + t

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = 1 − y e⁻ᵗ."""
        step = np.maximum(t, -exp_bound(t.dtype), out=out)
        np.negative(step, out=step)
        np.exp(step, out=step)
        np.multiply(step, y, out=step)
        return np.subtract(1, step, out=step)

    def clipped(self, t: Array) -> int:
        """Return the number of scores below −`exp_bound`."""
        return int(np.count_nonzero(t < -exp_bound(t.dtype)))

    def variance(self, mean: Array) -> Array:
        """Return V(μ) = μ²."""
        return np.square(mean)

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """Return log f = (−ℓ + log(y/φ)) / φ − log y − log Γ(1/φ)."""
        from scipy.special import gammaln

        scaled = (np.log(y / dispersion) - self.loss(t, y)) / dispersion
        density: Array = scaled - np.log(y) - gammaln(1.0 / dispersion)
        return density

    def least_loss(self, y: Array) -> Array:
        """Return min ℓ = 1 + log y."""
        return 1.0 + np.log(y)

    def deviance(self, y: Array, mean: Array) -> Array:
        """Return D = 2 (log(μ/y) + y/μ − 1)."""
        return np.asarray(2.0 * (np.log(mean / y) + y / mean - 1.0))


# Tweedie regression with log link, a compound Poisson-gamma model for 1 < p < 2:
#
#     ℓ = e^{(2−p)t} / (2−p) + y e^{−(p−1)t} / (p−1).
#
# Both terms are convex in t. Up to constants of y it becomes the loss of Poisson as
# p → 1 and that of gamma as p → 2 (Jørgensen, 1987, J. R. Stat. Soc. B 49(2)).


class Tweedie:
    """Targets of at least 0, many of them 0; the variance is φ μᵖ, p = `power`."""

    name = "tweedie"
    targets = "nonnegative"
    curvature = float("inf")
    parameter = "power"
    dispersion_rule = "pearson"
    mean = exp_mean

    def __init__(self, power: float = 1.5) -> None:
        if not 1.0 < power < 2.0:
            raise ConfigError(
                f"tweedie: power = {power!r} must lie between 1 and 2; 1.5 is usual, 1"
                " is --family poisson and 2 is --family gamma"
            )
        self.power = float(power)

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = e^{(2−p)t}/(2−p) + y e^{−(p−1)t}/(p−1)."""
        up = 2.0 - self.power
        down = self.power - 1.0
        bound = exp_bound(t.dtype)
        rising = np.exp(np.minimum(up * t, bound)) / up
        return rising + y * np.exp(np.minimum(-down * t, bound)) / down

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = e^{(2−p)t} − y e^{−(p−1)t}."""
        bound = exp_bound(t.dtype)
        rising = np.multiply(t, 2.0 - self.power)
        np.minimum(rising, bound, out=rising)
        np.exp(rising, out=rising)
        falling = np.multiply(t, 1.0 - self.power, out=out)
        np.minimum(falling, bound, out=falling)
        np.exp(falling, out=falling)
        np.multiply(falling, y, out=falling)
        return np.subtract(rising, falling, out=falling)

    def clipped(self, t: Array) -> int:
        """Return the number of scores with an exponent above `exp_bound`."""
        exponents = np.maximum((2.0 - self.power) * t, (1.0 - self.power) * t)
        return int(np.count_nonzero(exponents > exp_bound(t.dtype)))

    def least_loss(self, y: Array) -> Array:
        """Return min ℓ = y^{2−p} / ((2−p)(p−1))."""
        p = self.power
        return np.asarray(y ** (2.0 - p) / ((2.0 - p) * (p - 1.0)))

    def variance(self, mean: Array) -> Array:
        """Return V(μ) = μᵖ."""
        return np.asarray(mean**self.power)

    def deviance(self, y: Array, mean: Array) -> Array:
        """Return D = 2 (μ^{2−p}/(2−p) + y μ^{1−p}/(p−1) − y^{2−p}/((2−p)(p−1)))."""
        p = self.power
        losses = mean ** (2.0 - p) / (2.0 - p) + y * mean ** (1.0 - p) / (p - 1.0)
        return np.asarray(2.0 * (losses - self.least_loss(y)))

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """Return NaN: a compound Poisson-gamma density has no closed form."""
        return np.full(y.shape, np.nan)


# Negative binomial regression with log link, of a fixed dispersion α (NB2):
#
#     ℓ = (y + 1/α) log(1 + α eᵗ) − y t.
#
# ∂²ℓ/∂t² = μ (1 + α y) / (1 + α μ)² is not negative, so that ℓ is convex in t; it is
# largest at μ = 1/α. Poisson is the limit α → 0.

LEAST_DISPERSION, LARGEST_DISPERSION = 1e-9, 1e9  # whose α e^exp_bound are numbers


class NegativeBinomial:
    """Counts of which the variance is μ + α μ², with α = `dispersion`."""

    name = "negative-binomial"
    targets = "counts"
    curvature = float("inf")
    parameter = "dispersion"
    dispersion_rule = "one"
    clipped = no_clips
    mean = exp_mean

    def __init__(self, dispersion: float = 1.0) -> None:
        if not LEAST_DISPERSION <= dispersion <= LARGEST_DISPERSION:
            raise ConfigError(
                f"negative-binomial: dispersion = {dispersion!r} must lie between"
                f" {LEAST_DISPERSION:g} and {LARGEST_DISPERSION:g}; 1 is usual, 0 is"
                " --family poisson"
            )
        self.dispersion = float(dispersion)
        self.peak = -float(np.log(self.dispersion))

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = (y + 1/α) log(1 + α eᵗ) − y t.

        Beyond `exp_bound`, log(1 + α eᵗ) is linear in t.
        """
        low = np.minimum(t, exp_bound(t.dtype))
        softplus = np.log1p(self.dispersion * np.exp(low)) + (t - low)
        losses: Array = (y + 1.0 / self.dispersion) * softplus - y * t
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = (μ − y) / (1 + α μ), μ = eᵗ."""
        mean = np.minimum(t, exp_bound(t.dtype), out=out)
        np.exp(mean, out=mean)
        spread = np.multiply(mean, self.dispersion)
        spread += 1.0
        np.subtract(mean, y, out=mean)
        return np.divide(mean, spread, out=mean)

    def least_loss(self, y: Array) -> Array:
        """Return min ℓ = (y + 1/α) log(1 + α y) − y log y."""
        from scipy.special import xlogy

        alpha = self.dispersion
        return np.asarray((y + 1.0 / alpha) * np.log1p(alpha * y) - xlogy(y, y))

    def largest_slope(self, y: Array) -> Array:
        """Return max ∂²ℓ/∂t² = (1 + α y) / (4 α)."""
        return (1.0 + self.dispersion * y) / (4.0 * self.dispersion)

    def variance(self, mean: Array) -> Array:
        """Return V(μ) = μ + α μ²."""
        return np.asarray(mean + self.dispersion * np.square(mean))

    def deviance(self, y: Array, mean: Array) -> Array:
        """Return D = 2 (y log(y/μ) − (y + 1/α) log((1 + α y) / (1 + α μ)))."""
        from scipy.special import xlogy

        alpha = self.dispersion
        ratio = np.log1p(alpha * (y - mean) / (1.0 + alpha * mean))
        return np.asarray(2.0 * (xlogy(y, y / mean) - (y + 1.0 / alpha) * ratio))

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """Return log f = −ℓ + y log α + log Γ(y + 1/α) − log Γ(1/α) − log y!."""
        from scipy.special import gammaln

        size = 1.0 / self.dispersion
        constant = gammaln(y + size) - gammaln(size) - gammaln(y + 1)
        density: Array = constant + y * np.log(self.dispersion) - self.loss(t, y)
        return density


# Binomial counts: y is the share of successes, the sample weight is the number of
# trials. The loss of Logistic is that of one trial, for y between 0 and 1 too.


class Binomial(Logistic):
    """Proportions of successes, logit link; sample weights are numbers of trials."""

    name = "binomial"
    targets = "proportions"

    def least_loss(self, y: Array) -> Array:
        """Return min ℓ = −y log y − (1 − y) log(1 − y)."""
        from scipy.special import xlogy

        return np.asarray(-xlogy(y, y) - xlogy(1.0 - y, 1.0 - y))

    def deviance(self, y: Array, mean: Array) -> Array:
        """Return D = 2 (y log(y/μ) + (1 − y) log((1 − y)/(1 − μ))), of one trial."""
        from scipy.special import rel_entr

        return np.asarray(2.0 * (rel_entr(y, mean) + rel_entr(1.0 - y, 1.0 - mean)))


# Robust regression: quadratic near the target, linear beyond δ.


class Huber:
    """Real targets; ℓ = e²/2 for |e| ≤ δ, else δ(|e| − δ/2), e = t − y."""

    name = "huber"
    targets = "real"
    curvature = 1.0
    parameter = "delta"
    clipped = no_clips

    def __init__(self, delta: float = 1.0) -> None:
        if not 0.0 < delta < float("inf"):
            raise ConfigError(
                f"huber: delta = {delta!r} must be positive and finite; 1 is usual"
            )
        self.delta = delta

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = c (e − c/2), where e = t − y and c is e clipped to ±δ."""
        error = t - y
        bent = self._bend(error, None)
        error -= bent / 2
        losses: Array = bent * error
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = t − y, clipped to ±δ."""
        error = np.subtract(t, y, out=out)
        return self._bend(error, error)

    def mean(self, t: Array) -> Array:
        """Return μ = t."""
        return t

    def _bend(self, error: Array, out: Array | None) -> Array:
        # np.clip does the same at four times the overhead on a small batch.
        bent = np.minimum(error, self.delta, out=out)
        return np.maximum(bent, -self.delta, out=bent)


# Probit regression: ℓ = −log Φ(±t), y in {0, 1}.

HALF_ROOT_2 = float(np.sqrt(0.5))
TWO_OVER_ROOT_PI = float(2.0 / np.sqrt(np.pi))


class Probit:
    """Two classes, probit link; the hazard φ/Φ by erfcx is safe in both tails."""

    name = "probit"
    targets = "binary"
    curvature = 1.0
    clipped = no_clips
    variance = class_variance
    log_density = minus_loss
    dispersion_rule = "one"

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = −log Φ(t) for y = 1, −log Φ(−t) for y = 0."""
        from scipy.special import log_ndtr

        losses: Array = -log_ndtr(t * (2 * y - 1))
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = −φ(t)/Φ(t) for y = 1, φ(t)/Φ(−t) for y = 0."""
        from scipy.special import erfcx

        # With c = (1 − 2y)/√2 both are (2/√π) c / erfcx(c t): no quotient of tiny
        # numbers. erfcx overflows to inf where the residual is 0, as it should be.
        c = np.multiply(y, -2 * HALF_ROOT_2)
        c += HALF_ROOT_2
        step = np.multiply(t, c, out=out)
        with np.errstate(over="ignore"):
            erfcx(step, out=step)
        np.divide(c, step, out=step)
        return np.multiply(step, TWO_OVER_ROOT_PI, out=step)

    def mean(self, t: Array) -> Array:
        """Return μ = Φ(t)."""
        from scipy.special import ndtr

        probability: Array = ndtr(t)
        return probability


# L2-loss support vector machine: ℓ = max(0, 1 − y t)² / 2, y in {−1, 1}.


class SquaredHinge:
    """Two classes as signs, y = −1 or 1; the loss is the squared hinge."""

    name = "squared-hinge"
    targets = "signed"
    curvature = 1.0
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = max(0, 1 − y t)² / 2."""
        missing: Array = np.maximum(1 - y * t, 0)
        return missing**2 / 2

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = y min(0, y t − 1)."""
        excess = np.multiply(t, y, out=out)
        np.subtract(excess, 1, out=excess)
        np.minimum(excess, 0, out=excess)
        return np.multiply(excess, y, out=excess)

    def mean(self, t: Array) -> Array:
        """Return the sign of the score, 1 or −1; it is 1 for a score of 0."""
        return np.where(t >= 0, 1, -1).astype(t.dtype)


# Multinomial logistic regression: ℓ = logsumexp(t) − t_y, W is d × K.


class Softmax:
    """K classes; targets are labels 0..K−1 as a column."""

    name = "softmax"
    targets = "classes"
    curvature = 0.5
    clipped = no_clips
    variance = class_variance
    log_density = minus_loss
    dispersion_rule = "one"

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ = logsumexp(t) − t_y, where t_y is the score of class y.

        The largest score is taken out of the sum, so that nothing overflows.
        """
        top = _largest(t)
        total = np.log(np.exp(t - top).sum(axis=1, keepdims=True))
        labels = y.astype(np.intp, copy=False)
        # The label's score meets the largest one first: small losses keep their digits.
        losses: Array = total + (top - np.take_along_axis(t, labels, axis=1))
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return r = softmax(t) − onehot(y)."""
        mean = self._mean(t, out)
        np.subtract(mean, y == np.arange(t.shape[1], dtype=y.dtype), out=mean)
        return mean

    def mean(self, t: Array) -> Array:
        """Return μ = softmax(t)."""
        return self._mean(t, None)

    def _mean(self, t: Array, out: Array | None) -> Array:
        mean = np.subtract(t, _largest(t), out=out)
        np.exp(mean, out=mean)
        np.divide(mean, np.add.reduce(mean, axis=1, keepdims=True), out=mean)
        return mean


def _largest(t: Array) -> Array:
    # The ufunc's own reduce: t.max costs one more Python call in each step.
    top: Array = np.maximum.reduce(t, axis=1, keepdims=True)
    return top


# A family whose rows have K scores for each of several models, side by side.


class GroupedSoftmax:
    """Softmax of the K scores of each of several models, which share the targets.

    Families with one score a row need no such class: they treat each score by itself,
    and targets (m, 1) broadcast with scores (m, models).
    """

    def __init__(self, family: Family, scores: int) -> None:
        self.family = family
        self.scores = scores
        self.name = f"{family.name} of several models"
        self.targets = family.targets
        self.curvature = family.curvature

    def loss(self, t: Array, y: Array) -> Array:
        """Return ℓ of every model, (m, models)."""
        losses = self.family.loss(*self._apart(t, y))
        return losses.reshape(len(t), -1)

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """Return ∂ℓ/∂t of every score, (m, models · K)."""
        residuals = self.family.residual(*self._apart(t, y)).reshape(t.shape)
        if out is None:
            return residuals
        out[...] = residuals
        return out

    def mean(self, t: Array) -> Array:
        """Return μ(t), the probabilities of the classes in every model."""
        return self.family.mean(t.reshape(-1, self.scores)).reshape(t.shape)

    def clipped(self, t: Array) -> int:
        """Return how many scores have an inexact residual; `family` counts them."""
        return self.family.clipped(t)

    def _apart(self, t: Array, y: Array) -> tuple[Array, Array]:
        models = t.shape[1] // self.scores
        return t.reshape(-1, self.scores), np.repeat(y, models, axis=0)


def for_models(family: Any, models: int, scores: int) -> Any:
    """Return the family for `models` models with `scores` scores a row each.

    It is `family` itself for one model, or for one score a row.
    """
    return GroupedSoftmax(family, scores) if models > 1 and scores > 1 else family
