"""Levels that follow the gradients: ALQ moves each, AMQ the ratio of a power law.

At exchange `adapt`, at 20 times that, and at every 100th multiple, replicas sum three
numbers, Σ N² r, Σ N² r² and Σ N², and compute the same levels from the same sums. Any
levels with 0 and 1 are unbiased, so what the fit decides is the variance alone.
"""

import zlib
from abc import abstractmethod

import numpy as np

from hpcsgd.codecs.base import Array, Bucket, Finish, Line, Moment
from hpcsgd.codecs.chunks import SCALE_BYTES
from hpcsgd.codecs.nuqsgd import Nuqsgd, exponential
from hpcsgd.codecs.packing import packed_bytes
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.codecs.truncated import Truncated
from hpcsgd.errors import DataError

MARK_BYTES = 4  # of the levels' checksum, ahead of every record
SWEEPS = 15
DOWNHILL = 50
PACE = 0.1
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9)
LIMITS = 0.01, 0.99


class Adaptive(Nuqsgd):
    """Begins as nuqsgd."""

    reads = (*Nuqsgd.reads, "adapt")

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.kept["levels"] = self.levels

    @classmethod
    def table_bytes(cls, bucket: Bucket, config: CodecConfig) -> int:
        """Of the levels."""
        return 8 << config.bits - 1

    @abstractmethod
    def fit(self, law: Truncated) -> Array:
        """Levels for ratios of this law, from 0 to 1."""

    def is_due(self, moment: Moment) -> bool:
        """Is this an exchange that looks at the ratios?"""
        first, now = self.config.adapt, moment.number
        return now in (first, 20 * first) or (now > 0 and now % (100 * first) == 0)

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Adapt where that is due, then as always."""
        payload = self._bytes()
        if self.is_due(moment):
            sums = self._sums(part)
            payload += sums.nbytes
            self._adapt(line.sum(sums))
        arrive = line.start_gather(self.encode(part, moment, line.rank))
        return lambda: self._told(arrive(), line, moment, payload)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """The mark of the levels goes ahead."""
        mark = np.array([self._mark()], dtype=np.uint32).view(np.uint8)
        return np.concatenate([mark, super().encode(part, moment, replica)])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Refused where a replica has other levels: that would be read as garbage."""
        mark = int(record[:MARK_BYTES].copy().view(np.uint32)[0])
        if mark != self._mark():
            raise DataError(
                "replicas have different levels of quantisation; use the same machine"
                " code on all ranks, or codec nuqsgd"
            )
        super().add_decoded(record[MARK_BYTES:], total, moment)

    def payload_bytes(self, ranks: int, rank: int) -> None:
        """⌈D bits / 8⌉ + 4 a chunk + 4, and 24 where it adapts."""
        return

    def _bytes(self) -> int:
        codes = packed_bytes(self.bucket.words, self.bits)
        return MARK_BYTES + codes + SCALE_BYTES * len(self.chunks)

    def _mark(self) -> int:
        return zlib.crc32(self.levels.tobytes())

    def _sums(self, part: Array) -> Array:
        """Weighed by what a ratio costs, N²; zeros cost nothing, and have no weight."""
        norms = self.chunks.norms(part, self.config.norm)
        ratios = self._ratios(part, norms)
        weights = self.chunks.spread(norms.astype(np.float64)) ** 2 * (ratios > 0)
        return np.array([weights @ ratios, weights @ ratios**2, weights.sum()])

    def _adapt(self, sums: Array) -> None:
        """The same on all replicas; sums that say nothing change nothing."""
        if not np.isfinite(sums).all() or sums[2] <= 0:
            return
        mean, square = float(sums[0] / sums[2]), float(sums[1] / sums[2])
        law = Truncated(mean, max(square - mean**2, 0.0) ** 0.5)
        self.levels[...] = self.fit(law)


class Alq(Adaptive):
    """Each level where it is best between its neighbours, in turns."""

    def fit(self, law: Truncated) -> Array:
        """From uniform, exponential and present levels; the best, as Ψ counts."""
        count = len(self.levels)
        starts = np.linspace(0, 1, count), exponential(self.bits), self.levels
        found = [sweep(law, start, SWEEPS) for start in starts]
        return min(found, key=law.variance)


class Amq(Adaptive):
    """Levels 0, pˢ, ..., p, 1; p goes downhill."""

    def fit(self, law: Truncated) -> Array:
        """From several p and the present one; the best, as Ψ counts."""
        count = len(self.levels)
        begins = (*RATIOS, float(self.levels[-2]) or RATIOS[4])
        found = [powers(downhill(law, p, count), count) for p in begins]
        return min([*found, self.levels.copy()], key=law.variance)


def sweep(law: Truncated, levels: Array, times: int) -> Array:
    """Level j ← F⁻¹(F(c) − ∫ (r − a) dF / (c − a)) between its neighbours a and c.

    That is the minimum over this level alone: Ψ never rises.
    """
    out = [float(level) for level in levels]
    for _ in range(times):
        for j in range(1, len(out) - 1):
            a, c = out[j - 1], out[j + 1]
            over = law.first(a, c) - a * (law.cdf(c) - law.cdf(a))
            mass = law.cdf(c) - over / (c - a)
            best = law.inverse(mass) if 0.0 < mass < 1.0 else out[j]
            out[j] = best if a < best < c else out[j]
    return np.array(out)


def downhill(law: Truncated, ratio: float, count: int) -> float:
    """p after some steps against dΨ/dp."""
    for _ in range(DOWNHILL if count > 2 else 0):
        ratio -= PACE * slope(law, ratio, count)
        ratio = min(max(ratio, LIMITS[0]), LIMITS[1])
    return ratio


def slope(law: Truncated, p: float, count: int) -> float:
    """dΨ/dp of the levels 0, pˢ, ..., p, 1, of which there are `count`."""
    s = count - 2
    total = s * p ** (s - 1) * law.first(0.0, p**s)
    for j in range(s):
        low, high = p ** (j + 1), p**j
        push = j * p ** (j - 1) + (j + 1) * high
        mass = law.cdf(high) - law.cdf(low)
        total += push * law.first(low, high) - (2 * j + 1) * p ** (2 * j) * mass
    return total


def powers(p: float, count: int) -> Array:
    """0, pˢ, ..., p, 1."""
    return np.concatenate([[0.0], p ** np.arange(count - 2.0, -1.0, -1.0)])
