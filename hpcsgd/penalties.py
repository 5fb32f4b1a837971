"""What is added to the mean loss to keep weights small."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Ridge:
    """(λ/2)‖w‖²; λ = 0 is no penalty. The only one that is exact under s steps."""

    l2: float = 0.0

    def value(self, weights: Array) -> float:
        """The penalty of these weights, in float64."""
        if self.l2 == 0.0:
            return 0.0
        return 0.5 * self.l2 * float(np.sum(np.square(weights, dtype=np.float64)))
