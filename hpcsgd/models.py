"""Models that are trained together: what each has of its own, and where it lies.

K models share rows, Gram and messages. Their weights lie side by side, one model's
columns after the other's, and so do their scores and residuals.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Model:
    """One of them.

    Attributes
    ----------
    l2 : float, its ridge penalty λ
    rate : float, its first rate
    fold : int or None, the fold that it is not trained on; None: it has all rows
    """

    l2: float
    rate: float
    fold: int | None = None


@dataclass(frozen=True)
class Models:
    """All of them, with `scores` columns of weights each."""

    each: tuple[Model, ...]
    scores: int = 1
    # Which column of the shard's weights each one has.
    weights: tuple[int, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.each)

    @property
    def columns(self) -> int:
        """Of all of them together."""
        return len(self.each) * self.scores

    @cached_property
    def l2(self) -> Array:
        """λ of each, (models,)."""
        return np.array([model.l2 for model in self.each])

    @cached_property
    def settings(self) -> list[tuple[float, float]]:
        """The (l2, rate) that occur, each once."""
        return list(dict.fromkeys((m.l2, m.rate) for m in self.each))

    @cached_property
    def setting_of(self) -> Array:
        """The number of its setting for every column of weights, (columns,)."""
        number = {setting: k for k, setting in enumerate(self.settings)}
        own = [number[m.l2, m.rate] for m in self.each]
        return np.repeat(np.array(own), self.scores)

    @cached_property
    def weights_of(self) -> Array:
        """The column of sample weights for every model, (models,)."""
        return np.array(self.weights or (0,) * len(self.each))

    def sample_weights(self, weights: Array | None) -> Array | None:
        """(m, distinct ones) as (m, models); one for all stays (m, 1)."""
        if weights is None or weights.shape[1] == 1:
            return weights
        return np.take(weights, self.weights_of, axis=1)

    def of_columns(self, weights: Array | None) -> Array | None:
        """The same as (m, columns)."""
        found = self.sample_weights(weights)
        if found is None or found.shape[1] == 1 or self.scores == 1:
            return found
        return np.repeat(found, self.scores, axis=1)

    def sums(self, values: Array) -> Array:
        """Sums over the columns of each, (models,) of (columns,)."""
        total: Array = values.reshape(len(self.each), self.scores).sum(axis=1)
        return total

    def are_finite(self, weights: Array, states: int) -> Array:
        """Which of them have weights (d, states · columns) without a NaN, (models,)."""
        good = np.isfinite(weights).all(axis=0).reshape(states, len(self.each), -1)
        return np.asarray(good.all(axis=(0, 2)))
