"""Codecs that send a few entries: top-k, random-k, threshold, Wangni, DGC."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcsgd.agreements.codecs.base import (
    COUNT_BYTES,
    Bucket,
    BucketChannel,
    Codec,
    CodecConfig,
    Decoded,
    Finish,
    Moment,
)
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array

# Codecs that say some of the words; all of them where records would be larger.
#
# Without its other words a part is not itself on average: what was left out has to be
# kept and sent later (error feedback), but for the codecs that say so.


class Sparse(Codec):
    """What they share: how many words, the way of all words, and its count."""

    unbiased = False
    wants_feedback = True

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self._dense = 0

    @property
    def dense_exchanges(self) -> int:
        """So many, since this process began."""
        return self._dense

    def share(self, moment: Moment) -> float:
        """share^((e + 1) / (W + 1)) in epoch e of W that warm up."""
        done = min((moment.epoch + 1) / (self.config.warm_up + 1), 1.0)
        return float(self.config.share**done)

    def count(self, moment: Moment) -> int:
        """k: the share of the words, one at least."""
        return max(round(self.share(moment) * self.bucket.words), 1)

    def start_dense(self, part: Array, line: BucketChannel, ahead: int = 0) -> Finish:
        """All words by a sum, after so many bytes: nothing is lost."""
        self._dense += 1
        part /= line.size
        arrive = line.start_sum(part)
        return lambda: Decoded(arrive(), None, ahead + part.nbytes)

    def nothing(self) -> Array:
        """The part that says nothing."""
        return np.zeros(self.bucket.words, dtype=self.bucket.dtype)


class RecordCodec(Sparse):
    """They travel by records, which are gathered and added in rank order."""

    def add(self, record: Array, head: Array, total: Array) -> None:
        """Compute total ← total + the words of a record; `head` has their number."""
        add_record(record, int(head[0]), total)

    def is_dense_smaller(self, lengths: list[int]) -> bool:
        """Return whether all words by a sum are fewer bytes than these records."""
        words, size = self.bucket.words, self.bucket.dtype.itemsize
        is_smaller = is_sparse_smaller(lengths, words, size)
        return self.config.dense == "auto" and not is_smaller

    def start_records(
        self,
        record: Array,
        heads: list[Array],
        lengths: list[int],
        line: BucketChannel,
        ahead: int = 0,
    ) -> Finish:
        """Begin to gather records of known lengths, after so many bytes of heads."""
        arrive = line.start_gather(record, lengths)

        def finish() -> Decoded:
            records = arrive()
            own, mean = None, self.nothing()
            if self.needs_own:
                own = self.nothing()
                self.add(records[line.rank], heads[line.rank], own)
            for said, head in zip(records, heads, strict=True):
                self.add(said, head, mean)
            mean /= line.size
            return Decoded(mean, own, ahead + record.nbytes)

        return finish


# A sparse record: k words of a bucket of D, as bytes.
#
# [k values | which they are], the latter as k indices of 16 or 32 bits, or as a map of
# D bits where that is shorter. Its length is a function of k, D and the dtype: whoever
# knows k can read it.


def index_type(words: int) -> np.dtype[Any]:
    """The narrowest that can name a word."""
    if words <= 2**16:
        return np.dtype(np.uint16)
    return np.dtype(np.uint32 if words <= 2**32 else np.uint64)


def index_bytes(count: int, words: int) -> int:
    """Of indices or of the map."""
    return min(count * index_type(words).itemsize, -(-words // 8))


def record_bytes(count: int, words: int, itemsize: int) -> int:
    """Of the whole record."""
    return count * itemsize + index_bytes(count, words)


def pack_indices(indices: Array, words: int) -> Array:
    """Indices in rising order, as bytes."""
    kind = index_type(words)
    if indices.size * kind.itemsize <= -(-words // 8):
        return indices.astype(kind).view(np.uint8)
    bits = np.zeros(words, dtype=bool)
    bits[indices] = True
    return np.packbits(bits)


def unpack_indices(packed: Array, count: int, words: int) -> Array:
    """The indices again."""
    kind = index_type(words)
    if count * kind.itemsize <= -(-words // 8):
        return packed.view(kind).astype(np.intp)
    return np.flatnonzero(np.unpackbits(packed, count=words))


def pack(part: Array, indices: Array) -> Array:
    """The record of these words of `part`, in rising order."""
    values = part[indices].view(np.uint8)
    return np.concatenate([values, pack_indices(indices, part.size)])


def add_record(record: Array, count: int, total: Array) -> None:
    """total ← total + the words of a record; no index is in it twice."""
    cut = count * total.itemsize
    indices = unpack_indices(record[cut:], count, total.size)
    total[indices] += record[:cut].view(total.dtype)


def is_sparse_smaller(lengths: list[int], words: int, itemsize: int) -> bool:
    """Whether gathering records of these bytes moves less than a sum of all words.

    Over all R replicas a gather moves (R − 1) Σ lengths, a ring sum 2 (R − 1) N of N
    bytes: every replica knows both and concludes the same.
    """
    return sum(lengths) < 2 * words * itemsize


# The k largest words of a bucket, by size; the others wait (error feedback).
#
# |a − C(a)|² ≤ (1 − k/D) |a|². All replicas send as many, k of the share: no lengths go
# ahead, and whether all words at once are fewer bytes is known before anything is sent.

SAMPLED = 2**17  # words; of so many, a sample says first which may be large
EVERY = 64  # word is in the sample
WIDER = 1.15  # so many more are taken for candidates as are to be chosen
MOST = 0.1  # of all words; more are selected as fast without


def largest(part: Array, count: int) -> Array:
    """The indices of the largest words in rising order; no number is largest of all."""
    if count == part.size:
        return np.arange(count)
    sizes = np.abs(part)
    if part.size < SAMPLED or count > MOST * part.size:
        return np.sort(_selected(sizes, count))
    candidates = np.flatnonzero(~(sizes < _low(sizes, count)))
    if candidates.size < count:  # the sample was not like the others
        return np.sort(_selected(sizes, count))
    return np.sort(candidates[_selected(sizes[candidates], count)])


def _selected(sizes: Array, count: int) -> Array:
    first = sizes.size - count
    found: Array = np.argpartition(sizes, first)[first:] if first else np.arange(count)
    return found


def _low(sizes: Array, count: int) -> Any:
    """A size that somewhat more than `count` words have, as a sample says."""
    sample = sizes[::EVERY]
    above = min(int(WIDER * count / EVERY) + 4, sample.size - 1)
    return np.partition(sample, sample.size - above)[sample.size - above]


class TopK(RecordCodec):
    """k values and their indices, of each replica to all."""

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Choose, and begin to gather."""
        count = self.count(moment)
        if self._is_dense(count, line.size):
            return self.start_dense(part, line)
        record = pack(part, largest(part, count))
        heads = [np.array([count])] * line.size
        return self.start_records(record, heads, [record.size] * line.size, line)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """k words and their indices, or all words; a warm-up changes k."""
        if self.config.warm_up:
            return None
        count = self.count(Moment(0, 0, 1.0, 1.0))
        words, size = self.bucket.words, self.bucket.dtype.itemsize
        if self._is_dense(count, ranks):
            return words * size
        return record_bytes(count, words, size)

    def _is_dense(self, count: int, ranks: int) -> bool:
        words, size = self.bucket.words, self.bucket.dtype.itemsize
        return self.is_dense_smaller([record_bytes(count, words, size)] * ranks)


