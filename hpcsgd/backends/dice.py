"""Draws that members agree on, for weights that are rounded at random."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Dice:
    """Numbers for every column of the data, whoever holds it, throw after throw."""

    def __init__(self, seed: int, replica: int, own: slice, columns: int) -> None:
        self.key = np.array([seed, replica], dtype=np.uint64)
        self.own = own
        self.columns = columns
        self.throws = 0

    def throw(self, weights: Array) -> Array:
        """Uniform in [0, 1), one for each of these weights: own columns, or all."""
        counter = np.array([0, 0, 0, self.throws], dtype=np.uint64)
        self.throws += 1
        source = np.random.Generator(np.random.Philox(key=self.key, counter=counter))
        draws: Array = source.random((self.columns, weights.shape[1]), dtype=np.float32)
        return draws if len(weights) == self.columns else draws[self.own]
