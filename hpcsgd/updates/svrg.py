"""Variance reduction: steps that come to rest at the optimum, at a constant rate.

    g = A_kᵀ(r(w) − r(w̃))/b + μ̃ + λw        μ̃ = the gradient of the data at w̃, all rows

At w = w̃ = the optimum the first term is nothing and the rest is ∇F = 0. The state
(w, w̃, μ̃) takes an affine step, so s of them are exact; w̃ and μ̃ stay until the next
snapshot is taken (`hpcsgd.snapshot`).
"""

from dataclasses import dataclass

import numpy as np

from hpcsgd.updates.linear import Array, LinearUpdate


@dataclass(frozen=True)
class Svrg(LinearUpdate):
    """w ← (1 − ηλ) w − ημ̃ − h Aᵀ(r(w) − r(w̃))."""

    states = 3
    is_anchored = True

    def transition(self, rate: float, l2: float) -> Array:
        return np.array([[1.0 - rate * l2, 0.0, -rate], [0, 1, 0], [0, 0, 1]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate / count, 0.0, 0.0])