# k words that all replicas draw alike: no indices travel, and the k words are summed.
#
# With error feedback the words go as they are: times D/k they would be unbiased, and
# what is left, a (1 − D/k) where they were drawn, would grow without end. Without
# feedback they go times D/k, for the gradient to be right on average.


class RandomK(Sparse):
    """One sum of k words: as many words up as down, and never more than all."""

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.unbiased = config.feedback == "off"

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Draw, and begin to sum what was drawn."""
        count = self.count(moment)
        dice = self.bucket.dice(moment)
        drawn = dice.choice(part.size, count, replace=False, shuffle=False)
        values = part[drawn] * part.dtype.type(self._factor(count))
        own = self._spread(drawn, values) if self.needs_own else None
        values /= line.size
        arrive, payload = line.start_sum(values), values.nbytes
        return lambda: Decoded(self._spread(drawn, arrive()), own, payload)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """k words; a warm-up changes k."""
        if self.config.warm_up:
            return None
        return self.count(Moment(0, 0, 1.0, 1.0)) * self.bucket.dtype.itemsize

    def variance(self, part: Array) -> Array | None:
        """a² (D/k − 1), where it is unbiased; of the share after the warm-up."""
        if not self.unbiased:
            return None
        rare = part.size / self.count(Moment(0, self.config.warm_up, 1.0, 1.0))
        return np.asarray(part**2 * (rare - 1.0))

    def _factor(self, count: int) -> float:
        return self.bucket.words / count if self.unbiased else 1.0

    def _spread(self, drawn: Array, values: Array) -> Array:
        words = self.nothing()
        words[drawn] = values
        return words


# All words of at least some size τ, however many they are (error feedback).
#
# τ is fixed, or found in every exchange such that about the share of the words is as
# large: by a sample of them, where selecting the k largest would take longer. Replicas
# send records of unequal lengths; their counts go ahead, and with them the switch to
# all words is decided.

SAMPLE = 4096  # words; of so many, all are looked at


class Threshold(RecordCodec):
    """A count of 8 bytes, and the record."""

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Choose, tell how many, and begin to gather."""
        size = self._size(part, moment, 1 + line.rank)
        # What is no number is no smaller: it is sent, and seen.
        chosen = np.flatnonzero(~(np.abs(part) < size) & (part != 0.0))
        heads = line.start_gather(np.array([chosen.size], dtype=np.int64))()
        words, item = part.size, part.itemsize
        lengths = [record_bytes(int(head[0]), words, item) for head in heads]
        if self.is_dense_smaller(lengths):
            return self.start_dense(part, line, COUNT_BYTES)
        record = pack(part, chosen)
        return self.start_records(record, heads, lengths, line, COUNT_BYTES)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """The words that are large decide."""
        return None

    def _size(self, part: Array, moment: Moment, who: int) -> float:
        """τ."""
        if self.config.threshold:
            return self.config.threshold
        sizes = np.abs(part)
        if part.size > SAMPLE:
            dice = self.bucket.dice(moment, who)
            sizes = sizes[dice.integers(part.size, size=SAMPLE)]
        above = max(round(self.share(moment) * sizes.size), 1)
        return float(np.partition(sizes, sizes.size - above)[sizes.size - above])


