"""The proximal map of l1 and bounds, behind the steps of every exchange.

The map adds to a step the gradient ξ that l1 and the bounds have at its end: a step
takes the state x = (w, v) to M x + u (g + ξ), with the ridge in M. So w moves by
T = −u_w towards zero, and a velocity by its own share of ξ:

    w ← prox_T(w),    v ← v + (u_v / u_w) · what w moved by

Without the share of v, momentum would amplify g and not ξ, and end at a point whose l1
is (1 − μ) times too small. With one step an exchange this is proximal SGD (T = η, for
the Nesterov of deep-learning frameworks (1 + μ) η). With more it is the approximation
of that name, l1_at = "exchange": one ξ, held for all s steps, so that T is the sum of
their rates, each shrunk by the ridge, or grown by the momentum, of the steps behind it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcsgd.penalties import Penalty
from hpcsgd.products.base import Array, Group, State
from hpcsgd.products.hooks import Hook


class Proximal(Hook):
    """For the columns that this member holds; each replica's before they average."""

    def __init__(
        self, penalty: Penalty, classes: int, store: Callable[[Array], object]
    ) -> None:
        self.penalty = penalty  # of the columns held
        self.classes = classes  # K
        self.store = store  # rounds weights to the format that they have

    def prepare(self, state: State) -> None:
        """Begin within the bounds."""
        self._map(state, np.zeros(1))

    def after_steps(self, state: State, group: Group | None) -> None:
        """One map for all steps of the group."""
        if group is not None:
            self._map(state, reach(group.coefficients))

    def _map(self, state: State, reached: Array) -> None:
        weights, K = state.weights, self.classes
        position = weights[:, :K]
        before = position.copy() if len(reached) > 1 else None
        self.penalty.prox(position, float(reached[0]))
        if before is not None:
            moved = position - before
            for k, own in enumerate(reached[1:], start=1):
                share = weights.dtype.type(own / reached[0] if reached[0] else 0.0)
                weights[:, k * K : (k + 1) * K] += share * moved
        self.store(weights)


def reach(coefficients: Any) -> Array:
    """−Σ_i b_i Φ_{s,i+1} u_i: how far one unit of ξ in every step moves each state."""
    sizes = np.asarray(coefficients.blocks.sizes, dtype=np.float64)
    form = coefficients.plain if len(sizes) == 1 else coefficients.whole
    far: Array = -(sizes @ form.gain)
    return far
