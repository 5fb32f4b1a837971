"""A small matrix, and the store that it is written to."""

import h5py
import numpy as np
from scipy.sparse import csr_array, random_array

from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import ColumnFacts, StoreWriter

ROWS, COLS = 23, 11
RNG = np.random.default_rng(5)
DENSE = RNG.normal(size=(ROWS, COLS))
SPARSE = csr_array(random_array((ROWS, COLS), density=0.4, rng=RNG))
Y = np.arange(ROWS) + 0.5


def write(path, X=DENSE, step=5, attributes=None, facts=None, **layout):
    with StoreWriter(
        path,
        StoreLayout(X.shape[1], **layout),
        columns=("y", "sample_weight", "offset"),
        attributes=attributes,
        column_facts=facts or ColumnFacts(),
    ) as writer:
        for a in range(0, X.shape[0], step):
            part = slice(a, min(a + step, X.shape[0]))
            writer.append(X[part], Y[part], Y[part] + 1, -Y[part])
    return path


def write_kind(path, is_sparse, **options):
    return write(path, SPARSE if is_sparse else DENSE, is_sparse=is_sparse, **options)


def contents(path):
    """Everything in a file but where HDF5 put it."""
    found = {}
    with h5py.File(path, "r") as file:
        found.update(file.attrs.items())
        file.visititems(
            lambda name, node: found.update(
                {name: node[()]} if isinstance(node, h5py.Dataset) else {}
            )
        )
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in found.items()}


def with_small_tiles(monkeypatch):
    """Tiles of 4 x 3 and blocks of 4 rows: edges everywhere."""
    monkeypatch.setattr("hpcsgd.data.hdf5.tile_shape", lambda *_: (4, 3))
