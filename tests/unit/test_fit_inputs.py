"""What rows may be in: nothing is copied that need not be, nothing is misread."""

import subprocess
import sys
import tracemalloc
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import hpcsgd
from hpcsgd.data.frames import to_column, to_matrix
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.runs.assembled_run import AssembledRun
from tests.helpers.problems import make_problem

PROBLEM = make_problem("logistic", n=60, d=5)
PLAIN = {"epochs": 2, "batch": 4}
pytestmark = pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")


def fitted(X, y=PROBLEM.y, **more):
    return hpcsgd.fit(X, "logistic", y, **(PLAIN | more))


def to_polars(frame):
    """Polars' own conversion wants one more package."""
    return pl.DataFrame({name: frame[name].to_list() for name in frame}).cast(
        {n: pl.Float32 for n in frame if frame[n].dtype == np.float32}
    )


@pytest.fixture
def shards(monkeypatch):
    """The matrices that runs trained on."""
    seen = []
    warm = AssembledRun.warm_up

    def look(live):
        seen.append(live.task.shard.matrix.values)
        warm(live)

    monkeypatch.setattr(AssembledRun, "warm_up", look)
    return seen


@pytest.mark.parametrize("dtype, recipe", [("f4", "fp32"), ("f8", "fp64")])
def test_rows_are_used_where_they_are(shards, dtype, recipe):
    X = np.ascontiguousarray(PROBLEM.X, dtype=dtype)
    assert fitted(X).config["precision"]["recipe"] == recipe
    assert np.shares_memory(shards[0], X)
    assert shards[0].flags.c_contiguous


@pytest.mark.parametrize(
    "dtype, recipe",
    [("i1", "fp32"), ("u2", "fp32"), ("?", "fp32"), ("i4", "fp64"), ("i8", "fp64")],
)
def test_whole_numbers_have_the_recipe_that_holds_them(dtype, recipe):
    X = (4 * PROBLEM.X).astype(dtype)
    X[0, 0] = 1
    assert fitted(X).config["precision"]["recipe"] == recipe


def test_other_rows_are_copied_once(shards):
    fitted(PROBLEM.X, precision="fp32")
    assert shards[0].dtype == np.float32
    assert not np.shares_memory(shards[0], PROBLEM.X)


