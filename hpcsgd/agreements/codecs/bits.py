"""Codecs of few bits a word: cast, byte, sign, two-phase sums."""

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
    """Rounding to the format `form`, in two collectives.

    A replica sends d·K words, then the mean of its share of them. With feedback the
    error from rounding the part is kept; that from rounding the mean is not.
    """

    form: ClassVar[str]
    unbiased = False
    wants_feedback = False

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Start the sum of part / R, rounded: the total is the mean."""
        part /= line.size
        own_part = self._rounded(part) * line.size if self.needs_own else None
        arrive = line.start_sum(part, self.form)
        payload = self.payload_bytes(line.size, line.rank)

        def finish() -> Decoded:
            mean = arrive().astype(self.bucket.dtype, copy=False)
            return Decoded(mean, own_part, payload)

        return finish

    def _rounded(self, part: Array) -> Array:
        """Return exactly the numbers that are sent for `part`."""
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
        """Return the bytes of d·K words and the own share, and of one exponent a piece.

        Only formats that want a scale send exponents. The pieces are one for each
        replica, then the own one.
        """
        form = get_format(self.form)
        words = self.bucket.words
        own_words = words * (rank + 1) // ranks - words * rank // ranks
        heads = (ranks + 1) * int(form.wants_scale)
        return int((words + own_words + heads) * form.dtype.itemsize)


class Bf16(Cast):
    """Half the bytes, the exponents of float32, 8 bits of precision."""

    form = "bf16"
    mean_roundoff = 2.0**-8


class Fp16(Cast):
    """Half the bytes, 11 bits of precision, words below 2⁻⁴⁰ of the largest lost."""

    form = "fp16"
    mean_roundoff = 2.0**-11


class Fp8(Cast):
    """A quarter of the bytes (e5m2): 2 bits of fraction, the exponents of fp16."""

    form = "fp8-e5m2"
    mean_roundoff = 2.0**-3
    wants_feedback = True


# 8 bits a word between the least and the greatest of its chunk.

TOP = 255


class Byte(GatheredCodec):
    """Rounding to the nearest multiple of (max − min) / 255 of a chunk.

    No error exceeds half of that, and 0 stays 0 if it lies between min and max. The
    value of a constant chunk is sent in float32; an ε below the fraction line instead
    would spoil tiny gradients.
    """

    unbiased = False
    wants_feedback = True

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.chunks = Chunks(bucket.words, config.chunk)

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return least and greatest word of the chunks in float32, then the codes."""
        ends, codes = to_bytes(part, self.chunks)
        return np.concatenate([ends.reshape(-1).view(np.uint8), codes])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Compute total ← total + (code + low) / scale, in place."""
        heads = 2 * SCALE_BYTES * len(self.chunks)
        ends = record[:heads].copy().view(np.float32).reshape(2, -1)
        total += from_bytes(ends, record[heads:], self.chunks)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return the bytes of D codes, and of two float32 for each chunk."""
        return self.bucket.words + 2 * SCALE_BYTES * len(self.chunks)


def to_bytes(
    part: Array, chunks: Chunks
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return least and greatest of each chunk, (2, chunks), and a byte a word."""
    least = -rounded_up(-chunks.least(part).astype(np.float64))
    greatest = rounded_up(chunks.greatest(part).astype(np.float64))
    scale, low = grid_of(least, greatest)
    codes = np.rint(part * chunks.spread(scale)) - chunks.spread(low)
    # Below, too: ties of the rounding may fall one under the lowest.
    codes = np.clip(np.nan_to_num(codes), 0, TOP).astype(np.uint8)
    return np.stack([least, greatest]), codes


def from_bytes(ends: Array, codes: Array, chunks: Chunks) -> NDArray[np.float64]:
    """Return (code + low) / scale of each word, or the value of a constant chunk."""
    least, greatest = ends
    scale, low = grid_of(least, greatest)
    spread = chunks.spread
    values = (codes + spread(low)) / spread(scale)
    flat = spread(least == greatest)
    return np.where(flat, spread(least.astype(np.float64)), values)


def grid_of(
    least: Array, greatest: Array
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the steps in 1 and the lowest multiple of a step, for each chunk.

    They are 1 and 0 for a constant chunk.
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
    """The protocol of encodings of pieces: rows of words as rows of bytes."""

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
    """Return ⌈D/R⌉, the words of a piece."""
    return -(-words // ranks)


def start_two_phase(
    part: Array, line: BucketChannel, form: PieceEncoder, needs_own: bool = False
) -> Callable[[], EncodedMean]:
    """Start to exchange pieces of `part`; return a function that waits for the mean.

    The function adds and gathers. `part` may be a gradient, or any array of which
    replicas need the mean. `EncodedMean.own` is empty without `needs_own`. Collective.
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
    """Return `part` as pieces, (R, ⌈D/R⌉).

    The padding repeats the last word, which widens no range.
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
    """An encoding of each row as its least and greatest word, and a byte a word."""

    def encode(self, pieces: Array) -> NDArray[np.uint8]:
        """Return pieces (rows, words) as records (rows, 8 + words)."""
        rows, words = pieces.shape
        ends, codes = to_bytes(pieces.reshape(-1), Chunks(pieces.size, words))
        heads = np.ascontiguousarray(ends.T).view(np.uint8)
        return np.hstack([heads, codes.reshape(rows, words)])

    def decode(self, records: NDArray[np.uint8], words: int) -> Array:
        """Return records as pieces (rows, words), in float64."""
        ends = np.ascontiguousarray(records[:, :HEAD]).view(np.float32).T
        codes = records[:, HEAD:].reshape(-1)
        values = from_bytes(ends, codes, Chunks(codes.size, words))
        return values.reshape(-1, words)


class ByteGrad(Codec):
    """ByteGrad: an exchange of R pieces in 8 bits a word, then a gather of means."""

    unbiased = False
    wants_feedback = True

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Encode the pieces of `part`, and start to exchange them."""
        arrive = start_two_phase(part, line, Ranges(), self.needs_own)
        payload = self.payload_bytes(line.size, line.rank)

        def finish() -> Decoded:
            encoded_mean = arrive()
            kind = self.bucket.dtype
            own_part = encoded_mean.own.astype(kind) if self.needs_own else None
            return Decoded(encoded_mean.mean.astype(kind), own_part, payload)

        return finish

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return (R + 1)(⌈D/R⌉ + 8): R pieces at first, then the own mean."""
        return (ranks + 1) * (piece_words(self.bucket.words, ranks) + HEAD)


# One bit a word: its sign, and one scale.


class Sign(GatheredCodec):
    """C(a) = mean|a| · sign(a), with the sign of zero positive.

    It needs error feedback, which uses exactly the values that other replicas decode.
    """

    unbiased = False
    wants_feedback = True

    def encode(self, part: Array, moment: Moment, replica: int) -> Array:
        """Return the scale of the bucket in float32, then one bit for each word."""
        scale = np.array([np.abs(part).mean(dtype=np.float64)], dtype=np.float32)
        return np.concatenate([scale.view(np.uint8), pack(part < 0, 1)])

    def add_decoded(self, record: Array, total: Array, moment: Moment) -> None:
        """Add ± scale to each word of `total`, in place."""
        scale = total.dtype.type(record[:SCALE_BYTES].copy().view(np.float32)[0])
        negative = unpack(record[SCALE_BYTES:], self.bucket.words, 1)
        total += np.where(negative, -scale, scale)

    def payload_bytes(self, ranks: int, rank: int) -> int:
        """Return ceil(D / 8) + 4."""
        return packed_bytes(self.bucket.words, 1) + SCALE_BYTES
