"""The part of the deviance that a regressor explains, for models with offsets too.

    D² = 1 − Σ c dev(y, μ) / Σ c dev(y, μ₀)

μ₀ is the best model without columns: an intercept, and the same offsets. Without
offsets this is scikit-learn's score: R² for squared errors, D² for the others.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

Array = NDArray[Any]


def explained(
    family: str, y: Array, mean: Array, weights: Array | None, offset: Array | None
) -> float:
    """D² of `mean` (n,)."""
    weights = np.ones(len(y)) if weights is None else weights
    null = _null_mean(family, y, weights, offset)
    left = float(weights @ _deviance(family, y, mean))
    whole = float(weights @ _deviance(family, y, null))
    if whole == 0.0:  # nothing to explain: scikit-learn's convention
        return 1.0 if left == 0.0 else 0.0
    return 1.0 - left / whole


def _deviance(family: str, y: Array, mean: Array) -> Array:
    if family == "poisson":
        return np.asarray(2.0 * (xlogy(y, y / mean) - y + mean))
    if family == "gamma":
        return np.asarray(2.0 * (np.log(mean / y) + y / mean - 1.0))
    return np.asarray(np.square(y - mean))


def _null_mean(family: str, y: Array, c: Array, offset: Array | None) -> Array:
    """The best mean that knows the offsets alone."""
    offset = np.zeros(len(y)) if offset is None else offset
    if family == "poisson":
        exposure = np.exp(offset)
        return np.asarray(exposure * (c @ y) / (c @ exposure))
    if family == "gamma":
        exposure = np.exp(offset)
        return np.asarray(exposure * (c @ (y / exposure)) / c.sum())
    return np.asarray(offset + (c @ (y - offset)) / c.sum())
