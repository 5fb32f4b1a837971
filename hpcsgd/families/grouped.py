"""A family whose rows have K scores for each of several models, side by side."""

from typing import Any

import numpy as np

from hpcsgd.families.base import Array, Family


class Grouped:
    """Softmax of every model's own K scores; targets are those of all of them.

    Families with one score a row need nothing of the kind: they take each score by
    itself, and targets (m, 1) meet scores (m, models) as they are.
    """

    def __init__(self, family: Family, scores: int) -> None:
        self.family = family
        self.scores = scores
        self.name = f"{family.name} of several models"
        self.targets = family.targets
        self.curvature = family.curvature

    def loss(self, t: Array, y: Array) -> Array:
        """ℓ of every model, (m, models)."""
        losses = self.family.loss(*self._apart(t, y))
        return losses.reshape(len(t), -1)

    def residual(self, t: Array, y: Array, out: Array | None = None) -> Array:
        """∂ℓ/∂t."""
        found = self.family.residual(*self._apart(t, y)).reshape(t.shape)
        if out is None:
            return found
        out[...] = found
        return out

    def mean(self, t: Array) -> Array:
        """μ(t)."""
        return self.family.mean(t.reshape(-1, self.scores)).reshape(t.shape)

    def clipped(self, t: Array) -> int:
        """How many scores lie where exp had to be clipped."""
        return self.family.clipped(t)

    def _apart(self, t: Array, y: Array) -> tuple[Array, Array]:
        models = t.shape[1] // self.scores
        return t.reshape(-1, self.scores), np.repeat(y, models, axis=0)


def for_models(family: Any, models: int, scores: int) -> Any:
    """The family as `models` of them with so many `scores` a row want it."""
    return Grouped(family, scores) if models > 1 and scores > 1 else family
