"""Which columns a member owns: as many values as the others, where they are stored."""

import numpy as np
import pytest
import scipy.sparse as sp

from hpcsgd.api import train
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.hdf5 import Hdf5Reader, StoreLayout
from hpcsgd.data.readers import MemoryReader
from hpcsgd.data.store import StoreWriter
from hpcsgd.runs.load import column_parts

ROWS, COLS, MEMBERS = 400, 90, 3


def skewed():
    """Columns as words of a text are: the first is everywhere, the last hardly."""
    rng = np.random.default_rng(0)
    share = 1 / (1 + np.arange(COLS))
    X = rng.normal(size=(ROWS, COLS)) * (rng.random((ROWS, COLS)) < share)
    return X.astype(np.float32)


def parts_on(reader, partition, replicas=1):
    def run(world):
        return column_parts(Grid(world, replicas, MEMBERS), reader, partition)

    found = run_ranks(replicas * MEMBERS, run)
    assert all(parts == found[0] for parts in found)
    return found[0]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("partition", ["auto", "stored"])
def test_members_hold_as_many_values(partition, replicas):
    X = skewed()
    stored = np.count_nonzero(X, axis=0)
    reader = MemoryReader(sp.csr_array(X), np.zeros(ROWS))
    parts = parts_on(reader, partition, replicas)
    held = [stored[part].sum() for part in parts]
    assert max(held) <= stored.sum() / MEMBERS + stored.max()
    equal = parts_on(reader, "equal")
    assert [part.stop - part.start for part in equal] == [30, 30, 30]
    assert max(held) < stored[equal[0]].sum() / 1.5


def test_the_columns_are_counted_in_one_sum():
    """Besides one exchange of whether all could: d words of 8 bytes, and only then."""
    reader = MemoryReader(sp.csr_array(skewed()), np.zeros(ROWS))

    def run(world):
        grid = Grid(world, 1, MEMBERS)
        column_parts(grid, reader, "equal")
        before = world.ledger.as_dict()["control"]
        column_parts(grid, reader, "stored")
        return before, world.ledger.as_dict()["control"]

    for before, after in run_ranks(MEMBERS, run):
        assert before["calls"] == 0 and after["calls"] == 2
        assert 8 * COLS <= after["bytes"] < 8 * COLS + 100


def test_dense_columns_are_shared_equally():
    reader = MemoryReader(skewed(), np.zeros(ROWS))
    assert parts_on(reader, "auto") == parts_on(reader, "equal")


def test_a_sparse_store_trains_as_its_dense_rows(tmp_path):
    """From the file, on members of unlike width, to the same weights."""
    X, y = skewed(), (np.arange(ROWS) % 2).astype(float)
    for name, values, is_sparse in (("s", sp.csr_array(X), True), ("d", X, False)):
        path = tmp_path / f"{name}.h5"
        with StoreWriter(path, StoreLayout(COLS, is_sparse=is_sparse)) as writer:
            writer.append(values, y)

    def weights(name, members):
        config = {
            "data": {"path": str(tmp_path / f"{name}.h5")},
            "schedule": {"batch": 20, "steps": 4, "epochs": 3},
            "precision": {"recipe": "fp64"},
            "products": {"kind": "gram"},
            "grid": {"replicas": 1, "members": members},
            "rate": {"value": 0.05},
        }
        return run_ranks(members, lambda world: train(config, world=world))[0].weights

    wanted = weights("d", 1)
    for members in (1, 2, 3):
        np.testing.assert_allclose(weights("s", members), wanted, rtol=1e-11)
    assert Hdf5Reader(tmp_path / "s.h5").is_sparse
