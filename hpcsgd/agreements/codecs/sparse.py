"""Codecs that send a few entries: top-k, random-k, threshold, Wangni, DGC."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
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
    GatheredCodec,
    Moment,
    get_codec,
)
from hpcsgd.comm.messages import largest_finite, message_dtype, narrow, widen
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, exponent_for, get_format

# Codecs that send some of the words, or all of them where records would be larger.
#
# A part without its other words is biased: what was left out has to be kept and sent
# later (error feedback), except in the codecs that are `unbiased`.


BEGINNING = Moment(0, 0, 1.0, 1.0)
USUAL = 0.01  # of the words of a bucket, if the share is automatic
USEFUL = 16  # words, and at least so many: one per cent of 300 words teaches little


class Sparse(Codec):
    """Base class of sparse codecs, with what they share.

    It computes how many words of a bucket are sent, and starts the sum of all words
    where sparse records would be larger.
    """

    unbiased = False
    wants_feedback = True

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self._dense = 0

    @cached_property
    def units(self) -> "Units":
        """Return the words of the bucket in units that are selected as a whole."""
        return Units(self.bucket, self.config.select)

    @cached_property
    def values(self) -> "SentValues":
        """Return the form of the values of the words that are sent."""
        return SentValues(self.bucket, self.config)

    @property
    def dense_exchanges(self) -> int:
        """Return in how many exchanges of this process all words were sent."""
        return self._dense

    def share(self, moment: Moment) -> float:
        """Return the share of the words that is sent in the exchange of `moment`.

        In epoch e of W warm-up epochs it is share^((e + 1) / (W + 1)), and then the
        setting `share`, or if that is automatic 1 % and at least `USEFUL` words.
        """
        usual = min(max(USUAL, USEFUL / self.bucket.words), 1.0)
        done = min((moment.epoch + 1) / (self.config.warm_up + 1), 1.0)
        return float((self.config.share or usual) ** done)

    def count(self, moment: Moment) -> int:
        """Return k, the number of units that are sent: a share of all, at least one."""
        return max(round(self.share(moment) * self.units.count), 1)

    def start_dense(self, part: Array, line: BucketChannel, ahead: int = 0) -> Finish:
        """Start the sum of all words of `part` over replicas, which loses nothing.

        `ahead` is the number of bytes that were already sent in this exchange; they
        count in the payload. `part` is overwritten.
        """
        self._dense += 1
        part /= line.size
        arrive = line.start_sum(part)
        return lambda: Decoded(arrive(), None, ahead + part.nbytes)

    def nothing(self) -> Array:
        """Return an array of zeros, one for each word of the bucket."""
        return np.zeros(self.bucket.words, dtype=self.bucket.dtype)


# What is selected: words, or whole blocks, rows or columns of them, by their norm.
#
# A unit takes one index, and its words lie together. The block codecs of J. Fei, C.-Y.
# Ho, A. N. Sahu, M. Canini and A. Sapio, "Efficient Sparse Collective Communication and
# its application to Accelerate Distributed Deep Learning" (SIGCOMM 2021, section 4),
# are Block Top-k, Block Random and Block Threshold. With k of U units the bound of
# top-k becomes |a − C(a)|² ≤ (1 − k/U) |a|².


class Units:
    """The words of a bucket as `count` units of `length` words.

    A bucket has `height` rows of `width` words. If its words do not fill the last block
    its missing words are sent, too, as zeros.
    """

    def __init__(self, bucket: Bucket, select: str) -> None:
        self.words = bucket.words
        lengths = {"words": 1, "rows": bucket.width, "columns": bucket.height}
        self.length = lengths[select] if select in lengths else int(select)
        self.count = -(-self.words // self.length)
        # The distance of the first words of two units, and of neighbours in one.
        self._steps = (1, bucket.width) if select == "columns" else (self.length, 1)

    def sizes(self, part: Array) -> Array:
        """Return the norms of all units of `part`; of words, their absolute values."""
        if self.length == 1:
            return np.abs(part)
        whole = np.zeros(self.count * self.length, dtype=np.float64)
        whole[: self.words] = part
        np.square(whole, out=whole)
        is_column = self._steps[0] == 1
        shape = (self.length, self.count) if is_column else (self.count, self.length)
        norms: Array = np.sqrt(whole.reshape(shape).sum(axis=0 if is_column else 1))
        return norms

    def take(self, part: Array, indices: Array) -> Array:
        """Return the words of the units of `part` with these indices, flat."""
        if self.length == 1:
            return np.asarray(part[indices])
        places = self._places(indices)
        values = part[np.minimum(places, self.words - 1)]
        values[places >= self.words] = 0.0
        return values

    def located(self, indices: Array, values: Array) -> tuple[Array, Array]:
        """Return the numbers of the words of some units, and their values.

        `values` are as `take` returns them; missing words are left out.
        """
        if self.length == 1:
            return indices, values
        places = self._places(indices)
        exists = places < self.words
        return places[exists], values[exists]

    def _places(self, indices: Array) -> Array:
        """Return the numbers of the words of the units with these indices."""
        first, step = self._steps
        inside = step * np.arange(self.length)
        places: Array = (first * indices[:, None] + inside).reshape(-1)
        return places


# The values of the words that are sent, as they are or rounded.
#
# Error feedback keeps what selection and rounding lose together: C = Q ∘ Top_k of D.
# Basu, D. Data, C. Karakus and S. Diggavi, "Qsparse-local-SGD" (NeurIPS 2019, section
# 2); with averages of weights this is the whole method. What is fed back stays bounded
# if E|a − C(a)|² < |a|². So it is with signs (Lemma 3), and with random levels of the
# norm l2 whose variance is E|Q(v) − v|² ≤ β |v|² with β < 1 (Lemma 1). Levels of a
# larger β are divided by 1 + β where errors are fed back (Lemma 2):
#
#     E|a − C(a)|² ≤ (1 − k / (D (1 + β))) |a|²
#
# Levels of the norm max need no division: |Q(v) − v| is at most 1/s of the largest |v|.

ROUNDING = 1 << 32  # added to the number of a replica that draws to round values


class NarrowValues(GatheredCodec):
    """Values in fp16, after an exponent of 2 bytes, or in bf16."""

    unbiased = False
    wants_feedback = True

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.form = get_format(config.values)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the exponent, if the format wants one, and the rounded words."""
        heads = int(self.form.wants_scale)
        values = np.ascontiguousarray(part, dtype=np.float32)
        record = np.empty(heads + part.size, message_dtype(self.form.name))
        exponent = exponent_for(largest_finite(values), self.form) * heads
        narrow(values, self.form.name, 2.0**-exponent, record[heads:])
        record[:heads].view(np.int16)[...] = exponent
        return record.view(np.uint8)

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Add the words of `record` to `total`, in place."""
        heads = int(self.form.wants_scale)
        held = record.copy().view(message_dtype(self.form.name))
        values = np.empty(total.size, np.float32)
        widen(held[heads:], self.form.name, values)
        if heads:
            values *= np.ldexp(np.float32(1), held[:1].view(np.int16)[0])
        total += values

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes of a record: 2 for each word and for the exponent."""
        return 2 * (self.bucket.words + int(self.form.wants_scale))


