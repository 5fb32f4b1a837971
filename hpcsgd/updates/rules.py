"""Steps that replicas take alike once they know the mean gradient.

A rule works word by word on some columns at a time: whoever holds a part of the weights
(a bucket, a slice, a tile on disk) can step it alone, and the parts have the bits that
the whole would have. Products that take s steps at once need an update that is affine
in the state (`hpcsgd.updates.linear`); a rule may be anything.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcsgd.updates.linear import LinearUpdate

Array = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """Some columns: views that a step writes to."""

    weights: Array  # (columns, states · K)
    kept: Mapping[str, Any]  # (columns, K) each, by the names that the rule keeps


@dataclass(frozen=True)
class Turn:
    """Which step it is."""

    number: int  # of steps before it, in the whole run
    rate: float


class Rule(ABC):
    """The protocol; what a rule keeps begins as zeros."""

    states: int = 1  # of K columns each, in the weights: 2 with a velocity beside them
    kept: ClassVar[tuple[str, ...]] = ()  # K words a column more, each
    unit: ClassVar[int] = 1  # columns that stay together: parts begin at multiples

    def room(self, name: str, columns: int, width: int, dtype: Any) -> Any:
        """An array for what is kept under `name`, or what gives views like one."""
        return np.zeros((columns, width), dtype)

    @abstractmethod
    def step(
        self, part: Part, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Step along g = `factor` · `gradient` (destroyed) plus the penalty, λw."""


@dataclass(frozen=True)
class Linear(Rule):
    """x ← M x + u g: plain SGD and its momenta."""

    update: LinearUpdate

    @property
    def states(self) -> int:  # type: ignore[override]
        """Of the update."""
        return self.update.states

    def step(
        self, part: Part, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """As one step of the recurrence."""
        weights = part.weights
        carry = self.update.transition(turn.rate, l2)
        gain = self.update.gain(turn.rate, 1) * factor
        if self.update.states == 1:
            weights *= float(carry[0, 0])
            gradient *= gradient.dtype.type(gain[0])
            weights += gradient
            return
        parts = weights.reshape(len(weights), len(carry), -1)
        moved = np.einsum("pq,dqk->dpk", carry.astype(weights.dtype), parts)
        for state, share in enumerate(gain):  # one at a time: no copy of all states
            moved[:, state] += gradient.dtype.type(share) * gradient
        weights[...] = moved.reshape(weights.shape)
