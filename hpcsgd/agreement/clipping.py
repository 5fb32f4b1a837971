"""Gradients that are too large, made smaller before replicas step.

The same words as `hpcsgd.products.clip`, which clips where one replica steps alone: a
norm is that of the mean gradient of all rows of a batch, over all columns and scores.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.agreement.shaping import Shaper, Whole
from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array, State

HISTORY = 100  # norms that a percentile is of
KEPT = "clip_norms"
NONE = -1.0  # in the place of a norm that nobody has seen: checkpoints take no NaN


@dataclass
class ByValue(Shaper):
    """Every word to [−at, at]."""

    at: float
    clipped: int = 0

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """Word by word: nobody has to be asked."""
        self.clipped += int((np.abs(gradient) > self.at).any())
        np.clip(gradient, -self.at, self.at, out=gradient)

    def facts(self) -> dict[str, Any]:
        """Steps with a word that was too large, of this rank's."""
        return {"clipped_updates": self.clipped}


@dataclass
class ByNorm(Shaper):
    """g ← g · min(1, at / ‖g‖)."""

    at: float
    clipped: int = 0

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """One factor for all."""
        size, limit = norm_of(gradient, whole), self.limit(moment)
        if size > limit:
            gradient *= gradient.dtype.type(limit / size)
            self.clipped += 1

    def limit(self, moment: Moment) -> float:
        """The largest norm."""
        return self.at

    def facts(self) -> dict[str, Any]:
        """Steps that were made shorter."""
        return {"clipped_updates": self.clipped}


@dataclass
class ByPercentile(ByNorm):
    """The largest norm is a percentile of the last hundred: `at` = 5 is the lowest 5 %.

    Of the norms before they were clipped, this one among them. Steps that were left out
    have none.
    """

    _norms: Array = field(default_factory=lambda: np.full((1, HISTORY), NONE))

    def prepare(self, state: State) -> None:
        """The history is part of a run."""
        self._norms = state.shared.setdefault(KEPT, self._norms)

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """By what was seen so far."""
        norms, size = self._norms[0], norm_of(gradient, whole)
        norms[moment.number % HISTORY] = size
        seen = norms[norms >= 0.0]
        limit = float(np.percentile(seen, self.at)) if len(seen) else size
        if size > limit:
            gradient *= gradient.dtype.type(limit / size)
            self.clipped += 1


def norm_of(gradient: Array, whole: Whole) -> float:
    """‖g‖ over all columns."""
    word = np.array([np.square(gradient, dtype=np.float64).sum()])
    return float(np.sqrt(whole.total(word)[0]))
