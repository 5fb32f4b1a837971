"""Neighbouring words that share a scale, which travels in float32."""

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Array

SCALE_BYTES = 4


class Chunks:
    """`words` in chunks of `length`, the last one shorter."""

    def __init__(self, words: int, length: int) -> None:
        self.words, self.length = words, length
        self.starts = np.arange(0, words, length)

    def __len__(self) -> int:
        return len(self.starts)

    def spread(self, scales: Array) -> Array:
        """To every word what its chunk has."""
        return np.repeat(scales, self.length)[: self.words]

    def greatest(self, part: Array) -> Array:
        """Of each chunk."""
        return np.maximum.reduceat(part, self.starts)

    def least(self, part: Array) -> Array:
        """Of each chunk."""
        return np.minimum.reduceat(part, self.starts)

    def norms(self, part: Array, kind: str) -> NDArray[np.float32]:
        """No word of a chunk is greater; nor does float32 round below it."""
        largest = self.greatest(np.abs(part)).astype(np.float64)
        if kind == "l2":
            squares = np.add.reduceat(np.square(part, dtype=np.float64), self.starts)
            largest = np.maximum(largest, np.sqrt(squares))  # squares underflow
        return rounded_up(largest)


def rounded_up(values: Array) -> NDArray[np.float32]:
    """The next float32 that is not below."""
    near = values.astype(np.float32)
    low = near.astype(np.float64) < values
    return np.where(low, np.nextafter(near, np.float32(np.inf)), near)
