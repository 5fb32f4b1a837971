"""The pack kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong

import numpy as np

from hpcsgd.backends.cuda import kernels
from tests.helpers.kernels.emulator import Kernel, empty, on_device
from tests.helpers.kernels.mutants import Mutant

STARTS = [(0, 1), (0, 7, 20), (0, 33, 34, 100), (0, 20, 90, 200, 254), (0, 64, 128)]
MUTANTS = [
    Mutant("pack", "rows behind the last", "if (row < m)", "if (true)"),
    Mutant("pack", "columns behind the last", "col < m ?", "true ?"),
    Mutant("pack", "the tile's mirror image", "tiles[blockIdx.x] >> 16, J",
           "tiles[blockIdx.x] & 0xffffu, J"),
    Mutant("pack", "a quarter of a chunk", "four.y, col + 1", "four.y, col + 3"),
    Mutant("pack", "every other chunk", "at += 256 * 4", "at += 512 * 4"),
]  # fmt: skip


def check(text):
    """What mutants have to fail."""
    for starts in STARTS:
        agrees(starts, text)


def agrees(starts, text=None, tall=64):
    m, side = starts[-1], kernels.pitch_of(starts[-1], tall)
    tiles, _ = kernels.tiles_of(np.array(starts), tall)
    square, out = empty((m, side)), empty((max(len(tiles), 1), tall, tall))
    square[:, :m] = np.random.default_rng(m).normal(size=(m, m))
    kernel = Kernel("pack", "ELEMENT=3", text=text, entry="pack_tiles")
    if not len(tiles):
        return
    given = (square, c_longlong(side), m, tall.bit_length() - 1, on_device(tiles), out)
    kernel(*kernels.pack(len(tiles)), given)
    whole = np.zeros((side, side), np.float32)
    whole[:m, :m] = square[:, :m]
    for number, tile in enumerate(tiles):
        down, across = tall * int(tile >> 16), tall * int(tile & 0xFFFF)
        wanted = whole[down : down + tall, across : across + tall]
        np.testing.assert_array_equal(out[number], wanted)
