"""The store: bits as they were given, attributes, checksums, choices."""

import os

import h5py
import ml_dtypes
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from hpcsgd.data.checksums import AT_ONCE, block_sum
from hpcsgd.data.hdf5 import ELEMENTS, Hdf5Reader, StoreLayout
from hpcsgd.data.inspection import inspect
from hpcsgd.data.preparation import Scales
from hpcsgd.data.store import ColumnFacts, StoreWriter, verify_store
from hpcsgd.errors import ConfigError, DataError
from tests.helpers.store import (
    COLS,
    DENSE,
    ROWS,
    SPARSE,
    Y,
    contents,
    with_small_tiles,
    write,
    write_kind,
)

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
    with_small_tiles(monkeypatch)


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
        with StoreWriter(
            tmp_path / "a.h5", StoreLayout(values.shape[1], element=element)
        ) as writer:
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
        facts=ColumnFacts(Scales(np.arange(11.0), np.ones(11))),
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


@pytest.mark.parametrize(
    "options, said",
    [
        ({"element": "fp12"}, "known: fp64"),
        ({"scale": 0.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"cols": 0}, "at least one"),
    ],
)
def test_layouts_that_cannot_be(options, said):
    with pytest.raises(ConfigError, match=said):
        StoreLayout(**{"cols": 3, **options})


def test_an_unknown_side_column_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="sample_weight"):
        StoreWriter(tmp_path / "a.h5", StoreLayout(3), columns=("labels",))
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
        layout = StoreLayout(cols)
        size = layout.block_rows * layout.tile_cols * 4
        assert 2**19 < size <= 2**20
        assert (layout.tiles - 1) * layout.tile_cols < cols


SMALL = {  # rows, columns, density -> bytes beyond those of the values
    "three rows": (3, 2, 1.0, 2**14),
    "three sparse rows": (3, 2, 0.5, 2**14),
    "a sparse row of zeros": (1, 2, 0.0, 2**15),
    "wide": (100, 10000, 1.0, 2**16),
    "a little wider than a tile": (300, 257, 1.0, 2**15),
    "a little more than a block": (1025, 300, 1.0, 2**15),
    "a little more than a sparse block": (4100, 20, 0.3, 2**17),
}


@pytest.mark.cases("all")
@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_a_small_store_is_about_as_large_as_its_values(tmp_path, name, is_counted):
    rows, cols, density, more = SMALL[name]
    X = random_array((rows, cols), density=density, rng=7, dtype=np.float32)
    is_sparse, path = density < 1, tmp_path / "a.h5"
    X = csr_array(X) if is_sparse else X.toarray()
    size = 8 * rows + (8 * (X.nnz + rows) if is_sparse else X.nbytes)
    counted = rows if is_counted or rows > 1024 else None  # one block counts itself
    with StoreWriter(
        path, StoreLayout(cols, is_sparse=is_sparse), rows=counted
    ) as writer:
        writer.append(X, np.arange(rows))
    assert os.path.getsize(path) <= size + more
    reader = Hdf5Reader(path)
    block = reader.read(slice(0, rows), slice(0, cols))
    assert (block == (X.toarray() if is_sparse else X)).all()
    assert (reader.targets(slice(0, rows)) == np.arange(rows)).all()
    assert verify_store(path).is_good


def test_a_padded_store_of_an_earlier_version_is_read(tmp_path):
    X, y, path = np.arange(6, dtype="<f4").reshape(3, 2), np.arange(3.0), tmp_path / "a"
    layout = StoreLayout(2)
    tile = (layout.block_rows, layout.tile_cols)
    with h5py.File(path, "w", libver=("v108", "v108")) as file:
        file.attrs.update(layout.attributes(), shape=X.shape, finished=True)
        sums = {"X": [[block_sum(X)]], "y": [block_sum(y)]}
        for name, values, chunk in (("X", X, tile), ("y", y, (2**16,))):
            most = (None, *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunk, maxshape=most)
            total = np.array(sums[name], "<u8")
            file.create_dataset(f"checksums/{name}", data=total, chunks=True)
    assert os.path.getsize(path) > 2**20
    reader = Hdf5Reader(path)
    assert (reader.read(slice(0, 3), slice(0, 2)) == X).all()
    assert (reader.reader_of_blocks()(slice(1, 3), slice(0, 2)) == X[1:]).all()
    assert verify_store(path).is_good and verify_store(path).checked


def test_a_large_store_has_the_tiles_of_earlier_versions():
    for cols in (2, 256, 10000):
        plain = StoreLayout(cols)
        for rows in (8 * plain.block_rows, 10**9):
            assert StoreLayout(cols, rows=rows) == plain
    assert StoreLayout(7, is_sparse=True, rows=10**6).block_rows == 4096


@pytest.mark.parametrize("is_sparse", [False, True])
def test_queries_are_whole_numbers_with_checksums(tmp_path, is_sparse):
    path, qid = tmp_path / "a.h5", np.array([2**62 + 1, 0, 7] * 2000)
    rows = np.ones((len(qid), 2))
    with StoreWriter(
        path, StoreLayout(2, is_sparse=is_sparse), columns=("y", "qid")
    ) as writer:
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
