"""How far weights are from the optimum: the norm of ∇F, and a bound of F − F*.

Every loss lies above its tangents: with p_i = c_i/Σc, residuals r and g = Σ p_i r_i a_i

    F(u, γ) ≥ Σ p_i ℓ_i(t_i) + g·(u − w) + (Σ p_i r_i)·(γ − β) + penalty(u)

for all u, γ. Where Σ p_i r_i = 0 the right side has a minimum in u, column by column: a
bound of F* from below. With a ridge alone it says F − F* ≤ ‖∇_w F‖²/(2λ). It is the
dual of Fenchel at θ = r. An intercept that is not penalised is first moved to its own
optimum β* on the scores at hand, which takes no pass over the matrix:

    F(w, β) − F*  ≤  F(w, β) − F(w, β*)  +  Σ_j [φ_j(w_j) − min_u φ_j(u)]   at β*
    φ_j(u) = g_j u + (λ/2) u² + l1 |u|    within the bounds of column j

Without a ridge the minimum may be −∞: there is no bound then.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.objective import Objective
from hpcsgd.penalties import Penalty
from hpcsgd.polish.level import level
from hpcsgd.polish.rows import AllRows, open_rows

Array = NDArray[Any]


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


def gap_of(objective: Objective, weights: Array, intercept: Array | None) -> Optimality:
    """Gradient and gap: two passes, one for the scores and one for both gradients."""
    rows = open_rows(objective, weights.shape[1])
    weights = weights.astype(np.float64)
    return gap_at(rows, weights, intercept, rows.start(weights, intercept))


def gap_at(
    rows: AllRows, weights: Array, intercept: Array | None, scores: Array
) -> Optimality:
    """The same where the scores of the local rows are known: one pass."""
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
    gap: float | None = float(words[1]) + (0.0 if best is None else best.gain)
    if not np.isfinite(words[1]) or (best is not None and not best.is_found):
        gap = None
    return Optimality(float(np.sqrt(words[0])), gap)


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
