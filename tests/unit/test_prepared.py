"""Rows are judged as the model was trained on them: the same columns, scaled alike."""

import gzip
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import hpcsgd
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.data.convert.csv import CsvOptions, CsvSource
from hpcsgd.data.convert.libsvm import LibsvmSource
from hpcsgd.data.convert.parallel import Crew
from hpcsgd.data.convert.pipeline import convert
from hpcsgd.data.convert.sources import Hdf5Source
from hpcsgd.data.convert.transform import ConversionProgress, Recipe, read_like
from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.readers import open_reader
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.runs.predict import evaluate_reader
from hpcsgd.runs.result import Result
from hpcsgd.studies.folder import first_rows

LONG = np.longdouble
NAMES = ["a", "b", "c", "d", "e"]
ROWS, COLS = 240, len(NAMES)
TRAIN = slice(0, 160)
TEST = slice(160, ROWS)
RNG = np.random.default_rng(3)
SIZES = np.array([1e3, 1.0, 1e-3, 20.0, 5.0])
X = RNG.normal(size=(ROWS, COLS)) * SIZES + SIZES * [5.0, -3.0, 1.0, 0.0, 9.0]
Y = ((X / SIZES - [5, -3, 1, 0, 9]) @ [1.0, -2.0, 1.5, 0.5, -1.0] > 0).astype(float)
HOLES = np.where(RNG.random((ROWS, COLS)) < 0.4, X, 0.0)
CONFIG = {
    "problem": {"family": "logistic", "l2": 0.01, "intercept": True},
    "rate": {"value": 0.2},
    "schedule": {"batch": 8, "steps": 2, "epochs": 4},
    "precision": {"recipe": "fp64"},
}


class Quiet(ConversionProgress):
    def begin(self, phase, total):
        """Nothing is shown."""

    def at(self, position):
        """Nothing is shown."""


def write_csv(path, rows, names=NAMES, label="label", X=X):
    columns = [NAMES.index(name) for name in names]
    lines = [",".join([label, *names])] if label else []
    for number in range(rows.start, rows.stop):
        values = [Y[number], *X[number, columns]]
        lines.append(",".join(repr(float(value)) for value in values))
    path.write_text("\n".join(lines) + "\n")
    return CsvSource(path)


def write_svm(path, rows, base=1):
    lines = []
    for number in range(rows.start, rows.stop):
        places = np.flatnonzero(HOLES[number])
        pairs = " ".join(f"{k + base}:{float(HOLES[number, k])!r}" for k in places)
        lines.append(f"{Y[number]:g} {pairs}")
    path.write_text("\n".join(lines) + "\n")
    return LibsvmSource(path)


def store(source, name, **recipe):
    """The path of a store in fp64 beside its source."""
    path = Path(source.path).with_name(name)
    convert(source, path, Recipe(element="fp64", **recipe), Quiet())
    return path


def train(path, **more):
    return hpcsgd.train({**CONFIG, "data": {"path": str(path)}, **more})


def evaluate(result, path):
    return evaluate_reader(result, lambda: open_reader(path), SerialCommunicator())


@pytest.fixture
def scaled(tmp_path):
    """The standardised file of the training rows."""
    return store(write_csv(tmp_path / "t.csv", TRAIN), "train.h5", standardize=True)


@pytest.fixture
def model(scaled):
    return train(scaled)


def longed(result, rows, mean, scale, unit=False):
    """Probabilities of raw rows in extended precision."""
    Z = (rows.astype(LONG) - mean) / scale
    if unit:
        Z = Z / np.sqrt((Z * Z).sum(axis=1, keepdims=True))
    t = Z @ result.weights.astype(LONG) + LONG(result.intercept)
    return 1 / (1 + np.exp(-t))


def moments(rows, centred=True):
    rows = rows.astype(LONG)
    if centred:
        return rows.mean(axis=0), rows.std(axis=0)
    return LONG(0), np.sqrt((rows * rows).mean(axis=0))


