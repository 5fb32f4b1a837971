"""HDF5 files of any origin: each fault one sentence, nothing half-written."""

import json
import os
import shutil
from collections import namedtuple

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcsgd.data.hdf5 import Hdf5Reader, StoreLayout
from hpcsgd.data.readers import (
    READERS,
    MemoryReader,
    load_block,
    open_reader,
    read_chunks,
)
from hpcsgd.data.store import StoreWriter, verify_store
from hpcsgd.errors import ConfigError, DataError

X = np.arange(24.0).reshape(8, 3)
ALL = slice(0, 8)
ALL_COLUMNS = slice(0, 3)


def write(path, **content):
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            if value is None:
                file.create_group(name)
            else:
                file[name] = value
    return path


def single(piece):
    return piece.astype(np.float32)


def refuse(path, *words):
    with pytest.raises(DataError) as caught:
        Hdf5Reader(path)
    sentence = str(caught.value)
    assert "\n" not in sentence and path.name in sentence
    for word in words:
        assert word in sentence, sentence


def test_files_that_are_none(tmp_path):
    refuse(tmp_path / "none.h5", "does not exist")
    (tmp_path / "folder.h5").mkdir()
    refuse(tmp_path / "folder.h5", "is a folder")
    (tmp_path / "text.h5").write_text("1,2,3\n")
    refuse(tmp_path / "text.h5", "cannot be read as HDF5", "hpcsgd data synth")
    (tmp_path / "rows.svm").write_text("1 1:2\n")
    refuse(tmp_path / "rows.svm", "hpcsgd data convert ", "rows.h5")


@pytest.mark.parametrize(
    "content, words",
    [
        ({"Z": X, "labels": X[:, 0]}, ["no /X", "['Z', 'labels']"]),
        ({}, ["no /X", "nothing"]),
        ({"X": None, "y": X[:, 0]}, ["/X", "dense"]),
        ({"X": X[:, 0], "y": X[:, 0]}, ["/X", "dense"]),
        ({"X": 3.0, "y": X[:, 0]}, ["/X", "dense"]),
        ({"X": X[:0], "y": X[:0, 0]}, ["/X", "dense"]),
        ({"X": X, "y": None}, ["/y", "a group"]),
        ({"X": X, "y": [b"a"] * 8}, ["/y", "real numbers"]),
        ({"X": X, "y": ["a"] * 8}, ["/y", "real numbers"]),
        ({"X": X * 1j, "y": X[:, 0]}, ["/X", "real numbers", "complex"]),
        ({"X": X, "y": X[:7, 0]}, ["/y", "(7,)", "8 rows"]),
        ({"X": X, "y": X[:, :2]}, ["/y", "(8, 2)", "8 rows"]),
        ({"X": X, "y": X[:, 0], "offset": [1.0]}, ["/offset", "(1,)"]),
        ({"X": X, "y": X[:, 0], "sample_weight": None}, ["/sample_weight"]),
        ({"X": X.astype(np.longdouble)}, ["/X", "at most 64 bits", "float128"]),
        ({"X": h5py.SoftLink("/gone")}, ["/X", "a link that leads nowhere"]),
        ({"X": X, "y": h5py.ExternalLink("gone.h5", "y")}, ["/y", "leads nowhere"]),
    ],
)
def test_contents_that_do_not_suit(tmp_path, content, words):
    refuse(write(tmp_path / "a.h5", **content), *words)


