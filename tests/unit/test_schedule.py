"""Packed G: its places, its words."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcsgd.backends import numpy_rows
from hpcsgd.backends.numpy_rows import DenseRows, HostBackend, block_rows
from hpcsgd.glm.unrolling import Blocks, uniform_blocks
from hpcsgd.precision import RECIPES

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@given(SIZES)
def test_gram_words_are_the_formula(sizes):
    blocks = Blocks(tuple(sizes))
    m = sum(sizes)
    assert 2 * blocks.gram_words == m * m - sum(b * b for b in sizes)
    assert blocks.rows == m


def test_uniform_words():
    """b² s (s−1) / 2."""
    assert uniform_blocks(32, 16).gram_words == 32 * 32 * 16 * 15 // 2


@pytest.mark.parametrize("work", [0, 1e9], ids=["halving", "block-rows"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=SIZES)
def test_strict_gram_is_the_lower_blocks_of_the_full_one(monkeypatch, work, sizes):
    monkeypatch.setattr(numpy_rows, "HALVING_WORK", work)
    blocks = Blocks(tuple(sizes))
    rows = np.random.default_rng(0).normal(size=(blocks.rows, 5))
    packed = np.full(blocks.gram_words, np.nan)
    HostBackend(RECIPES["fp64"]).strict_gram(DenseRows(rows), blocks, packed)
    full = rows @ rows.T
    for j, panel in enumerate(block_rows(packed, blocks), start=1):
        first, last = blocks.starts[j], blocks.starts[j + 1]
        np.testing.assert_allclose(panel, full[first:last, :first], atol=1e-13)
