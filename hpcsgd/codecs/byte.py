"""8 bits a word between the least and the greatest of its chunk."""

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Array, Bucket, Gathered, Moment
from hpcsgd.codecs.chunks import SCALE_BYTES, Chunks, rounded_up
from hpcsgd.codecs.settings import CodecConfig

TOP = 255


class Byte(Gathered):
    """Multiples of (max − min) / 255, the nearest: zero stays zero between the two.

    No error is above half of that. Where a chunk is constant it is sent as it is (to
    float32); an ε below the line instead would spoil gradients that are tiny.
    """

    unbiased = False
    wants_feedback = True

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.chunks = Chunks(bucket.words, config.chunk)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Least and greatest of the chunks, float32, then the bytes."""
        least = -rounded_up(-self.chunks.least(part).astype(np.float64))
        greatest = rounded_up(self.chunks.greatest(part).astype(np.float64))
        scale, low = grid_of(least, greatest)
        codes = np.rint(part * self.chunks.spread(scale)) - self.chunks.spread(low)
        # Below, too: ties of the rounding may fall one under the lowest.
        codes = np.clip(np.nan_to_num(codes), 0, TOP).astype(np.uint8)
        return np.concatenate([least.view(np.uint8), greatest.view(np.uint8), codes])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """total + (code + low) / scale."""
        heads = 2 * SCALE_BYTES * len(self.chunks)
        least, greatest = record[:heads].copy().view(np.float32).reshape(2, -1)
        scale, low = grid_of(least, greatest)
        spread = self.chunks.spread
        values = (record[heads:] + spread(low)) / spread(scale)
        flat = spread(least == greatest)
        total += np.where(flat, spread(least.astype(np.float64)), values)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """D, and two ends for each chunk."""
        return self.bucket.words + 2 * SCALE_BYTES * len(self.chunks)


def grid_of(
    least: Array, greatest: Array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps in 1, and the lowest multiple of a step; 1 and 0 in a constant chunk."""
    ends = least.astype(np.float64), greatest.astype(np.float64)
    width = ends[1] - ends[0]
    scale = TOP / np.where(width == 0, TOP, width)
    return scale, np.where(width == 0, 0.0, np.rint(ends[1] * scale) - TOP)
