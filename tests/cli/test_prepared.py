"""Raw test rows of a model of standardised data, through every command there is."""

import h5py
import numpy as np
import pytest

from tests.helpers.command_line import only_json, refuse

NAMES = ["a", "b", "c", "d"]
SIZES = np.array([100.0, 1.0, 0.01, 5.0])
RNG = np.random.default_rng(5)
X = RNG.normal(size=(400, 4)) * SIZES + 3 * SIZES
Y = ((X / SIZES) @ [1.0, -1.0, 2.0, -2.0] + RNG.normal(size=400) > 0).astype(int)
TRAIN, TEST = slice(0, 300), slice(300, 400)


def write(path, rows, label="Class", order=(0, 1, 2, 3)):
    lines = [",".join([*(NAMES[k] for k in order), label])]
    for values, y in zip(X[rows][:, order], Y[rows], strict=True):
        lines.append(",".join([*(repr(float(v)) for v in values), str(y)]))
    path.write_text("\n".join(lines) + "\n")


def convert(command, *words):
    done = command("data", "convert", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run(command, tmp_path):
    write(tmp_path / "train.csv", TRAIN)
    write(tmp_path / "test.csv", TEST)
    convert(command, "train.csv", "train.h5", "--standardize")
    flags = ["--family", "logistic", "--intercept", "--rate", 0.5, "--quiet"]
    done = command("train", "--data", "train.h5", "--out", "run", *flags)
    assert done.returncode == 0, done.stderr
    return "run"


def test_raw_rows_have_the_accuracy_of_rows_scaled_as_the_training(
    command, run, tmp_path
):
    said = convert(command, "test.csv", "raw.h5")
    assert "labels: column 'Class'" in said
    write(tmp_path / "mixed.csv", TEST, order=(2, 0, 3, 1))
    said = convert(command, "mixed.csv", "like.h5", "--like", "train.h5")
    assert "means and scales of train.h5" in said and "in the order" in said
    raw = only_json(command("evaluate", run, "raw.h5", "--json"))
    like = only_json(command("evaluate", run, "like.h5", "--json", "--ranks", 2))
    assert raw["accuracy"] == like["accuracy"] > 0.8
    with h5py.File(tmp_path / "run" / "result.h5") as file:
        unscaled = X[TEST] @ np.ravel(file["weights"]) + np.ravel(file["intercept"])[0]
    # What the same weights make of raw rows that are taken as they are.
    assert ((unscaled > 0) == Y[TEST]).mean() < raw["accuracy"] - 0.1
    assert raw["mean_loss"] == pytest.approx(like["mean_loss"], rel=1e-5)
    assert "rows were raw: scaled with the column means" in raw["preparation"]
    assert "rows were scaled already" in like["preparation"]
    ranks = only_json(command("evaluate", run, "raw.h5", "--json", "--ranks", 2))
    assert ranks["mean_loss"] == pytest.approx(raw["mean_loss"], rel=1e-12)
    for name in ("raw", "like"):
        done = command("predict", run, f"{name}.h5", "--out", f"{name}.npy")
        assert done.returncode == 0 and "rows were" in done.stdout
    p = [np.load(tmp_path / f"{name}.npy") for name in ("raw", "like")]
    np.testing.assert_allclose(*p, rtol=1e-4)


def test_rows_scaled_otherwise_are_refused_with_the_remedy(command, run, tmp_path):
    convert(command, "test.csv", "own.h5", "--standardize")
    remedy = "hpcsgd data convert --like"
    refuse(command("evaluate", run, "own.h5"), 2, "own.h5", "other means", remedy)
    done = command("predict", run, "own.h5", "--out", "p.npy")
    refuse(done, 2, "own.h5", "other means", remedy)
    assert not (tmp_path / "p.npy").exists()
    convert(command, "test.csv", "raw.h5")
    assert "standardized" in command("data", "inspect", "own.h5").stdout
    flags = ["--family", "logistic", "--rate", "auto", "--epochs", 1, "--quiet"]
    assert not command("train", "--data", "raw.h5", "--out", "r", *flags).returncode
    refuse(command("evaluate", "r", "own.h5"), 2, "own.h5", "unlike the training data")
    done = command("data", "convert", "own.h5", "x.h5", "--like", "train.h5")
    refuse(done, 2, "own.h5", "scaled columns already")
    assert not (tmp_path / "x.h5").exists()


@pytest.mark.full
def test_ranks_convert_alike(command, run):
    for name, more in (("one.h5", []), ("two.h5", ["--ranks", 2])):
        convert(command, "test.csv", name, "--like", "train.h5", *more)
    found = []
    for name in ("one.h5", "two.h5"):
        done = command("data", "verify", name)
        assert done.returncode == 0
        found.append(only_json(command("evaluate", run, name, "--json")))
    assert found[0]["mean_loss"] == found[1]["mean_loss"]


def test_which_column_holds_the_labels_is_asked(command, tmp_path):
    write(tmp_path / "x.csv", TEST, label="outcome")
    done = command("data", "convert", "x.csv", "x.h5")
    refuse(done, 2, "x.csv", "label, y, target or class", "outcome", "--label-column")
    write(tmp_path / "x.csv", TEST, label="Target")
    text = (tmp_path / "x.csv").read_text()
    (tmp_path / "x.csv").write_text(text.replace("a,", "y,", 1))
    done = command("data", "convert", "x.csv", "x.h5")
    refuse(done, 2, "several", "'y' and 'Target'", "--label-column")
    said = convert(command, "x.csv", "x.h5", "--label-column", "Target")
    assert "labels:" not in said
    said = convert(command, "x.csv", "w.h5", "--weight-column", "y")
    assert "labels: column 'Target'" in said
    (tmp_path / "bare.csv").write_text("1,2,3\n0,4,5\n")
    said = convert(command, "bare.csv", "bare.h5")
    assert "labels: column 0" in said
    with h5py.File(tmp_path / "bare.h5") as file:
        assert file["y"][:].tolist() == [1, 0] and "column_names" not in file
    done = command("data", "convert", "bare.csv", "b.h5", "--json")
    assert only_json(done)["label_column"].startswith("column 0")
