"""Levels that follow the gradients: ALQ moves each, AMQ the ratio of a power law.

F. Faghri, I. Tabrizian, I. Markov, D. Alistarh, D. Roy and A. Ramezani-Kebrya,
"Adaptive Gradient Quantization for Data-Parallel SGD" (NeurIPS 2020).

    ALQ   levels 0 = ℓ₀ < ℓ₁ < ... < 1, each of them where Ψ is least
    AMQ   levels pˢ, ..., p, 1 with s = 2^(bits − 1) − 1, and no zero

Ψ, the variance that rounding adds, is that under a mixture of truncated normals, one
for every chunk of every replica (`Mixture`). At exchange `adapt`, at 20 times that, and
at every 100th multiple, replicas gather three numbers of every chunk, Σ N², Σ N² v/N
and Σ N² (v/N)², and compute the same levels from them. Rounding is unbiased to any
levels that end with 1, so what the fit decides is the variance alone.
"""

import zlib
from abc import abstractmethod

import numpy as np
from scipy.optimize import minimize_scalar

from hpcsgd.codecs.base import Array, Bucket, Finish, Line, Moment
from hpcsgd.codecs.chunks import SCALE_BYTES
from hpcsgd.codecs.levels import Between
from hpcsgd.codecs.nuqsgd import Nuqsgd, exponential
from hpcsgd.codecs.packing import packed_bytes
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.codecs.truncated import Mixture
from hpcsgd.errors import DataError

MARK_BYTES = 4  # of the levels' checksum, ahead of every record
SUMS = 3  # float64 numbers of every chunk that are gathered to adapt
SWEEPS = 15
RATIOS = 64  # tried values of p, of which the best is refined
LEAST_RATIO, MOST_RATIO = 1e-3, 0.99
LEAST_LEVEL = 1e-300  # smaller ones would not all differ


class Adaptive(Nuqsgd):
    """Stochastic rounding to levels that begin as powers of 1/2."""

    zeros_cost: bool  # whether words that are zero are rounded, too

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.levels = self.first_levels()
        self.kept["levels"] = self.levels

    @classmethod
    def table_bytes(cls, bucket: Bucket, config: CodecConfig) -> int:
        """Return the bytes of the levels."""
        return 8 << config.bits - 1

    @abstractmethod
    def first_levels(self) -> Array:
        """Return the levels of a run that has seen no gradient."""

    @abstractmethod
    def fit(self, law: Mixture) -> Array:
        """Return the levels for ratios of this law."""

    def is_due(self, moment: Moment) -> bool:
        """Return whether levels adapt in this exchange."""
        first, now = self.config.adapt, moment.number
        return now in (first, 20 * first) or (now > 0 and now % (100 * first) == 0)

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Adapt where that is due, then encode and begin to gather."""
        payload = self._bytes()
        if self.is_due(moment):
            sums = self._sums(part)
            payload += sums.nbytes
            records = line.start_gather(sums.reshape(-1).view(np.uint8))()
            self._adapt(np.concatenate(records).view(np.float64).reshape(-1, SUMS))
        arrive = line.start_gather(self.encode(part, moment, line.rank))
        return lambda: self._told(arrive(), line, moment, payload)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the record, with a checksum of the levels ahead."""
        mark = np.array([self._mark()], dtype=np.uint32).view(np.uint8)
        return np.concatenate([mark, super().encode(part, moment, replica)])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """total ← total + the record, which is refused if it has other levels."""
        mark = int(record[:MARK_BYTES].copy().view(np.uint32)[0])
        if mark != self._mark():
            raise DataError(
                "replicas have different levels of quantisation; use the same machine"
                " code on all ranks, or codec nuqsgd"
            )
        super().add_decoded(record[MARK_BYTES:], total, moment)

    def payload_bytes(self, ranks: int, rank: int) -> None:
        """⌈D bits / 8⌉ + 4 a chunk + 4, and 24 a chunk more where it adapts."""
        return

    def _bytes(self) -> int:
        codes = packed_bytes(self.bucket.words, self.bits)
        return MARK_BYTES + codes + SCALE_BYTES * len(self.chunks)

    def _mark(self) -> int:
        return zlib.crc32(self.levels.tobytes())

    def _sums(self, part: Array) -> Array:
        """Return Σ N², Σ N² v/N and Σ N² (v/N)² of every chunk.

        Words that are zero count only where rounding them costs something.
        """
        norms = self.chunks.norms(part, self.config.norm)
        ratios = np.copysign(self._ratios(part, norms), part)
        counted = np.ones(part.size, dtype=bool) if self.zeros_cost else part != 0.0
        squares = norms.astype(np.float64)[:, None] ** 2
        words = np.stack([counted.astype(np.float64), ratios, ratios**2], axis=1)
        sums: Array = squares * np.add.reduceat(words, self.chunks.starts, axis=0)
        return sums

    def _adapt(self, sums: Array) -> None:
        """Fit the levels alike on all replicas, by chunks whose sums are numbers."""
        sums = sums[np.isfinite(sums).all(axis=1) & (sums[:, 0] > 0.0)]
        if len(sums) and np.isfinite(sums.sum(axis=0)).all():
            self.levels[...] = self.fit(Mixture(sums))


