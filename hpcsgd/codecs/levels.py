"""Stochastic rounding to levels: what the quantisers have in common.

In a chunk of norm N a word v is N · sign · r with r in [0, 1], which lies between two
levels l ≤ r < u; u is said with probability (r − l) / (u − l), else l. That is unbiased
for any levels that include 1, and its variance is exactly N² (u − r)(r − l). Where zero
is a level words that are zero stay zero, as most of a sparse gradient are; where it is
not (amq), words below the least level become that or its opposite.

On the wire: a float32 norm for each chunk, then the sign and the number of the level of
each word in `bits` bits.
"""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Array, Bucket, Gathered, Moment
from hpcsgd.codecs.chunks import SCALE_BYTES, Chunks
from hpcsgd.codecs.packing import pack, packed_bytes, unpack
from hpcsgd.codecs.settings import CodecConfig

Between = tuple[NDArray[np.int64], Array, Array]


class Quantiser(Gathered):
    """Rounds to 2^(bits − 1) levels; replicas throw dice of their own."""

    unbiased = True
    wants_feedback = False

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.bits: int = config.bits
        self.chunks = Chunks(bucket.words, config.chunk)

    @abstractmethod
    def between(self, ratios: Array) -> Between:
        """Return the number of the level below each ratio in [0, 1], and both levels.

        Number −1 is level 0 with the other sign, for ratios below that.
        """

    @abstractmethod
    def level(self, numbers: Array) -> Array:
        """The levels of these numbers, float64."""

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Norms, then codes: twice the number of the level, plus one if negative."""
        norms = self.chunks.norms(part, self.config.norm)
        ratios = self._ratios(part, norms)
        number, low, high = self.between(ratios)
        dice = self.throw(moment, replica)
        number += dice * (high - low) < ratios - low
        turned = np.signbit(part) ^ (number < 0)
        codes = 2 * np.maximum(number, 0) + turned
        return np.concatenate([norms.view(np.uint8), pack(codes, self.bits)])

    def throw(self, moment: Moment, replica: int) -> Array:
        """A number in [0, 1) for each word, of this replica's own."""
        return self.bucket.dice(moment, 1 + replica).random(self.bucket.words)

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """total ← total + N · sign · level: NaN where the norm is no number."""
        heads = SCALE_BYTES * len(self.chunks)
        norms = record[:heads].copy().view(np.float32).astype(np.float64)
        codes = unpack(record[heads:], self.bucket.words, self.bits)
        values = self.level(codes >> 1)
        values *= self.chunks.spread(norms)
        np.negative(values, out=values, where=(codes & 1).astype(bool))
        total += values

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """ceil(D · bits / 8), and a norm for each chunk."""
        codes = packed_bytes(self.bucket.words, self.bits)
        return codes + SCALE_BYTES * len(self.chunks)

    def variance(self, part: Array) -> Array:
        """N² (u − r)(r − l)."""
        norms = self.chunks.norms(part, self.config.norm)
        ratios = self._ratios(part, norms)
        _, low, high = self.between(ratios)
        spread = self.chunks.spread(norms.astype(np.float64))
        spreads: Array = spread**2 * (high - ratios) * (ratios - low)
        return spreads

    def _ratios(self, part: Array, norms: Array) -> Array:
        """|v| / N; zero where N is zero or no number."""
        spread = self.chunks.spread(norms.astype(np.float64))
        ratios = np.zeros(part.size)
        sound = (spread > 0) & np.isfinite(spread)
        np.divide(np.abs(part), spread, out=ratios, where=sound)
        return ratios