class SentValues:
    """The values of a sparse record as bytes, in the form that `codec.values` names."""

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        self.bucket = bucket
        self.config = config
        self.is_full = config.values == "full"

    def nbytes(self, count: int) -> int:
        """Return the bytes of `count` values."""
        if self.is_full or not count:
            return count * self.bucket.dtype.itemsize
        return int(self._codec(count).payload_bytes(1, 0))

    def encode(self, values: Array, moment: Moment, replica: int) -> Array:
        """Return `values` as bytes, rounded by random numbers of `replica` if any."""
        if self.is_full or not values.size:
            return values.view(np.uint8)
        codec = self._codec(values.size)
        return np.asarray(codec.encode(values, moment, ROUNDING + replica))

    def decode(self, record: Array, count: int, is_kept: bool) -> Array:
        """Return the `count` values of bytes that `encode` has made.

        Levels are divided by 1 + β where what is lost `is_kept`, see above.
        """
        if self.is_full or not count:
            words: Array = record.view(self.bucket.dtype)
            return words
        codec = self._codec(count)
        values = np.zeros(count, self.bucket.dtype)
        codec.add_decoded(record, values, BEGINNING)
        if is_kept and self.config.values == "qsgd":
            values *= values.dtype.type(codec.shrinkage)
        return values

    def _codec(self, count: int) -> Any:
        """Return the gathered codec of as many values, which keeps nothing."""
        name = self.config.values
        kind = NarrowValues if name in ("fp16", "bf16") else get_codec(name)
        words = replace(self.bucket, height=count, width=1, room=None)
        return kind(words, self.config)


