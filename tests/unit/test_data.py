"""Files, arrays and targets: what is read, refused, and never half-written."""

from functools import partial

import h5py
import numpy as np
import pytest

from hpcsgd.data import hdf5
from hpcsgd.data.hdf5 import Hdf5Reader, StoreLayout, open_hdf5
from hpcsgd.data.readers import MemoryReader, load_block
from hpcsgd.data.store import StoreWriter
from hpcsgd.data.synthetic import BLOCK, SHAPES, make_synthetic, write_synthetic
from hpcsgd.data.targets import encode_targets
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import encode as encode_as


def test_what_is_written_is_read(tmp_path):
    X = np.arange(60, dtype=np.float32).reshape(12, 5)
    y = np.arange(12.0)
    with StoreWriter(
        tmp_path / "a.h5", StoreLayout(5), rows=12, attributes={"task": "real"}
    ) as writer:
        writer.append(X[:7], y[:7])
        writer.append(X[7:], y[7:])
    reader = Hdf5Reader(tmp_path / "a.h5")
    assert (reader.rows, reader.cols) == (12, 5)
    np.testing.assert_array_equal(reader.read(slice(3, 9), slice(1, 4)), X[3:9, 1:4])
    np.testing.assert_array_equal(reader.targets(slice(5, 8)), y[5:8])
    assert reader.sample_weight(slice(0, 3)) is None
    assert reader.describe()["task"] == "real"
    assert reader.file.attrs["finished"]


@pytest.mark.parametrize("rows", [0, 7])
def test_an_abandoned_file_never_takes_its_name(tmp_path, rows):
    with pytest.raises((RuntimeError, DataError)):  # noqa: SIM117
        with StoreWriter(tmp_path / "a.h5", StoreLayout(5), rows=12) as writer:
            writer.append(np.zeros((rows, 5)), np.zeros(rows))
            if not rows:
                raise RuntimeError("the program failed")
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_file_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["y"] = np.zeros((2, 2)), np.zeros(2)
        file.attrs["finished"] = False
    with pytest.raises(DataError, match="never finished"):
        Hdf5Reader(tmp_path / "a.h5")


