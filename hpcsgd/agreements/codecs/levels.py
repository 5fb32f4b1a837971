"""Codecs of quantisation levels: QSGD, NUQSGD, ALQ and AMQ."""

import heapq
import zlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from hpcsgd.agreements.codecs.base import (
    COUNT_BYTES,
    SCALE_BYTES,
    Bucket,
    BucketChannel,
    Chunks,
    CodecConfig,
    Finish,
    GatheredCodec,
    Moment,
    pack,
    packed_bytes,
    unpack,
)
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import Array

# Prefix codes: frequent levels in few bits.
#
# A symbol is the number j of a level and a sign, 2 j + sign. With `elias` it is Elias'
# omega code of j + 1, and a bit for the sign where level j is not zero: code Code'_s of
# D. Alistarh, D. Grubic, J. Li, R. Tomioka and M. Vojnovic, "QSGD" (NeurIPS 2017),
# appendix, which the NUQSGD paper uses, too. With `huffman` it is the canonical
# Huffman code of the symbols of a record, whose lengths go ahead, a byte for each of
# the 2^bits symbols (Faghri et al., 2020, section 3).
#
# All words are decoded at once. At every bit of a record a table says which symbol
# would begin there, and so where the next would; the beginnings are the orbit of the
# first bit, which doubles in every round.

LONGEST = 16  # bits of a code word


