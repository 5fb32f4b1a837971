"""Wrong input is one sentence, on one rank, with the right exit code; no traceback."""

import h5py
import numpy as np
import pytest


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


def refuse(process, code, *words):
    """Exactly one line, the right code, every word in it."""
    lines = process.stderr.strip().splitlines()
    assert process.returncode == code, process.stderr
    assert len(lines) == 1, process.stderr
    assert process.stdout == ""
    for word in words:
        assert word in lines[0], lines[0]


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


WRONG_FLAGS = [
    (["--stepz", "3"], ["unrecognized arguments: --stepz", "--help"]),
    (["--steps", "many"], ["'many'", "or auto"]),
    (["--batch", "0"], ["batch = 0", "at least 1"]),
    (["--steps", "0"], ["steps = 0", "at least 1"]),
    (["--family", "cauchy"], ["invalid choice: 'cauchy'", "logistic"]),
    (["--precision", "fp7"], ["invalid choice: 'fp7'"]),
    (["--grid", "2"], ["2", "RxC"]),
    (["--grid", "1x2"], ["needs 2 ranks", "this run has 1", "--ranks 2"]),
    (["--network", "pigeon"], ["pigeon", "lan"]),
    (["--network", "alfa=1"], ["alfa", "alpha"]),
    (["--ranks", "0"], ["at least 1 rank"]),
    (["--set", "schedule.step=4"], ["[schedule] unknown: ['step']", "'steps'"]),
    (["--set", "steps=4"], ["section.key=value"]),
    (["--momentum", "1.5", "--update", "momentum"], ["must lie in [0, 1)"]),
    (["--rate", "-1"], ["rate"]),
    (["--rate", "nan"], ["rate"]),
    (["--l2", "-1"], ["l2", "at least 0"]),
    (["--products", "cached", "--sampling", "reshuffle"], ["shuffle-once"]),
    (["--products", "gather-once", "--sampling", "reshuffle"], ["kind = 'gather'"]),
    (["--products", "direct", "--look-ahead", "on"], ["needs kind = 'gram'"]),
]


@pytest.mark.parametrize("flags, words", WRONG_FLAGS, ids=lambda x: " ".join(x))
def test_wrong_flags(hpcsgd, tmp_path, good, flags, words):
    write(tmp_path / "d.h5", *good)
    refuse(hpcsgd("train", "--data", "d.h5", *flags), 2, *words)


def test_no_data_no_command_unknown_key(hpcsgd, interpreter, tmp_path):
    refuse(hpcsgd("train"), 2, "no data", "--data")
    refuse(interpreter(), 2, "COMMAND")
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

    from hpcsgd.result import Status, load_result

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