def test_a_truncated_file_is_refused(tmp_path):
    write_synthetic(tmp_path / "a.h5", "susy", 3000, 18, 0)
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read as HDF5"):
        Hdf5Reader(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "X, said",
    [(np.zeros(3), "dense rows x columns"), (np.array([[b"a"]] * 3), "real numbers")],
)
def test_matrices_that_are_none(tmp_path, X, said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["y"] = X, np.zeros(3)
    with pytest.raises(DataError, match=said):
        Hdf5Reader(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "X, y, said",
    [
        (np.zeros(3), np.zeros(3), "give a matrix"),
        (np.zeros((3, 2)), np.zeros(4), "give 3 values"),
        (np.array([["a"]]), np.zeros(1), "give real numbers"),
        (np.zeros((2, 1)), ["a", "b"], "not numeric"),
    ],
)
def test_arrays_that_do_not_fit(X, y, said):
    with pytest.raises(DataError, match=said):
        MemoryReader(X, y)


def test_blocks_are_read_in_pieces(monkeypatch):
    import hpcsgd.data.readers as readers

    monkeypatch.setattr(readers, "CHUNK_BYTES", 8 * 3 * 4)
    X = np.random.default_rng(0).normal(size=(31, 5))
    reader = MemoryReader(X, np.zeros(31))
    seen = []

    def store(piece):
        seen.append(len(piece))
        return piece.astype(np.float32)

    block = load_block(reader, slice(2, 29), slice(1, 4), store)
    np.testing.assert_array_equal(block, X[2:29, 1:4].astype(np.float32))
    assert seen == [4, 4, 4, 4, 4, 4, 3]
    X[17, 2] = np.inf
    with pytest.raises(DataError, match="inf at row 17, column 2"):
        load_block(reader, slice(2, 29), slice(1, 4), store)


def test_arrays_that_fit_are_not_copied():
    """All columns of float32 rows, as they are; others are converted."""
    X = np.ones((6, 4), dtype=np.float32)
    reader = MemoryReader(X, np.zeros(6))
    rows, every = slice(1, 5), slice(0, 4)
    keep = partial(encode_as, name="fp32")
    block = load_block(reader, rows, every, keep)
    assert np.shares_memory(block, X) and block.shape == (4, 4)
    assert not np.shares_memory(
        load_block(reader, rows, every, partial(encode_as, name="bf16")), X
    )
    wide = MemoryReader(X.astype(np.float64), np.zeros(6))
    assert not np.shares_memory(load_block(wide, rows, every, keep), wide.X)
    X[4, 2] = np.nan
    with pytest.raises(DataError, match="nan at row 4, column 2"):
        load_block(reader, rows, every, keep)


def test_large_finite_values_are_no_fault():
    """Their sum overflows; they are still numbers."""
    X = np.full((4, 3), 1e308)
    block = load_block(MemoryReader(X, np.zeros(4)), slice(0, 4), slice(0, 3), np.copy)
    assert (block == X).all()


def encode(y, kind, others=()):
    """As on a rank whose peers say `others`."""
    return encode_targets(np.asarray(y, float), kind, 100, lambda own: [own, *others])


def test_labels_become_what_the_family_wants():
    for labels in ((0, 1), (-1, 1), (3, 8)):
        y = np.array([labels[1], labels[0], labels[1]])
        encoded, targets = encode(y, "binary")
        assert encoded.ravel().tolist() == [1, 0, 1] and targets.labels == labels
        assert encode(y, "signed")[0].ravel().tolist() == [1, -1, 1]
    encoded, targets = encode([5, 2, 9], "classes")
    assert encoded.ravel().tolist() == [1, 0, 2] and targets.labels == (2, 5, 9)


@pytest.mark.parametrize(
    "y", [[3.0, 1.0, 3.0], [2.0, 2.0], [5.0, 1.0, 3.0, 1.0], [0.0, -2.0]]
)
def test_labels_are_the_distinct_values_in_order(y):
    """Two labels are found without sorting, as several are with it."""
    encoded, targets = encode(y, "classes", others=[np.array([7.0])])
    distinct = np.unique([*y, 7.0])
    assert targets.labels == tuple(distinct)
    assert (distinct[encoded.ravel().astype(int)] == y).all()


def test_labels_are_those_of_all_ranks():
    encoded, targets = encode([7, 7], "binary", others=[np.array([2.0])])
    assert encoded.ravel().tolist() == [1, 1] and targets.labels == (2, 7)


@pytest.mark.parametrize(
    "y, kind, said",
    [
        ([0, 1, 2], "binary", "3 labels .* softmax"),
        ([1, 1], "signed", "one label only"),
        ([0.5, 0.25], "classes", "gaussian"),
        ([1, -2], "counts", "-2 at row 101"),
        ([1, 0], "positive", "0 at row 101"),
    ],
)
def test_targets_that_do_not_suit(y, kind, said):
    with pytest.raises(DataError, match=said):
        encode(y, kind)


def test_a_fault_on_another_rank_is_raised_here_too():
    with pytest.raises(DataError, match="elsewhere"):
        encode([1, 2], "counts", others=["y is -1 elsewhere"])


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_shapes(shape):
    X, y = next(make_synthetic(shape, 400, 24, seed=1))
    assert X.shape == (400, 24) and X.dtype == np.float32 and len(y) == 400
    if SHAPES[shape].task == "counts":
        assert (y >= 0).all() and (y == y.round()).all() and 1 < y.max() < 1000
    else:
        assert set(y) == {0.0, 1.0} and 0.3 < y.mean() < 0.7
    if shape == "epsilon":
        np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1, rtol=1e-5)


def test_first_rows_do_not_depend_on_how_many_are_asked_for():
    small = list(make_synthetic("susy", 10, 18, 0))
    large = list(make_synthetic("susy", BLOCK + 5, 18, 0))
    assert [len(X) for X, _ in large] == [BLOCK, 5]
    np.testing.assert_array_equal(small[0][0], large[0][0][:10])
    np.testing.assert_array_equal(small[0][1], large[0][1][:10])
    assert (next(make_synthetic("susy", 10, 18, 1))[0] != small[0][0]).any()


def test_synthetic_needs_a_shape_rows_and_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="known: "):
        next(make_synthetic("moon", 1, 1, 0))
    with pytest.raises(ConfigError, match="at least 1"):
        next(make_synthetic("susy", 0, 1, 0))
    with pytest.raises(ConfigError, match="folder is missing"):
        write_synthetic(tmp_path / "no" / "x.h5", "susy", 5, 2, 0)


def test_a_file_behind_mpi_io_is_closed_with_its_reader(tmp_path, monkeypatch):
    """HDF5 refuses to free such a file while data sets of it are open."""
    path = tmp_path / "rows.h5"
    write_synthetic(path, "susy", 20, 3, 0)
    monkeypatch.setattr(hdf5, "open_parallel", lambda at, mpi: open_hdf5(at))
    reader = Hdf5Reader(path, "a communicator")
    values = reader.read(slice(0, 20), slice(0, 18))
    file = reader.file
    assert file.id.valid and len(values) == 20
    del reader
    assert not file.id.valid
