"""Stores that are damaged, broken off or cannot be written: named, gone on with."""

import os
import resource
import subprocess
import sys

import h5py
import numpy as np
import pytest

from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.store_writer import StoreWriter
from hpcsgd.data.verify_store import verify_store
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.limits import HANG
from tests.helpers.store import (
    COLS,
    DENSE,
    SPARSE,
    Y,
    contents,
    with_small_tiles,
    write,
    write_kind,
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
    with pytest.raises(RuntimeError):  # noqa: SIM117
        with StoreWriter(tmp_path / "b.h5", COLS, resumable=True) as writer:
            writer.append(DENSE, Y)
            writer.flush()
            raise RuntimeError
    os.rename(tmp_path / ".b.h5.part", tmp_path / "b.h5")
    with pytest.raises(DataError, match="never finished"):
        verify_store(tmp_path / "b.h5")


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("stop", [0, 2, 4, 7, 21])
def test_broken_off_and_gone_on_with_is_as_undisturbed(
    tmp_path, small_tiles, is_sparse, stop
):
    X = SPARSE if is_sparse else DENSE
    columns = ("y", "sample_weight", "offset")
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with StoreWriter(
            tmp_path / "b.h5",
            COLS,
            columns=columns,
            is_sparse=is_sparse,
            resumable=True,
        ) as writer:
            part = tmp_path / ".b.h5.part"
            assert part.stat().st_mode & 0o777 == 0o600
            writer.append(X[:stop], Y[:stop], Y[:stop] + 1, -Y[:stop], position=stop)
            writer.flush()
            writer.append(X[stop:], Y[stop:], Y[stop:] + 1, -Y[stop:], position=99)
            raise KeyboardInterrupt
    assert not (tmp_path / "b.h5").exists()
    with StoreWriter.reopen(tmp_path / "b.h5") as writer:
        assert (writer.done, writer.position) == (stop, stop)
        writer.append(X[stop:], Y[stop:], Y[stop:] + 1, -Y[stop:])
    path = write_kind(tmp_path / "a.h5", is_sparse)
    assert contents(tmp_path / "b.h5") == contents(path)
    assert sorted(os.listdir(tmp_path)) == ["a.h5", "b.h5"]


# Forks of a process that has imported all of it: a kill costs no start of Python.
PROGRAM = """
import os, signal, sys, time, numpy as np
from pathlib import Path
from hpcsgd.data.store_writer import StoreWriter

path, steps = Path(sys.argv[1]), int(sys.argv[2])
waits = np.random.default_rng(1).uniform(0.0, 0.15, size=int(sys.argv[3]))

def write(say):
    if path.with_name(f".{path.name}.part").exists():
        writer = StoreWriter.reopen(path)
    else:
        writer = StoreWriter(path, 40, resumable=True)
    say()
    for step in range(writer.position, steps):
        X = np.random.default_rng(step).normal(size=(700, 40))
        writer.append(X, X[:, 0], position=step + 1)
        if step % 3 == 2:
            writer.flush()
    writer.finish()

kills = 0
for wait in waits:
    heard, said = os.pipe()
    child = os.fork()
    if not child:
        write(lambda: os.write(said, b"."))
        os._exit(0)
    os.close(said)
    assert os.read(heard, 1) == b"."
    os.close(heard)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    kills += os.waitpid(child, 0)[1] != 0
    if path.exists():
        break
else:
    write(lambda: None)
print(kills)
"""


def test_killed_at_any_moment_and_gone_on_with(tmp_path):
    path, whole, kills = tmp_path / "a.h5", tmp_path / "b.h5", []
    for one, times in ((path, 40), (whole, 0)):
        command = [sys.executable, "-c", PROGRAM, str(one), "60", str(times)]
        done = subprocess.run(
            command, check=True, timeout=HANG, capture_output=True, text=True
        )
        kills.append(int(done.stdout))
    assert kills[0] > 0 and kills[1] == 0
    assert contents(path) == contents(whole)
    assert verify_store(path).is_good
    assert sorted(os.listdir(tmp_path)) == ["a.h5", "b.h5"]


FULL = """
import sys, numpy as np, resource
from hpcsgd.data.store_writer import StoreWriter
from hpcsgd.errors import DataError
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
X = np.ones((500, 100))
try:
    with StoreWriter(sys.argv[1], 100) as writer:
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


def test_room_again_after_a_full_disk(tmp_path, monkeypatch):
    """What was flushed before the disk was full is gone on with."""
    real = os.pwrite

    def full(number, data, place):
        if place > 4_000_000:
            raise OSError(28, "No space left on device")
        return real(number, data, place)

    X = np.random.default_rng(0).normal(size=(2000, 700))
    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(DataError, match=r"No space left.*go on from the last flush"),
        StoreWriter(tmp_path / "a.h5", 700, resumable=True) as writer,
    ):
        writer.append(X[:500], X[:500, 0])
        writer.flush()
        writer.append(X[500:], X[500:, 0])
    monkeypatch.undo()
    with StoreWriter.reopen(tmp_path / "a.h5") as writer:
        assert writer.done == 500
        writer.append(X[500:], X[500:, 0])
    read = Hdf5Reader(tmp_path / "a.h5").read(slice(0, 2000), slice(0, 700))
    assert (read == X.astype(np.float32)).all()


def test_two_writers_of_one_file(tmp_path):
    with StoreWriter(tmp_path / "a.h5", COLS) as writer:
        with pytest.raises(ConfigError, match="another program is writing it"):
            StoreWriter(tmp_path / "a.h5", COLS)
        writer.append(DENSE, Y)
    assert os.listdir(tmp_path) == ["a.h5"]


def test_what_a_killed_writer_left_is_replaced(tmp_path):
    (tmp_path / ".a.h5.part").write_text("of a writer that was killed")
    with pytest.raises(DataError, match="cannot be gone on with"):
        StoreWriter.reopen(tmp_path / "a.h5")
    write(tmp_path / "a.h5")
    assert os.listdir(tmp_path) == ["a.h5"]
    with pytest.raises(DataError, match="nothing to go on with"):
        StoreWriter.reopen(tmp_path / "a.h5")


def test_a_planted_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("kept")
    os.symlink(tmp_path / "precious", tmp_path / ".a.h5.part")
    with pytest.raises(ConfigError, match="cannot write"):
        write(tmp_path / "a.h5")
    assert (tmp_path / "precious").read_text() == "kept"