@pytest.mark.cases(1)
@pytest.mark.parametrize("dtype, recipe", [("f4", "fp32"), ("f8", "fp64")])
def test_no_part_of_it_is_held_twice(dtype, recipe):
    """Beside X of 24 MB and more there are blocks of at most 8 MB of float64."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 200)).astype(dtype)
    y = (X[:, 0] > 0).astype(float)
    fitted(X[:100], y[:100], precision=recipe)  # what is loaded once
    tracemalloc.start()
    try:
        options = {"batch": 500, "steps": 1, "precision": recipe, "tol": 0.1}
        hpcsgd.fit(X, "logistic", y, epochs=1, **options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 16 MB for float64 of a block and its squares; y, scores and residuals.
    assert peak < 22e6


NUMBERS = {
    "a list": PROBLEM.X.tolist(),
    "columns first": np.asfortranarray(PROBLEM.X),
    "every second row of more": np.repeat(PROBLEM.X, 2, axis=0)[::2],
    "objects": PROBLEM.X.astype(object),
    "pandas": pd.DataFrame(PROBLEM.X),
    "pandas with its own kinds": pd.DataFrame(PROBLEM.X).astype("Float64"),
    "polars": pl.DataFrame(PROBLEM.X),
    "lazy polars": pl.DataFrame(PROBLEM.X).lazy(),
    "np.matrix": np.asmatrix(PROBLEM.X),
    "csr": sparse.csr_array(PROBLEM.X),
    "csc": sparse.csc_array(PROBLEM.X),
    "coo": sparse.coo_array(PROBLEM.X),
    "csr matrix": sparse.csr_matrix(PROBLEM.X),
    "pandas, sparse columns": pd.DataFrame(PROBLEM.X).astype(pd.SparseDtype("f8", 0.0)),
    "pandas, sparse about NaN": pd.DataFrame(PROBLEM.X).astype(pd.SparseDtype("f8")),
}


@pytest.mark.cases(3)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("name", NUMBERS)
def test_all_of_them_are_the_same_rows(name):
    expected = fitted(PROBLEM.X)
    found = fitted(NUMBERS[name])
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-10)
    assert found.report["data_fingerprint"] == expected.report["data_fingerprint"]


@pytest.mark.parametrize("make", [pd.Series, pl.Series, list, lambda y: y[:, None]])
def test_targets_too(make):
    found = fitted(PROBLEM.X, make(PROBLEM.y), sample_weight=make(PROBLEM.weights))
    expected = fitted(PROBLEM.X, sample_weight=PROBLEM.weights)
    assert found.weights_sha256 == expected.weights_sha256


def test_names_of_columns_are_kept():
    frame = pd.DataFrame(PROBLEM.X, columns=list("abcde"))
    for data in (frame, to_polars(frame)):
        assert fitted(data).report["feature_names"] == list("abcde")
    assert fitted(PROBLEM.X).report["feature_names"] is None


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_bad_value_of_a_frame_is_named_by_its_column(is_sparse):
    frame = pd.DataFrame(PROBLEM.X, columns=list("abcde"))
    frame.loc[3, "d"] = np.inf
    frames = [frame.astype(pd.SparseDtype("f8", 0.0))] if is_sparse else [frame]
    frames += [] if is_sparse else [to_polars(frame)]
    for data in frames:
        with pytest.raises(DataError, match=r"inf at row 3, column 3 \('d'\)"):
            fitted(data)


def test_narrow_kinds_stay_narrow():
    frame = pd.DataFrame(PROBLEM.X.astype("f4"), columns=list("abcde"))
    for data in (frame, to_polars(frame)):
        assert to_matrix(data).X.dtype == np.float32
    mixed = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5]})
    for data in (mixed, to_polars(mixed)):
        matrix = to_matrix(data).X
        assert np.asarray(matrix, dtype=float).tolist() == [[1, 1, 0.5], [2, 0, 1.5]]


TEXT = pd.DataFrame({"a": [1.0, 2.0], "city": ["x", "y"], "when": ["1", "2"]})
REFUSED = {
    "text": TEXT,
    "text in polars": to_polars(TEXT),
    "categories": TEXT.assign(city=pd.Categorical(["x", "y"])),
    "dates": TEXT.assign(city=pd.to_datetime(["2020-01-01", "2021-01-01"])),
    "dates in polars": pl.DataFrame({"a": [1.0], "city": [date(2020, 1, 1)]}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_are_no_numbers_are_named(name):
    with pytest.raises(DataError, match="'city'.*encode them, for example"):
        fitted(REFUSED[name], [0, 1])


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1.0, None], "b": [0.0, 1.0]}),
        pd.DataFrame({"a": [1, None], "b": [0, 1]}, dtype="Int64"),
        pl.DataFrame({"a": [1.0, None], "b": [0.0, 1.0]}),
    ],
)
def test_missing_values_are_named(frame):
    with pytest.raises(DataError, match="X has nan at row 1, column 0"):
        fitted(frame, [0, 1])


@pytest.mark.parametrize(
    "X, y, words",
    [
        (
            np.array([["a", 1]], dtype=object),
            [1],
            "holds .a. in column 0 at row 0, which is no number",
        ),
        (np.ma.masked_equal(PROBLEM.X, 0.0), PROBLEM.y, "masked array"),
        (PROBLEM.X.astype(complex), PROBLEM.y, "give real numbers"),
        (PROBLEM.X[:, 0], PROBLEM.y, "give a matrix"),
        (PROBLEM.X[:0], PROBLEM.y[:0], "give a matrix"),
        (PROBLEM.X, ["yes", "no"] * 30, "y is not numeric; encode"),
        (PROBLEM.X, PROBLEM.y[:-1], "give 60 values"),
        (PROBLEM.X, np.ma.masked_less(PROBLEM.y, 0.0), "y is a masked array"),
        (PROBLEM.X, pd.date_range("2020", periods=60), "y is not numeric"),
        (PROBLEM.X, PROBLEM.y + 1j, "y is not numeric"),
        ([[1.0, 2.0], [3.0]], [0, 1], "rows of different lengths"),
        (
            [[10**400], [1]],
            [0, 1],
            "holds .10*. in column 0 at row 0, which is no number",
        ),
    ],
)
def test_other_things_are_refused_in_one_sentence(X, y, words):
    with pytest.raises(DataError, match=words):
        fitted(X, y)


def test_training_loses_no_mask_either():
    """Nor do `evaluate` and `predict`, which read rows the same way."""
    hidden = np.ma.masked_equal(PROBLEM.X, PROBLEM.X[3, 1])
    for given in ({"X": hidden}, {"y": np.ma.masked_less(PROBLEM.y, 0.0)}):
        with pytest.raises(DataError, match="is a masked array, whose mask"):
            hpcsgd.train({}, **{"X": PROBLEM.X, "y": PROBLEM.y, **given})
    result = fitted(PROBLEM.X)
    with pytest.raises(DataError, match="X is a masked array"):
        hpcsgd.predict(result, hidden)
    with pytest.raises(DataError, match="offset is a masked array"):
        hpcsgd.predict(result, PROBLEM.X, offset=hidden[:, 1])


def test_family_and_y_are_not_mixed_up():
    with pytest.raises(ConfigError, match=r"pass targets as y=\.\.\."):
        hpcsgd.fit(PROBLEM.X, PROBLEM.y)
    with pytest.raises(ConfigError, match="y is missing; give the targets"):
        hpcsgd.fit(PROBLEM.X, "logistic")


def test_columns_of_any_kind():
    assert to_column("y", None) is None
    assert to_column("y", pd.Series([1, 2], dtype="Int64")).tolist() == [1.0, 2.0]
    assert to_column("y", [True, False]).dtype == np.float64


def test_nothing_of_mpi_is_imported_without_a_communicator():
    said = (
        "import sys, numpy as np, hpcsgd;"
        "X = np.random.default_rng(0).normal(size=(50, 3));"
        "hpcsgd.fit(X, 'gaussian', X[:, 0]);"
        "names = {m.partition('.')[0] for m in sys.modules};"
        "print(sorted(names & {'mpi4py', 'pandas', 'polars', 'sklearn', 'h5py',"
        " 'cupy', 'matplotlib'}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", said], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_rows_between_the_addresses_of_words_have_the_same_bits(dtype, precision):
    """Arrays that a worker unpickles from a message lie anywhere in it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(dtype)
    y = X @ np.array([1.0, -2.0, 0.5])
    shifted = np.empty(X.nbytes + 1, dtype=np.uint8)[1:].view(dtype).reshape(X.shape)
    shifted[...] = X
    assert X.flags.aligned and not shifted.flags.aligned
    more = {"alpha": 1.0, "precision": precision}
    first = hpcsgd.fit(X, "gaussian", y, **more)
    second = hpcsgd.fit(shifted, "gaussian", y, **more)
    assert first.weights_sha256 == second.weights_sha256
    assert first.loss == second.loss
