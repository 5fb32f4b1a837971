"""The store: bits as they were given, damage named, writing that can be broken off."""

import os
import resource
import subprocess
import sys
import time

import h5py
import ml_dtypes
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from hpcsgd.data import store_writer
from hpcsgd.data.checksums import AT_ONCE, block_sum
from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.inspection import inspect
from hpcsgd.data.layout import ELEMENTS, Layout
from hpcsgd.data.store_writer import StoreWriter
from hpcsgd.data.verify_store import verify_store
from hpcsgd.errors import ConfigError, DataError

ROWS, COLS = 23, 11
RNG = np.random.default_rng(5)
DENSE = RNG.normal(size=(ROWS, COLS))
SPARSE = csr_array(random_array((ROWS, COLS), density=0.4, rng=RNG))
Y = np.arange(ROWS) + 0.5
TYPES = {
    "fp64": np.float64,
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8-e4m3": ml_dtypes.float8_e4m3fn,
    "fp8-e5m2": ml_dtypes.float8_e5m2,
}


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 4 x 3 and blocks of 4 rows: edges everywhere."""
    monkeypatch.setattr("hpcsgd.data.layout._tile", lambda *_: (4, 3))


def write(path, X=DENSE, step=5, **options):
    columns = ("y", "sample_weight", "offset")
    with StoreWriter(path, X.shape[1], columns=columns, **options) as writer:
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


def test_the_types_are_all_tried():
    assert set(TYPES) == set(ELEMENTS)


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("element", sorted(TYPES))
@pytest.mark.parametrize("is_sparse", [False, True])
def test_every_element_type_comes_back_bit_for_bit(
    tmp_path, small_tiles, element, scale, is_sparse
):
    path = write_kind(tmp_path / "a.h5", is_sparse, element=element, scale=scale)
    given = SPARSE.toarray() if is_sparse else DENSE
    held = (given / scale).astype(TYPES[element])
    wide = np.float64 if element == "fp64" else np.float32
    reader = Hdf5Reader(path)
    block = reader.read(slice(0, ROWS), slice(0, COLS))
    assert block.dtype == wide
    assert (block == held.astype(wide) * wide(scale)).all()
    assert reader.read(slice(0, 0), slice(0, 0)).dtype == wide
    if not is_sparse:
        bits = reader.read_stored(slice(0, ROWS), slice(0, COLS))
        assert bits.tobytes() == held.tobytes()
    assert verify_store(path).is_good


def test_all_values_of_the_narrow_types(tmp_path):
    for element, bits in (("bf16", np.uint16), ("fp8-e4m3", np.uint8)):
        stored = np.arange(np.iinfo(bits).max + 1, dtype=bits).view(TYPES[element])
        values = stored.astype(np.float32)[None, :]
        with StoreWriter(tmp_path / "a.h5", values.shape[1], element=element) as writer:
            writer.append(values, [0.0])
        read = Hdf5Reader(tmp_path / "a.h5").read(slice(0, 1), slice(0, len(stored)))
        np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_what_an_element_type_cannot_hold_is_refused(tmp_path, is_sparse):
    X = np.eye(ROWS, COLS)
    X[9, 9] = 500.0
    X = csr_array(X) if is_sparse else X
    with pytest.raises(DataError, match="500 at row 9 is too large for fp8-e4m3"):
        write(tmp_path / "a.h5", X, element="fp8-e4m3", is_sparse=is_sparse)
    assert os.listdir(tmp_path) == []
    write(tmp_path / "a.h5", X, element="fp8-e4m3", is_sparse=is_sparse, scale=2.0)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_any_slab_is_that_of_the_whole(tmp_path, small_tiles, is_sparse):
    reader = Hdf5Reader(write_kind(tmp_path / "a.h5", is_sparse, element="fp64"))
    whole = SPARSE.toarray() if is_sparse else DENSE
    assert reader.is_sparse is is_sparse
    assert reader.nnz == (SPARSE.nnz if is_sparse else ROWS * COLS)
    for a, b, c, d in [(0, 23, 0, 11), (3, 9, 2, 7), (4, 8, 3, 6), (22, 23, 10, 11)]:
        rows, cols = slice(a, b), slice(c, d)
        assert (reader.read(rows, cols) == whole[rows, cols]).all()
        block = reader.read_csr(rows, cols)
        assert isinstance(block, csr_array) and block.shape == (b - a, d - c)
        assert (block.toarray() == whole[rows, cols]).all()
        assert (reader.targets(rows) == Y[rows]).all()
        assert (reader.sample_weight(rows) == Y[rows] + 1).all()
        assert (reader.offset(rows) == -Y[rows]).all()


def test_how_rows_arrive_leaves_no_trace(tmp_path, small_tiles):
    for is_sparse in (False, True):
        one = contents(write_kind(tmp_path / "a.h5", is_sparse, step=ROWS))
        for step in (1, 3, 4, 7):
            assert contents(write_kind(tmp_path / "b.h5", is_sparse, step=step)) == one


def test_attributes(tmp_path):
    path = write(
        tmp_path / "a.h5",
        attributes={"task": "binary", "source": "test", "classes": [0.0, 1.0]},
        means=np.arange(11.0),
        scales=np.ones(11),
    )
    said = Hdf5Reader(path).describe()
    assert said["shape"] == [ROWS, COLS] and said["finished"] is True
    assert said["element"] == "fp32" and said["task"] == "binary"
    norm = np.linalg.norm(DENSE, axis=1).max()
    assert said["max_row_norm"] == pytest.approx(norm, rel=1e-6)
    assert contents(path)["column_means"] == list(range(11))
    assert os.stat(path).st_mode & 0o777 == 0o666 & ~store_umask()


def store_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_newer_format_is_refused(tmp_path):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file.attrs["format_version"] = 99
    with pytest.raises(DataError, match="version 99 .* newer hpcsgd"):
        Hdf5Reader(path)


@pytest.mark.parametrize("name", ["shape", "element", "block_rows"])
def test_attributes_that_are_missing_are_refused(tmp_path, name):
    path = write(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        del file.attrs[name]
    with pytest.raises(DataError, match=r"incomplete.*write the file again"):
        Hdf5Reader(path)


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


PROGRAM = """
import sys, numpy as np
from pathlib import Path
from hpcsgd.data.store_writer import StoreWriter
path, steps = Path(sys.argv[1]), int(sys.argv[2])
if path.with_name(f".{path.name}.part").exists():
    writer = StoreWriter.reopen(path)
