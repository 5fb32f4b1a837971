"""Unbiased sampling of large words more often: word i is sent with probability p_i.

p_i = min(|a_i| / m, 1), and a_i / p_i is sent: a_i where p_i = 1, else ± m, the same
for all, so that an index and a bit are enough. m is as large as k words on average
allow, or as a budget of variance allows: Σ a² / p = (1 + budget) Σ a².
"""

import numpy as np

from hpcsgd.codecs.base import Array, Bucket, Finish, Line, Moment
from hpcsgd.codecs.records import (
    index_bytes,
    is_sparse_smaller,
    pack_indices,
    unpack_indices,
)
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.codecs.sparse import Recorded
from hpcsgd.errors import ConfigError

HEAD = 3 * 8  # bytes: what is to be expected, and how many are there of both kinds


def magnitude_of_share(sizes: Array, count: float) -> float:
    """m such that Σ min(|a| / m, 1) = `count`; 0 where fewer words are not zero."""
    falling = np.sort(sizes)[::-1]
    sure = np.arange(falling.size)  # words that are always sent
    rest = np.cumsum(falling[::-1])[::-1]
    room = count - sure
    fits = (room > 0) & (falling * room <= rest)
    if not fits.any():
        return 0.0
    first = int(np.argmax(fits))
    return float(rest[first] / room[first])


def magnitude_of_budget(sizes: Array, budget: float) -> float:
    """The largest m that keeps Σ a² / p within (1 + budget) Σ a²."""
    falling = np.sort(sizes)[::-1]
    rest = np.cumsum(falling[::-1])[::-1]
    square = np.cumsum(falling[::-1] ** 2)[::-1]
    allowed = budget * square.max(initial=0.0) + square
    fits = (falling * rest <= allowed) & (rest > 0.0)
    if not fits.any():
        return 0.0
    first = int(np.argmax(fits))
    return float(allowed[first] / rest[first])


class Wangni(Recorded):
    """Three counts of 8 bytes; words with p = 1, m, and indices and signs of others."""

    unbiased = True
    wants_feedback = False
    reads = (*Recorded.reads, "budget")

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        if config.feedback == "on" and not 0.0 < config.budget < 1.0:
            raise ConfigError(
                "[codec] feedback = 'on' and what wangni leaves out may be more than"
                " what it was given; use a budget above 0 and below 1, or feedback ="
                " 'auto'"
            )

    def start(self, part: Array, line: Line, moment: Moment) -> Finish:
        """Throw dice, tell how many, and begin to gather."""
        size, chance = self._chances(part, moment)
        sure = chance >= 1.0
        dice = self.bucket.dice(moment, 1 + line.rank)
        drawn = np.flatnonzero((dice.random(part.size) < chance) & ~sure)
        kept = np.flatnonzero(sure)
        expected = self._length(kept.size, round(float(chance[~sure].sum())))
        own = np.array([expected, kept.size, drawn.size], dtype=np.int64)
        heads = line.start_gather(own)()
        if self._is_dense(heads):
            return self.start_dense(part, line, HEAD)
        record = self._pack(part, kept, drawn, size)
        lengths = [self._length(int(head[1]), int(head[2])) for head in heads]
        return self.start_records(record, heads, lengths, line, HEAD)

    def add(self, record: Array, head: Array, total: Array) -> None:
        """[values, m | indices of these | indices of ± m | signs]."""
        sure, drawn, words = int(head[1]), int(head[2]), total.size
        cut = (sure + 1) * total.itemsize
        numbers = record[:cut].view(total.dtype)
        ends = np.cumsum([index_bytes(sure, words), index_bytes(drawn, words)])
        first, second, signs = np.split(record[cut:], ends)
        total[unpack_indices(first, sure, words)] += numbers[:-1]
        is_negative = np.unpackbits(signs, count=drawn).astype(bool)
        where = unpack_indices(second, drawn, words)
        total[where] += np.where(is_negative, -numbers[-1], numbers[-1])

    def variance(self, part: Array) -> Array:
        """a² (1 / p − 1), after the warm-up."""
        after = Moment(0, self.config.warm_up, 1.0, 1.0)
        chance = self._chances(part, after)[1]
        there = chance > 0.0
        variance = np.zeros(part.size)
        variance[there] = part[there] ** 2 * (1.0 / chance[there] - 1.0)
        return variance

    def _chances(self, part: Array, moment: Moment) -> tuple[float, Array]:
        """m and p; what is no number is always sent, zeros never."""
        sizes = np.abs(part.astype(np.float64))
        finite = sizes[np.isfinite(sizes)]
        if self.config.budget:
            size = magnitude_of_budget(finite, self.config.budget)
        else:
            size = magnitude_of_share(finite, self.count(moment))
        chance = (sizes > 0.0).astype(np.float64) if size == 0.0 else sizes / size
        return size, np.where(np.isfinite(sizes), np.minimum(chance, 1.0), 1.0)

    def _pack(self, part: Array, kept: Array, drawn: Array, size: float) -> Array:
        numbers = np.append(part[kept], part.dtype.type(size))
        parts = [
            numbers.view(np.uint8),
            pack_indices(kept, part.size),
            pack_indices(drawn, part.size),
            np.packbits(part[drawn] < 0.0),
        ]
        return np.concatenate(parts)

    def _length(self, sure: int, drawn: int) -> int:
        words, item = self.bucket.words, self.bucket.dtype.itemsize
        indices = index_bytes(sure, words) + index_bytes(drawn, words)
        return (sure + 1) * item + indices + -(-drawn // 8)

    def _is_dense(self, heads: list[Array]) -> bool:
        """By the lengths to be expected: by those that came, dice would bias it."""
        words, item = self.bucket.words, self.bucket.dtype.itemsize
        expected = [int(head[0]) for head in heads]
        is_smaller = is_sparse_smaller(expected, words, item)
        return self.config.dense == "auto" and not is_smaller

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Dice decide."""
        return None
