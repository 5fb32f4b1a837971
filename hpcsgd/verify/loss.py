"""The objective on all rows in longdouble, and how far float64 may be from it.

Float64 errs by u on every product of a score, every score and every loss:
|δF| ≤ u mean c (|ℓ| + |r| (|x|·|w| + |t|)) + u penalty, to first order; 64 times that
is allowed, which covers the depth of the sums.
"""

import numpy as np

from hpcsgd.families.base import Array, Family
from hpcsgd.verify.exchange import clip_of, residual, target_size
from hpcsgd.verify.source import Source

L = np.longdouble
UNIT = 2.0**-53
SAFETY = 64  # times the error of one rounding: sums round in every term


def recompute(
    source: Source,
    family: Family,
    weights: Array,
    intercept: Array,
    l2: float,
    l1: float = 0.0,
) -> tuple[float, float]:
    """The loss of the model w (d, K), intercept (K,); and the tolerance on it."""
    sums = np.zeros(3, dtype=L)
    for rows, X in source.blocks():
        sums += _block(source, family, rows, X, weights, intercept)
    wide = weights.astype(L)
    penalty = L(l2) / 2 * np.sum(np.square(wide)) + L(l1) * np.sum(np.abs(wide))
    allowed = SAFETY * UNIT * (sums[1] / sums[2] + penalty)
    return float(sums[0] / sums[2] + penalty), float(allowed)


def _block(
    source: Source, family: Family, rows: slice, X: Array, w: Array, b: Array
) -> Array:
    """Σ c ℓ, Σ c (size of its error in units of roundoff), Σ c."""
    clip = clip_of(np.float64)
    given = source.given
    y, c = given.targets[rows].astype(L), given.weights[rows].astype(L)
    shift = b.astype(L) + given.offsets[rows]
    t = X.astype(L) @ w.astype(L) + shift
    losses = _losses(family, t, y, clip)
    scale = target_size(family, y)
    reach = np.abs(X).astype(np.float64) @ np.abs(w) + np.abs(shift) + np.abs(t)
    slope = np.abs(residual(family, t, y, clip)) * (reach + scale)
    terms = slope + np.abs(t) * scale  # what cancels inside ℓ is of this size
    size = np.abs(losses) + terms.sum(axis=1, keepdims=True)
    return np.array([(c * losses).sum(), (c * size).sum(), c.sum()], dtype=L)


def _losses(family: Family, t: Array, y: Array, clip: float) -> Array:
    """ℓ(t, y) in longdouble, or in float64 where the family has nothing wider."""
    if not np.isfinite(family.curvature) and (np.abs(t) > clip).any():
        # Clipped scores: the bound of float64 is part of what the run reported.
        return family.loss(t.astype(np.float64), y.astype(np.float64)).astype(L)
    try:
        return np.asarray(family.loss(t.copy(), y), dtype=L)
    except TypeError:  # a special function without a longdouble form
        return family.loss(t.astype(np.float64), y.astype(np.float64)).astype(L)
