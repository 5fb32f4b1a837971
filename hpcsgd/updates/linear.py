"""Updates that are affine in the state (w, v), and therefore exact under s steps.

Step k takes the state x to  M_k x + u_k A_kᵀ r_k  and reads its scores at q·x,
where r_k is summed over b rows, η is the rate, λ the ridge penalty, h = η/b.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class LinearUpdate(ABC):
    """The protocol, and what plain SGD shares with momentum."""

    momentum: float = 0.0
    states = 1  # w alone, or (w, v)
    is_anchored = False  # True: residuals are less those at the second state

    @abstractmethod
    def transition(self, rate: float, l2: float) -> Array:
        """M_k, states × states."""

    @abstractmethod
    def gain(self, rate: float, count: int) -> Array:
        """u_k, what one unit of A_kᵀ r_k adds to each state."""

    def probe(self) -> Array:
        """q, the combination of states at which scores are read."""
        first: Array = np.eye(self.states)[0]
        return first


@dataclass(frozen=True)
class Sgd(LinearUpdate):
    """w ← (1 − ηλ) w − h Aᵀr."""

    def transition(self, rate: float, l2: float) -> Array:
        return np.array([[1.0 - rate * l2]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate / count])


@dataclass(frozen=True)
class HeavyBall(LinearUpdate):
    """v ← μv + g,  w ← w − ηv."""

    states = 2

    def transition(self, rate: float, l2: float) -> Array:
        mu = self.momentum
        return np.array([[1.0 - rate * l2, -rate * mu], [l2, mu]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate, 1.0]) / count


@dataclass(frozen=True)
class Nesterov(LinearUpdate):
    """v ← μv + g,  w ← w − η(g + μv): the form deep-learning frameworks use."""

    states = 2

    def transition(self, rate: float, l2: float) -> Array:
        mu = self.momentum
        shrink = 1.0 - rate * (1.0 + mu) * l2
        return np.array([[shrink, -rate * mu * mu], [l2, mu]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate * (1.0 + self.momentum), 1.0]) / count


@dataclass(frozen=True)
class NesterovClassic(LinearUpdate):
    """Gradient at w + μv;  v ← μv − ηg,  w ← w + v."""

    states = 2

    def transition(self, rate: float, l2: float) -> Array:
        mu, shrink = self.momentum, 1.0 - rate * l2
        return np.array([[shrink, mu * shrink], [-rate * l2, mu * shrink]])

    def gain(self, rate: float, count: int) -> Array:
        return np.array([-rate, -rate]) / count

    def probe(self) -> Array:
        return np.array([1.0, self.momentum])
