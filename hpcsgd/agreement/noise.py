"""Noise that fades: N(0, σ² / (1 + t)^0.55) on every word of the mean gradient.

It is added after replicas agreed, so all of them have to throw the same dice; a column
has its noise on any grid, since dice are thrown for blocks of columns.
"""

from dataclasses import dataclass

import numpy as np

from hpcsgd.agreement.shaping import Shaper, Whole
from hpcsgd.codecs import Moment
from hpcsgd.products.base import Array

FADES = 0.55  # of the variance (arXiv 1511.06807)
BLOCK = 4096  # columns that share dice
SALT = 0x6E6F697365  # dice of nobody else


@dataclass
class Noise(Shaper):
    """`variance` is that of the first step."""

    variance: float
    seed: int

    def shape(self, gradient: Array, whole: Whole, moment: Moment) -> None:
        """Block by block of all columns."""
        size = np.sqrt(self.variance / (1.0 + moment.number) ** FADES)
        for place, held in whole.runs():
            height = held.stop - held.start
            self._add(gradient[place : place + height], held, size, moment)

    def _add(self, gradient: Array, held: slice, size: float, moment: Moment) -> None:
        for block in range(held.start // BLOCK, -(-held.stop // BLOCK)):
            first, last = block * BLOCK, (block + 1) * BLOCK
            here = slice(max(first, held.start), min(last, held.stop))
            drawn = self._dice(moment, block).normal(size=(BLOCK, gradient.shape[1]))
            own = drawn[here.start - first : here.stop - first]
            part = gradient[here.start - held.start : here.stop - held.start]
            part += (size * own).astype(gradient.dtype)

    def _dice(self, moment: Moment, block: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, SALT, moment.number, block))
