"""QSGD: stochastic rounding to uniform levels j / s, s = 2^(bits − 1) − 1."""

import numpy as np

from hpcsgd.codecs.base import Array
from hpcsgd.codecs.levels import Between, Quantiser


class Qsgd(Quantiser):
    """E|C(a) − a|² ≤ min(B/s², √B/s) |a|² in a chunk of B words with `norm` l2."""

    @property
    def steps(self) -> int:
        """s."""
        return (1 << self.bits - 1) - 1

    def between(self, ratios: Array) -> Between:
        """The last step begins below 1."""
        number = np.minimum((ratios * self.steps).astype(np.int64), self.steps - 1)
        return number, self.level(number), self.level(number + 1)

    def level(self, numbers: Array) -> Array:
        """j / s."""
        levels: Array = numbers / self.steps
        return levels
