"""What a rule keeps, in eight bits a word between its steps (arXiv 2110.02861)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.updates.codes8 import BLOCK, Eight
from hpcsgd.updates.moments import whole_gradient
from hpcsgd.updates.rules import Part, Rule, Turn

Array = NDArray[Any]
SMALL = 4096  # words; arrays below that stay as they are
SQUARES = ("adam_v", "adagrad_h")  # names of what is kept and never below zero


@dataclass(frozen=True)
class InEightBits(Rule):
    """Widened, stepped, and made narrow again, tile by tile."""

    inner: Rule
    unit: ClassVar[int] = BLOCK

    @property
    def kept(self) -> tuple[str, ...]:  # type: ignore[override]
        """Of the rule."""
        return self.inner.kept

    def room(self, name: str, columns: int, width: int, dtype: Any) -> Any:
        """Where `name` is kept: wide where that is small."""
        if columns * width < SMALL:
            return np.zeros((columns, width), dtype)
        return Eight.zeros(columns, width, dtype, name in SQUARES)

    def step(
        self, part: Part, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """The step of the rule, on what it kept to eight bits."""
        wide = {
            name: kept.decoded() if isinstance(kept, Eight) else kept
            for name, kept in part.kept.items()
        }
        self.inner.step(Part(part.weights, wide), gradient, factor, turn, l2)
        for name, kept in part.kept.items():
            if isinstance(kept, Eight):
                kept.encode(wide[name])


@dataclass(frozen=True)
class Velocity(Rule):
    """v ← μv + g;  w ← w − ηv, or w − η(g + μv): momentum that is kept beside w."""

    momentum: float
    looks_ahead: bool = False
    kept: ClassVar[tuple[str, ...]] = ("velocity",)

    def step(
        self, part: Part, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Word by word."""
        g, v = whole_gradient(part, gradient, factor, l2), part.kept["velocity"]
        real = g.dtype.type
        v *= real(self.momentum)
        v += g
        along = g + real(self.momentum) * v if self.looks_ahead else v
        part.weights[...] -= real(turn.rate) * along