def test_values_of_a_virtual_data_set_are_all_there(tmp_path):
    """HDF5 would read zeros in the place of a file that is missing."""
    write(tmp_path / "part.h5", X=X)
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[:] = h5py.VirtualSource("part.h5", "X", X.shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("X", layout, fillvalue=0.0)
    assert (Hdf5Reader(tmp_path / "a.h5").read(ALL, ALL_COLUMNS) == X).all()
    (tmp_path / "part.h5").unlink()
    refuse(tmp_path / "a.h5", "/X takes values from part.h5, which does not exist")


def test_a_file_without_targets_opens_and_has_none_to_give(tmp_path):
    """Predictions need no y; whoever asks for it is told."""
    reader = Hdf5Reader(write(tmp_path / "a.h5", X=X))
    np.testing.assert_array_equal(reader.read(slice(0, 8), slice(0, X.shape[1])), X)
    with pytest.raises(DataError, match=r"a\.h5 has no /y; it holds \['X'\]"):
        reader.targets(slice(0, 8))


def test_a_foreign_file_is_fine(tmp_path):
    """No attributes of ours, integers, a column as y, weights and offsets."""
    path = write(
        tmp_path / "a.hdf5",
        X=X.astype(np.int16),
        y=X[:, :1].astype(np.uint8),
        sample_weight=np.ones(8, dtype=np.float32),
        offset=X[:, 2],
    )
    reader = open_reader(path)
    block = reader.read(slice(2, 7), slice(1, 3))
    assert block.dtype == np.int16 and (block == X[2:7, 1:3]).all()
    for column in (reader.targets, reader.sample_weight, reader.offset):
        assert column(slice(1, 4)).dtype == np.float64
        assert column(slice(1, 4)).shape == (3,)
    assert (reader.targets(ALL) == X[:, 0]).all()
    assert (reader.offset(ALL) == X[:, 2]).all()
    reader.close()


def test_attributes_of_any_kind_can_be_written_as_json(tmp_path):
    path = write(tmp_path / "a.h5", X=X, y=X[:, 0])
    with h5py.File(path, "a") as file:
        file.attrs["names"] = ["a", "b", "c"]
        file.attrs["raw"] = np.bytes_(b"caf\xc3\xa9")
        file.attrs["scale"] = np.array([1.5, 2.5])
        file.attrs["empty"] = h5py.Empty("f")
    said = json.loads(json.dumps(Hdf5Reader(path).describe()))
    assert said["names"] == ["a", "b", "c"] and said["raw"] == "café"
    assert said["scale"] == [1.5, 2.5] and said["kind"] == "hdf5"


def test_a_damaged_chunk_is_named(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=np.ones((64, 8)), chunks=(64, 8), fletcher32=True)
        file["y"] = np.zeros(64)
        place = file["X"].id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as raw:
        raw.seek(place)
        raw.write(b"damage")
    reader = Hdf5Reader(path)
    with pytest.raises(DataError, match="/X cannot be read .* damaged"):
        reader.read(slice(0, 64), slice(0, 8))


def test_the_table_of_readers_leads_to_readers(tmp_path):
    for ending in (*READERS, ".H5", ".mat"):
        path = write(tmp_path / f"a{ending}", X=X, y=X[:, 0])
        reader = open_reader(path)
        assert (reader.rows, reader.cols) == (8, 3)
        reader.close()


def test_the_name_appears_only_when_the_file_is_whole(tmp_path):
    path = tmp_path / "a.h5"
    path.write_text("what was there before")
    with StoreWriter(path, StoreLayout(3), rows=8) as writer:
        writer.append(X[:5], X[:5, 0])
        assert path.read_text() == "what was there before"
        assert writer.raw.part.parent == tmp_path, "a rename, never a copy"
        writer.append(X[5:], X[5:, 0])
    assert os.listdir(tmp_path) == ["a.h5"]
    assert (Hdf5Reader(path).read(ALL, slice(0, 3)) == X).all()


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_an_exception_keeps_what_was_there(tmp_path, fault):
    path = tmp_path / "a.h5"
    path.write_text("what was there before")
    with pytest.raises(fault), StoreWriter(path, StoreLayout(3), rows=8) as writer:
        writer.append(X[:5], X[:5, 0])
        raise fault
    assert os.listdir(tmp_path) == ["a.h5"]
    assert path.read_text() == "what was there before"


@pytest.mark.parametrize(
    "rows, y", [(X[:, :2], X[:, 0]), (X, X[:7, 0]), (np.tile(X, (2, 1)), np.ones(16))]
)
def test_rows_that_do_not_fit_are_refused(tmp_path, rows, y):
    with (
        pytest.raises(DataError, match="do not fit"),
        StoreWriter(tmp_path / "a.h5", StoreLayout(3), rows=8) as writer,
    ):
        writer.append(rows, y)
    assert os.listdir(tmp_path) == []


def test_attributes_that_cannot_be_written_leave_nothing(tmp_path):
    with pytest.raises(TypeError):
        StoreWriter(
            tmp_path / "a.h5", StoreLayout(3), rows=8, attributes={"odd": object()}
        )
    assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="is a folder"):
        StoreWriter(tmp_path, StoreLayout(3), rows=8)
    with pytest.raises(ConfigError, match="missing or not writable"):
        StoreWriter(tmp_path / "no" / "a.h5", StoreLayout(3), rows=8)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**30, 2**30, 2**20))
    with pytest.raises(ConfigError, match="needs 3.73 GiB .* 0.000977 GiB free"):
        StoreWriter(tmp_path / "a.h5", StoreLayout(1000), rows=10**6)
    assert os.listdir(tmp_path) == []


def test_a_write_that_fails_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with (
        pytest.raises(DataError, match="No space left on device.*make room"),
        StoreWriter(tmp_path / "a.h5", StoreLayout(3), rows=8) as writer,
    ):
        writer.append(X, X[:, 0])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rows", [slice(0, 40), slice(3, 40), slice(7, 8)])
