"""Arrays of other makers come block by block, from any row on, or are refused."""

from itertools import pairwise

import h5py
import numpy as np
import pytest
import scipy.sparse

from hpcsgd.data.convert.sources import Hdf5Source, NpySource, NpzSource
from hpcsgd.errors import ConfigError, DataError

ROWS, COLS = 103, 7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, COLS)).astype(np.float32)
Y = RNG.normal(size=ROWS)
S = scipy.sparse.random(ROWS, COLS, 0.3, format="csr", random_state=0)


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    (tmp_path / "y.txt").write_text("\n".join(map(repr, Y.tolist())) + "\n")
    np.save(tmp_path / "xy.npy", np.column_stack([Y, X]))
    np.savez(tmp_path / "d.npz", X=X, y=Y)
    np.savez_compressed(tmp_path / "c.npz", X=X, y=Y)
    scipy.sparse.save_npz(tmp_path / "s.npz", S)
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file.create_dataset("features", data=X, chunks=(10, 3), compression="gzip")
        file["label"], file["w"] = Y.reshape(-1, 1), Y**2
    return tmp_path


def sources(folder):
    names = {"x_name": "features", "y_name": "label", "weight_name": "w"}
    return [
        NpySource(folder / "x.npy", labels=folder / "y.npy"),
        NpySource(folder / "x.npy", labels=folder / "y.txt"),
        NpySource(folder / "xy.npy", label_column=0),
        NpzSource(folder / "d.npz"),
        NpzSource(folder / "c.npz"),
        NpzSource(folder / "s.npz", labels=folder / "y.txt"),
        Hdf5Source(folder / "h.h5", **names),
    ]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("budget", [1, 1000, 2**20])
@pytest.mark.parametrize("start", [0, 50, ROWS - 1])
def test_rows_from_any_one_on(files, number, budget, start):
    source = sources(files)[number]
    outline = source.outline(lambda _: None)
    assert (outline.rows, outline.cols, outline.labelled) == (ROWS, COLS, True)
    found, at = [], start
    for block in source.blocks(outline, budget, start):
        at += block.X.shape[0]
        assert block.end == at and block.X.dtype.kind == "f"
        dense = outline.nnz is None
        found.append(block.X if dense else block.X.toarray())
        assert (block.y == Y[at - len(found[-1]) : at]).all()
        if number == 6:
            assert (block.weights == Y[at - len(found[-1]) : at] ** 2).all()
    assert at == ROWS
    wanted = X if outline.nnz is None else S.toarray()
    assert (np.concatenate(found) == wanted[start:]).all()


def test_a_small_budget_makes_small_blocks(files):
    for source in sources(files):
        outline = source.outline(lambda _: None)
        sizes = [b.X.shape[0] for b in source.blocks(outline, 1000)]
        assert max(sizes) < ROWS / 2, type(source)


def test_sparse_rows_in_any_order_come_in_order(tmp_path):
    """As SciPy saves them: columns of a row need not ascend, and may come twice."""
    indptr, data = 2 * S.indptr, np.repeat(S.data, 2)
    indices = np.concatenate(
        [np.tile(S.indices[a:b][::-1], 2) for a, b in pairwise(S.indptr)]
    )
    twice = scipy.sparse.csr_array((data, indices, indptr), shape=S.shape)
    scipy.sparse.save_npz(tmp_path / "u.npz", twice)
    source = NpzSource(tmp_path / "u.npz")
    found = list(source.blocks(source.outline(lambda _: None), 10**6))
    assert all(block.X.has_canonical_format for block in found)
    rows = np.concatenate([block.X.toarray() for block in found])
    assert (rows == twice.toarray()).all() and (rows != 0).any()


def refuse(make, error, said):
    with pytest.raises(error, match=said):
        source = make()
        outline = source.outline(lambda _: None)
        list(source.blocks(outline, 10**6))


def test_what_cannot_be_read_is_one_sentence(files):
    np.save(files / "o.npy", np.array([[None, 1]]), allow_pickle=True)
    np.save(files / "f.npy", np.asfortranarray(np.ones((3, 3))))
    np.save(files / "v.npy", np.ones(3))
    (files / "cut.npy").write_bytes((files / "x.npy").read_bytes()[:-9])
    (files / "bad.txt").write_text("1\nx\n")
    (files / "long.txt").write_text("1\n" * (ROWS + 1))
    (files / "short.txt").write_text("1\n" * (ROWS - 1))
    scipy.sparse.save_npz(files / "csc.npz", S.tocsc())
    npy = lambda name, **more: lambda: NpySource(files / name, **more)  # noqa: E731
    refuse(npy("none.npy"), DataError, "does not exist")
    refuse(npy("."), DataError, "is a folder")
    refuse(npy("y.txt"), DataError, "no NumPy array")
    refuse(npy("o.npy"), DataError, "give real numbers")
    refuse(npy("f.npy"), DataError, "ascontiguousarray")
    refuse(npy("v.npy"), DataError, "rows and columns")
    refuse(npy("cut.npy"), DataError, "ends too early")
    refuse(npy("x.npy", label_column=9), ConfigError, "columns 0 to 6")
    refuse(npy("x.npy", label_column=0, labels="y"), ConfigError, "column and --labels")
    refuse(npy("x.npy", labels=files / "bad.txt"), DataError, "line 2: b'x'")
    refuse(npy("x.npy", labels=files / "long.txt"), DataError, "more labels")
    refuse(npy("x.npy", labels=files / "short.txt"), DataError, "fewer labels")
    refuse(npy("x.npy", labels=files / "v.npy"), DataError, "one value for each row")
    refuse(lambda: NpzSource(files / "x.npy"), DataError, "no .npz file")
    refuse(lambda: NpzSource(files / "csc.npz"), DataError, "tocsr")
    refuse(lambda: NpzSource(files / "d.npz", x_name="Z"), DataError, "has no array Z")
    refuse(lambda: Hdf5Source(files / "h.h5"), DataError, "--x-name")
    with h5py.File(files / "l.h5", "w") as file:
        file["X"] = h5py.ExternalLink("gone.h5", "X")
        layout = h5py.VirtualLayout(X.shape, X.dtype)
        layout[:] = h5py.VirtualSource("gone.h5", "X", X.shape)
        file.create_virtual_dataset("V", layout)
    refuse(lambda: Hdf5Source(files / "l.h5"), DataError, "a link that leads nowhere")
    gone = lambda: Hdf5Source(files / "l.h5", x_name="V")  # noqa: E731
    refuse(gone, DataError, "takes values from gone.h5, which does not exist")
    refuse(
        lambda: Hdf5Source(files / "h.h5", x_name="features", y_name="q"),
        DataError,
        "--y-name",
    )
    refuse(lambda: Hdf5Source(files / "x.npy"), DataError, "check --format")


@pytest.mark.parametrize(
    "name, remedy",
    [
        ("features", "choose another data set with --x-name"),
        ("label", "choose another data set with --y-name"),
        ("sample_weight", "write it again in numbers, or delete it from the file"),
        ("offset", "write it again in numbers, or delete it from the file"),
        ("qid", "write it again in numbers, or delete it from the file"),
    ],
)
def test_text_in_an_hdf5_file_is_refused_with_a_remedy_that_works(files, name, remedy):
    with h5py.File(files / "h.h5", "a") as file:
        if name in file:
            del file[name]
        file[name] = ["a"] * ROWS
    source = Hdf5Source(files / "h.h5", x_name="features", y_name="label")
    refuse(lambda: source, DataError, f"not object; {remedy}")