def test_raw_arrays_get_the_moments_of_the_training(model):
    expected = longed(model, X[TEST], *moments(X[TRAIN]))
    for rows in (X[TEST], X[TEST].tolist(), pd.DataFrame(X[TEST], columns=NAMES)):
        np.testing.assert_allclose(
            hpcsgd.predict(model, rows), expected.astype(float), rtol=1e-9
        )
    mean, scale = (np.asarray(one, dtype=float) for one in moments(X[TRAIN]))
    already = hpcsgd.predict(model, (X[TEST] - mean) / scale, scaled=True)
    np.testing.assert_allclose(already, expected.astype(float), rtol=1e-9)
    figures = hpcsgd.evaluate(model, X[TEST], Y[TEST])
    right = (expected > 0.5) == (Y[TEST] == 1)
    assert figures["accuracy"] == pytest.approx(right.mean(), abs=1e-12)
    assert figures["preparation"].startswith("rows were raw: scaled with the column")


def test_sparse_rows_too(tmp_path, model):
    """Of a model with centred columns they are filled in, block by block."""
    expected = longed(model, HOLES[TEST], *moments(X[TRAIN])).astype(float)
    found = hpcsgd.predict(model, sparse.csr_array(HOLES[TEST]))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    source = write_svm(tmp_path / "t.svm", TRAIN)
    path = store(source, "s.h5", standardize=True, layout="sparse")
    only_scaled = train(path)
    assert only_scaled.preparation.columns == "scaled"
    expected = longed(only_scaled, HOLES[TEST], *moments(HOLES[TRAIN], False))
    for rows in (sparse.csr_array(HOLES[TEST]), sparse.coo_array(HOLES[TEST])):
        found = hpcsgd.predict(only_scaled, rows)
        np.testing.assert_allclose(found, expected.astype(float), rtol=1e-9)
    dense = hpcsgd.predict(only_scaled, HOLES[TEST])
    np.testing.assert_allclose(dense, expected.astype(float), rtol=1e-9)


@pytest.mark.parametrize("standardize", [False, True])
def test_rows_of_length_1_too(tmp_path, standardize):
    recipe = {"unit_rows": True, "standardize": standardize}
    path = store(write_csv(tmp_path / "t.csv", TRAIN), "u.h5", **recipe)
    result = train(path)
    known = moments(X[TRAIN]) if standardize else (LONG(0), LONG(1))
    expected = longed(result, X[TEST], *known, unit=True).astype(float)
    np.testing.assert_allclose(hpcsgd.predict(result, X[TEST]), expected, rtol=1e-9)
    half = store(write_csv(tmp_path / "h.csv", TRAIN), "h.h5", standardize=standardize)
    said = evaluate(result, half)
    assert said["objective"] == pytest.approx(result.loss, rel=1e-9)
    assert "to length 1" in said["preparation"]
    if standardize:
        with pytest.raises(DataError, match="prepared otherwise"):
            evaluate(train(half), path)


def test_files_say_what_their_rows_are(tmp_path, scaled, model):
    raw = store(write_csv(tmp_path / "r.csv", TEST), "raw.h5")
    like = store(CsvSource(tmp_path / "r.csv"), "like.h5", like=read_like(scaled))
    own = store(CsvSource(tmp_path / "r.csv"), "own.h5", standardize=True)
    first, second = evaluate(model, raw), evaluate(model, like)
    assert "rows were raw" in first.pop("preparation")
    assert "rows were scaled already" in second.pop("preparation")
    assert first.pop("errors_by_label") == second.pop("errors_by_label")
    assert first.pop("family") == second.pop("family")
    assert first == pytest.approx(second, rel=1e-9)
    remedy = f"hpcsgd data convert --like {scaled}"
    with pytest.raises(DataError, match=f"own.h5 .*other means.*{remedy}"):
        evaluate(model, own)
    of_raw = train(store(CsvSource(tmp_path / "t.csv"), "t.h5"))
    assert "preparation" not in evaluate(of_raw, raw)
    with pytest.raises(DataError, match="unlike the training data; give raw rows"):
        evaluate(of_raw, like)
    with pytest.raises(DataError, match="own.h5"):
        list(hpcsgd.predict_blocks(model, open_reader(own)))


def test_on_its_own_data_a_model_has_the_loss_of_training(scaled, model, tmp_path):
    assert evaluate(model, scaled)["objective"] == pytest.approx(model.loss, rel=1e-12)
    raw = store(CsvSource(tmp_path / "t.csv"), "raw.h5")
    assert evaluate(model, raw)["objective"] == pytest.approx(model.loss, rel=1e-9)


