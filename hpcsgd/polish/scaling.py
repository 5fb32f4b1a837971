"""Other variables, in which badly scaled columns are no harder than good ones.

Where the objective is about quadratic its curvature along a column is that of the
column's weighted values: with h = c ∂r/∂t / Σc, e = Σh and the mean m = Σ h a / e,

    D = Σ h a² − e m² + λ        (columns centred by the intercept, where there is one)

so that u = √D w and ν = √e (β + m·w) see a curvature of about 1 in every direction.
With these variables L-BFGS begins as if all columns were standardised, sparse ones too:
nothing is subtracted from the matrix. No message is needed to change gradients:

    ∂F/∂u = (∂F/∂w − m ∂F/∂β) / √D        ∂F/∂ν = ∂F/∂β / √e
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.families.base import Family
from hpcsgd.polish.rows import Moments

Array = NDArray[Any]
STEP = 1e-3  # of the difference quotient that curvatures are taken by
LEAST = 1e-3  # of the family's largest curvature: rows beyond a kink still count
FLOOR = 1e-10  # of a column's second moment: what centring leaves of a constant


@dataclass(frozen=True)
class Scaling:
    """The change of variables; `centers` are zero where there is no intercept."""

    roots: Array  # √D, (d_c, K)
    centers: Array  # m, (d_c, K)
    level: Array  # √e, (K,)

    def gradient(self, weights: Array, intercept: Array) -> tuple[Array, Array]:
        """That of the new variables."""
        return (weights - self.centers * intercept) / self.roots, intercept / self.level

    def weights(self, moved: Array) -> Array:
        """What a move of u is in w."""
        return moved / self.roots

    def pull(self, weights: Array) -> Array:
        """This member's part of m·w, (K,): what a move of w takes from β."""
        taken: Array = np.sum(self.centers * weights, axis=0)
        return taken


def make_scaling(moments: Moments, l2: float, has_intercept: bool) -> Scaling:
    """The one for these moments of curvature-weighted columns."""
    total = np.maximum(moments.total, np.finfo(float).tiny)
    centers = moments.first / total * has_intercept
    second = moments.second - total * np.square(centers)
    spread = np.maximum(second, FLOOR * moments.second) + l2
    # A column of zeros has no curvature, and no gradient either.
    spread[spread == 0.0] = 1.0
    return Scaling(np.sqrt(spread), centers, np.sqrt(total))


def bends(family: Family, scores: Array, targets: Array) -> Array:
    """∂r_k/∂t_q about these scores, (n, K, K)."""
    if family.targets == "classes":
        mean = family.mean(scores)
        found: Array = -mean[:, :, None] * mean[:, None, :]
        diagonal = np.arange(scores.shape[1])
        found[:, diagonal, diagonal] += mean
        return found
    return _quotient(family, scores, targets)[:, :, None]


def _quotient(family: Family, scores: Array, targets: Array) -> Array:
    ahead = family.residual(scores + STEP, targets)
    found: Array = (ahead - family.residual(scores - STEP, targets)) / (2 * STEP)
    return found


def curvatures(
    family: Family, scores: Array, targets: Array, floor: float = LEAST
) -> Array:
    """Return ∂r_k/∂t_k about these scores, (n, K).

    All are raised by `floor` times the family's largest curvature.
    """
    found: Array
    if family.targets == "classes":
        mean = family.mean(scores)
        # Alike for all classes: scores that all grow by the same change nothing, and
        # a scaling of each class for itself would lead gradients that way.
        each = (mean * (1.0 - mean)).mean(axis=1, keepdims=True)
        found = np.broadcast_to(each, scores.shape).copy()
    else:
        found = _quotient(family, scores, targets)
    if np.isfinite(family.curvature):
        found += floor * family.curvature
    return found
