"""A sparse record: k words of a bucket of D, as bytes.

[k values | which they are], the latter as k indices of 16 or 32 bits, or as a map of D
bits where that is shorter. Its length is a function of k, D and the dtype: whoever
knows k can read it.
"""

from typing import Any

import numpy as np

from hpcsgd.codecs.base import Array


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