class Alq(Adaptive):
    """Each level where it is best between its neighbours, in turns."""

    zeros_cost = False

    def first_levels(self) -> Array:
        """Return those of nuqsgd."""
        return exponential(self.bits)

    def fit(self, law: Mixture) -> Array:
        """Return the best that comes of four starts, one of them the present levels."""
        count = len(self.levels)
        starts = [
            law.companded(count),
            np.linspace(0.0, 1.0, count),
            exponential(self.bits),
            self.levels,
        ]
        return min((sweep(law, start, SWEEPS) for start in starts), key=law.variance)


class Amq(Adaptive):
    """Levels ±pˢ, ..., ±p, ±1, with the p that costs least.

    A word between −pˢ and pˢ, and be it zero, becomes one of the two.
    """

    zeros_cost = True

    def first_levels(self) -> Array:
        """Return powers of 1/2."""
        return powers(0.5, 1 << self.bits - 1)

    def between(self, ratios: Array) -> Between:
        """Return level numbers, of which −1 is the least with the other sign."""
        above = np.searchsorted(self.levels, ratios, side="right")
        number = np.minimum(above - 1, len(self.levels) - 2)
        low = np.where(number < 0, -self.levels[0], self.levels[number])
        return number, low, self.levels[number + 1]

    def fit(self, law: Mixture) -> Array:
        """Return the best powers, or the present levels if these are as good.

        Ψ is a function of p alone, so it is looked at everywhere, where the paper goes
        downhill from several p.
        """
        count = len(self.levels)
        least = max(LEAST_RATIO, LEAST_LEVEL ** (1.0 / (count - 1)))
        tried = np.geomspace(least, MOST_RATIO, RATIOS)

        def cost(p: float) -> float:
            return law.variance(powers(p, count))

        best = int(np.argmin([cost(p) for p in tried]))
        bounds = tried[max(best - 1, 0)], tried[min(best + 1, RATIOS - 1)]
        refined = minimize_scalar(cost, bounds=bounds, method="bounded").x
        ways = powers(tried[best], count), powers(refined, count), self.levels.copy()
        return min(ways, key=law.variance)


def sweep(law: Mixture, levels: Array, times: int) -> Array:
    """Return `levels` after so many turns, in which Ψ never rises.

    ℓ ← F⁻¹(F(c) − ∫ (r − a) dF / (c − a)) between its neighbours a and c, which is the
    minimum over this level alone (Faghri et al., theorem 1). Levels of odd numbers do
    not depend on each other, so these move together, and then the even ones.
    """
    levels = levels.copy()
    for turn in range(2 * times):
        first = 1 + turn % 2
        level = levels[first:-1:2]
        low = levels[first - 1 :: 2][: len(level)]
        high = levels[first + 1 :: 2]
        mass = law.cdf(high) - law.cdf(low)
        over = law.first(high) - law.first(low) - low * mass
        best = law.inverse(law.cdf(high) - over / (high - low))
        moves = (mass > 0.0) & (low < best) & (best < high)
        level[...] = np.where(moves, best, level)
    return levels


def powers(p: float, count: int) -> Array:
    """Return p^(count − 1), ..., p, 1."""
    found: Array = p ** np.arange(count - 1.0, -1.0, -1.0)
    return found
