"""Families of generalized linear models: loss, residual and curvature of a row.

A family is a row of the table `FAMILIES`; kernels/cuda/families.cuh has the same
formulas for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy.special import erfcx, expit, gammaln, log_ndtr, ndtr, xlogy

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
        What y may be: "real", "counts" (0, 1, 2, ...), "positive", "binary" (two
        labels, given to the methods as 0 and 1), "signed" (two labels, given as −1 and
        1) or "classes" (K labels, given as 0..K−1).
    curvature : float
        An upper bound of ∂²ℓ/∂t², from which the learning rate follows; inf where
        there is none.

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
        """Return how many scores lie where an exponential is clipped.

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
    deviances in `hpcsgd.Result.summary`; any other family has the sandwich alone.

    Attributes
    ----------
    dispersion : {"one", "pearson", "profile"}
        What φ is: 1; Pearson's estimate χ²/(n − P), which the log-likelihood takes as
        well; or that estimate, where the log-likelihood takes its own maximum D/n.
    """

    dispersion: str

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
    "binomial": "logistic",
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
}

# family -> min over t of ℓ(t, y); the losses of all others come down to 0.
LEAST_LOSSES: dict[str, Callable[[Array], Array]] = {
    "poisson": lambda y: y - xlogy(y, y),
    "gamma": lambda y: 1.0 + np.log(y),
}


# Families whose loss is half the square of its residual, ℓ = r²/2.
SQUARED = ("gaussian", "squared-hinge")


def least_losses(family: Family, targets: Array) -> Array:
    """Return min over t of ℓ(t, y) for every target, in the shape of `targets`."""
    return LEAST_LOSSES.get(family.name, np.zeros_like)(targets)


def no_clips(self: Any, t: Array) -> int:
    """Return 0: a family without an exponential link clips no score."""
    return 0


@lru_cache(maxsize=8)
def exp_bound(dtype: Any) -> float:
    """Return the largest score whose exponential is not clipped: half the exponent
    range.

    About 44.4 in float32 and 354.9 in float64. exp(t)·y, and a sum of such terms,
    then stay finite in the same dtype. Beyond it the residual stays at its value
    there, which is no longer the derivative of the loss.
    """
    return float(np.log(np.finfo(dtype).max) / 2)


# Least squares: ℓ = (t − y)² / 2.


class Gaussian:
    """Real targets, identity link."""

    name = "gaussian"
    targets = "real"
    curvature = 1.0
    clipped = no_clips
    dispersion = "profile"

    def loss(self, t: Array, y: Array) -> Array:
        """(t − y)² / 2."""
        return (t - y) ** 2 / 2

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """t − y."""
        return np.subtract(t, y, out=out)

    def mean(self, t: Array) -> Array:
        """t."""
        return t

    def variance(self, mean: Array) -> Array:
        """1."""
        return np.ones_like(mean)

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """−((t − y)²/φ + log 2πφ) / 2."""
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
    dispersion = "one"

    def loss(self, t: Array, y: Array) -> Array:
        """log(1 + eᵗ) − y t, with the larger of 0 and t taken out of the logarithm."""
        small = np.log1p(np.exp(-np.abs(t)))
        losses: Array = np.maximum(t, 0) + small - y * t
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """sigmoid(t) − y."""
        mean: Array = expit(t, out=out)
        return np.subtract(mean, y, out=mean)

    def mean(self, t: Array) -> Array:
        """sigmoid(t)."""
        probability: Array = expit(t)
        return probability

    def variance(self, mean: Array) -> Array:
        """μ (1 − μ)."""
        variance: Array = mean * (1 - mean)
        return variance

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """−ℓ."""
        density: Array = -self.loss(t, y)
        return density


# Poisson regression with log link: ℓ = eᵗ − y t.


class Poisson:
    """Counts; scores above `exp_bound` are clipped inside the exponential."""

    name = "poisson"
    targets = "counts"
    curvature = float("inf")
    dispersion = "one"

    def loss(self, t: Array, y: Array) -> Array:
        """eᵗ − y t."""
        losses: Array = self.mean(t) - y * t
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """eᵗ − y."""
        mean = np.minimum(t, exp_bound(t.dtype), out=out)
        np.exp(mean, out=mean)
        return np.subtract(mean, y, out=mean)

    def mean(self, t: Array) -> Array:
        """eᵗ, clipped."""
        return np.exp(np.minimum(t, exp_bound(t.dtype)))

    def clipped(self, t: Array) -> int:
        """Return the number of scores above `exp_bound`."""
        return int(np.count_nonzero(t > exp_bound(t.dtype)))

    def variance(self, mean: Array) -> Array:
        """μ."""
        return mean

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """−ℓ − log y!."""
        density: Array = -self.loss(t, y) - gammaln(y + 1)
        return density


# Gamma regression with log link: ℓ = y e⁻ᵗ + t.


class Gamma:
    """Positive targets; scores below −`exp_bound` are clipped in the exponential."""

    name = "gamma"
    targets = "positive"
    curvature = float("inf")
    dispersion = "pearson"

    def loss(self, t: Array, y: Array) -> Array:
        """y e⁻ᵗ + t."""
        return y * np.exp(-np.maximum(t, -exp_bound(t.dtype))) + t

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """1 − y e⁻ᵗ."""
        step = np.maximum(t, -exp_bound(t.dtype), out=out)
        np.negative(step, out=step)
        np.exp(step, out=step)
        np.multiply(step, y, out=step)
        return np.subtract(1, step, out=step)

    def mean(self, t: Array) -> Array:
        """eᵗ, clipped."""
        return np.exp(np.minimum(t, exp_bound(t.dtype)))

    def clipped(self, t: Array) -> int:
        """Return the number of scores below −`exp_bound`."""
        return int(np.count_nonzero(t < -exp_bound(t.dtype)))

    def variance(self, mean: Array) -> Array:
        """μ²."""
        return np.square(mean)

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """(−ℓ + log(y/φ)) / φ − log y − log Γ(1/φ)."""
        scaled = (np.log(y / dispersion) - self.loss(t, y)) / dispersion
        density: Array = scaled - np.log(y) - gammaln(1.0 / dispersion)
        return density


# Robust regression: quadratic near the target, linear beyond δ.


class Huber:
    """Real targets; ℓ = e²/2 for |e| ≤ δ, else δ(|e| − δ/2), e = t − y."""

    name = "huber"
    targets = "real"
    curvature = 1.0
    clipped = no_clips

    def __init__(self, delta: float = 1.0) -> None:
        if not 0.0 < delta < float("inf"):
            raise ConfigError(
                f"huber: delta = {delta!r} must be positive and finite; 1 is usual"
            )
        self.delta = delta

    def loss(self, t: Array, y: Array) -> Array:
        """The Huber loss, written through the clipped error."""
        error = t - y
        bent = self._bend(error, None)
        error -= bent / 2
        losses: Array = bent * error
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """t − y, clipped to ±δ."""
        error = np.subtract(t, y, out=out)
        return self._bend(error, error)

    def mean(self, t: Array) -> Array:
        """t."""
        return t

    def _bend(self, error: Array, out: Array | None) -> Array:
        # np.clip does the same at four times the overhead on a small batch.
        bent = np.minimum(error, self.delta, out=out)
        return np.maximum(bent, -self.delta, out=bent)


# Probit regression: ℓ = −log Φ(±t), y in {0, 1}.

HALF_ROOT_2 = float(np.sqrt(0.5))
TWO_OVER_ROOT_PI = float(2.0 / np.sqrt(np.pi))


class Probit:
    """Two classes, normal link; the hazard φ/Φ by erfcx is safe in both tails."""

    name = "probit"
    targets = "binary"
    curvature = 1.0
    clipped = no_clips
    dispersion = "one"

    def loss(self, t: Array, y: Array) -> Array:
        """−log Φ(t) for y = 1, −log Φ(−t) for y = 0."""
        losses: Array = -log_ndtr(t * (2 * y - 1))
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """−φ(t)/Φ(t) for y = 1, φ(t)/Φ(−t) for y = 0."""
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
        """Φ(t)."""
        probability: Array = ndtr(t)
        return probability

    def variance(self, mean: Array) -> Array:
        """μ (1 − μ)."""
        variance: Array = mean * (1 - mean)
        return variance

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """−ℓ."""
        density: Array = -self.loss(t, y)
        return density


# L2-loss support vector machine: ℓ = max(0, 1 − y t)² / 2, y in {−1, 1}.


class SquaredHinge:
    """Two classes as signs."""

    name = "squared-hinge"
    targets = "signed"
    curvature = 1.0
    clipped = no_clips

    def loss(self, t: Array, y: Array) -> Array:
        """max(0, 1 − y t)² / 2."""
        missing: Array = np.maximum(1 - y * t, 0)
        return missing**2 / 2

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """y min(0, y t − 1)."""
        excess = np.multiply(t, y, out=out)
        np.subtract(excess, 1, out=excess)
        np.minimum(excess, 0, out=excess)
        return np.multiply(excess, y, out=excess)

    def mean(self, t: Array) -> Array:
        """The sign of the score."""
        return np.where(t >= 0, 1, -1).astype(t.dtype)


# Multinomial logistic regression: ℓ = logsumexp(t) − t_y, W is d × K.


class Softmax:
    """K classes; targets are labels 0..K−1 as a column."""

    name = "softmax"
    targets = "classes"
    curvature = 0.5
    clipped = no_clips
    dispersion = "one"

    def loss(self, t: Array, y: Array) -> Array:
        """logsumexp(t) − t_y, with the largest score taken out."""
        top = _largest(t)
        total = np.log(np.exp(t - top).sum(axis=1, keepdims=True))
        labels = y.astype(np.intp, copy=False)
        # The label's score meets the largest one first: small losses keep their digits.
        losses: Array = total + (top - np.take_along_axis(t, labels, axis=1))
        return losses

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """softmax(t) − onehot(y)."""
        mean = self._mean(t, out)
        np.subtract(mean, y == np.arange(t.shape[1], dtype=y.dtype), out=mean)
        return mean

    def mean(self, t: Array) -> Array:
        """softmax(t)."""
        return self._mean(t, None)

    def _mean(self, t: Array, out: Array | None) -> Array:
        mean = np.subtract(t, _largest(t), out=out)
        np.exp(mean, out=mean)
        np.divide(mean, np.add.reduce(mean, axis=1, keepdims=True), out=mean)
        return mean

    def variance(self, mean: Array) -> Array:
        """μ (1 − μ) of every class."""
        variance: Array = mean * (1 - mean)
        return variance

    def log_density(self, t: Array, y: Array, dispersion: float) -> Array:
        """−ℓ."""
        density: Array = -self.loss(t, y)
        return density


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
        """ℓ of every model, (m, models)."""
        losses = self.family.loss(*self._apart(t, y))
        return losses.reshape(len(t), -1)

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """∂ℓ/∂t."""
        found = self.family.residual(*self._apart(t, y)).reshape(t.shape)
        if out is None:
            return found
        out[...] = found
        return out

    def mean(self, t: Array) -> Array:
        """μ(t)."""
        return self.family.mean(t.reshape(-1, self.scores)).reshape(t.shape)

    def clipped(self, t: Array) -> int:
        """Return how many scores lie where an exponential is clipped."""
        return self.family.clipped(t)

    def _apart(self, t: Array, y: Array) -> tuple[Array, Array]:
        models = t.shape[1] // self.scores
        return t.reshape(-1, self.scores), np.repeat(y, models, axis=0)


def for_models(family: Any, models: int, scores: int) -> Any:
    """Return the family for `models` models with `scores` scores a row each."""
    return GroupedSoftmax(family, scores) if models > 1 and scores > 1 else family
