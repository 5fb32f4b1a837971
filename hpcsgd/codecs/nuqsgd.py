"""NUQSGD: stochastic rounding to the levels 0, 2⁻ˢ, ..., 1/2, 1."""

import numpy as np

from hpcsgd.codecs.base import Array, Bucket
from hpcsgd.codecs.levels import Between, Quantiser
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.errors import ConfigError

MOST_BITS = 8  # 127 octaves: float32 has no more


class Nuqsgd(Quantiser):
    """s = 2^(bits − 1) − 2 octaves.

    E|C(a) − a|² ≤ (1/8 + 2^(−2s−2) B) |a|² in a chunk of B words with `norm` l2.
    """

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        if self.bits > MOST_BITS:
            raise ConfigError(
                f"[codec] bits = {self.bits} and nuqsgd has a level for every octave;"
                f" use {MOST_BITS} bits or fewer"
            )
        self.levels = exponential(self.bits)

    def between(self, ratios: Array) -> Between:
        """By search."""
        last = len(self.levels) - 2
        above = np.searchsorted(self.levels, ratios, side="right")
        number = np.minimum(above - 1, last)
        return number, self.levels[number], self.levels[number + 1]

    def level(self, numbers: Array) -> Array:
        """From the table."""
        levels: Array = self.levels[numbers]
        return levels


def exponential(bits: int) -> Array:
    """0, 2⁻ˢ, ..., 1/2, 1: 2^(bits − 1) of them."""
    octaves = 2 ** (bits - 1) - 2
    return np.concatenate([[0.0], 2.0 ** np.arange(-octaves, 1.0)])