# Unbiased sampling of large words more often: word i is sent with probability p_i.
#
# p_i = min(|a_i| / m, 1), and a_i / p_i is sent: a_i where p_i = 1, else ± m, the same
# for all, so that an index and a bit are enough. m is as large as k words on average
# allow, or as a budget of variance allows: Σ a² / p = (1 + budget) Σ a².

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


class Wangni(RecordCodec):
    """Three counts of 8 bytes; words with p = 1, m, and indices and signs of others."""

    unbiased = True
    wants_feedback = False

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        if config.feedback == "on" and not 0.0 < config.budget < 1.0:
            raise ConfigError(
                "[codec] feedback = 'on' and what wangni leaves out may be more than"
                " what it was given; use a budget above 0 and below 1, or feedback ="
                " 'auto'"
            )

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Throw dice, tell how many, and begin to gather."""
        size, chance = self._chances(part, moment)
        sure = chance >= 1.0
        dice = self.bucket.dice(moment, 1 + line.rank)
        drawn = np.flatnonzero((dice.random(part.size) < chance) & ~sure)
        kept = np.flatnonzero(sure)
        expected = self._length(kept.size, round(float(chance[~sure].sum())))
        own = np.array([expected, kept.size, drawn.size], dtype=np.int64)
        heads = line.start_gather(own)()
        # By the lengths to be expected: by those that came, dice would bias it.
        if self.is_dense_smaller([int(head[0]) for head in heads]):
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

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Draws decide which words travel."""
        return None


