"""Tiles read past HDF5 are what HDF5 reads."""

import h5py
import numpy as np
import pytest

from hpcsgd.data import scatter
from hpcsgd.data.tiles import open_tiles


@pytest.fixture(params=["compiled", "python"], autouse=True)
def way(request, monkeypatch):
    """By the loop in C and by its twin."""
    if request.param == "python":
        monkeypatch.setattr(scatter, "_compiled", lambda: None)
    elif scatter._compiled() is None:
        pytest.skip("not compiled here")


X = np.random.default_rng(0).normal(size=(103, 37))


@pytest.mark.parametrize("chunks", [None, (16, 8), (103, 37), (7, 37), (103, 5)])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "u2"])
def test_blocks_are_those_of_the_dataset(chunks, dtype, tmp_path):
    values = (100 * X).astype(dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=values, chunks=chunks)
    with h5py.File(tmp_path / "x.h5", "r") as file:
        tiles = open_tiles(tmp_path / "x.h5", file["X"])
        for rows in (slice(0, 103), slice(5, 6), slice(15, 49), slice(100, 103)):
            for cols in (slice(0, 37), slice(3, 4), slice(7, 30), slice(36, 37)):
                found = tiles.read(rows, cols)
                np.testing.assert_array_equal(found, values[rows, cols])
                assert found.dtype == values.dtype
        assert tiles.read(slice(4, 4), slice(0, 3)).shape == (0, 3)
        tiles.close()


def test_more_rows_than_one_call_takes(tmp_path):
    values = np.arange(5000.0 * 7).reshape(5000, 7)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=values, chunks=(4000, 5))
    with h5py.File(tmp_path / "x.h5", "r") as file:
        tiles = open_tiles(tmp_path / "x.h5", file["X"])
    for cols in (slice(0, 7), slice(1, 4), slice(1, 6)):
        found = tiles.read(slice(3, 4998), cols)
        np.testing.assert_array_equal(found, values[3:4998, cols])


def test_what_only_hdf5_can_read_is_left_to_it(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("packed", data=X, compression="gzip")
        file.create_dataset("foreign", data=X.astype(">f8"))
        file.create_dataset("sparse", (1000, 10), chunks=(10, 10), dtype="f4")
        file.create_dataset("empty", (1000, 10), dtype="f4")
    with h5py.File(tmp_path / "x.h5", "r") as file:
        for name in file:
            assert open_tiles(tmp_path / "x.h5", file[name]) is None, name


def test_a_file_that_was_cut_meanwhile_is_an_error(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(16, 8))
    with h5py.File(path, "r") as file:
        tiles = open_tiles(path, file["X"])
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(OSError, match="ends at byte"):
        tiles.read(slice(0, 103), slice(0, 37))


def test_reads_that_the_system_cuts_short_go_on(tmp_path, monkeypatch):
    """At any byte: in the middle of a row, of a number, of what is passed over."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(103, 20))
    with h5py.File(path, "r") as file:
        tiles = open_tiles(path, file["X"])
    real, some = scatter._call, np.random.default_rng(1)

    def short(number, pieces, offset):
        few = np.ascontiguousarray(pieces[: some.integers(1, 40)])
        if some.random() < 0.7:
            few = few[:1].copy()
            few[0, 1] = some.integers(1, few[0, 1] + 1)
        return real(number, few, offset)

    monkeypatch.setattr(scatter, "_compiled", lambda: None)
    monkeypatch.setattr(scatter, "_call", short)
    for cols in (slice(0, 37), slice(3, 31)):
        np.testing.assert_array_equal(tiles.read(slice(1, 99), cols), X[1:99, cols])
