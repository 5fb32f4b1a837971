"""Stores that are damaged or cannot be written: named, and nothing is left behind."""

import os
import resource
import subprocess
import sys

import h5py
import numpy as np
import pytest

from hpcsgd.data.hdf5 import Hdf5Reader, StoreLayout
from hpcsgd.data.store import StoreWriter, verify_store
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.limits import HANG
from tests.helpers.store import (
    COLS,
    DENSE,
    SPARSE,
    Y,
    with_small_tiles,
    write,
)


@pytest.fixture
def small_tiles(monkeypatch):
    with_small_tiles(monkeypatch)


def places(path, name):
    """(first byte in the file, first row and column, bytes of an entry) of chunks."""
    with h5py.File(path, "r") as file:
        node = file[name]
        chunks = [node.id.get_chunk_info(k) for k in range(node.id.get_num_chunks())]
        return [(c.byte_offset, c.chunk_offset, node.dtype.itemsize) for c in chunks]


def flip(path, place):
    with open(path, "r+b") as raw:
        raw.seek(place)
        byte = raw.read(1)[0]
        raw.seek(place)
        raw.write(bytes([byte ^ 0x10]))


def test_every_damaged_byte_of_a_tile_is_found_and_named(tmp_path, small_tiles):
    path = write(tmp_path / "a.h5", DENSE[:9, :5], element="bf16")
    said = verify_store(path)
    assert said.checked and said.is_good and said.blocks == 3
    for place, (row, column), item in places(path, "X"):
        last, end = min(row + 3, 8), min(column + 2, 4)
        for i, j, byte in np.ndindex(last - row + 1, end - column + 1, item):
            at = place + (i * 3 + j) * item + byte
            flip(path, at)
            (fault,) = verify_store(path).faults
            assert f"columns {column} to {end} of rows {row} to {last};" in fault
            flip(path, at)
    assert verify_store(path).is_good


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["y", "sample_weight", "X/indices", "X/data"])
def test_every_damaged_byte_elsewhere_is_found(tmp_path, small_tiles, name):
    path = write(tmp_path / "a.h5", SPARSE[:9, :5], is_sparse=True)
    with h5py.File(path) as file:
        used = file[name].nbytes
    left = used
    for place, _, _ in places(path, name):
        chunk = min(left, 4 * 8 if name in ("y", "sample_weight") else used)
        left -= chunk
        for at in range(place, place + chunk):
            flip(path, at)
            faults = verify_store(path).faults
            assert len(faults) == 1 and "rows " in faults[0] and "damaged" in faults[0]
            flip(path, at)
        assert verify_store(path).is_good
    assert left == 0


def test_damaged_pointers_are_found(tmp_path, small_tiles):
    path = write(tmp_path / "a.h5", SPARSE[:9, :5], is_sparse=True)
    place = places(path, "X/indptr")[0][0]
    for at in range(place, place + 10 * 8):
        flip(path, at)
        try:
            found = verify_store(path).faults
        except DataError as error:  # the first or last: it does not even open
            found = [str(error)]
        assert found and "again" in found[0]
        flip(path, at)


def test_training_reads_what_it_can_check(tmp_path, small_tiles):
    """Whole tiles, and nearly whole ones; a single row is not widened."""
    path = write(tmp_path / "a.h5", element="fp32")
    place = places(path, "X")[0][0]
    flip(path, place)
    reader = Hdf5Reader(path)
    said = "X differs from its checksum in columns 0 to 2 of rows 0 to 3"
    for rows, cols in [(slice(0, 8), slice(0, 6)), (slice(0, 23), slice(0, 10))]:
        with pytest.raises(DataError, match=said):
            reader.read(rows, cols)
    with pytest.raises(DataError, match=said):
        reader.read(slice(1, 23), slice(0, 11))
    reader.read(slice(0, 1), slice(0, 1))
    reader.read(slice(4, 23), slice(0, 11))
    reader.checks = False
    reader.read(slice(0, 8), slice(0, 6))


def test_truncated_and_unfinished_files_are_refused(tmp_path):
    path = write(tmp_path / "a.h5")
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) // 2, 100):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="cannot be read as HDF5"):
            Hdf5Reader(path)
    path = write(tmp_path / "b.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["finished"] = False
    with pytest.raises(DataError, match="never finished"):
        verify_store(tmp_path / "b.h5")


FULL = """
import sys, numpy as np, resource
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import DataError
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
X = np.ones((500, 100))
try:
    with StoreWriter(sys.argv[1], StoreLayout(100)) as writer:
        for _ in range(40):
            writer.append(X, X[:, 0])
except DataError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.cases(2)
@pytest.mark.parametrize("limit", [100, 5_000, 70_000, 3_000_000, 8_000_000])
def test_a_full_disk_is_one_sentence(tmp_path, limit):
    """8.4 MB do not fit; the interpreter goes on and nothing is left behind."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "a.h5"), str(limit)],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout.count("\n") == 1 and "File too large" in ended.stdout
    assert ended.stderr == "" and os.listdir(tmp_path) == []


def test_two_writers_of_one_file(tmp_path):
    with StoreWriter(tmp_path / "a.h5", StoreLayout(COLS)) as writer:
        part = tmp_path / ".a.h5.part"
        assert part.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ConfigError, match="another program is writing it"):
            StoreWriter(tmp_path / "a.h5", StoreLayout(COLS))
        writer.append(DENSE, Y)
    assert os.listdir(tmp_path) == ["a.h5"]


def test_what_a_killed_writer_left_is_replaced(tmp_path):
    (tmp_path / ".a.h5.part").write_text("of a writer that was killed")
    write(tmp_path / "a.h5")
    assert os.listdir(tmp_path) == ["a.h5"]


def test_a_planted_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    os.symlink(tmp_path / "precious", tmp_path / ".a.h5.part")
    with pytest.raises(ConfigError, match="cannot write"):
        write(tmp_path / "a.h5")
    assert (tmp_path / "precious").read_text() == "kept"
