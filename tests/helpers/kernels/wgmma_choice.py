"""Cases of the choice between Gram kernels."""

import numpy as np

from hpcsgd.backends.cuda.exchange import DenseProducts, GramTiles, Widths
from hpcsgd.backends.cuda.matrix import DeviceMatrix, sent
from hpcsgd.formats import encode
from hpcsgd.glm.unrolling import blocks_of
from tests.helpers.kernels.fake_device import FakeDevice

STARTS = (0, 60, 100, 300)
ROWS, COLUMNS = 90, 37


def case(element="bf16", side=128, widths=None, starts=STARTS):
    """Products of rows of a small matrix, by our plain kernel."""
    device, rng = FakeDevice(), np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    held = np.zeros((ROWS, 40), np.float32 if element == "fp32" else np.uint16)
    stored = X if element == "fp32" else encode(X, element).view(np.uint16)
    held[:, :COLUMNS] = stored
    matrix = DeviceMatrix(sent(device, held), element, ROWS, COLUMNS)
    blocks = blocks_of(tuple(np.diff(starts).tolist()))
    tiles = GramTiles(device, blocks, side)
    return DenseProducts(device, matrix, blocks, tiles, widths or Widths())
