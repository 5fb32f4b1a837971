"""Codes of few bits, one after the other, in bytes.

ceil(count · bits / 8) bytes: the last byte is filled with zeros.
"""

import numpy as np
from numpy.typing import NDArray

from hpcsgd.codecs.base import Array

WHOLE = {8: np.uint8, 16: np.uint16, 32: np.uint32}
MOST_BITS = 32


def packed_bytes(count: int, bits: int) -> int:
    """How long `pack` makes them."""
    return -(-count * bits // 8)


def pack(codes: Array, bits: int) -> NDArray[np.uint8]:
    """`codes` (flat, unsigned, below 2^bits) as bytes."""
    if bits in WHOLE:
        return codes.astype(WHOLE[bits]).view(np.uint8)
    if 8 % bits == 0:
        return _folded(codes.astype(np.uint8), bits)
    places = np.arange(bits, dtype=np.uint32)
    return np.packbits((codes.astype(np.uint32)[:, None] >> places & 1).astype(bool))


def unpack(record: Array, count: int, bits: int) -> NDArray[np.uint32]:
    """The first `count` codes of what `pack` made."""
    if bits in WHOLE:
        # A copy: a piece of a message may begin at any byte.
        return record.copy().view(WHOLE[bits])[:count].astype(np.uint32)
    if 8 % bits == 0:
        places = np.arange(0, 8, bits, dtype=np.uint8)
        codes = record[:, None] >> places & np.uint8(2**bits - 1)
        return codes.reshape(-1)[:count].astype(np.uint32)
    bare = np.unpackbits(record, count=count * bits).reshape(count, bits)
    worth = np.left_shift(np.uint32(1), np.arange(bits, dtype=np.uint32))
    return bare.astype(np.uint32) @ worth


def _folded(codes: Array, bits: int) -> NDArray[np.uint8]:
    """Several codes in each byte, the first in the lowest bits."""
    each = 8 // bits
    padded = np.zeros(-(-codes.size // each) * each, dtype=np.uint8)
    padded[: codes.size] = codes
    out = np.zeros(padded.size // each, dtype=np.uint8)
    for place in range(each):
        out |= padded[place::each] << np.uint8(place * bits)
    return out
