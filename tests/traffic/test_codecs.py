"""Bytes and messages of every codec, by the ledger."""

from math import ceil

import numpy as np
import pytest

from hpcsgd.agreements.codecs import CODECS
from tests.helpers.codec_formulas import ADAPTS, CASTS, FORMULAS
from tests.helpers.contracts.codec import ROWS, WORDS, exchange, moments, parts_of

TWICE = (*CASTS, "threshold", "wangni", "bytegrad", "vote", "powersgd", "accordion")


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
