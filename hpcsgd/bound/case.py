"""What all terms of the bound share: how errors in one place reach the weights.

Let ŵ_j be the iterates that the computed residuals r̂ would give in exact arithmetic.
Then t̂_j = Y_j ŵ_j + e_j, r̂_j = residual(t̂_j) + σ_j, and δ_j = ŵ_j − w_j obeys

    δ_{j+1} = (ρ_j − h_j Y_jᵀ D_j Y_j) δ_j − h_j Y_jᵀ (D_j e_j + σ_j),  0 ≤ D_j ≤ l,

so that  ‖δ_s‖ ≤ Σ_j growth_j h_j ‖Y_j‖ (‖l e_j‖ + ‖σ_j‖),

l a column of bounds on ∂r/∂t, one a row. Where only scores are off, σ = 0, the squares
can be added instead. With x = Y_j δ_j + e_j and r̂ − r = D x,

    ‖δ_{j+1}‖² = ρ² ‖δ_j‖² − 2ρh ⟨x − e, D x⟩ + h² ‖YᵀD x‖²
               ≤ ‖δ_j‖² − 2ρh (1 − θ) ‖√D x‖² + 2ρh ⟨e, D x⟩,  θ = h l_j ‖Y_j‖² / 2ρ,
               ≤ ‖δ_j‖² + ρh ‖√l e‖² / (2 (1 − θ)),

which grows like √s, the sum of norms like s.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.bound.exchange import Exchange
from hpcsgd.formats import Format

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One field of one exchange, in the format that stands there."""

    exchange: Exchange
    form: Format  # of the field
    working: Format  # in which values lie meanwhile
    depth: int  # κ, additions of the reduction over members
    comes_wider: bool  # what is sent has more digits than its buffer

    @property
    def unit(self) -> float:
        """u of the field's format."""
        return self.form.unit_roundoff

    @property
    def width(self) -> int:
        """d/C: the most columns of a member."""
        return int(max(part.stop - part.start for part in self.exchange.parts))

    @property
    def loudest(self) -> float:
        """Nothing that a member sends, G or z, or their sums, is larger."""
        of = self.exchange
        squares = np.square(of.rows).sum(axis=1).max(initial=0.0)
        reach = np.abs(of.rows) @ np.abs(of.before)
        return float(max(squares, reach.max(initial=0.0)))

    @property
    def hidden(self) -> float:
        """u of what is computed wide before it is rounded to the format."""
        return self.working.unit_roundoff

    def from_scores(self, errors: Array) -> float:
        """‖δw‖ where scores are off by `errors`, (m, K): the less of two bounds."""
        straight = self.from_residuals(self.exchange.slopes * errors)
        return min(straight, self._by_energy(errors))

    def _by_energy(self, errors: Array) -> float:
        """√ Σ_j ρ h ‖√l e_j‖² / (2 (1 − θ_j)), θ = h l ‖Y‖² / 2ρ; inf where θ ≥ 1."""
        of = self.exchange
        rho = 1.0 - np.array(of.rates) * of.l2
        if rho.min() <= 0 or (of.l2 > 0 and of.intercept is not None):
            return float("inf")
        share = of.per_row * of.steepest * of.norms.values**2 / (2.0 * rho)
        if share.max() >= 1:
            return float("inf")
        squares = self._norms(np.sqrt(of.slopes) * errors) ** 2
        return float(np.sqrt(np.sum(rho * of.per_row * squares / (2 * (1 - share)))))

    def from_residuals(self, errors: Array) -> float:
        """‖δw‖ where residuals are off by `errors`, (m, K)."""
        return float(self._reach() @ self._norms(errors))

    def from_steps(self, errors: list[Array]) -> float:
        """‖δw‖ where step j itself is off by h_j times errors_j."""
        size = np.array([np.linalg.norm(error) for error in errors])
        return float((self.exchange.growth * self.exchange.per_row) @ size)

    def _reach(self) -> Array:
        of = self.exchange
        reach: Array = of.growth * of.per_row * of.norms.values
        return reach

    def _norms(self, errors: Array) -> Array:
        return np.array([np.linalg.norm(errors[part]) for part in self.exchange.slices])
