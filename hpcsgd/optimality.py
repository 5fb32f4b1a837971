"""How far weights are from the optimum: the norm of ∇F, and a bound of F − F*.

Every loss lies above its tangents: with p_i = c_i/Σc, residuals r and g = Σ p_i r_i a_i

    F(u, γ) ≥ Σ p_i ℓ_i(t_i) + g·(u − w) + (Σ p_i r_i)·(γ − β) + penalty(u)

for all u, γ. Where Σ p_i r_i = 0 the right side has a minimum in u, column by column: a
bound of F* from below. With a ridge alone it says F − F* ≤ ‖∇_w F‖²/(2λ). It is the
dual of Fenchel at θ = r. An intercept that is not penalised is first moved to its own
optimum β* on the scores at hand, which takes no pass over the matrix:

    F(w, β) − F*  ≤  F(w, β) − F(w, β*)  +  Σ_j [φ_j(w_j) − min_u φ_j(u)]   at β*
    φ_j(u) = g_j u + (λ/2) u² + l1 |u|    within the bounds of column j

Without a ridge the minimum may be −∞, where a column without an end has |g_j| > l1. The
dual point θ = τ r with τ = l1 / max |g_j| is feasible then, and the bound at β* is

    Σ p_i B_i(τ) + Σ_j [l1 |w_j| + τ g_j w_j + max_u (−τ g_j u − l1 |u|)]
    B_i(τ) = ℓ_i(t_i) + ℓ_i*(τ r_i) − τ r_i t_i  ≤  (1 − τ) (ℓ_i(t_i) − min ℓ_i)

with ℓ* the conjugate of the loss (Ndiaye, Fercoq, Gramfort and Salmon, 2017, JMLR
18(128), scale a dual point so). B_i is convex in τ, 0 at τ = 1 and ℓ_i − min ℓ_i at
τ = 0: the chord bounds it for every family, and vanishes as τ comes to 1. Without l1
no τ above 0 is feasible: no gap is known.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.families.base import least_losses
from hpcsgd.objective import Objective
from hpcsgd.penalties import Penalty
from hpcsgd.polish.level import level
from hpcsgd.polish.rows import AllRows, open_rows

Array = NDArray[Any]
NULL_SHARE = 1e-3  # of F of the null model above its bound: what counts as F at least
FINEST = 1e-13  # gap, relative to F, that float64 sums can show


@dataclass(frozen=True)
class Optimality:
    """What is known of weights, the same on all ranks."""

    gradient: float  # ‖∇F‖; of its smallest subgradient where l1 or bounds bend F
    gap: float | None = None  # F − F* is at most that; None: nothing is known

    def as_dict(self, with_gap: bool) -> dict[str, float | None]:
        """What a record of the history says of it."""
        own: dict[str, float | None] = {"gradient": self.gradient}
        return own | ({"gap": self.gap} if with_gap else {})


def gradient_of(
    objective: Objective, weights: Array, intercept: Array | None
) -> Optimality:
    """The gradient alone: one pass."""
    return Optimality(objective.norm(objective.slope(weights, intercept)))


def gap_limit(tol: float, loss: float, null_excess: float) -> float:
    """Return the largest certified gap F − F* that counts as converged.

        tol · max(|F|, 1e-3 · F₀)

    F₀, the `null_excess`, is F of the null model less the least that F could be. It
    keeps the limit above zero where F itself vanishes, as on separable data.
    """
    return max(tol, FINEST) * max(abs(loss), NULL_SHARE * null_excess)


def gap_of(objective: Objective, weights: Array, intercept: Array | None) -> Optimality:
    """Gradient and gap: two passes, one for the scores and one for both gradients."""
    rows = open_rows(objective, weights.shape[1])
    weights = weights.astype(np.float64)
    return gap_at(rows, weights, intercept, rows.start(weights, intercept))


def gap_at(
    rows: AllRows,
    weights: Array,
    intercept: Array | None,
    scores: Array,
    exact: Array | None = None,
) -> Optimality:
    """Return gradient and gap where the local scores (n, K) are known: one pass.

    The tangents may touch at any scores. Scores that were added up step by step differ
    from the `exact` ones of the weights by rounding, and huge rows multiply that in the
    gradient at the exact ones. With r at the given scores t̂ the bound grows by
    Σ p_i [ℓ_i(t_i) − ℓ_i(t̂_i) − r_i (t_i − t̂_i)] alone.
    """
    objective = rows.objective
    best = None if intercept is None else level(rows, scores)
    residuals = rows.residuals(scores)
    both = [residuals]
    if best is not None:
        both.append(rows.residuals(scores + best.shift))
    slope, drift = rows.gradient(np.hstack(both))
    penalty, columns = objective.penalty, weights.shape[1]
    here, there = slope[:, :columns], slope[:, -columns:]
    least = penalty.least(weights, here + penalty.l2 * weights)
    words = np.array([np.sum(np.square(least)), above_least(penalty, weights, there)])
    objective.grid.members.sum(words, "evaluate")
    if intercept is not None:
        words[0] += np.sum(np.square(drift[:columns]))
    above = float(words[1])
    touched = scores if best is None else scores + best.shift
    if not np.isfinite(above):
        above = _scaled_gap(rows, weights, touched, there)
    if exact is not None:
        above += _above_tangents(rows, exact, touched)
    elif best is not None:
        above += best.gain
    gap: float | None = above
    if not np.isfinite(above) or (best is not None and not best.is_found):
        gap = None
    return Optimality(float(np.sqrt(words[0])), gap)


def _above_tangents(rows: AllRows, exact: Array, scores: Array) -> float:
    """Return Σ p [ℓ(t) − ℓ(t̂) − r(t̂)·(t − t̂)] of all rows, at least 0. One message."""
    word = np.zeros(1)
    if rows.grid.member == 0:
        family, targets = rows.objective.family, rows.targets
        above = family.loss(exact, targets) - family.loss(scores, targets)
        residuals = family.residual(scores, targets)
        above -= (residuals * (exact - scores)).sum(axis=1, keepdims=True)
        word[0] = float((rows.share * np.maximum(above, 0.0)).sum())
    rows.grid.world.sum(word, "evaluate")
    return float(word[0])


def _scaled_gap(rows: AllRows, weights: Array, scores: Array, slope: Array) -> float:
    """The bound at θ = τ r; inf: no τ is feasible. No pass over the matrix."""
    objective = rows.objective
    penalty, grid = objective.penalty, objective.grid
    lower, upper = penalty.bounds(weights)
    endless = ((slope < 0.0) & np.isinf(upper)) | ((slope > 0.0) & np.isinf(lower))
    largest = np.abs(slope[endless]).max(initial=0.0)
    steepest = max(grid.members.exchange_objects(float(largest), "evaluate"))
    if penalty.l1 == 0.0 or not np.isfinite(steepest):
        return float("inf")
    # One digit inside: what is scaled to the edge may be rounded over it.
    tau = 1.0 if steepest <= penalty.l1 else penalty.l1 / steepest * (1 - 1e-15)
    words = np.zeros(2)
    words[0] = above_least(penalty, weights, tau * slope)
    if grid.member == 0:
        least = least_losses(objective.family, rows.targets)
        words[1] = rows.loss(scores) - float((rows.share * least).sum())
    grid.members.sum(words[:1], "evaluate")
    grid.world.sum(words[1:], "evaluate")
    return float(words[0] + (1.0 - tau) * words[1])


def above_least(penalty: Penalty, weights: Array, slope: Array) -> float:
    """Σ_j [φ_j(w_j) − min φ_j] of these columns, each at least 0; inf: no minimum.

    With u the minimum and v = g + λu each is
    v(w − u) + l1(|w| − |u|) + (λ/2)(w − u)². Written so, small gaps keep their digits.
    """
    best = penalty.minimum(weights, slope)
    if not np.isfinite(best).all():
        return float("inf")
    away = weights - best
    tangent = (slope + penalty.l2 * best) * away
    tangent += penalty.l1 * (np.abs(weights) - np.abs(best))
    if penalty.is_smooth:
        tangent = np.zeros_like(away)  # v is 0 there, whatever rounding makes of it
    return float(np.sum(np.maximum(tangent, 0.0) + 0.5 * penalty.l2 * np.square(away)))