@pytest.mark.parametrize("budget", [1, 200, None])
def test_a_block_is_the_same_whatever_the_budget(rows, budget):
    data = np.random.default_rng(0).normal(size=(40, 5))
    reader = MemoryReader(data, np.zeros(40))
    block = load_block(
        reader,
        rows,
        slice(1, 4),
        single,
        chunks=read_chunks(reader, rows, slice(1, 4), budget),
    )
    assert block.dtype == np.float32
    assert (block == data[rows, 1:4].astype(np.float32)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("budget", [24, None])
def test_the_place_of_what_is_not_finite_is_global(value, budget):
    data = np.zeros((40, 5))
    data[17, 3] = value
    reader = MemoryReader(data, np.zeros(40))
    said = f"X has {value} at row 17, column 3; clean the file or drop that row"
    with pytest.raises(DataError, match=said):
        load_block(
            reader,
            slice(10, 30),
            slice(2, 5),
            np.array,
            chunks=read_chunks(reader, slice(10, 30), slice(2, 5), budget),
        )
    load_block(
        reader,
        slice(18, 30),
        slice(2, 5),
        np.array,
        chunks=read_chunks(reader, slice(18, 30), slice(2, 5), budget),
    )
    load_block(
        reader,
        slice(10, 30),
        slice(0, 3),
        np.array,
        chunks=read_chunks(reader, slice(10, 30), slice(0, 3), budget),
    )


@pytest.mark.parametrize("value", [1e300, -1e300])
def test_values_that_a_narrow_storage_would_lose_are_refused(value):
    """A sentinel like 1e300 is finite as read and infinite as float32."""
    data = np.zeros((40, 5))
    data[17, 3] = value
    reader = MemoryReader(data, np.zeros(40))
    with pytest.raises(DataError, match=r"1e\+300 at row 17, column 3.*fp64"):
        load_block(reader, slice(10, 30), slice(2, 5), single)
    kept = load_block(reader, slice(10, 30), slice(2, 5), np.array)
    assert kept[7, 1] == value


def write_csr(path, shape=(8, 3), **changes):
    held = csr_array(X)
    parts = {"indptr": held.indptr, "indices": held.indices, "data": held.data}
    with h5py.File(path, "w") as file:
        for name, value in {**parts, **changes}.items():
            file[f"X/{name}"] = value
        file["y"] = np.zeros(8)
        file["X"].attrs["shape"] = shape
    return path


def test_a_foreign_csr_file_is_fine(tmp_path):
    reader = open_reader(write_csr(tmp_path / "a.h5"))
    assert reader.is_sparse and (reader.rows, reader.cols, reader.nnz) == (8, 3, 23)
    assert (reader.read(slice(2, 7), slice(1, 3)) == X[2:7, 1:3]).all()
    assert (reader.read_csr(slice(0, 1), ALL_COLUMNS).toarray() == X[:1]).all()
    assert not verify_store(tmp_path / "a.h5").checked


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"shape": (9, 3)}, ["shape", "indptr"]),
        ({"shape": (8, 3, 1)}, ["shape"]),
        ({"data": np.ones(22)}, ["do not belong together"]),
        ({"data": ["a"] * 23}, ["/X/data", "real numbers"]),
        ({"indices": np.full(23, 0.7)}, ["/X/indices", "whole numbers", "float64"]),
        ({"indptr": np.linspace(0, 23, 9)}, ["/X/indptr", "whole numbers"]),
        ({"indptr": h5py.SoftLink("/gone")}, ["/X/indptr", "leads nowhere"]),
    ],
)
def test_csr_files_that_do_not_fit(tmp_path, changes, words):
    refuse(write_csr(tmp_path / "a.h5", **changes), *words)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"indices": np.full(23, 3)}, "columns outside of the matrix in rows 0 to 7"),
        ({"indices": np.full(23, -1)}, "columns outside of the matrix in rows 0 to 7"),
        ({"indptr": [0, 9, 3, 4, 5, 6, 7, 8, 23]}, "does not ascend in rows 0 to 7"),
        ({"indptr": [0, 1, 2, 3, 4, 5, 6, 99, 23]}, "does not ascend in rows 0 to 7"),
        (
            {"indptr": np.array([0, 9, 3, 4, 5, 6, 7, 8, 23], dtype=np.uint64)},
            "does not ascend in rows 0 to 7",
        ),
    ],
)
def test_csr_files_with_wrong_numbers(tmp_path, changes, said):
    path = write_csr(tmp_path / "a.h5", **changes)
    with pytest.raises(DataError, match=said):
        Hdf5Reader(path).read_csr(ALL, ALL_COLUMNS)
    assert said in verify_store(path).faults[0]