def test_the_moments_stay_with_the_run(scaled, tmp_path):
    out = {"run": {"out": str(tmp_path / "run")}}
    result = train(scaled, **out)
    with h5py.File(scaled) as file:
        kept = {name: file[name][:] for name in ("column_means", "column_scales")}
    for one in (
        result,
        hpcsgd.load_result(tmp_path / "run"),
        hpcsgd.load(out["run"]["out"]),
    ):
        for name, array in one.preparation.arrays().items():
            assert (array == kept[name]).all()
        assert one.feature_names == NAMES
    said = {"columns": "standardized", "unit_rows": False}
    assert result.as_dict()["preparation"] == said
    resumed = train(scaled, run=out["run"] | {"resume": "auto"})
    found = hpcsgd.predict(resumed, X[TEST])
    assert (found == hpcsgd.predict(result, X[TEST])).all()


@pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
def test_every_way_to_train_keeps_them(scaled, tmp_path):
    fitted = hpcsgd.fit(str(scaled), "logistic", alpha=0.01)
    steps = hpcsgd.fit(str(scaled), "logistic", alpha=0.01, solver="coordinate")
    sweep = hpcsgd.sweep(
        {**CONFIG, "data": {"path": str(scaled)}}, l2=[0.01, 0.1]
    ).result(1)
    ranks = run_ranks(
        2,
        lambda world: hpcsgd.train(
            {**CONFIG, "data": {"path": str(scaled)}}, world=world
        ),
    )
    for result in (fitted, steps, sweep, *ranks):
        expected = longed(result, X[TEST], *moments(X[TRAIN])).astype(float)
        np.testing.assert_allclose(hpcsgd.predict(result, X[TEST]), expected, rtol=1e-9)


def test_a_run_of_an_earlier_version_warns_where_that_is_known(
    model, scaled, tmp_path, caplog
):
    earlier = replace(model, preparation=None)
    raw = store(write_csv(tmp_path / "r.csv", TEST), "raw.h5")
    evaluate(earlier, scaled)
    assert not caplog.records
    as_they_are = evaluate(earlier, raw)
    assert "the given rows are raw" in caplog.text and len(caplog.records) == 1
    own = store(CsvSource(tmp_path / "r.csv"), "own.h5", standardize=True)
    evaluate(earlier, own)
    assert "the given rows are standardized otherwise" in caplog.text
    assert as_they_are["accuracy"] != evaluate(model, raw)["accuracy"]
    earlier.save(tmp_path / "run")
    assert isinstance(again := hpcsgd.load_result(tmp_path / "run"), Result)
    assert again.preparation is None


def test_like_orders_columns_by_their_names(scaled, model, tmp_path):
    other = ["d", "a", "e", "c", "b"]
    source = write_csv(tmp_path / "o.csv", TEST, other)
    like = store(source, "like.h5", like=read_like(scaled))
    straight = store(
        write_csv(tmp_path / "s.csv", TEST), "s.h5", like=read_like(scaled)
    )
    read = [Hdf5Reader(p).read(slice(0, 80), slice(0, COLS)) for p in (like, straight)]
    assert (read[0] == read[1]).all() and Hdf5Reader(like).column_names == NAMES
    mean, scale = moments(X[TRAIN])
    np.testing.assert_allclose(
        read[0], ((X[TEST] - mean) / scale).astype(float), rtol=1e-9, atol=1e-12
    )
    raw = store(source, "raw.h5")
    with pytest.raises(DataError, match=r"column 0 is 'd' and was 'a'; .*--like"):
        evaluate(model, raw)
    again = store(Hdf5Source(raw), "again.h5", like=read_like(scaled))
    assert evaluate(model, again) == evaluate(model, like)
    lacking = write_csv(tmp_path / "l.csv", TEST, ["a", "b", "c", "d"], "target")
    with pytest.raises(DataError, match="lacks the columns 'e'"):
        store(lacking, "no.h5", like=read_like(scaled))
    with pytest.raises(DataError, match="lacks the columns 'e'"):
        evaluate(model, store(lacking, "lacking.h5"))
    assert not (tmp_path / "no.h5").exists()


