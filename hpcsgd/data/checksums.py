"""A checksum of a block of bytes that costs a fraction of reading them.

S = Σ w_i u_i mod 2⁶⁴ over the little-endian 8-byte words u_i of the block (row-major,
the last padded with zeros) with odd w_i drawn from i. An odd number has an inverse, so
damage within one word is always found, and any other with all but about 2⁻⁶³.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
AT_ONCE = 2**15  # words whose weights are kept: they stay in cache


def block_sum(block: Array) -> int:
    """The checksum of the bytes of an array, row by row."""
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
    """Σ w_i u_i of at most AT_ONCE words, the first of which has number `first`."""
    page, inside = divmod(first, AT_ONCE)
    weights = _weights(page)
    own = weights[inside : inside + len(words)]
    return int(np.einsum("i,i->", words, own))


@lru_cache(maxsize=64)
def _weights(page: int) -> Array:
    """splitmix64 of the numbers of the words of a page, made odd."""
    z = np.arange(page * AT_ONCE, (page + 1) * AT_ONCE, dtype=np.uint64)
    with np.errstate(over="ignore"):
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    odd: Array = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return odd