# Deep gradient compression: top-k of what momentum has gathered, on every replica.
#
# u ← m u + (1 − m) g;  v ← v + u;  the k largest of v are sent, and are zero then
#
# or, with `nesterov`, v ← v + m u + (1 − m) g: the next u, if g were to come again. The
# momentum is that of every replica, before anything is left out, so that what waits is
# moved as it would have been (momentum correction). It is a mean of gradients: λw,
# which no codec touches, and gradients keep their proportions, and the optimum its
# place. Factor masking, where it is asked for, lets words that were sent forget their
# momentum; that part of the gradient is never sent, and replicas whose gradients differ
# end beside the optimum. Where all words travel nothing is masked: this is SGD with
# momentum.
#
# Y. Lin, S. Han, H. Mao, Y. Wang and W. J. Dally, "Deep Gradient Compression" (ICLR
# 2018). As there (section 3.2) g is clipped before u gathers it, to `clip` / √R: R such
# gradients, if they were independent, have a sum of the norm `clip`. The norm is that
# of all columns of a replica, in all buckets and on all members.


class Dgc(Codec):
    """Top-k, with two memories of D words on every replica."""

    unbiased = False
    wants_feedback = False
    has_own_memory = True
    remembers = "momentum", "velocity"

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.codec = TopK(bucket, config)
        self.codec.needs_own = True
        self.wants_norm = config.clip > 0.0
        self.momentum, self.velocity = map(bucket.remember, self.remembers)

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Gather, and send the largest."""
        self._clip(part, line.size, moment)
        self.momentum *= self.config.momentum
        self.momentum += (1.0 - self.config.momentum) * part
        self.velocity += self._step(part)
        part[...] = self.velocity
        sends_all = self.codec.count(moment) == self.bucket.words
        finish = self.codec.start(part, line, moment)

        def forget() -> Decoded:
            told = finish()
            if told.own is None or sends_all:
                self.velocity[...] = 0.0
                return told
            self.velocity -= told.own
            if self.config.masking:
                self.momentum[told.own != 0.0] = 0.0
            return told

        return forget

    @classmethod
    def owes(cls, kept: Mapping[str, Array], config: CodecConfig) -> Array:
        """v, and all that momentum would still add to it: Σ mᵏ u over steps to come."""
        keeps = config.momentum
        times = keeps / (1.0 - keeps) * (keeps if config.nesterov else 1.0)
        owed: Array = kept["velocity"] + times * kept["momentum"]
        return owed

    @property
    def dense_exchanges(self) -> int:
        """Those of top-k."""
        return self.codec.dense_exchanges

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Those of top-k: what is gathered stays at home."""
        return self.codec.payload_bytes(ranks, rank)

    def _step(self, part: Array) -> Array:
        """What this exchange adds to what is to be sent."""
        if not self.config.nesterov:
            return self.momentum
        keeps = self.config.momentum
        return keeps * self.momentum + (1.0 - keeps) * part

    def _clip(self, part: Array, replicas: int, moment: Moment) -> None:
        """part ← part · min(1, clip / (√R ‖g‖)); a bucket alone is all of g."""
        if not self.wants_norm:
            return
        norm = float(np.linalg.norm(part)) if moment.norm is None else moment.norm
        most = self.config.clip / replicas**0.5
        if norm > most:
            part *= most / norm
