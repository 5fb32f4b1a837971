"""Codecs that send few bits for each word: casts, bytes, signs, two-phase means."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcsgd.agreements.codecs.base import (
    SCALE_BYTES,
    Bucket,
    BucketChannel,
    Chunks,
    Codec,
    CodecConfig,
    Decoded,
    Finish,
    GatheredCodec,
    Moment,
    pack,
    packed_bytes,
    rounded_up,
    unpack,
)
from hpcsgd.formats import Array, exponent_for, get_format, round_through

# Fewer bits a word: bf16, fp16, fp8.
#
# MPI adds no 16-bit floats: pieces are exchanged, added in float32 and gathered
# (`hpcsgd/comm/messages.py`), so the part of a replica is rounded once, and the mean
# once more. fp16 and fp8 have few exponents; a power of two is sent with every piece.
# Parts are divided by R before they are rounded: no sum of them overflows.


class Cast(Codec):
    """A codec that rounds gradients to the number format `form`, in two collectives.

    A replica sends the d·K words of its part of the gradient, then the mean of the
    share of the words that it adds up. Error feedback keeps the error from rounding the
    part, but not the error from rounding the mean.
    """

    form: ClassVar[str]
    unbiased = False
    wants_feedback = False

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Start the sum over R replicas of part / R, rounded: the total is the mean.

        Return a function that waits for the mean.
        """
        part /= line.size
        own_part = self._rounded(part) * line.size if self.needs_own else None
        arrive = line.start_sum(part, self.form)
        payload = self.payload_bytes(line.size, line.rank)

        def finish() -> Decoded:
            mean = arrive().astype(self.bucket.dtype, copy=False)
            return Decoded(mean, own_part, payload)

        return finish

    def _rounded(self, part: Array) -> Array:
        """Return the numbers that are sent for `part`, exactly as they are rounded."""
        form = get_format(self.form)
        values = part.astype(np.float32)
        if not form.wants_scale:
            round_through(values, form.name)
            return values.astype(self.bucket.dtype, copy=False)
        sizes = np.abs(values[np.isfinite(values)])
        scale = np.float32(2.0 ** exponent_for(float(sizes.max(initial=0)), form))
        values /= scale
        round_through(values, form.name)
        values *= scale
        return values.astype(self.bucket.dtype, copy=False)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes that replica `rank` of `ranks` sends in an exchange.

        It sends all d·K words, then the words of which it computes the mean. A format
        that wants a scale adds one exponent for each piece: R pieces in the sum, and
        one in the gather of the means.
        """
        form = get_format(self.form)
        words = self.bucket.words
        own_words = words * (rank + 1) // ranks - words * rank // ranks
        heads = (ranks + 1) * int(form.wants_scale)
        return int((words + own_words + heads) * form.dtype.itemsize)


class Bf16(Cast):
    """A cast to bf16: half the bytes, the exponents of float32, 8 bits of precision."""

    form = "bf16"
    mean_roundoff = 2.0**-8


class Fp16(Cast):
    """A cast to fp16: half the bytes and 11 bits of precision.

    Words below 2⁻⁴⁰ of the largest word are lost.
    """

    form = "fp16"
    mean_roundoff = 2.0**-11


class Fp8(Cast):
    """A cast to fp8 (e5m2): a quarter of the bytes and 2 bits of fraction.

    The exponents are those of fp16.
    """

    form = "fp8-e5m2"
    mean_roundoff = 2.0**-3
    wants_feedback = True


# 8 bits a word between the least and the greatest of its chunk.

TOP = 255


class Byte(GatheredCodec):
    """A codec that rounds to the nearest multiple of (max − min) / 255 of a chunk.

    No error exceeds half of that step, and 0 stays 0 if it lies between min and max. A
    chunk whose words are all equal is sent exactly, as a float32: a small ε added to
    max − min to avoid a division by zero would spoil tiny gradients.
    """

    unbiased = False
    wants_feedback = True

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.chunks = Chunks(bucket.words, config.chunk)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the least and the greatest word of each chunk, then the codes.

        The record is an array of bytes: two float32 for each chunk, then one byte for
        each word.
        """
        ends, codes = to_bytes(part, self.chunks)
        return np.concatenate([ends.reshape(-1).view(np.uint8), codes])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Decode `record` and add its words to `total`, in place."""
        heads = 2 * SCALE_BYTES * len(self.chunks)
        ends = record[:heads].copy().view(np.float32).reshape(2, -1)
        total += from_bytes(ends, record[heads:], self.chunks)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes of a record.

        It has one byte for each word, and two float32 for each chunk.
        """
        return self.bucket.words + 2 * SCALE_BYTES * len(self.chunks)


