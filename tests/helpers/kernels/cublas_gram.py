"""A Gram matrix by cuBLAS, for the tests."""

import numpy as np

from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_matrix import DeviceMatrix
from hpcsgd.backends.device_products import DenseProducts, Tiles, Widths
from hpcsgd.schedule import blocks_of
from hpcsgd.storage import encode
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
    tiles = Tiles(device, blocks)
    return DenseProducts(device, matrix, blocks, tiles, Widths())
