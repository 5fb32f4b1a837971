"""PowerSGD: gradients of low rank."""

from dataclasses import replace
from math import ceil, isqrt
from typing import Self

import numpy as np

from hpcsgd.agreements.codecs.base import (
    Bucket,
    BucketChannel,
    Codec,
    CodecConfig,
    Decoded,
    Finish,
    Moment,
)
from hpcsgd.formats import Array

# Gram-Schmidt with the same bits for the same columns, on every machine.
#
# It uses products and sums of NumPy, no BLAS: the order in which a library adds depends
# on the address of an array and on the processor, and replicas must not differ by a
# bit.


def orthogonal(columns: Array) -> Array:
    """Return orthonormal columns with the same span as `columns`, in float64.

    A column is zero if its projections on earlier columns leave nothing of it. Each
    column is first scaled by its largest entry, so that no square overflows or
    vanishes. Projections are subtracted twice: after one pass, nearly parallel columns
    are far from orthogonal.
    """
    out = np.array(columns, dtype=np.float64, order="F")
    for k in range(out.shape[1]):
        column = out[:, k]
        size = np.abs(column).max(initial=0.0)
        if size == 0.0:
            continue
        column /= size
        for _ in range(2):
            for former in range(k):
                column -= np.sum(out[:, former] * column) * out[:, former]
            length = np.sqrt(np.sum(column * column))
            if length == 0.0:
                break
            column /= length
    return out


def outer(left: Array, right: Array) -> Array:
    """Return left · rightᵀ, a sum of outer products added column by column."""
    out = np.zeros((len(left), len(right)), dtype=right.dtype)
    for left_column, right_column in zip(left.T, right.T, strict=True):
        out += np.multiply.outer(left_column, right_column)
    return out


# PowerSGD: a step of the power method from the last exchange, two thin sums.
#
# M_p is the part of replica p as a matrix, n × m. With Q (m × r), the same on all,
#
# P = orth(Σ M_p Q);  Q_p = M_pᵀ P;  mean = P (Σ Q_p / R)ᵀ;  Q ← Σ Q_p / R
#
# T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD" (NeurIPS 2019), algorithms 1 and
# 2. With several `iterations` the line is repeated, and the last P and Q are sent on;
# without `warm_start` Q is random in every exchange, as in the paper's comparison.
#
# Error feedback of replica p subtracts its own part, P Q_pᵀ. To subtract the mean
# instead would leave the same mean error, but errors of single replicas would grow for
# ever where shards differ.

FIRST = Moment(0, 0, 1.0, 1.0)  # whose random numbers initialise Q


