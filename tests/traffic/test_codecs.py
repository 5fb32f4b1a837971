"""Bytes and messages of every codec, as docs/reference/methods/codecs.md has them.

Nothing here asks a codec what it sends: D words of `size` bytes, R replicas, the parts.
"""

from math import ceil, isqrt

import numpy as np
import pytest

from hpcsgd.agreements.codecs import CODECS
from tests.helpers.contracts.codec import ROWS, WORDS, exchange, moments, parts_of

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
TWICE = (*CASTS, "threshold", "wangni", "bytegrad", "powersgd", "accordion")


def test_every_codec_has_a_formula_here():
    assert {*FORMULAS, "wangni"} == set(CODECS)


@pytest.mark.cases(5)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMULAS)
def test_bytes_and_messages_are_those_of_the_page(name, dtype):
    """D that divides by nothing; levels adapt in the second exchange."""
    for ranks in (2, 3, 7):
        for words in WORDS:
            parts = parts_of(words, ranks, dtype=dtype)
            for moment in moments(2):
                found = exchange(ranks, name, ROWS[name].rough, parts, moment, dtype)
                adapts = name in ADAPTS and moment.number == 1
                for rank, (_, entry, _) in enumerate(found):
                    size = np.dtype(dtype).itemsize
                    wanted = FORMULAS[name](name, parts, size, rank)
                    wanted += 24 * ceil(words / 16) * adapts
                    assert entry.bytes == wanted, (ranks, words, rank)
                    assert entry.calls == 1 + (name in TWICE) + adapts


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bytes_of_words_that_dice_have_drawn(dtype):
    """wangni: 24, kA words, m, both kinds of indices, and a bit for each of kB.

    With feedback every replica says what the others read of it: kA words as they are.
    """
    size, sparse = np.dtype(dtype).itemsize, 0
    settings = {"budget": 0.9, "feedback": "on"}
    for ranks in (2, 3):
        for words in WORDS:
            parts = parts_of(words, ranks, dtype=dtype)
            found = exchange(ranks, "wangni", settings, parts, dtype=dtype)
            for part, (told, entry, _) in zip(parts, found, strict=True):
                assert entry.calls == 2
                if told.own is None:
                    assert entry.bytes == 24 + words * size
                    continue
                sparse += 1
                sure = int(((told.own == part) & (part != 0.0)).sum())
                drawn = int((told.own != 0.0).sum()) - sure
                indices = sum(min(2 * k, ceil(words / 8)) for k in (sure, drawn))
                bits = ceil(drawn / 8)
                assert entry.bytes == 24 + (sure + 1) * size + indices + bits
    assert sparse
