"""What all terms of the bound share: how errors in one place reach the weights.

Let ŵ_j be the iterates that the computed residuals r̂ would give in exact arithmetic.
Then t̂_j = Y_j ŵ_j + e_j, r̂_j = residual(t̂_j) + σ_j, and δ_j = ŵ_j − w_j obeys

    δ_{j+1} = (ρ_j − h_j Y_jᵀ D_j Y_j) δ_j − h_j Y_jᵀ (D_j e_j + σ_j),  0 ≤ D_j ≤ l,

so that  ‖δ_s‖ ≤ Σ_j growth_j h_j ‖Y_j‖ (‖l e_j‖ + ‖σ_j‖),

l a column of bounds on ∂r/∂t, one a row.
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
        """‖δw‖ where scores are off by `errors`, (m, K)."""
        return self.from_residuals(self.exchange.slopes * errors)

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