class PowerSgd(Codec):
    """PowerSGD of rank r, uncompressed for the first `start` exchanges.

    Buckets for which it would save too few bytes are never compressed.
    """

    unbiased = False
    wants_feedback = True

    def __init__(self, bucket: Bucket, config: CodecConfig) -> None:
        super().__init__(bucket, config)
        self.shape, self.rank = _sizes(bucket, config)
        self.is_worth_it = _is_worth_it(bucket, config)
        if self.is_worth_it and config.warm_start:
            self.kept["guess"] = self._random(FIRST)

    @classmethod
    def table_bytes(cls, bucket: Bucket, config: CodecConfig) -> int:
        """Return the bytes of Q in float64, or 0 if the bucket is uncompressed."""
        shape, rank = _sizes(bucket, config)
        keeps = config.warm_start and _is_worth_it(bucket, config)
        return 8 * shape[1] * rank if keeps else 0

    def start(self, part: Array, line: BucketChannel, moment: Moment) -> Finish:
        """Start the sum of M Q over replicas; the returned function then sums Mᵀ P.

        M is `part` / R as a matrix for R replicas, Q the columns of the last exchange
        or random ones, and P an orthonormal basis of the sum of M Q. An uncompressed
        exchange sums `part` / R.
        """
        if not self._compresses(moment):
            part /= line.size
            arrive = line.start_sum(part)
            return lambda: Decoded(arrive(), None, part.nbytes)
        matrix = self._matrix(part / line.size)
        warm = self.config.warm_start
        guess = self.kept["guess"] if warm else self._random(moment)
        guess = guess.astype(self.bucket.dtype)
        arrive = line.start_sum(np.ascontiguousarray(matrix @ guess))
        return lambda: self._finish(matrix, arrive(), line, moment)

    def take_over(self, other: Self) -> None:
        """Copy the columns of Q from `other`, a codec of a different matrix rank r.

        Do nothing if the shapes of the matrices differ, or if a codec never compresses.
        """
        is_alike = self.shape == other.shape
        if is_alike and self.kept and other.kept:
            both = slice(min(self.rank, other.rank))
            self.kept["guess"][:, both] = other.kept["guess"][:, both]

    def payload_bytes(self, ranks: int, rank: int) -> int | None:
        """Return the bytes of t r (n + m) words, or of all words if uncompressed.

        t is the number of iterations, r the rank of the matrix, n × m its shape. Return
        None if the first exchanges
        are uncompressed and later ones are not.
        """
        size = self.bucket.dtype.itemsize
        if not self.is_worth_it:
            return self.bucket.words * size
        if self.config.start:
            return None
        return self._bytes()

    def _bytes(self) -> int:
        words = self.config.iterations * self.rank * sum(self.shape)
        return words * self.bucket.dtype.itemsize

    def _random(self, moment: Moment) -> Array:
        """Return orthonormal random columns, the same on all replicas."""
        dice = self.bucket.dice(moment)
        return orthogonal(dice.normal(size=(self.shape[1], self.rank)))

    def _compresses(self, moment: Moment) -> bool:
        return self.is_worth_it and moment.number >= self.config.start

    def _matrix(self, part: Array) -> Array:
        """Return `part` as a matrix, filled row by row, with zeros at the end."""
        whole = np.zeros(self.shape, dtype=part.dtype)
        whole.reshape(-1)[: part.size] = part
        return whole

    def _finish(
        self, matrix: Array, seen: Array, line: BucketChannel, moment: Moment
    ) -> Decoded:
        basis = orthogonal(seen).astype(matrix.dtype)
        mine = np.ascontiguousarray(matrix.T @ basis)
        for _ in range(1, self.config.iterations):
            seen = line.sum(np.ascontiguousarray(matrix @ line.sum(mine)))
            basis = orthogonal(seen).astype(matrix.dtype)
            mine = np.ascontiguousarray(matrix.T @ basis)
        own_words = (
            self._flat(outer(basis, mine * line.size)) if self.needs_own else None
        )
        mean = line.sum(mine)
        if self.config.warm_start:
            self._remember(mean, moment)
        return Decoded(self._flat(outer(basis, mean)), own_words, self._bytes())

    def _flat(self, matrix: Array) -> Array:
        return matrix.reshape(-1)[: self.bucket.words]

    def _remember(self, mean: Array, moment: Moment) -> None:
        """Store Q for the next exchange, with new random columns in place of lost ones.

        A column is lost if it is zero or only rounding error, from which the power
        method cannot recover. All replicas draw the same random columns. If `mean` is
        zero or not finite, Q stays as it is.
        """
        lengths = np.sqrt(np.sum(np.square(mean, dtype=np.float64), axis=0))
        longest = lengths.max()
        if not np.isfinite(longest) or longest == 0.0:
            return
        guess = mean / longest
        lost = lengths <= 100 * np.finfo(mean.dtype).eps * longest
        later = replace(moment, number=moment.number + 1)  # not those of FIRST
        self.kept["guess"][...] = np.where(lost, self._random(later), guess)


def _sizes(bucket: Bucket, config: CodecConfig) -> tuple[tuple[int, int], int]:
    """Return the shape of the bucket as a matrix, and the rank r that is sent."""
    shape = shape_of(bucket.height, bucket.width, config.rank)
    return shape, min(config.rank, *shape)


def _is_worth_it(bucket: Bucket, config: CodecConfig) -> bool:
    shape, rank = _sizes(bucket, config)
    return rank * sum(shape) * config.min_rate < bucket.words


def shape_of(height: int, width: int, rank: int) -> tuple[int, int]:
    """Return the shape of the matrix of a bucket of `height` columns × `width` scores.

    The shape is `height` × `width` if both exceed `rank`, else it is nearly square.
    """
    if min(height, width) > rank:
        return height, width
    words = height * width
    rows = isqrt(words - 1) + 1
    return rows, ceil(words / rows)
