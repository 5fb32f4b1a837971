"""Direct reads: the numbers of the file, whatever is asked for, or one sentence."""

import os
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from hpcsgd.data.gpudirect import DirectReader
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError, DataError, MissingPackage

SHAPE = (300, 37)
BLOCKS = {
    "all": (slice(0, 300), slice(0, 37)),
    "inside": (slice(61, 199), slice(5, 33)),
    "one tile column": (slice(64, 256), slice(16, 32)),
    "as wide, in two": (slice(0, 200), slice(5, 21)),
    "last": (slice(299, 300), slice(36, 37)),
    "no rows": (slice(7, 7), slice(0, 37)),
}


class CuFile:
    """Reads as kvikio documents it: `pread` returns what `get` ends."""

    seen: list = []

    def __init__(self, file, flags="r"):
        assert flags == "r"
        self.file = os.open(file, os.O_RDONLY)

    def pread(self, buf, size=None, file_offset=0, task_size=None):
        self.seen.append(buf)
        return SimpleNamespace(get=lambda: self._get(buf, size, file_offset))

    def _get(self, buf, size, offset):
        data = os.pread(self.file, size, offset)
        if len(data) < size:
            raise RuntimeError("POSIX error on pread: EOF")
        memoryview(buf).cast("B")[:size] = data
        return size

    def close(self):
        os.close(self.file)


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(CuFile, "seen", [])
    monkeypatch.setitem(sys.modules, "kvikio", SimpleNamespace(CuFile=CuFile))


@pytest.fixture(params=["stand-in", "kvikio"])
def either(request, tmp_path):
    if request.param == "stand-in":
        request.getfixturevalue("stand_in")
        return
    kvikio = pytest.importorskip("kvikio", reason="kvikio is not installed")
    (tmp_path / "few").write_bytes(b"12345678")
    try:
        with kvikio.CuFile(tmp_path / "few", "r") as file:
            file.read(np.empty(1))
    except RuntimeError as error:
        pytest.skip(f"kvikio reads nothing here: {error}")


def write(path, chunks=None, dtype="f4", **options):
    X = np.random.default_rng(0).standard_normal(SHAPE).astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=chunks, **options)
    return X


@pytest.mark.parametrize("rows, cols", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("chunks", [None, (64, 16), (7, 37)])
def test_blocks_are_those_of_the_file(tmp_path, either, chunks, rows, cols):
    X = write(tmp_path / "x.h5", chunks)
    reader = DirectReader(tmp_path / "x.h5")
    out = np.empty((rows.stop - rows.start, cols.stop - cols.start), dtype="f4")
    reader.read_into(out, rows, cols)
    reader.close()
    np.testing.assert_array_equal(out, X[rows, cols])


def test_the_bits_of_a_store(tmp_path, either):
    path = tmp_path / "x.h5"
    X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    with StoreWriter(path, StoreLayout(SHAPE[1], element="bf16")) as writer:
        writer.append(X, np.zeros(len(X)))
    out = np.empty(SHAPE, dtype=np.uint16)
    DirectReader(path).read_into(out, slice(0, 300), slice(0, 37))
    with h5py.File(path) as file:
        np.testing.assert_array_equal(out, file["X"][:])


@pytest.mark.parametrize("name, in_place", [("one tile column", True), ("all", False)])
def test_whole_tile_columns_are_read_in_place(tmp_path, stand_in, name, in_place):
    write(tmp_path / "x.h5", (64, 16))
    (rows, cols), waited = BLOCKS[name], []
    out = np.empty((rows.stop - rows.start, cols.stop - cols.start), dtype="f4")
    reader = DirectReader(tmp_path / "x.h5", lambda: waited.append(len(CuFile.seen)))
    reader.read_into(out, rows, cols)
    assert {np.shares_memory(out, buffer) for buffer in CuFile.seen} == {in_place}
    assert waited[0] == 0 and len(waited) == -(-len(out) // 64)


def test_a_truncated_file_is_one_sentence(tmp_path, either):
    write(tmp_path / "x.h5")
    reader = DirectReader(tmp_path / "x.h5")
    os.truncate(tmp_path / "x.h5", 3000)
    with pytest.raises(DataError, match="cannot be read by kvikio"):
        reader.read_into(np.empty(SHAPE, "f4"), slice(0, 300), slice(0, 37))


def test_what_cannot_be_read_directly_is_said(tmp_path, stand_in):
    write(tmp_path / "x.h5", (64, 16), compression="gzip")
    with pytest.raises(DataError, match="compressed"):
        DirectReader(tmp_path / "x.h5")


@pytest.mark.parametrize(
    "out, said",
    [
        (np.empty((300, 37)), "and dtype float32"),
        (np.empty((300, 36), "f4"), r"give one of shape \(300, 37\)"),
        (np.empty((37, 300), "f4").T, "C-contiguous"),
    ],
)
def test_arrays_that_do_not_suit(tmp_path, stand_in, out, said):
    write(tmp_path / "x.h5")
    with pytest.raises(ConfigError, match=said):
        DirectReader(tmp_path / "x.h5").read_into(out, slice(0, 300), slice(0, 37))


def test_blocks_outside_are_refused(tmp_path, stand_in):
    write(tmp_path / "x.h5")
    with pytest.raises(ConfigError, match="not a block"):
        DirectReader(tmp_path / "x.h5").read_into(
            np.empty((1, 37), "f4"), slice(300, 301), slice(0, 37)
        )


def test_without_kvikio_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(MissingPackage, match="pip install kvikio-cu12"):
        DirectReader(tmp_path / "x.h5")
