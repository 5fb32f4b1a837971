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
    reads = ("chunk",)

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.chunks = Chunks(bucket.words, config.chunk)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Least and greatest of the chunks, float32, then the bytes."""
        ends, codes = to_bytes(part, self.chunks)
        return np.concatenate([ends.reshape(-1).view(np.uint8), codes])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """total + (code + low) / scale."""
        heads = 2 * SCALE_BYTES * len(self.chunks)
        ends = record[:heads].copy().view(np.float32).reshape(2, -1)
        total += from_bytes(ends, record[heads:], self.chunks)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """D, and two ends for each chunk."""
        return self.bucket.words + 2 * SCALE_BYTES * len(self.chunks)


def to_bytes(
    part: Array, chunks: Chunks
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Least and greatest of each chunk, (2, chunks), and a byte for each word."""
    least = -rounded_up(-chunks.least(part).astype(np.float64))
    greatest = rounded_up(chunks.greatest(part).astype(np.float64))
    scale, low = grid_of(least, greatest)
    codes = np.rint(part * chunks.spread(scale)) - chunks.spread(low)
    # Below, too: ties of the rounding may fall one under the lowest.
    codes = np.clip(np.nan_to_num(codes), 0, TOP).astype(np.uint8)
    return np.stack([least, greatest]), codes


def from_bytes(ends: Array, codes: Array, chunks: Chunks) -> NDArray[np.float64]:
    """(code + low) / scale, or what all words of a constant chunk are."""
    least, greatest = ends
    scale, low = grid_of(least, greatest)
    spread = chunks.spread
    values = (codes + spread(low)) / spread(scale)
    flat = spread(least == greatest)
    return np.where(flat, spread(least.astype(np.float64)), values)


def grid_of(
    least: Array, greatest: Array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps in 1, and the lowest multiple of a step; 1 and 0 in a constant chunk."""
    ends = least.astype(np.float64), greatest.astype(np.float64)
    width = ends[1] - ends[0]
    scale = TOP / np.where(width == 0, TOP, width)
    return scale, np.where(width == 0, 0.0, np.rint(ends[1] * scale) - TOP)
