"""A checksum of the data that does not depend on which rank reads which part.

H = Σ_ij a_i b_j bits(x_ij) mod 2⁶⁴ with odd a_i, b_j drawn from the positions: any one
changed value changes H, and the parts of all ranks, whatever the grid, add up to the
same sum. It costs one pass over each block while the block is in cache.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from hpcsgd.data.matrix import Csr
from hpcsgd.formats import Array

SIDE = 2**40  # columns of y, sample_weight and offset: beyond any of X
ROWS = 2**41  # rows draw from other numbers than columns
ROWS_AT_ONCE = 4096
KEPT = 64  # arrays of odd numbers in the cache of `odd_numbers`
FEW = 2**16  # the cache stores arrays of at most so many positions


# Σ_ij a_i b_j bits_ij mod 2⁶⁴, from (bits, a, b)
Weigh = Callable[[Array, Array, Array], np.uint64]


class Fingerprint:
    """The checksum of the blocks that one rank reads; `total` adds those of all."""

    def __init__(self, weigh: Weigh | None = None) -> None:
        self.value = 0  # below 2**64
        self.weigh = weigh or _weigh

    def add(self, block: Array, first_row: int, first_col: int) -> None:
        """Add a dense block of X to the checksum, in the dtype in which it was read.

        `first_row` and `first_col` are the position of the block in X.
        """
        column = odd_numbers(first_col, block.shape[1])
        for start in range(0, len(block), ROWS_AT_ONCE):
            bits = _bits(block[start : start + ROWS_AT_ONCE])
            row = odd_numbers(ROWS + first_row + start, len(bits))
            self._add(self.weigh(bits, row, column))

    def _add(self, part: np.uint64) -> None:
        self.value = (self.value + int(part)) % 2**64

    def add_sparse(self, block: Csr, first_row: int, first_col: int) -> None:
        """Add a sparse block of X to the checksum; zeros of a dense block add nothing.

        The result is the same for a dense and a sparse block.
        """
        few = block.nnz < block.width  # then b_j of stored values only
        column = None if few else odd_numbers(first_col, block.width)
        for start in range(0, len(block), ROWS_AT_ONCE):
            part = block[start : start + ROWS_AT_ONCE]
            row = odd_numbers(ROWS + first_row + start, len(part))
            with np.errstate(over="ignore"):
                column_weights = (
                    _odd(first_col + part.indices.astype(np.int64))
                    if column is None
                    else column[part.indices]
                )
                weight = np.repeat(row, part.lengths) * column_weights
                total = np.einsum("i,i->", weight, _bits(part.data))
            self._add(total)

    def add_column(self, number: int, values: Array | None, first_row: int) -> None:
        """Add side column 0 (y), 1 (sample_weight) or 2 (offset), unless it is None.

        `values` are those of the rows from `first_row` of the data on.
        """
        if values is not None:
            self.add(values.reshape(-1, 1), first_row, SIDE + number)

    def total(self, rows: int, cols: int, exchange: Callable[[Any], list[Any]]) -> str:
        """Return "ROWSxCOLS-CHECKSUM" for the blocks of all ranks. Collective.

        `exchange` returns the values of all ranks for that of this rank.
        """
        whole = sum(exchange(self.value)) % 2**64
        return f"{rows}x{cols}-{whole:016x}"


def _weigh(bits: Array, rows: Array, columns: Array) -> np.uint64:
    total: np.uint64 = np.einsum("i,i->", rows, np.einsum("ij,j->i", bits, columns))
    return total


def _bits(block: Array) -> Array:
    """Return the bits of the numbers as unsigned integers of the same size."""
    word = np.dtype(f"u{block.dtype.itemsize}")
    if block.ndim == 2 and block.strides[1] == block.itemsize:
        return block.view(word)
    return np.ascontiguousarray(block).view(word)


def odd_numbers(first: int, count: int) -> Array:
    """Return the odd factors (a_i or b_j) of `count` positions from `first` on, uint64.

    The result is read-only. Arrays of at most FEW positions are cached, since X and
    then y need the factors of the same rows. Longer arrays, such as those for the
    columns of wide data, are not cached: they would occupy memory until the end.
    """
    return (_kept if count <= FEW else _frozen)(first, count)


def _frozen(first: int, count: int) -> Array:
    weights = _odd(np.arange(first, first + count))
    weights.flags.writeable = False
    return weights


_kept = lru_cache(maxsize=KEPT)(_frozen)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of SplitMix64


def mix64(x: Array) -> Array:
    """Return the output function of SplitMix64 of each 64-bit number in `x`.

    It is a bijection, with the same bits on every machine (Steele, Lea and Flood,
    2014).
    """
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _odd(position: Array) -> Array:
    """Return SplitMix64 of each position, made odd: invertible mod 2⁶⁴."""
    with np.errstate(over="ignore"):
        z = (position.astype(np.uint64) + np.uint64(1)) * GOLDEN
    odd: Array = mix64(z) | np.uint64(1)
    return odd


# A checksum of a block of bytes, which costs a fraction of the time to read them.
#
# S = Σ w_i u_i mod 2⁶⁴ over the little-endian 8-byte words u_i of the block (row-major,
# the last padded with zeros) with odd w_i drawn from i. An odd number has an inverse,
# so damage within one word is always found. Random damage to several words is missed
# with probability about 2⁻⁶⁴; two flipped top bits are always missed.

AT_ONCE = 2**15  # words that are weighted together: their weights stay in cache


def block_sum(block: Array) -> int:
    """Return the checksum of the bytes of an array in row-major order.

    It is Σ w_i u_i mod 2⁶⁴ over the 8-byte words u_i, with odd weights w_i.
    """
    flat = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
    whole = len(flat) // 8 * 8
    total = _words_sum(flat[:whole].view("<u8"), 0)
    if whole < len(flat):
        last = np.zeros(8, dtype=np.uint8)
        last[: len(flat) - whole] = flat[whole:]
        total += _words_sum(last.view("<u8"), whole // 8)
    return total % 2**64


def _words_sum(words: Array, first: int) -> int:
    total = 0
    for start in range(0, len(words), AT_ONCE):
        piece = words[start : start + AT_ONCE]
        total += _weighted(piece, first + start)
    return total


def _weighted(words: Array, first: int) -> int:
    """Return Σ w_i u_i of at most AT_ONCE words, numbered from `first` on."""
    page, inside = divmod(first, AT_ONCE)
    weights = _weights(page)
    part = weights[inside : inside + len(words)]
    return int(np.einsum("i,i->", words, part))


@lru_cache(maxsize=64)
def _weights(page: int) -> Array:
    """Return the odd weights w_i of the AT_ONCE words of a page."""
    return _odd(np.arange(page * AT_ONCE, (page + 1) * AT_ONCE, dtype=np.uint64))