def to_bytes(
    part: Array, chunks: Chunks
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return the least and the greatest word of each chunk, and a byte for each word.

    The first array has shape (2, chunks), the second (words,).
    """
    least = -rounded_up(-chunks.least(part).astype(np.float64))
    greatest = rounded_up(chunks.greatest(part).astype(np.float64))
    scale, low = grid_of(least, greatest)
    codes = np.rint(part * chunks.spread(scale)) - chunks.spread(low)
    # Below, too: ties of the rounding may fall one under the lowest.
    codes = np.clip(np.nan_to_num(codes), 0, TOP).astype(np.uint8)
    return np.stack([least, greatest]), codes


def from_bytes(ends: Array, codes: Array, chunks: Chunks) -> NDArray[np.float64]:
    """Return the words that `to_bytes` has encoded, in float64.

    A word is (code + low) / scale, with the values of `grid_of` for its chunk. In a
    chunk whose words are all equal, it is their value.
    """
    least, greatest = ends
    scale, low = grid_of(least, greatest)
    spread = chunks.spread
    values = (codes + spread(low)) / spread(scale)
    flat = spread(least == greatest)
    return np.where(flat, spread(least.astype(np.float64)), values)


def grid_of(
    least: Array, greatest: Array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (scale, low) of each chunk: codes count steps of length 1 / scale.

    `low` is the number of steps from 0 to the word with code 0. A chunk whose words are
    all equal has scale 1 and low 0.
    """
    ends = least.astype(np.float64), greatest.astype(np.float64)
    width = ends[1] - ends[0]
    scale = TOP / np.where(width == 0, TOP, width)
    return scale, np.where(width == 0, 0.0, np.rint(ends[1] * scale) - TOP)


# An exchange in two phases: every replica adds one piece, and sends the mean to all.
#
# D words are padded to R pieces of ⌈D/R⌉ (BAGUA's C_LP_S). Every replica encodes its
# pieces and sends piece r to replica r, which decodes them, takes their mean in full
# precision, encodes that again and sends it to all. For any number of replicas, a
# replica sends every word twice, and never the records of all others.


class PieceEncoder(Protocol):
    """The protocol of encodings of pieces: each row of words becomes a row of bytes."""

    def encode(self, pieces: Array) -> NDArray[np.uint8]:
        """Return pieces (rows, words) as records (rows, bytes), all of one length."""

    def decode(self, records: NDArray[np.uint8], words: int) -> Array:
        """Return records (rows, bytes) as pieces (rows, words), in float64."""


@dataclass(frozen=True)
class EncodedMean:
    """The mean of an exchange in two phases, flat and without the padding."""

    mean: Array  # the same bits on all replicas, float64
    # Of this replica, so that the mean over replicas of these is `mean`: its own words
    # as they were decoded, less R times what the encoding of its piece's mean lost.
    own: Array


def piece_words(words: int, ranks: int) -> int:
    """Return ⌈D/R⌉, the words of a piece of D = `words` words for R = `ranks` ranks."""
    return -(-words // ranks)


def start_two_phase(
    part: Array, line: BucketChannel, form: PieceEncoder, needs_own: bool = False
) -> Callable[[], EncodedMean]:
    """Start to exchange pieces of `part`; return a function that waits for the mean.

    The returned function adds the pieces that arrive, and gathers the means of all
    pieces. `part` may be a gradient, or any array of which replicas need the mean.
    `EncodedMean.own` is empty without `needs_own`. Collective.
    """
    pieces = _padded(part, line.size)
    sent = form.encode(pieces)
    arrive = line.start_exchange(sent)

    def finish() -> EncodedMean:
        each = pieces.shape[1]
        piece = form.decode(arrive(), each).sum(axis=0) / line.size
        record = form.encode(piece[None])
        records = np.stack(line.start_gather(record.reshape(-1))())
        means = form.decode(records, each)
        if not needs_own:
            return EncodedMean(means.reshape(-1)[: part.size], np.empty(0))
        own_pieces = form.decode(sent, each)
        own_pieces[line.rank] -= line.size * (piece - means[line.rank])
        return EncodedMean(
            means.reshape(-1)[: part.size], own_pieces.reshape(-1)[: part.size]
        )

    return finish


def _padded(part: Array, ranks: int) -> Array:
    """Return `part` as one piece for each of R ranks, (R, ⌈D/R⌉).

    The padding repeats the last word, so that it does not widen the range of the last
    piece.
    """
    each = piece_words(part.size, ranks)
    pieces = np.full(ranks * each, part[-1], dtype=part.dtype)
    pieces[: part.size] = part
    return pieces.reshape(ranks, each)


# ByteGrad: 8 bits a word in both phases; every replica adds one piece.
#
# BAGUA's C_LP_S (arXiv 2107.01499): two phases in which words are encoded as `byte`
# does, between the least and the greatest of a piece. A ring moves 2 (R − 1)/R (D +
# 8 R) bytes for a replica, with D padded to R pieces; a gather of records of 8 bits
# moves (R − 1) D.
#
# With error feedback, here the default, the errors of both roundings are kept. The
# replica that added a piece keeps that of its mean R times, so that the mean of the
# errors has it once.

HEAD = 2 * SCALE_BYTES  # the least and the greatest, float32


class Ranges:
    """An encoding of rows: the least and greatest word of a row, and a byte a word."""

    def encode(self, pieces: Array) -> NDArray[np.uint8]:
        """Return pieces (rows, words) as records (rows, 8 + words) of bytes."""
        rows, words = pieces.shape
        ends, codes = to_bytes(pieces.reshape(-1), Chunks(pieces.size, words))
        heads = np.ascontiguousarray(ends.T).view(np.uint8)
        return np.hstack([heads, codes.reshape(rows, words)])

    def decode(self, records: NDArray[np.uint8], words: int) -> Array:
        """Return the records of `encode` as pieces (rows, words), in float64."""
        ends = np.ascontiguousarray(records[:, :HEAD]).view(np.float32).T
        codes = records[:, HEAD:].reshape(-1)
        values = from_bytes(ends, codes, Chunks(codes.size, words))
        return values.reshape(-1, words)


class ByteGrad(Codec):
    """The codec ByteGrad: an exchange of pieces in 8 bits a word, a gather of means."""

    unbiased = False
    wants_feedback = True

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Encode the pieces of `part`, and start to exchange them.

        Return a function that waits for the mean.
        """
        arrive = start_two_phase(part, line, Ranges(), self.needs_own)
        payload = self.payload_bytes(line.size, line.rank)

        def finish() -> Decoded:
            encoded_mean = arrive()
            kind = self.bucket.dtype
            own_part = encoded_mean.own.astype(kind) if self.needs_own else None
            return Decoded(encoded_mean.mean.astype(kind), own_part, payload)

        return finish

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes of R pieces and of a mean: (R + 1)(⌈D/R⌉ + 8).

        D are the words of the bucket. A replica sends R pieces at first, then the mean
        of the piece that it has added.
        """
        return (ranks + 1) * (piece_words(self.bucket.words, ranks) + HEAD)


# signSGD with majority vote: the sign that most replicas have.
#
#     w ← w − η (sign(Σ_p sign(g_p)) + λw)
#
# J. Bernstein, Y.-X. Wang, K. Azizzadenesheli and A. Anandkumar, "signSGD" (ICML 2018),
# algorithm 3. In two phases: replica r counts the votes on piece r, and sends the
# result to all. A word that is zero, and a vote without a majority, are votes for no
# step: five signs −1, 0 or 1 take a byte, 1.6 bits a word.

SIGNS = 5  # of a byte: 3⁵ = 243 values
WEIGHTS = 3 ** np.arange(SIGNS)
NO_NUMBER = 255  # five words of which one is not finite


class Ternary:
    """An encoding of rows: the signs −1, 0 or 1 of words, five in a byte."""

    def encode(self, pieces: Array) -> NDArray[np.uint8]:
        """Return pieces (rows, words) as records (rows, ⌈words / 5⌉) of bytes."""
        rows, words = pieces.shape
        size = -(-words // SIGNS)
        padded = np.zeros((rows, size * SIGNS))
        padded[:, :words] = pieces
        groups = padded.reshape(rows, size, SIGNS)
        is_finite = np.isfinite(groups)
        digits = np.sign(np.where(is_finite, groups, 0.0)) + 1.0
        codes = digits.astype(np.int64) @ WEIGHTS
        return np.where(is_finite.all(axis=2), codes, NO_NUMBER).astype(np.uint8)

    def decode(self, records: NDArray[np.uint8], words: int) -> Array:
        """Return the records of `encode` as pieces (rows, words), in float64."""
        digits = records[:, :, None] // WEIGHTS % 3 - 1.0
        digits[records == NO_NUMBER] = np.nan
        return digits.reshape(len(records), -1)[:, :words]


class Vote(Codec):
    """signSGD with majority vote: every weight moves by the rate, or not at all."""

    unbiased = False
    wants_feedback = False
    takes_feedback = False
    follows_gradients = True

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Start to send the signs of pieces; return a function that waits for votes."""
        arrive = start_two_phase(part, line, Ternary())
        payload = self.payload_bytes(line.size, line.rank)

        def finish() -> Decoded:
            votes = arrive().mean.astype(self.bucket.dtype)
            return Decoded(votes, None, payload)

        return finish

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes of R pieces and of a result: (R + 1) ⌈⌈D/R⌉ / 5⌉."""
        return (ranks + 1) * -(-piece_words(self.bucket.words, ranks) // SIGNS)


# One bit a word: its sign, and one scale.


class Sign(GatheredCodec):
    """The codec C(a) = mean|a| · sign(a), with the sign of zero positive.

    It needs error feedback, which uses exactly the values that other replicas decode.
    """

    unbiased = False
    wants_feedback = True

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the scale of the bucket in float32, then one bit for each word."""
        scale = np.array([np.abs(part).mean(dtype=np.float64)], dtype=np.float32)
        return np.concatenate([scale.view(np.uint8), pack(part < 0, 1)])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Decode `record`: add scale or −scale to each word of `total`, in place."""
        scale = total.dtype.type(record[:SCALE_BYTES].copy().view(np.float32)[0])
        negative = unpack(record[SCALE_BYTES:], self.bucket.words, 1)
        total += np.where(negative, -scale, scale)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes of a record, ⌈D / 8⌉ + 4: one bit a word, and the scale."""
        return packed_bytes(self.bucket.words, 1) + SCALE_BYTES