class RecordCodec(Sparse):
    """Base class of sparse codecs whose replicas all-gather their records.

    Every replica adds the records of all replicas in rank order.
    """

    def record_bytes(self, count: int) -> int:
        """Return the bytes of a record of `count` units: their values and indices."""
        values = self.values.nbytes(count * self.units.length)
        return values + index_bytes(count, self.units.count)

    def pack(self, part: Array, indices: Array, moment: Moment, replica: int) -> Array:
        """Return a record, as bytes: the words of the units at `indices`, and these.

        The indices must be ascending.
        """
        words = self.units.take(part, indices)
        values = self.values.encode(words, moment, replica)
        return np.concatenate([values, pack_indices(indices, self.units.count)])

    def add(self, record: Array, head: Array, total: Array) -> None:
        """Compute total ← total + the words of a record, in place.

        `head[0]` is the number of units in the record, which names no index twice.
        """
        count = int(head[0])
        size = count * self.units.length
        cut = self.values.nbytes(size)
        indices = unpack_indices(record[cut:], count, self.units.count)
        values = self.values.decode(record[:cut], size, self.needs_own)
        places, words = self.units.located(indices, values)
        total[places] += words

    def is_dense_smaller(self, lengths: list[int]) -> bool:
        """Return whether an all-reduce of all words is to replace the records.

        It is if it moves no more bytes than an all-gather of records with these
        `lengths`, in bytes, and `codec.dense` is "auto".
        """
        words = self.bucket.words
        size = self.bucket.dtype.itemsize
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
        """Start the all-gather of the records, whose `lengths` in bytes are known.

        `heads` are the counts of words of each replica's record, and `ahead` is the
        number of bytes that were sent for them.
        """
        arrive = line.start_gather(record, lengths)

        def finish() -> Decoded:
            records = arrive()
            contribution, mean = None, self.nothing()
            if self.needs_own:
                contribution = self.nothing()
                self.add(records[line.rank], heads[line.rank], contribution)
            for message, head in zip(records, heads, strict=True):
                self.add(message, head, mean)
            mean /= line.size
            return Decoded(mean, contribution, ahead + record.nbytes)

        return finish


# A sparse record: k words of a bucket of D, as bytes.
#
# [k values | which they are], the latter as k indices of 16 or 32 bits, or as a map of
# D bits where that is shorter. Its length is a function of k, D and the dtype: a rank
# that knows k can read it.


def index_type(words: int) -> np.dtype[Any]:
    """Return the narrowest unsigned integer type for an index into `words` words."""
    if words <= 2**16:
        return np.dtype(np.uint16)
    return np.dtype(np.uint32 if words <= 2**32 else np.uint64)