else:
    writer = StoreWriter(path, 40, resumable=True)
print("ready", flush=True)
for step in range(writer.position, steps):
    X = np.random.default_rng(step).normal(size=(700, 40))
    writer.append(X, X[:, 0], position=step + 1)
    if step % 3 == 2:
        writer.flush()
writer.finish()
"""


def test_killed_at_any_moment_and_gone_on_with(tmp_path):
    path, steps, kills = tmp_path / "a.h5", 60, 0
    command = [sys.executable, "-c", PROGRAM, str(path), str(steps)]
    waits = np.random.default_rng(1).uniform(0.0, 0.15, size=40)
    for wait in waits:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        time.sleep(wait)
        process.kill()
        kills += process.wait(timeout=60) != 0
        process.stdout.close()
        if path.exists():
            break
    else:
        subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert kills
    whole = tmp_path / "b.h5"
    command[3] = str(whole)
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
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


@pytest.mark.parametrize("limit", [100, 5_000, 70_000, 3_000_000, 8_000_000])
def test_a_full_disk_is_one_sentence(tmp_path, limit):
    """8.4 MB do not fit; the interpreter goes on and nothing is left behind."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "a.h5"), str(limit)],
        capture_output=True,
        text=True,
        timeout=60,
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


def test_flushes_happen_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(store_writer, "FLUSH_BYTES", 5 * COLS * 4)
    with pytest.raises(KeyError):  # noqa: SIM117
        with StoreWriter(tmp_path / "a.h5", COLS, resumable=True) as writer:
            writer.append(DENSE[:3], Y[:3])
            writer.append(DENSE[3:6], Y[3:6])
            writer.append(DENSE[6:8], Y[6:8])
            raise KeyError
    writer = StoreWriter.reopen(tmp_path / "a.h5")
    assert writer.done == 6
    writer.abandon()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "options, said",
    [
        ({"element": "fp12"}, "known: fp64"),
        ({"scale": 0.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"cols": 0}, "at least one"),
        ({"columns": ("labels",)}, "sample_weight"),
    ],
)
def test_choices_that_cannot_be(tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        StoreWriter(tmp_path / "a.h5", **{"cols": 3, **options})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 8 * AT_ONCE - 1, 8 * AT_ONCE + 13])
def test_the_checksum_is_its_formula(size):
    data = np.random.default_rng(size).integers(0, 256, size=size, dtype=np.uint8)
    words = np.frombuffer(data.tobytes().ljust(-(-size // 8) * 8, b"\0"), "<u8")
    wanted = 0
    for number, word in list(enumerate(words.tolist())):
        z = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        wanted += (z ^ (z >> 31) | 1) * word
    assert block_sum(data) == wanted % 2**64


def test_tiles_of_any_width_are_about_a_megabyte():
    for cols in (1, 18, 255, 256, 257, 10**6):
        layout = Layout(cols)
        size = layout.block_rows * layout.tile_cols * 4
        assert 2**19 < size <= 2**20
        assert (layout.tiles - 1) * layout.tile_cols < cols


@pytest.mark.parametrize("is_sparse", [False, True])
def test_queries_are_whole_numbers_with_checksums(tmp_path, is_sparse):
    path, qid = tmp_path / "a.h5", np.array([2**62 + 1, 0, 7] * 2000)
    rows = np.ones((len(qid), 2))
    with StoreWriter(path, 2, columns=("y", "qid"), is_sparse=is_sparse) as writer:
        for at in range(0, len(qid), 1000):
            part = slice(at, at + 1000)
            writer.append(rows[part], y=qid[part] * 0.0, qid=qid[part])
    reader = Hdf5Reader(path)
    found = reader.queries(slice(0, len(qid)))
    assert found.dtype == np.int64 and (found == qid).all()
    assert inspect(reader)["queries"] == {"distinct": 3, "min": 0, "max": 2**62 + 1}
    reader.close()
    assert not verify_store(path).faults
    with h5py.File(path, "r+") as file:
        file["qid"][5] = 8
    assert any("/qid differs from its checksum" in s for s in verify_store(path).faults)
