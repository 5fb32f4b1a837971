"""Wrong input is one sentence, on one rank, with the right exit code; no traceback."""

import os

import h5py
import numpy as np
import pytest
import scipy.sparse

from tests.helpers.command_line import refuse


def write(path, X, y, **more):
    with h5py.File(path, "w") as file:
        if X is not None:
            file["X"] = X
        if y is not None:
            file["y"] = y
        for name, value in more.items():
            file[name] = value
    return path


@pytest.fixture
def good():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    return X, (X[:, 0] > 0).astype(float)


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


WRONG_FLAGS = [
    (["--stepz", "3"], ["no flag --stepz", "(did you mean --steps?)", "--help"]),
    (["--steps", "many"], ["'many'", "or auto"]),
    (["--batch", "0"], ["batch = 0", "at least 1"]),
    (["--steps", "0"], ["steps = 0", "at least 1"]),
    (["--family", "cauchy"], ["invalid choice: 'cauchy'", "choose one of binomial,"]),
    (["--precision", "fp7"], ["invalid choice: 'fp7'"]),
    (["--grid", "2"], ["2", "RxC"]),
    (["--grid", "1x2"], ["needs 2 ranks", "this run has 1", "--ranks 2"]),
    (["--network", "pigeon"], ["pigeon", "lan"]),
    (["--network", "alfa=1"], ["alfa", "alpha"]),
    (["--ranks", "0"], ["at least 1 rank"]),
    (
        ["--set", "schedule.step=4"],
        ["[schedule] unknown: ['step']", "did you mean steps?"],
    ),
    (["--set", "steps=4"], ["section.key=value"]),
    (["--momentum", "1.5", "--update", "momentum"], ["must be at least 0 and below 1"]),
    (["--rate", "-1"], ["rate"]),
    (["--rate", "nan"], ["rate"]),
    (["--progress", "nan"], ["--progress", "'nan'", "finite number"]),
    (["--progress", "-1"], ["--progress", "at least 0"]),
    (["--checkpoint-seconds", "nan"], ["seconds = nan", "finite"]),
    (["--checkpoint-seconds", "inf"], ["seconds = inf", "finite"]),
    (["--emulate-members", "1000000000000"], ["emulate_members", "at most 1048576"]),
    (["--l2", "-1"], ["l2", "at least 0"]),
    (["--products", "cached", "--sampling", "reshuffle"], ["shuffle-once"]),
    (["--products", "gather-once", "--sampling", "reshuffle"], ["kind = 'gather'"]),
    (["--products", "direct", "--look-ahead", "on"], ["needs kind = 'gram'"]),
]


@pytest.mark.cases(20)
@pytest.mark.parametrize("flags, words", WRONG_FLAGS, ids=lambda x: " ".join(x))
def test_wrong_flags(hpcsgd, tmp_path, good, flags, words):
    write(tmp_path / "d.h5", *good)
    refuse(hpcsgd("train", "--data", "d.h5", *flags), 2, *words)


def test_no_data_no_command_unknown_key(hpcsgd, tmp_path):
    refuse(hpcsgd("train"), 2, "no data", "--data")
    (tmp_path / "run.toml").write_text("[schedule]\nstep = 3\n")
    refuse(hpcsgd("train", "run.toml"), 2, "unknown: ['step']", "'steps'")
    refuse(hpcsgd("train", "no.toml"), 2, "cannot read", "no.toml")


def test_files_that_cannot_be_used(hpcsgd, tmp_path, good):
    X, y = good

    def train(name):
        return hpcsgd("train", "--data", name, "--out", "run")

    refuse(train("none.h5"), 2, "none.h5")
    (tmp_path / "text.h5").write_text("not HDF5 at all")
    refuse(train("text.h5"), 2, "text.h5", "HDF5")
    write(tmp_path / "nox.h5", None, y, Z=X)
    refuse(train("nox.h5"), 2, "/X", "Z")
    write(tmp_path / "noy.h5", X, None)
    refuse(train("noy.h5"), 2, "/y")
    write(tmp_path / "short.h5", X, y[:-1])
    refuse(train("short.h5"), 2, "39", "40")
    write(tmp_path / "nan.h5", changed(X, (17, 2), np.nan), y)
    refuse(train("nan.h5"), 2, "nan", "row 17", "column 2")
    write(tmp_path / "inf.h5", changed(X, (5, 0), np.inf), y)
    refuse(train("inf.h5"), 2, "inf", "row 5", "column 0")
    write(tmp_path / "nany.h5", X, changed(y, 3, np.nan))
    refuse(train("nany.h5"), 2, "y", "nan", "row 3")
    write(tmp_path / "neg.h5", X, y, sample_weight=changed(np.ones(40), 4, -1))
    refuse(train("neg.h5"), 2, "sample_weight", "row 4")
    assert not (tmp_path / "run").exists(), "nothing half-written"