def index_bytes(count: int, words: int) -> int:
    """Return the bytes that `count` packed indices into `words` words take.

    They are those of a bit map of all words if it is shorter than the indices.
    """
    return min(count * index_type(words).itemsize, -(-words // 8))


def pack_indices(indices: Array, words: int) -> Array:
    """Return ascending indices into `words` words as bytes.

    The bytes are the indices themselves, or a bit map of all words if it is shorter.
    """
    kind = index_type(words)
    if indices.size * kind.itemsize <= -(-words // 8):
        return indices.astype(kind).view(np.uint8)
    bits = np.zeros(words, dtype=bool)
    bits[indices] = True
    return np.packbits(bits)


def unpack_indices(packed: Array, count: int, words: int) -> Array:
    """Return the `count` indices that `pack_indices` has packed."""
    kind = index_type(words)
    if count * kind.itemsize <= -(-words // 8):
        return packed.view(kind).astype(np.intp)
    return np.flatnonzero(np.unpackbits(packed, count=words))


def is_sparse_smaller(lengths: list[int], words: int, itemsize: int) -> bool:
    """Return whether a gather of records moves fewer bytes than a sum of all words.

    `lengths` are the bytes of the records of all R replicas. A gather moves (R − 1) Σ
    lengths bytes over all replicas, and a ring sum of N bytes 2 (R − 1) N. Every
    replica knows both numbers, and all make the same decision.
    """
    return sum(lengths) < 2 * words * itemsize


# The k largest words of a bucket, by size; the others wait (error feedback).
#
# |a − C(a)|² ≤ (1 − k/D) |a|². All replicas send the same number k of words: no lengths
# are sent before, and each knows in advance whether all words would be fewer bytes.

SAMPLED = 2**17  # words; from this size on, a sample first selects candidates
EVERY = 64  # the distance of words in the sample
WIDER = 1.15  # candidates for each word that is selected
MOST = 0.1  # of all words; a larger selection is as fast without a sample


def largest(sizes: Array, count: int) -> Array:
    """Return the ascending indices of the `count` largest `sizes`, none below 0.

    NaN counts as the largest.
    """
    if count == sizes.size:
        return np.arange(count)
    if sizes.size < SAMPLED or count > MOST * sizes.size:
        return np.sort(_selected(sizes, count))
    candidates = np.flatnonzero(~(sizes < _low(sizes, count)))
    if candidates.size < count:  # the sample was not representative
        return np.sort(_selected(sizes, count))
    return np.sort(candidates[_selected(sizes[candidates], count)])


def _selected(sizes: Array, count: int) -> Array:
    first = sizes.size - count
    indices: Array = (
        np.argpartition(sizes, first)[first:] if first else np.arange(count)
    )
    return indices


def _low(sizes: Array, count: int) -> Any:
    """Return a lower bound of the sizes to select from, estimated by a sample.

    Somewhat more than `count` of the `sizes` should be at least as large.
    """
    sample = sizes[::EVERY]
    above = min(int(WIDER * count / EVERY) + 4, sample.size - 1)
    return np.partition(sample, sample.size - above)[sample.size - above]


class TopK(RecordCodec):
    """Top-k: every replica sends its k largest words and their indices to all."""

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Select the k largest words of `part`, and start to all-gather the records.

        All words are summed instead if that moves fewer bytes.
        """
        count = self.count(moment)
        if self._is_dense(count, line.size):
            return self.start_dense(part, line)
        chosen = largest(self.units.sizes(part), count)
        record = self.pack(part, chosen, moment, line.rank)
        heads = [np.array([count])] * line.size
        return self.start_records(record, heads, [record.size] * line.size, line)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return the bytes of k words and their indices, or of all words.

        All words are sent if an all-reduce of them moves no more bytes and `dense` is
        "auto". Return None with a warm-up, since k then changes from epoch to epoch.
        """
        if self.config.warm_up:
            return None
        count = self.count(BEGINNING)
        if self._is_dense(count, ranks):
            return self.bucket.words * self.bucket.dtype.itemsize
        return self.record_bytes(count)

    def _is_dense(self, count: int, ranks: int) -> bool:
        return self.is_dense_smaller([self.record_bytes(count)] * ranks)


# k words that all replicas draw alike: no indices travel, and the k words are summed,
# or gathered where they are rounded.
#
# With error feedback the words go as they are: times D/k they would be unbiased, and
# what is left, a (1 − D/k) where they were drawn, would grow without end. Without
# feedback they go times D/k, for the gradient to be right on average.


class RandomK(Sparse):
    """Random-k: all replicas draw the same k words, and sum only these."""

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.rescales = config.feedback == "off"
        self.unbiased = self.rescales and self.values.is_full

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Draw k words, and start to sum them over replicas, or to gather them."""
        count = self.count(moment)
        dice = self.bucket.dice(moment)
        drawn = dice.choice(self.units.count, count, replace=False, shuffle=False)
        values = self.units.take(part, drawn) * part.dtype.type(self._factor(count))
        if not self.values.is_full:
            return self._start_rounded(drawn, values, line, moment)
        contribution = self._spread(drawn, values) if self.needs_own else None
        values /= line.size
        arrive = line.start_sum(values)
        payload = values.nbytes
        return lambda: Decoded(self._spread(drawn, arrive()), contribution, payload)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return the bytes of k words; None with a warm-up, which changes k."""
        if self.config.warm_up:
            return None
        return self.values.nbytes(self.count(BEGINNING) * self.units.length)

    def variance(self, part: Array) -> Array | None:
        """Return the variance a² (D/k − 1) of each encoded word a of `part`.

        D is the number of units, and k that of the units sent after the warm-up. Return
        None if the codec is biased.
        """
        if not self.unbiased:
            return None
        count = self.count(Moment(0, self.config.warm_up, 1.0, 1.0))
        rare = self.units.count / count
        return np.asarray(part**2 * (rare - 1.0))

    def _start_rounded(
        self, drawn: Array, values: Array, line: BucketChannel, moment: Moment
    ) -> Finish:
        """Start to all-gather the rounded values of the words that were drawn."""
        record = self.values.encode(values, moment, line.rank)
        arrive = line.start_gather(record)

        def finish() -> Decoded:
            parts = [
                self.values.decode(message, values.size, self.needs_own)
                for message in arrive()
            ]
            own = self._spread(drawn, parts[line.rank]) if self.needs_own else None
            mean = self.nothing()
            for part in parts:
                places, words = self.units.located(drawn, part)
                mean[places] += words
            mean /= line.size
            return Decoded(mean, own, record.nbytes)

        return finish

    def _factor(self, count: int) -> float:
        return self.units.count / count if self.rescales else 1.0

    def _spread(self, drawn: Array, values: Array) -> Array:
        words = self.nothing()
        places, sent = self.units.located(drawn, values)
        words[places] = sent
        return words


# All words of at least some size τ, however many they are (error feedback).
#
# τ is fixed, or estimated in every exchange such that about the share of the words is
# as large: by a sample of them, since selecting the k largest would take longer.
# Replicas send records of unequal lengths; their counts are sent before, and decide
# whether all words are sent.

SAMPLE = 4096  # words; up to this size, τ is computed from all of them


class Threshold(RecordCodec):
    """Threshold: every replica sends its words of size τ or larger to all replicas."""

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Select the words of size τ or larger, and start to all-gather the records.

        The counts of words are all-gathered before. All words are summed instead if
        that moves fewer bytes.
        """
        sizes = self.units.sizes(part)
        size = self._size(sizes, moment, 1 + line.rank)
        # NaN is not smaller: it is sent, so that the run notices it.
        chosen = np.flatnonzero(~(sizes < size) & (sizes != 0.0))
        heads = line.start_gather(np.array([chosen.size], dtype=np.int64))()
        lengths = [self.record_bytes(int(head[0])) for head in heads]
        if self.is_dense_smaller(lengths):
            return self.start_dense(part, line, COUNT_BYTES)
        record = self.pack(part, chosen, moment, line.rank)
        return self.start_records(record, heads, lengths, line, COUNT_BYTES)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return None: the data decide how many words are large."""
        return None

    def _size(self, sizes: Array, moment: Moment, who: int) -> float:
        """Return the threshold τ for the `sizes` of units.

        It is the setting `threshold` if that is not 0. Else it is estimated such that
        the share of units to send is at least as large: from all units of a small
        bucket, or from a sample that replica `who` − 1 draws.
        """
        if self.config.threshold:
            return self.config.threshold
        if sizes.size > SAMPLE:
            dice = self.bucket.dice(moment, who)
            sizes = sizes[dice.integers(sizes.size, size=SAMPLE)]
        above = max(round(self.share(moment) * sizes.size), 1)
        return float(np.partition(sizes, sizes.size - above)[sizes.size - above])


# Unbiased sampling of large words more often: word i is sent with probability p_i.
#
# p_i = min(|a_i| / m, 1), and a_i / p_i is sent: a_i where p_i = 1, else ± m, the same
# for all, so that an index and a bit are enough. m is as large as k words on average
# allow, or as a budget of variance allows: Σ a² / p = (1 + budget) Σ a².

HEAD = 3 * 8  # bytes: the expected length, and the counts of both kinds of words


def magnitude_of_share(sizes: Array, count: float) -> float:
    """Return m such that Σ min(|a| / m, 1), the expected number of words, is `count`.

    `sizes` are the |a|. Return 0 if fewer words than that are not zero.
    """
    falling = np.sort(sizes)[::-1]
    sure = np.arange(falling.size)  # words that are always sent
    rest = np.cumsum(falling[::-1])[::-1]
    budget = count - sure
    fits = (budget > 0) & (falling * budget <= rest)
    if not fits.any():
        return 0.0
    first = int(np.argmax(fits))
    return float(rest[first] / budget[first])


def magnitude_of_budget(sizes: Array, budget: float) -> float:
    """Return the largest m with Σ a² / p at most (1 + budget) Σ a².

    `sizes` are the |a|, and p = min(|a| / m, 1) is the probability that a word is sent.
    Return 0 if all words are zero.
    """
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
    """Unbiased sampling of words, the large ones more often (Wangni et al., 2018).

    A word a is sent with probability p = min(|a| / m, 1). A record has the words with p
    = 1, the value m, and the indices and signs of the other words, which stand for ± m.
    Its expected length and two counts, of 8 bytes each, are sent before the record.
    """

    unbiased = True
    wants_feedback = False

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.units = Units(bucket, "words")
        if config.feedback == "on" and not 0.0 < config.budget < 1.0:
            raise ConfigError(
                f"[codec] feedback = 'on' cannot be used with codec wangni and budget ="
                f" {config.budget:g}, because the fed-back error may grow; use a budget"
                " above 0 and below 1, or feedback = 'auto'"
            )

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Draw the words to send, and start to all-gather the records.

        The counts of words are all-gathered before. All words are summed instead if
        that is expected to move fewer bytes.
        """
        size, chance = self._chances(part, moment)
        sure = chance >= 1.0
        dice = self.bucket.dice(moment, 1 + line.rank)
        drawn = np.flatnonzero((dice.random(part.size) < chance) & ~sure)
        sure_indices = np.flatnonzero(sure)
        expected = self._length(sure_indices.size, round(float(chance[~sure].sum())))
        local_head = np.array([expected, sure_indices.size, drawn.size], dtype=np.int64)
        heads = line.start_gather(local_head)()
        # By expected lengths: a decision by the drawn lengths would bias the mean.
        if self.is_dense_smaller([int(head[0]) for head in heads]):
            return self.start_dense(part, line, HEAD)
        record = self._pack(part, sure_indices, drawn, size)
        lengths = [self._length(int(head[1]), int(head[2])) for head in heads]
        return self.start_records(record, heads, lengths, line, HEAD)

    def add(self, record: Array, head: Array, total: Array) -> None:
        """Compute total ← total + the words of a record, in place.

        The record is [values, m | indices of the values | indices of ± m | signs];
        `head` has the numbers of values and of signs at 1 and 2.
        """
        sure = int(head[1])
        drawn = int(head[2])
        words = total.size
        cut = (sure + 1) * total.itemsize
        numbers = record[:cut].view(total.dtype)
        ends = np.cumsum([index_bytes(sure, words), index_bytes(drawn, words)])
        first, second, signs = np.split(record[cut:], ends)
        total[unpack_indices(first, sure, words)] += numbers[:-1]
        is_negative = np.unpackbits(signs, count=drawn).astype(bool)
        where = unpack_indices(second, drawn, words)
        total[where] += np.where(is_negative, -numbers[-1], numbers[-1])

    def variance(self, part: Array) -> Array:
        """Return the variance a² (1 / p − 1) of each encoded word a of `part`.

        p is the probability that the word is sent, after the warm-up.
        """
        after = Moment(0, self.config.warm_up, 1.0, 1.0)
        chance = self._chances(part, after)[1]
        nonzero = chance > 0.0
        variance = np.zeros(part.size)
        variance[nonzero] = part[nonzero] ** 2 * (1.0 / chance[nonzero] - 1.0)
        return variance

    def _chances(self, part: Array, moment: Moment) -> tuple[float, Array]:
        """Return m, and the probability p of each word of `part` to be sent.

        p is min(|a| / m, 1), 1 for a word that is not finite, and 0 for a zero.
        """
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
        words = self.bucket.words
        item = self.bucket.dtype.itemsize
        indices = index_bytes(sure, words) + index_bytes(drawn, words)
        return (sure + 1) * item + indices + -(-drawn // 8)

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return None: random draws decide how many words are sent."""
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
    """Deep gradient compression: top-k of v, in which momentum accumulates.

    Every replica stores two arrays of D words for a bucket of D words: the momentum u
    and the sum v of momenta that were not sent yet.
    """

    unbiased = False
    wants_feedback = False
    has_own_memory = True
    follows_gradients = True
    remembers = "momentum", "velocity"

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.codec = TopK(bucket, config)
        self.codec.needs_own = True
        self.wants_norm = config.clip > 0.0
        self.momentum, self.velocity = map(bucket.remember, self.remembers)

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Update u and v by the gradient `part`, and start to send the k largest of v.

        The function that is returned waits. It then sets the words that were sent to
        zero in v, and with `masking` also in u unless all words were sent.
        """
        self._clip(part, line.size, moment)
        self.momentum *= self.config.momentum
        self.momentum += (1.0 - self.config.momentum) * part
        self.velocity += self._step(part)
        part[...] = self.velocity
        sends_all = self.codec.count(moment) == self.codec.units.count
        finish = self.codec.start(part, line, moment)

        def forget() -> Decoded:
            result = finish()
            if result.own is None or sends_all:
                self.velocity[...] = 0.0
                return result
            self.velocity -= result.own
            if self.config.masking:
                self.momentum[result.own != 0.0] = 0.0
            return result

        return forget

    @classmethod
    def owes(cls, kept: Mapping[str, Array], config: CodecConfig) -> Array:
        """Return the unsent gradient: v, and what momentum would still add to it.

        `kept` has the saved arrays v ("velocity") and u ("momentum"). With the momentum
        coefficient m, the addition is Σ mᵏ u over k = 1, 2, ..., or with `nesterov` m
        times that.
        """
        keeps = config.momentum
        times = keeps / (1.0 - keeps) * (keeps if config.nesterov else 1.0)
        owed: Array = kept["velocity"] + times * kept["momentum"]
        return owed

    @property
    def dense_exchanges(self) -> int:
        """Return in how many exchanges of this process top-k sent all words."""
        return self.codec.dense_exchanges

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return the bytes that top-k of v sends, or None where its k changes."""
        return self.codec.payload_bytes(ranks, rank)

    def _step(self, part: Array) -> Array:
        """Return what this exchange adds to v: u, or with `nesterov` m u + (1 − m) g.

        u is the momentum, m its coefficient, and g the gradient `part`.
        """
        if not self.config.nesterov:
            return self.momentum
        keeps = self.config.momentum
        return keeps * self.momentum + (1.0 - keeps) * part

    def _clip(self, part: Array, replicas: int, moment: Moment) -> None:
        """Compute part ← part · min(1, clip / (√R ‖g‖)), in place, for R replicas.

        ‖g‖ is `moment.norm`, the norm of the whole gradient, or the norm of `part` if
        that is None.
        """
        if not self.wants_norm:
            return
        norm = float(np.linalg.norm(part)) if moment.norm is None else moment.norm
        most = self.config.clip / replicas**0.5
        if norm > most:
            part *= most / norm