def test_like_a_sparse_file_knows_its_columns_and_where_they_begin(tmp_path):
    recipe = {"standardize": True, "layout": "sparse"}
    train_file = store(write_svm(tmp_path / "t.svm", TRAIN, base=0), "t.h5", **recipe)
    text = tmp_path / "n.svm"
    text.write_text("1 1:2.0 3:4.0\n0 2:1.0\n")  # of columns from 0, none of them 0
    path = store(LibsvmSource(text), "n.h5", like=read_like(train_file))
    scale = moments(HOLES[TRAIN], False)[1]
    found = Hdf5Reader(path).read_csr(slice(0, 2), slice(0, COLS)).toarray()
    expected = np.array([[0, 2, 0, 4, 0], [0, 0, 1, 0, 0]]) / scale
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-12)
    assert (found != 0).sum() == 3 and Hdf5Reader(path).is_sparse


def test_missing_values_become_the_mean_of_the_training(scaled, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("y,e,d,c,b,a\n1,1,2,3,,5\n0,1,2,3,4,5\n")
    like = store(
        CsvSource(path, CsvOptions(missing="mean")), "m.h5", like=read_like(scaled)
    )
    row = Hdf5Reader(like).read(slice(0, 1), slice(0, COLS))[0]
    assert row[1] == 0.0 and (row[[0, 2, 3, 4]] != 0.0).all()


def test_missing_values_are_refused_where_the_training_stored_no_means(tmp_path):
    """They would become the means of the new rows, and predictions would be wrong."""
    path = tmp_path / "m.csv"
    path.write_text("y,a,b\n1,1,2\n0,3,\n1,5,6\n")
    plain = store(CsvSource(path, CsvOptions(missing="mean")), "plain.h5")
    with pytest.raises(ConfigError, match="plain.h5 does not store them; convert"):
        store(
            CsvSource(path, CsvOptions(missing="mean")), "n.h5", like=read_like(plain)
        )


def write_texts(path, lines):
    path.write_text("\n".join(["age,color,income", *lines]) + "\n")
    return path


def encoded(folder):
    """The store of a text with a column of text and labels that are text."""
    lines = ["30,red,yes", "40,blue,no", "50,red,yes", "20,green,no"]
    source = CsvSource(
        write_texts(folder / "train.csv", lines),
        CsvOptions(
            label_column="income",
            categories=("color",),
            label=(("yes", 1.0), ("no", 0.0)),
        ),
    )
    return store(source, "train.h5", standardize=True)


def test_a_store_remembers_levels_and_labels_that_were_text(tmp_path):
    path = encoded(tmp_path)
    copy = store(Hdf5Source(path), "copy.h5")
    part = first_rows(path, tmp_path / "parts", 4)
    for one in (path, copy, part):
        reader = Hdf5Reader(one)
        assert reader.column_names == ["age", "color=blue", "color=green", "color=red"]
        assert reader.categories == {"color": ["blue", "green", "red"]}
        assert reader.targets(slice(0, 4)).tolist() == [1, 0, 1, 0]
    assert Hdf5Reader(path).label_numbers == {"yes": 1.0, "no": 0.0}


def test_a_model_remembers_the_levels_of_its_data(tmp_path):
    run = tmp_path / "run"
    train(encoded(tmp_path), run={"out": str(run)})
    result = hpcsgd.load_result(run)
    assert result.report["categories"] == {"color": ["blue", "green", "red"]}
    assert result.feature_names == ["age", "color=blue", "color=green", "color=red"]


def test_like_encodes_texts_as_the_training(tmp_path):
    path = encoded(tmp_path)
    train = Hdf5Reader(path).read(slice(0, 4), slice(0, 4))
    other = write_texts(tmp_path / "test.csv", ["40,blue,no", "20,green,no"])
    for more in ({}, {"categories": ("color",)}):
        source = CsvSource(other, CsvOptions(label_column="income", **more))
        made = Hdf5Reader(store(source, f"{len(more)}.h5", like=read_like(path)))
        assert (made.read(slice(0, 2), slice(0, 4)) == train[[1, 3]]).all()
        assert made.targets(slice(0, 2)).tolist() == [0, 0]
        assert made.categories == {"color": ["blue", "green", "red"]}
    unlabelled = CsvSource(
        other, CsvOptions(label_column="none", categories=("color", "income"))
    )
    with pytest.raises(ConfigError, match=r"--categories color,income .*: color;"):
        store(unlabelled, "no.h5", like=read_like(path))


def test_like_refuses_a_level_that_the_training_has_not(tmp_path):
    path = encoded(tmp_path)
    other = write_texts(tmp_path / "test.csv", ["40,blue,no", "20,pink,no"])
    source = CsvSource(other, CsvOptions(label_column="income"))
    with pytest.raises(DataError, match=r"line 3 .*, column 'color': 'pink' is no lev"):
        store(source, "test.h5", like=read_like(path))
    assert not (tmp_path / "test.h5").exists()


@pytest.mark.parametrize("ranks", [1, 3])
def test_texts_are_encoded_alike_on_every_number_of_ranks(tmp_path, ranks):
    lines = [f"{n},level {n % 37},{n % 2}" for n in range(500)]
    path = write_texts(tmp_path / "a.csv", lines)

    def on_rank(world):
        source = CsvSource(
            path, CsvOptions(label_column="income", categories=("color",))
        )
        source.piece = 512
        recipe = Recipe(standardize=True, memory=64 * 2**20)
        convert(source, tmp_path / "a.h5", recipe, Quiet(), crew=Crew(world))

    run_ranks(ranks, on_rank)
    reader = Hdf5Reader(tmp_path / "a.h5")
    X = reader.read(slice(0, 500), slice(0, 38))
    codes = [reader.column_names.index(f"color=level {n % 37}") for n in range(500)]
    assert (X[np.arange(500), codes] > 0).all()
    assert ((X > 0)[:, 1:].sum(axis=1) == 1).all()
    np.testing.assert_allclose(X.astype(float).mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(X.astype(float).std(axis=0), 1, rtol=1e-6)


class Interrupted(Quiet):
    """Progress that is broken off once, in the middle of writing."""

    def __init__(self):
        self.steps = None

    def begin(self, phase, total):
        self.steps = 0 if phase == "writing" else None

    def at(self, position):
        if self.steps is not None:
            self.steps += 1
            if self.steps == 5:
                raise KeyboardInterrupt


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_conversion_of_texts_that_broke_off_goes_on(tmp_path, is_packed):
    lines = [f"{n},level {n % 37},{n % 2}" for n in range(500)]
    path = write_texts(tmp_path / "a.csv", lines)
    if is_packed:
        packed = gzip.compress(path.read_bytes())
        path = tmp_path / "a.csv.gz"
        path.write_bytes(packed)

    def written(name, progress, **more):
        source = CsvSource(
            path, CsvOptions(label_column="income", categories=("color",))
        )
        source.piece = 512
        convert(source, tmp_path / name, Recipe(), progress, **more)
        return tmp_path / name

    with pytest.raises(KeyboardInterrupt):
        written("a.h5", Interrupted())
    assert not (tmp_path / "a.h5").exists()
    readers = [
        Hdf5Reader(written("a.h5", Quiet(), resume=True)),
        Hdf5Reader(written("b.h5", Quiet())),
    ]
    one, other = (r.read(slice(0, 500), slice(0, 38)) for r in readers)
    assert (one == other).all() and one[:, 1:].sum() == 500


def test_like_is_refused_where_it_cannot_be(scaled, tmp_path):
    like = read_like(scaled)
    with pytest.raises(ConfigError, match="leave --standardize out"):
        Recipe(like=like, standardize=True)
    with pytest.raises(ConfigError, match="leave --unit-rows out"):
        Recipe(like=like, unit_rows=True)
    with pytest.raises(ConfigError, match="not sparse; leave --layout out"):
        Recipe(like=like, layout="sparse")
    for recipe in ({"like": like}, {"standardize": True}):
        with pytest.raises(DataError, match="scaled columns already"):
            store(Hdf5Source(scaled), "twice.h5", **recipe)
    wide = write_svm(tmp_path / "w.svm", TRAIN)
    wide.path.write_text("1 9:1.0\n")
    with pytest.raises(DataError, match="has 9 columns and .* has 5"):
        store(wide, "w.h5", like=like)


@pytest.mark.parametrize("element", ["bf16", "fp8-e4m3", "fp32"])
def test_a_store_converts_to_its_values_and_keeps_what_was_done(tmp_path, element):
    source = write_csv(tmp_path / "t.csv", TRAIN)
    recipe = Recipe(element=element, standardize=True, unit_rows=True)
    convert(source, tmp_path / "a.h5", recipe, Quiet())
    again = store(Hdf5Source(tmp_path / "a.h5"), "b.h5")
    first, second = Hdf5Reader(tmp_path / "a.h5"), Hdf5Reader(again)
    every = slice(0, 160), slice(0, COLS)
    assert (first.read(*every) == second.read(*every)).all()
    assert second.preparation.scales.equals(first.preparation.scales)
    assert second.preparation.unit_rows and second.column_names == NAMES
    assert (first.targets(every[0]) == second.targets(every[0])).all()


def test_a_sparse_store_converts_too(tmp_path):
    source = write_svm(tmp_path / "t.svm", TRAIN)
    first = store(source, "a.h5", layout="sparse")
    second = Hdf5Reader(store(Hdf5Source(first), "b.h5"))
    found = second.read_csr(slice(0, 160), slice(0, COLS)).toarray()
    assert second.is_sparse and (found == HOLES[TRAIN]).all()


def test_a_study_of_the_first_rows_keeps_what_was_done(scaled, tmp_path):
    part = Hdf5Reader(first_rows(scaled, tmp_path / "parts", 50))
    whole = Hdf5Reader(scaled)
    assert part.preparation.scales.equals(whole.preparation.scales)
    assert part.column_names == NAMES and part.rows == 50


FRAMES = {
    "pandas": lambda names: pd.DataFrame(X, columns=NAMES)[names],
    "polars": lambda names: pl.DataFrame(
        {name: X[:, NAMES.index(name)].tolist() for name in names}
    ),
}


@pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
@pytest.mark.parametrize("kind", FRAMES)
def test_names_of_a_frame_are_those_of_the_fit(kind):
    frame = FRAMES[kind]
    result = hpcsgd.fit(frame(NAMES), "logistic", Y, epochs=2)
    expected = hpcsgd.predict(result, X)
    found = hpcsgd.predict(result, frame(NAMES))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    other = [NAMES[1], NAMES[0], *NAMES[2:]]
    for judge in (
        lambda rows: hpcsgd.predict(result, rows),
        lambda rows: hpcsgd.evaluate(result, rows, Y),
    ):
        with pytest.raises(DataError, match="another order.*column 0 is 'b'"):
            judge(frame(other))
        with pytest.raises(DataError, match="lacks the columns 'd', 'e'"):
            judge(frame(NAMES[:3]))
    renamed = pd.DataFrame(X, columns=[*NAMES[:4], "z"])
    with pytest.raises(DataError, match="columns 'e' and has the columns 'z' beyond"):
        hpcsgd.predict(result, renamed)
    # Numbered columns have no names, as in scikit-learn.
    found = hpcsgd.predict(result, pd.DataFrame(X))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_paths_are_no_rows(model):
    with pytest.raises(DataError, match="hpcsgd predict"):
        hpcsgd.predict(model, "rows.h5")


@pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
def test_truth_values_of_frames_are_zeros_and_ones():
    flags = X[:, 1] > -3.0
    columns = {"a": X[:, 0], "flag": flags, "n": np.arange(ROWS)}
    as_numbers = np.column_stack([X[:, 0], flags, np.arange(ROWS)])
    expected = hpcsgd.fit(as_numbers, "logistic", Y, epochs=2)
    frames = {
        "pandas": pd.DataFrame(columns),
        "with pandas' own kinds": pd.DataFrame(columns).convert_dtypes(),
        "polars": pl.DataFrame({k: v.tolist() for k, v in columns.items()}),
        "sparse columns": pd.DataFrame(
            {
                "a": pd.arrays.SparseArray(columns["a"], fill_value=0.0),
                "flag": pd.arrays.SparseArray(flags, fill_value=False),
                "n": pd.arrays.SparseArray(columns["n"], fill_value=0),
            }
        ),
    }
    for name, frame in frames.items():
        found = hpcsgd.fit(frame, "logistic", Y, epochs=2)
        assert found.report["feature_names"] == list(columns), name
        np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-9)
        predicted = hpcsgd.predict(found, frame)
        np.testing.assert_allclose(
            predicted, hpcsgd.predict(expected, as_numbers), rtol=1e-9
        )
    narrow = pd.DataFrame({"a": X[:, 0].astype("f4"), "flag": flags})
    assert hpcsgd.fit(narrow, "logistic", Y, epochs=1).config["precision"][
        "recipe"
    ] == ("fp32")
    only = pd.DataFrame({"flag": flags, "other": ~flags})
    hpcsgd.fit(only, "logistic", Y, epochs=1)
