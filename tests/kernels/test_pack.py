"""Tiles from a square: every entry that is there, zeros elsewhere, guards intact."""

from ctypes import c_longlong

import numpy as np
import pytest

from hpcsgd.backends import launch_gram
from tests.kernels.emulator import Kernel, empty, on_device
from tests.kernels.mutants import Mutant

STARTS = [(0, 1), (0, 7, 20), (0, 33, 34, 100), (0, 20, 90, 200, 254), (0, 64, 128)]
MUTANTS = [
    Mutant("pack", "rows behind the last", "if (row < m)", "if (true)"),
    Mutant("pack", "columns behind the last", "col < m ?", "true ?"),
    Mutant("pack", "the tile's mirror image", "tiles[blockIdx.x] >> 16, J",
           "tiles[blockIdx.x] & 0xffffu, J"),
    Mutant("pack", "a quarter of a chunk", "four.y, col + 1", "four.y, col + 3"),
    Mutant("pack", "every other chunk", "at += 256 * 4", "at += 512 * 4"),
]  # fmt: skip


@pytest.mark.parametrize("tall", [64, 128])
@pytest.mark.parametrize("starts", STARTS)
def test_tiles_are_those_of_the_square(starts, tall):
    agrees(starts, tall=tall)


def check(text):
    """What mutants have to fail."""
    for starts in STARTS:
        agrees(starts, text)


def agrees(starts, text=None, tall=64):
    m, side = starts[-1], launch_gram.pitch_of(starts[-1], tall)
    tiles, _ = launch_gram.tiles_of(np.array(starts), tall)
    square, out = empty((m, side)), empty((max(len(tiles), 1), tall, tall))
    square[:, :m] = np.random.default_rng(m).normal(size=(m, m))
    kernel = Kernel("pack", "ELEMENT=3", text=text, entry="pack_tiles")
    if not len(tiles):
        return
    given = (square, c_longlong(side), m, tall.bit_length() - 1, on_device(tiles), out)
    kernel(*launch_gram.pack(len(tiles)), given)
    whole = np.zeros((side, side), np.float32)
    whole[:m, :m] = square[:, :m]
    for number, tile in enumerate(tiles):
        down, across = tall * int(tile >> 16), tall * int(tile & 0xFFFF)
        wanted = whole[down : down + tall, across : across + tall]
        np.testing.assert_array_equal(out[number], wanted)


@pytest.mark.parametrize(
    "rows, parts", [(1, 1), (100, 2), (1025, 4), (2048, 4), (70, 4)]
)
def test_strips_cover_what_is_below_the_diagonal(rows, parts):
    strips = launch_gram.strips_of(rows, parts)
    seen = np.zeros((rows, rows), bool)
    for first, last in strips:
        assert first % 64 == 0 and len(strips) <= parts
        seen[first:, first:last] = True
    assert seen[np.tril_indices(rows)].all()
    if parts > 1 and rows > 1000:
        assert seen.sum() < 0.8 * rows**2