def test_targets_that_do_not_suit_the_family(hpcsgd, tmp_path, good):
    X, y = good
    counts = np.arange(40.0) % 5

    def train(targets, family):
        write(tmp_path / "d.h5", X, targets)
        return hpcsgd("train", "--data", "d.h5", "--family", family)

    refuse(train(counts, "logistic"), 2, "softmax")
    refuse(train(np.ones(40), "logistic"), 2, "label")
    refuse(train(changed(counts, 7, -2), "poisson"), 2, "-2", "row 7")
    refuse(train(counts, "gamma"), 2, "row 0")
    refuse(train(X[:, 0], "softmax"), 2, "gaussian")


@pytest.mark.cases(1)
@pytest.mark.parametrize("bad", ["X", "y", "columns"])
def test_one_rank_speaks_for_all(hpcsgd, tmp_path, good, bad):
    """What only the last rank can see is said once, and nobody hangs."""
    X, y = good
    X = changed(X, (39, 2), np.nan) if bad == "X" else X
    y = changed(y, 39, np.nan) if bad == "y" else y
    write(tmp_path / "d.h5", X[:, :2] if bad == "columns" else X, y)
    grid = {"X": "1x3", "y": "3x1", "columns": "1x3"}[bad]
    done = hpcsgd("train", "--data", "d.h5", "--ranks", 3, "--grid", grid, "--out", "r")
    words = {"X": ["row 39", "column 2"], "y": ["row 39"], "columns": ["--grid"]}[bad]
    refuse(done, 2, *words)
    assert not (tmp_path / "r").exists()


def test_a_rate_that_explodes(hpcsgd, tmp_path):
    """DIVERGED, exit code 1, advice, and the last good weights in the folder."""
    import json

    from hpcsgd.runs.result import Status, load_result

    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    write(tmp_path / "d.h5", X, X @ np.ones(5))
    done = hpcsgd(
        *("train", "--data", "d.h5", "--family", "gaussian", "--rate", 50),
        *("--epochs", 20, "--batch", 4, "--out", "run", "--json"),
    )
    assert done.returncode == 1
    assert "lower the rate" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["status"] == "diverged"
    result = load_result(tmp_path / "run")
    assert result.status is Status.DIVERGED
    assert np.isfinite(result.weights).all() and np.isfinite(result.loss)


def test_a_folder_that_cannot_be_written(hpcsgd, tmp_path, good):
    write(tmp_path / "d.h5", *good)
    (tmp_path / "taken").write_text("a file")
    done = hpcsgd("train", "--data", "d.h5", "--out", "taken")
    refuse(done, 2, "--out", "taken")


def test_synth(hpcsgd):
    refuse(hpcsgd("data", "synth", "--shape", "moon", "--out", "x.h5"), 2, "epsilon")
    refuse(
        hpcsgd("data", "synth", "--shape", "susy", "--rows", "0", "--out", "x.h5"),
        *(2, "at least 1"),
    )
    missing = hpcsgd("data", "synth", "--shape", "susy", "--out", "no/where/x.h5")
    refuse(missing, 2, "no/where")


def test_a_link_that_names_itself_is_said(hpcsgd, tmp_path):
    path = tmp_path / "ring.h5"
    with h5py.File(path, "w") as file:
        file["X"] = h5py.SoftLink("/X")
        file["y"] = np.zeros(3)
    for words in (
        ["data", "inspect", str(path)],
        ["data", "convert", str(path), str(tmp_path / "out.h5")],
        ["train", "--data", str(path), "--family", "logistic"],
    ):
        refuse(hpcsgd(*words), 2, "ring.h5", "/X is a link that leads nowhere")
    assert not (tmp_path / "out.h5").exists()


def test_rows_of_2_to_the_62_columns_are_inspected(hpcsgd, tmp_path):
    path = tmp_path / "wide.h5"
    with h5py.File(path, "w") as file:
        X = file.create_group("X")
        X.attrs["shape"] = np.array([2, 2**62])
        X["data"] = np.ones(2)
        X["indices"] = np.array([0, 2**61])
        X["indptr"] = np.array([0, 1, 2])
        file["y"] = np.array([0.0, 1.0])
    done = hpcsgd("data", "inspect", str(path))
    assert done.returncode == 0, done.stderr
    assert str(2**62) in done.stdout.replace(",", "").replace(" ", "")


