"""Bytes of every codec, as the cards of docs/reference/methods/codecs.md have them.

Nothing here asks a codec what it sends: D words of `size` bytes, R replicas, the parts.
"""

from math import ceil, isqrt

import numpy as np

ADAPTS = ("alq", "amq")
CASTS = {"bf16": (2, 0), "fp16": (2, 1), "fp8": (1, 1)}  # bytes of a word, of a head


def cast(name, parts, size, rank):
    """All words as pieces, the own piece of the mean, and an exponent a piece."""
    ranks, words = parts.shape
    each, heads = CASTS[name]
    own = words * (rank + 1) // ranks - words * rank // ranks
    return each * (words + own + heads * (ranks + 1))


def record(count, words, size):
    """k values, and 16 bits for each or a bit for each of all words."""
    return count * size + min(2 * count, ceil(words / 8))


def or_dense(records, words, size, rank):
    """That of a replica, or all words where the records of all are not smaller."""
    is_dense = sum(records) >= 2 * words * size
    return words * size if is_dense else records[rank]


def topk(name, parts, size, rank):
    """A tenth of the words."""
    ranks, words = parts.shape
    records = [record(max(round(0.1 * words), 1), words, size)] * ranks
    return or_dense(records, words, size, rank)


def threshold(name, parts, size, rank):
    """Those at least as large as the last of a tenth, each replica its own."""
    words = parts.shape[1]
    counts = []
    for part in np.abs(parts):
        least = np.sort(part)[-max(round(0.1 * words), 1)]
        counts.append(int(((part >= least) & (part > 0)).sum()))
    records = [record(count, words, size) for count in counts]
    return 8 + or_dense(records, words, size, rank)


def levels(name, parts, size, rank):
    """Bits of a word, a norm a chunk of 16, the mark of levels that adapt."""
    words, bits = parts.shape[1], 4 if name == "qsgd" else 3
    return ceil(words * bits / 8) + 4 * ceil(words / 16) + 4 * (name in ADAPTS)


def thin(ranks_sent):
    """Of nearly square matrices."""

    def formula(name, parts, size, rank):
        words = parts.shape[1]
        rows = isqrt(words - 1) + 1
        return size * ranks_sent * (rows + ceil(words / rows))

    return formula


FORMULAS = {
    "identity": lambda name, parts, size, rank: parts.shape[1] * size,
    **dict.fromkeys(CASTS, cast),
    "topk": topk,
    "dgc": topk,
    "randomk": lambda name, parts, size, rank: round(0.2 * parts.shape[1]) * size,
    "threshold": threshold,
    **dict.fromkeys(("qsgd", "nuqsgd", *ADAPTS), levels),
    "vote": lambda name, parts, size, rank: (
        (len(parts) + 1) * ceil(ceil(parts.shape[1] / len(parts)) / 5)
    ),
    "sign": lambda name, parts, size, rank: ceil(parts.shape[1] / 8) + 4,
    "byte": lambda name, parts, size, rank: (
        parts.shape[1] + 8 * ceil(parts.shape[1] / 16)
    ),
    "bytegrad": lambda name, parts, size, rank: (
        (len(parts) + 1) * (ceil(parts.shape[1] / len(parts)) + 8)
    ),
    "powersgd": thin(1),
    "accordion": thin(2),  # the first epoch is critical
}
