"""Adagrad and Adam: every word has a rate of its own, from the gradients it has seen.

The penalty is part of the gradient, so that both go to the optimum of F, as SGD does.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.updates.rules import Part, Rule, Turn

Array = NDArray[Any]


def whole_gradient(part: Part, gradient: Array, factor: float, l2: float) -> Array:
    """g + λw, where `gradient` was."""
    gradient *= gradient.dtype.type(factor)
    if l2:
        gradient += gradient.dtype.type(l2) * part.weights
    return gradient


@dataclass(frozen=True)
class Adagrad(Rule):
    """h ← h + g²;  w ← w − η g / (√h + ε)."""

    epsilon: float = 1e-8
    kept: ClassVar[tuple[str, ...]] = ("adagrad_h",)

    def step(
        self, part: Part, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Word by word."""
        g, h = whole_gradient(part, gradient, factor, l2), part.kept["adagrad_h"]
        h += np.square(g)
        below = np.sqrt(h)
        below += below.dtype.type(self.epsilon)
        g *= g.dtype.type(turn.rate)
        g /= below
        part.weights[...] -= g


@dataclass(frozen=True)
class Adam(Rule):
    """m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²;  w ← w − η m̂ / (√v̂ + ε)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    kept: ClassVar[tuple[str, ...]] = ("adam_m", "adam_v")

    def step(
        self, part: Part, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """With the corrections of step `turn.number` + 1."""
        g = whole_gradient(part, gradient, factor, l2)
        m, v = part.kept["adam_m"], part.kept["adam_v"]
        real = g.dtype.type
        v *= real(self.beta2)
        v += real(1.0 - self.beta2) * np.square(g)
        m *= real(self.beta1)
        g *= real(1.0 - self.beta1)
        m += g
        self.walk(part, turn)

    def walk(self, part: Part, turn: Turn) -> None:
        """w ← w − η m̂ / (√v̂ + ε)."""
        m, v = part.kept["adam_m"], part.kept["adam_v"]
        real, t = m.dtype.type, turn.number + 1
        below = np.sqrt(v * real(1.0 / (1.0 - self.beta2**t)))
        below += real(self.epsilon)
        np.divide(m, below, out=below)
        below *= real(turn.rate / (1.0 - self.beta1**t))
        part.weights[...] -= below