def test_more_columns_than_an_index_can_name_are_refused(hpcsgd, tmp_path):
    path = tmp_path / "wider.h5"
    with h5py.File(path, "w") as file:
        X = file.create_group("X")
        X.attrs["shape"] = np.array([2, 2**64 - 1], dtype=np.uint64)
        X["data"], X["indices"], X["indptr"] = np.ones(2), [0, 1], [0, 1, 2]
        file["y"] = np.array([0.0, 1.0])
    for words in (
        ["data", "inspect", str(path)],
        ["data", "convert", str(path), str(tmp_path / "out.h5")],
        ["train", "--data", str(path), "--family", "logistic"],
    ):
        refuse(hpcsgd(*words), 2, "wider.h5", "no attribute shape (rows, columns)")


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("X", h5py.Empty("f4"), "/X has shape None"),
        ("y", h5py.Empty("f4"), "/y has shape None and X has 3 rows"),
        ("X", np.dtype("f4"), "/X must hold real numbers, not a group or a type"),
        ("y", np.dtype("f4"), "/y must hold real numbers, not a group or a type"),
    ],
    ids=["empty-X", "empty-y", "type-X", "type-y"],
)
def test_what_holds_no_values_is_not_converted(hpcsgd, tmp_path, name, content, fault):
    path = tmp_path / "void.h5"
    with h5py.File(path, "w") as file:
        for key, values in {"X": np.ones((3, 2)), "y": np.zeros(3)}.items():
            file[key] = content if key == name else values
    done = hpcsgd("data", "convert", str(path), str(tmp_path / "out.h5"))
    refuse(done, 2, f"void.h5: {fault}")


@pytest.mark.parametrize("command", ["train", "evaluate", "inspect", "convert"])
def test_a_pipe_in_the_place_of_data_is_not_waited_for(hpcsgd, tmp_path, command):
    pipe = tmp_path / "rows.h5"
    os.mkfifo(pipe)
    words = {
        "train": ["train", "--data", str(pipe)],
        "evaluate": ["evaluate", "run", str(pipe)],
        "inspect": ["data", "inspect", str(pipe)],
        "convert": ["data", "convert", str(pipe), str(tmp_path / "out.h5")],
    }[command]
    refuse(hpcsgd(*words, timeout=60), 2, "rows.h5 is not a regular file")


@pytest.mark.parametrize("kind", ["h5", "npy", "npz"])
@pytest.mark.parametrize("flag", [[], ["--standardize"]])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_training_refuses_are_not_converted(
    hpcsgd, tmp_path, good, kind, flag, value
):
    X, y = good
    X = changed(X, (7, 1), value)
    path, labels = tmp_path / f"rows.{kind}", tmp_path / "labels.npy"
    np.save(labels, y)
    if kind == "h5":
        write(path, X, y)
    elif kind == "npy":
        np.save(path, X)
    else:
        scipy.sparse.save_npz(path, scipy.sparse.csr_array(X))
    words = [] if kind == "h5" else ["--labels", str(labels)]
    out = tmp_path / "out.h5"
    done = hpcsgd("data", "convert", str(path), str(out), *words, *flag, "--quiet")
    refuse(done, 2, path.name, f"X has {value} at row 7, column 1")
    assert not out.exists()


def test_targets_that_training_refuses_are_not_converted(hpcsgd, tmp_path, good):
    X, y = good
    path = write(tmp_path / "rows.h5", X, changed(y, 5, np.nan))
    done = hpcsgd("data", "convert", str(path), str(tmp_path / "out.h5"))
    refuse(done, 2, "rows.h5: y has nan at row 5")


@pytest.mark.parametrize("text", ["a = {}{}", "[problem]\nfamily = {}1{}"])
def test_deeply_nested_settings_are_said(hpcsgd, tmp_path, text):
    path = tmp_path / "deep.toml"
    marks = ("[" * 5000, "]" * 5000) if "{}{}" in text else ("{a=" * 5000, "}" * 5000)
    path.write_text(text.format(*marks))
    refuse(hpcsgd("train", str(path)), 2, "deep.toml", "nested more deeply")
    site = ("--site", str(path), "--out", "job", "--", "train")
    done = hpcsgd("jobs", "render", "train", *site)
    refuse(done, 2, "deep.toml", "nested more deeply")


def test_a_deeply_nested_setting_is_no_number(hpcsgd, tmp_path, good):
    write(tmp_path / "d.h5", *good)
    value = "[" * 5000 + "]" * 5000
    done = hpcsgd("train", "--data", "d.h5", "--set", f"rate.value={value}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "[rate] value" in done.stderr
