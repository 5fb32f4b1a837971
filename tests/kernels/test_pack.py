"""Tiles from a square: every entry that is there, zeros elsewhere, guards intact."""

import numpy as np
import pytest

from hpcsgd.backends.cuda import kernels
from tests.helpers.kernels.checks.pack import STARTS, agrees


@pytest.mark.parametrize("tall", [64, 128])
@pytest.mark.parametrize("starts", STARTS)
def test_tiles_are_those_of_the_square(starts, tall):
    agrees(starts, tall=tall)


@pytest.mark.parametrize(
    "rows, parts", [(1, 1), (100, 2), (1025, 4), (2048, 4), (70, 4)]
)
def test_strips_cover_what_is_below_the_diagonal(rows, parts):
    strips = kernels.strips_of(rows, parts)
    seen = np.zeros((rows, rows), bool)
    for first, last in strips:
        assert first % 64 == 0 and len(strips) <= parts
        seen[first:, first:last] = True
    assert seen[np.tril_indices(rows)].all()
    if parts > 1 and rows > 1000:
        assert seen.sum() < 0.8 * rows**2
