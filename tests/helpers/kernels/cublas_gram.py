"""A Gram matrix by cuBLAS, for the tests."""

import numpy as np

from hpcsgd.backends.cuda.exchange import DenseProducts, GramTiles, Widths
from hpcsgd.backends.cuda.matrix import DeviceMatrix, sent
from hpcsgd.formats import encode
from hpcsgd.glm.unrolling import blocks_of
from tests.helpers.kernels.fake_device import FakeDevice

STARTS = (0, 60, 100, 170)
ROWS, COLUMNS = 300, 37


def case(starts=STARTS):
    """Products of rows of a small matrix."""
    device, rng = FakeDevice(), np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    held = np.zeros((ROWS, 40), np.uint16)
    held[:, :COLUMNS] = encode(X, "bf16").view(np.uint16)
    matrix = DeviceMatrix(sent(device, held), "bf16", ROWS, COLUMNS)
    return products_of(device, matrix, starts)


def products_of(device, matrix, starts):
    """By our kernels."""
    blocks = blocks_of(tuple(np.diff(starts).tolist()))
    tiles = GramTiles(device, blocks)
    return DenseProducts(device, matrix, blocks, tiles, Widths())