@dataclass(frozen=True)
class PrefixCode:
    """A code of symbols 0, 1, ... in words of up to `LONGEST` bits.

    No word begins another.
    """

    lengths: NDArray[np.int64]  # of the word of each symbol; 0: it has none
    words: NDArray[np.int64]  # the bits, the last of which is the lowest

    def encode(self, symbols: Array) -> NDArray[np.uint8]:
        """Return the words of `symbols` as bytes, filled with zeros at the end."""
        sizes = self.lengths[symbols]
        words = self.words[symbols]
        starts = np.cumsum(sizes) - sizes
        bits = np.zeros(int(sizes.sum()), dtype=bool)
        for place in range(int(sizes.max(initial=0))):
            some = sizes > place
            bits[starts[some] + place] = (
                words[some] >> (sizes[some] - 1 - place) & 1
            ).astype(bool)
        return np.packbits(bits)

    def decode(self, record: Array, count: int) -> NDArray[np.int64]:
        """Return the `count` symbols that begin at the first bit of `record`."""
        table, steps = self._table()
        bits = np.unpackbits(record)
        padded = np.concatenate([bits, np.zeros(LONGEST, bits.dtype)]).astype(np.int64)
        seen = np.zeros(bits.size, dtype=np.int64)  # the next bits from every place on
        for place in range(LONGEST):
            seen += padded[place : place + bits.size] << (LONGEST - 1 - place)
        jump = np.minimum(np.arange(bits.size) + steps[seen], bits.size - 1)
        places = np.zeros(1, dtype=np.int64)
        while places.size < count:
            places = np.concatenate([places, jump[places]])
            jump = jump[jump]
        symbols: NDArray[np.int64] = table[seen[places[:count]]]
        return symbols

    def _table(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return symbol and length of the word that begins any `LONGEST` bits."""
        table = np.zeros(1 << LONGEST, dtype=np.int64)
        steps = np.ones(1 << LONGEST, dtype=np.int64)
        for symbol in np.flatnonzero(self.lengths):
            free = LONGEST - int(self.lengths[symbol])
            first = int(self.words[symbol]) << free
            table[first : first + (1 << free)] = symbol
            steps[first : first + (1 << free)] = self.lengths[symbol]
        return table, steps


def elias_code(bits: int, has_zero: bool) -> PrefixCode:
    """Return the code `elias` of 2^bits symbols; with a level 0, if `has_zero`."""
    lengths = np.zeros(1 << bits, dtype=np.int64)
    words = np.zeros(1 << bits, dtype=np.int64)
    for symbol in range(1 << bits):
        level, sign = divmod(symbol, 2)
        word, length = omega(level + 1)
        if level or not has_zero:
            word, length = 2 * word + sign, length + 1
        elif sign:
            continue  # there is one zero
        lengths[symbol], words[symbol] = length, word
    return PrefixCode(lengths, words)


def omega(number: int) -> tuple[int, int]:
    """Return Elias' omega code of a positive number: its bits, and how many."""
    word, length = 0, 1
    while number > 1:
        size = number.bit_length()
        word |= number << length
        length += size
        number = size - 1
    return word, length


def huffman_code(counts: Array) -> PrefixCode:
    """Return the canonical Huffman code of symbols that occur so often."""
    while True:
        lengths = _huffman_lengths(counts)
        if lengths.max(initial=0) <= LONGEST:
            return canonical(lengths)
        counts = (counts + 1) // 2  # of rarest symbols, whose words become shorter


def _huffman_lengths(counts: Array) -> NDArray[np.int64]:
    """Return the lengths of a Huffman code; 0 for symbols that do not occur."""
    lengths = np.zeros(len(counts), dtype=np.int64)
    heap = [(int(counts[s]), int(s), [int(s)]) for s in np.flatnonzero(counts)]
    heapq.heapify(heap)
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        symbols = first[2] + second[2]
        lengths[symbols] += 1
        heapq.heappush(heap, (first[0] + second[0], first[1], symbols))
    return lengths


def canonical(lengths: NDArray[np.int64]) -> PrefixCode:
    """Return the code with these lengths whose words are in the order of symbols."""
    words = np.zeros(len(lengths), dtype=np.int64)
    word, before = 0, 0
    for symbol in sorted(np.flatnonzero(lengths), key=lambda s: (lengths[s], s)):
        word <<= int(lengths[symbol]) - before
        before = int(lengths[symbol])
        words[symbol] = word
        word += 1
    return PrefixCode(lengths, words)


# Stochastic rounding to levels: what the quantisers have in common.
#
# In a chunk of norm N a word v is N · sign · r with r in [0, 1], which lies between two
# levels l ≤ r < u; u is sent with probability (r − l) / (u − l), else l. That is
# unbiased for any levels that include 1, and its variance is exactly N² (u − r)(r − l).
# Where zero is a level words that are zero stay zero, as most of a sparse gradient are;
# where it is not (amq), words below the least level become that or its opposite.
#
# On the wire: a float32 norm for each chunk, then the sign and the number of the level
# of each word in `bits` bits, or by a prefix code. A word that becomes zero has no
# sign: there is one code of zero, not two.

MOST_CODED = 8  # bits of levels that a prefix code can have
Between = tuple[NDArray[np.int64], Array, Array]


class Quantiser(GatheredCodec):
    """Stochastic rounding to 2^(bits − 1) levels, by random numbers of the replica."""

    unbiased = True
    wants_feedback = False
    has_zero = True  # whether the least level is zero, which has no sign

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.bits: int = config.bits
        self.chunks = Chunks(bucket.words, config.chunk)
        self._coded = np.zeros(2, dtype=np.int64)  # bits of codes, and their words
        self._elias: PrefixCode | None = None
        if config.entropy == "none":
            return
        if self.bits > MOST_CODED:
            raise ConfigError(
                f"[codec] entropy = {config.entropy!r} is for at most"
                f" {1 << MOST_CODED} levels and signs, and bits = {self.bits} has more;"
                f" use bits = {MOST_CODED} or fewer, or entropy = 'none'"
            )
        if config.entropy == "elias":
            self._elias = elias_code(self.bits, self.has_zero)

    @abstractmethod
    def between(self, ratios: Array) -> Between:
        """Return the number of the level below each ratio in [0, 1], and both levels.

        The second array has the level below each ratio, the third the level above.
        Ratios below the least level have number −1 and, as the level below, minus the
        least level.
        """

    @abstractmethod
    def level(self, numbers: Array) -> Array:
        """Return the levels with these numbers, in float64."""

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the record of `part`: the norms of chunks, then the codes of words.

        A code is twice the number of the level, plus one if the word becomes negative;
        a word that becomes zero is not negative.
        """
        norms = self.chunks.norms(part, self.config.norm)
        ratios = self._ratios(part, norms)
        number, low, high = self.between(ratios)
        dice = self.draw_uniform(moment, replica)
        number += dice * (high - low) < ratios - low
        turned = np.signbit(part) ^ (number < 0)
        codes = 2 * np.maximum(number, 0) + turned
        if self.has_zero:
            codes[codes == 1] = 0
        packed = self._packed(codes)
        self._coded += 8 * packed.size, codes.size
        return np.concatenate([norms.view(np.uint8), packed])

    def facts(self) -> dict[str, int]:
        """Return the counts of codecs, and the bits and words of codes that were sent.

        Their quotient is the measured number of bits a word, without the norms.
        """
        bits, words = (int(count) for count in self._coded)
        return super().facts() | {"code_bits": bits, "code_words": words}

    def _packed(self, codes: Array) -> NDArray[np.uint8]:
        """Return the codes of words as bytes."""
        if self.config.entropy == "none":
            return pack(codes, self.bits)
        if self._elias is not None:
            return self._elias.encode(codes)
        code = huffman_code(np.bincount(codes, minlength=1 << self.bits))
        return np.concatenate([code.lengths.astype(np.uint8), code.encode(codes)])

    def _unpacked(self, record: Array) -> NDArray[Any]:
        """Return the codes of words from bytes that `_packed` has made."""
        count = self.bucket.words
        if self.config.entropy == "none":
            return unpack(record, count, self.bits)
        if self._elias is not None:
            return self._elias.decode(record, count)
        heads = 1 << self.bits
        code = canonical(record[:heads].astype(np.int64))
        return code.decode(record[heads:], count)

    def draw_uniform(self, moment: Moment, replica: int) -> Array:
        """Return a random number in [0, 1) for each word, drawn by this replica."""
        return self.bucket.dice(moment, 1 + replica).random(self.bucket.words)

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Add the decoded words of a record, N · sign · level, to `total`, in place.

        N is the norm of the chunk. Where N is not finite, the result is not finite
        either.
        """
        heads = SCALE_BYTES * len(self.chunks)
        norms = record[:heads].copy().view(np.float32).astype(np.float64)
        codes = self._unpacked(record[heads:])
        values = self.level(codes >> 1)
        values *= self.chunks.spread(norms)
        np.negative(values, out=values, where=(codes & 1).astype(bool))
        total += values

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return ⌈D · bits / 8⌉ for D words, plus 4 for the norm of each chunk.

        Return None with a prefix code, which takes as many bits as levels need.
        """
        if self.config.entropy != "none":
            return None
        codes = packed_bytes(self.bucket.words, self.bits)
        return codes + SCALE_BYTES * len(self.chunks)

    def variance(self, part: Array) -> Array:
        """Return the variance N² (u − r)(r − l) that rounding adds to each word.

        N is the norm of the chunk, and r = |v| / N is between the levels l and u.
        """
        norms = self.chunks.norms(part, self.config.norm)
        ratios = self._ratios(part, norms)
        _, low, high = self.between(ratios)
        spread = self.chunks.spread(norms.astype(np.float64))
        spreads: Array = spread**2 * (high - ratios) * (ratios - low)
        return spreads

    def _ratios(self, part: Array, norms: Array) -> Array:
        """Return |v| / N for each word v, or 0 where the norm N is 0 or not finite."""
        spread = self.chunks.spread(norms.astype(np.float64))
        ratios = np.zeros(part.size)
        sound = (spread > 0) & np.isfinite(spread)
        np.divide(np.abs(part), spread, out=ratios, where=sound)
        return ratios


# QSGD: stochastic rounding to uniform levels j / s, s = 2^(bits − 1) − 1.


class Qsgd(Quantiser):
    """Stochastic rounding to uniform levels (QSGD).

    E|C(a) − a|² ≤ min(B/s², √B/s) |a|² for the rounded words C(a) of a chunk a of B
    words, with `norm` l2.
    """

    @property
    def steps(self) -> int:
        """Return s, the number of steps between 0 and 1."""
        return (1 << self.bits - 1) - 1

    def between(self, ratios: Array) -> Between:
        """Return the level numbers and both levels of each ratio.

        A ratio of 1 has the number of the last level but one, and is equal to the level
        above.
        """
        number = np.minimum((ratios * self.steps).astype(np.int64), self.steps - 1)
        return number, self.level(number), self.level(number + 1)

    def level(self, numbers: Array) -> Array:
        """Return the levels j / s of the numbers j."""
        levels: Array = numbers / self.steps
        return levels

    @property
    def shrinkage(self) -> float:
        """Return a factor of levels with which errors that are fed back stay bounded.

        With the norm l2 and chunks of B words, E|C(a) − a|² ≤ β |a|² with β = min(B/s²,
        √B/s). If β is at least 1 the factor is 1 / (1 + β), else 1. It is also 1 with
        the norm max: no word changes by more than 1/s of the largest.
        """
        if self.config.norm != "l2":
            return 1.0
        words = min(int(self.chunks.length), self.bucket.words)
        beta = min(words / self.steps**2, words**0.5 / self.steps)
        return float(1.0 / (1.0 + beta) if beta >= 1.0 else 1.0)


# NUQSGD: stochastic rounding to the levels 0, 2⁻ˢ, ..., 1/2, 1.

MOST_BITS = 8  # 127 octaves: float32 has no more


class Nuqsgd(Quantiser):
    """Stochastic rounding to 0 and powers of 1/2, over s = 2^(bits − 1) − 2 octaves.

    E|C(a) − a|² ≤ (1/8 + 2^(−2s−2) B) |a|² for the rounded words C(a) of a chunk a of B
    words, with `norm` l2.
    """

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        if self.bits > MOST_BITS:
            raise ConfigError(
                f"[codec] bits = {self.bits} is too large for codecs nuqsgd, alq and"
                " amq, whose (first) levels are the powers of two within float32; use"
                f" bits = {MOST_BITS} or fewer, or codec qsgd"
            )
        self.levels = exponential(self.bits)

    def between(self, ratios: Array) -> Between:
        """Return the level numbers and both levels of each ratio, by binary search."""
        last = len(self.levels) - 2
        above = np.searchsorted(self.levels, ratios, side="right")
        number = np.minimum(above - 1, last)
        return number, self.levels[number], self.levels[number + 1]

    def level(self, numbers: Array) -> Array:
        """Return the levels with these numbers, from the table `levels`."""
        levels: Array = self.levels[numbers]
        return levels


def exponential(bits: int) -> Array:
    """Return the 2^(bits − 1) levels 0, 2⁻ˢ, ..., 1/2, 1 of nuqsgd."""
    octaves = 2 ** (bits - 1) - 2
    return np.concatenate([[0.0], 2.0 ** np.arange(-octaves, 1.0)])


# A mixture of truncated normals: the law that adaptive levels take ratios to have.
#
# Of chunk n with norm N_n the signed ratios v / N_n in [−1, 1] are taken for a normal
# law of their mean and deviation, cut to that interval, as Faghri et al. (2020, section
# 3) and their program do. What rounding costs grows with N_n², so |v| / N of a word
# that matters has the law
#
#     F(r) = Σ_n γ_n (F_n(r) − F_n(−r)),   γ_n = m_n N_n² / Σ m N²,   0 ≤ r ≤ 1
#
# where m_n is the number of words. F is tabulated: between neighbours of `EDGES`, which
# grow by 0.45 %, mass is spread evenly. So F⁻¹ is always a number in [0, 1], however
# narrow a law is and however far its tail.

EDGES = np.concatenate([[0.0], np.geomspace(1e-8, 1.0, 4096)])
MOST_LAWS = 256  # of a mixture; those of like deviations are merged to be so many
BLOCK = 32  # laws that are tabulated at a time
LEAST_DEVIATION = 1e-12  # of ratios that are all the same


class Mixture:
    """The distribution of |v| / N for the words v of chunks of norm N.

    It is a mixture of truncated normal distributions. F is its distribution function.

    Parameters
    ----------
    sums : array of shape (chunks, 3)
        Σ N², Σ N² v/N and Σ N² (v/N)² of each chunk.
    """

    def __init__(self, sums: Array) -> None:
        weights, means, deviations = _merged(sums)
        signed = np.concatenate([-EDGES[:0:-1], EDGES])
        masses = np.zeros(len(signed) - 1)
        for start in range(0, len(weights), BLOCK):
            part = slice(start, start + BLOCK)
            below = ndtr((signed - means[part, None]) / deviations[part, None])
            cell_masses = np.diff(below, axis=1)
            cell_masses *= weights[part, None] / cell_masses.sum(axis=1, keepdims=True)
            # Not by BLAS, whose bits differ from machine to machine.
            masses += cell_masses.sum(axis=0)
        middle = len(EDGES) - 1
        folded = masses[middle:] + masses[:middle][::-1]
        folded /= folded.sum()
        self._density = folded / np.diff(EDGES)
        self._mass = _running(folded)
        self._first = _running(self._density * np.diff(EDGES**2) / 2.0)
        self._second = _running(self._density * np.diff(EDGES**3) / 3.0)

    def cdf(self, x: Array) -> Array:
        """Return F(x), which is 0 at 0 and 1 at 1."""
        cell = self._cell(x)
        probabilities: Array = self._mass[cell] + self._density[cell] * (
            x - EDGES[cell]
        )
        return probabilities

    def first(self, x: Array) -> Array:
        """Return ∫ r dF from 0 to x."""
        cell = self._cell(x)
        more = self._density[cell] * (x**2 - EDGES[cell] ** 2) / 2.0
        moments: Array = self._first[cell] + more
        return moments

    def second(self, x: Array) -> Array:
        """Return ∫ r² dF from 0 to x."""
        cell = self._cell(x)
        more = self._density[cell] * (x**3 - EDGES[cell] ** 3) / 3.0
        moments: Array = self._second[cell] + more
        return moments

    def inverse(self, q: Array) -> Array:
        """Return the quantiles F⁻¹(q) in [0, 1], for q in [0, 1]."""
        quantiles: Array = np.interp(q, self._mass, EDGES)
        return quantiles

    def companded(self, count: int) -> Array:
        """Return `count` levels from 0 to 1, as dense as the cube root of the density.

        If there are many levels, these add the least variance (Panter and Dite, 1951).
        """
        share = _running(np.cbrt(self._density) * np.diff(EDGES))
        levels: Array = np.interp(np.linspace(0.0, share[-1], count), share, EDGES)
        levels[0] = 0.0
        return levels

    def variance(self, levels: Array) -> float:
        """Return Ψ, the mean variance that rounding to ± `levels` adds.

        Ψ is Σ ∫ (u − r)(r − l) dF over neighbouring levels l < u, plus ∫ (l₀² − r²) dF
        below the least level l₀, where a word becomes l₀ or −l₀.
        """
        mass = self.cdf(levels)
        first = self.first(levels)
        second = self.second(levels)
        low = levels[:-1]
        high = levels[1:]
        between = (low + high) * np.diff(first) - low * high * np.diff(mass)
        below = levels[0] ** 2 * mass[0] - second[-1]
        return float(between.sum() + below)

    def _cell(self, x: Array) -> Array:
        """Return the cell between `EDGES` of each x, by number; 1 is in the last."""
        above = np.searchsorted(EDGES, x, side="right")
        cells: Array = np.minimum(above, len(EDGES) - 1) - 1
        return cells


def _merged(sums: Array) -> tuple[Array, Array, Array]:
    """Return weights, means and deviations of at most `MOST_LAWS` normal distributions.

    Distributions of similar deviations are merged, and the weights add up to 1.
    """
    weights, means, deviations = _laws(sums)
    if len(weights) > MOST_LAWS:
        order = np.argsort(deviations, kind="stable")
        starts = np.arange(MOST_LAWS) * len(order) // MOST_LAWS
        weights, means, deviations = _laws(np.add.reduceat(sums[order], starts))
    return weights / weights.sum(), means, deviations


def _laws(sums: Array) -> tuple[Array, Array, Array]:
    weights = sums[:, 0]
    means = sums[:, 1] / weights
    variances = np.maximum(sums[:, 2] / weights - means**2, 0.0)
    return weights, means, np.maximum(np.sqrt(variances), LEAST_DEVIATION)


def _running(amounts: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(amounts)])


# Levels that follow the gradients: ALQ moves each, AMQ the ratio of a power law.
#
# F. Faghri, I. Tabrizian, I. Markov, D. Alistarh, D. Roy and A. Ramezani-Kebrya,
# "Adaptive Gradient Quantization for Data-Parallel SGD" (NeurIPS 2020).
#
#     ALQ   levels 0 = ℓ₀ < ℓ₁ < ... < 1, each of them where Ψ is least
#     AMQ   levels pˢ, ..., p, 1 with s = 2^(bits − 1) − 1, and no zero
#
# Ψ, the variance that rounding adds, is that under a mixture of truncated normals, one
# for every chunk of every replica (`Mixture`). At exchange `adapt`, at 20 times that,
# and at every 100th multiple, replicas gather three numbers of every chunk, Σ N², Σ N²
# v/N and Σ N² (v/N)², and compute the same levels from them. Rounding is unbiased to
# any levels that end with 1, so what the fit decides is the variance alone.

MARK_BYTES = 4  # of the levels' checksum, ahead of every record
SUMS = 3  # float64 numbers of every chunk that are gathered to adapt
SWEEPS = 15
RATIOS = 64  # tried values of p, of which the best is refined
LEAST_RATIO = 1e-3
MOST_RATIO = 0.99
LEAST_LEVEL = 1e-300  # smaller ones would not all differ


class Adaptive(Nuqsgd):
    """Stochastic rounding to levels that start as powers of 1/2 and then adapt."""

    zeros_cost: bool  # whether words that are zero are rounded, too

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.levels = self.first_levels()
        self.kept["levels"] = self.levels

    @classmethod
    def table_bytes(cls, bucket: Bucket, config: CodecConfig) -> int:
        """Return the bytes of the table of 2^(bits − 1) levels in float64."""
        return 8 << config.bits - 1

    @abstractmethod
    def first_levels(self) -> Array:
        """Return the levels at the start of a run, before any gradient."""

    @abstractmethod
    def fit(self, law: Mixture) -> Array:
        """Return levels of little variance for ratios |v| / N of distribution `law`."""

    def is_due(self, moment: Moment) -> bool:
        """Return whether levels adapt in this exchange."""
        first = self.config.adapt
        now = moment.number
        return now in (first, 20 * first) or (now > 0 and now % (100 * first) == 0)

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Adapt the levels if due, then encode `part` and start to gather records."""
        ahead = 0
        if self.is_due(moment):
            sums = self._sums(part)
            ahead = sums.nbytes
            sent = line.start_gather(sums.reshape(-1).view(np.uint8))()
            self._adapt(np.concatenate(sent).view(np.float64).reshape(-1, SUMS))
        record = self.encode(part, moment, line.rank)
        payload = record.nbytes + ahead
        if self.config.entropy != "none":
            records = line.gather_unequal(record)
            payload += COUNT_BYTES
            return lambda: self._told(records, line, moment, payload)
        arrive = line.start_gather(record)
        return lambda: self._told(arrive(), line, moment, payload)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the record of `part`, which starts with a checksum of the levels."""
        mark = np.array([self._mark()], dtype=np.uint32).view(np.uint8)
        return np.concatenate([mark, super().encode(part, moment, replica)])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Add the decoded words of a record to `total`, in place.

        Raise DataError if the record was made with other levels.
        """
        mark = int(record[:MARK_BYTES].copy().view(np.uint32)[0])
        if mark != self._mark():
            raise DataError(
                "replicas have computed different quantisation levels; run all ranks on"
                " the same type of CPU with the same libraries, or use codec nuqsgd,"
                " whose levels are fixed"
            )
        super().add_decoded(record[MARK_BYTES:], total, moment)

    def payload_bytes(self, ranks: int, rank: int) -> None:
        """Return None: some exchanges send more than others.

        An exchange of D words sends ⌈D bits / 8⌉ + 4 bytes and 4 bytes a chunk, and 24
        bytes a chunk more if the levels adapt.
        """
        return

    def _mark(self) -> int:
        return zlib.crc32(self.levels.tobytes())

    def _sums(self, part: Array) -> Array:
        """Return Σ N², Σ N² v/N and Σ N² (v/N)² of every chunk.

        v are the words of the chunk, N is its norm. Words that are zero count only
        where rounding changes them (amq).
        """
        norms = self.chunks.norms(part, self.config.norm)
        ratios = np.copysign(self._ratios(part, norms), part)
        counted = np.ones(part.size, dtype=bool) if self.zeros_cost else part != 0.0
        squares = norms.astype(np.float64)[:, None] ** 2
        words = np.stack([counted.astype(np.float64), ratios, ratios**2], axis=1)
        sums: Array = squares * np.add.reduceat(words, self.chunks.starts, axis=0)
        return sums

    def _adapt(self, sums: Array) -> None:
        """Fit the levels to `sums`, a row for each chunk of each replica.

        All replicas compute the same levels. Chunks whose sums are zero or not finite
        are left out.
        """
        sums = sums[np.isfinite(sums).all(axis=1) & (sums[:, 0] > 0.0)]
        if len(sums) and np.isfinite(sums.sum(axis=0)).all():
            self.levels[...] = self.fit(Mixture(sums))


class Alq(Adaptive):
    """ALQ: each level in turn moves to its optimum between its neighbours."""

    zeros_cost = False

    def first_levels(self) -> Array:
        """Return the levels of nuqsgd, 0 and powers of 1/2."""
        return exponential(self.bits)

    def fit(self, law: Mixture) -> Array:
        """Return the levels of least variance that `sweep` reaches from four starts.

        One of the starts is the present levels.
        """
        count = len(self.levels)
        starts = [
            law.companded(count),
            np.linspace(0.0, 1.0, count),
            exponential(self.bits),
            self.levels,
        ]
        return min((sweep(law, start, SWEEPS) for start in starts), key=law.variance)


class Amq(Adaptive):
    """AMQ: the levels are ±pˢ, ..., ±p, ±1, with the p that adds the least variance.

    A word between −pˢ and pˢ, even if it is zero, becomes one of these two levels.
    """

    zeros_cost = True
    has_zero = False

    def first_levels(self) -> Array:
        """Return 1 and the next smaller powers of 1/2, 2^(bits − 1) levels in all."""
        return powers(0.5, 1 << self.bits - 1)

    def between(self, ratios: Array) -> Between:
        """Return the level numbers and both levels of each ratio.

        The number −1 stands for minus the least level.
        """
        above = np.searchsorted(self.levels, ratios, side="right")
        number = np.minimum(above - 1, len(self.levels) - 2)
        low = np.where(number < 0, -self.levels[0], self.levels[number])
        return number, low, self.levels[number + 1]

    def fit(self, law: Mixture) -> Array:
        """Return the powers of the best p, or the present levels if these are better.

        The variance Ψ is a function of p alone, so it is evaluated over the whole range
        of p, whereas the paper descends from several p.
        """
        count = len(self.levels)
        least = max(LEAST_RATIO, LEAST_LEVEL ** (1.0 / (count - 1)))
        tried = np.geomspace(least, MOST_RATIO, RATIOS)

        def cost(p: float) -> float:
            return law.variance(powers(p, count))

        best = int(np.argmin([cost(p) for p in tried]))
        bounds = tried[max(best - 1, 0)], tried[min(best + 1, RATIOS - 1)]
        refined = minimize_scalar(cost, bounds=bounds, method="bounded").x
        candidates = (
            powers(tried[best], count),
            powers(refined, count),
            self.levels.copy(),
        )
        return min(candidates, key=law.variance)


def sweep(law: Mixture, levels: Array, times: int) -> Array:
    """Return `levels` after `times` rounds of moves, which never increase Ψ.

    Ψ is `Mixture.variance`. Each level between neighbours a and c moves to F⁻¹(F(c) − ∫
    (r − a) dF / (c − a)), which minimises Ψ over this level alone (Faghri et al.,
    theorem 1). Levels of odd numbers do not depend on each other, so they move
    together, and then those of even numbers.
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
    """Return the `count` levels p^(count − 1), ..., p, 1."""
    levels: Array = p ** np.arange(count - 1.0, -1.0, -1.0)
    return levels
