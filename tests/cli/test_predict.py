"""`hpcsgd predict` from a process: files, endings, labels, and nothing left behind."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

import hpcsgd
from hpcsgd.data.writers import open_writer
from hpcsgd.errors import DataError
from tests.cli.models import train_into, write_data
from tests.helpers.command_line import only_json, refuse
from tests.helpers.limits import HANG


def read(path):
    """The numbers of a prediction, whatever its ending."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".csv":
        return np.loadtxt(path, delimiter=",", skiprows=1)
    with h5py.File(path) as file:
        return file["prediction"][()]


@pytest.mark.parametrize("ending", ["npy", "csv", "h5"])
@pytest.mark.parametrize(
    "family, what",
    [
        ("gaussian", "mean"),
        ("softmax", "score"),
        ("softmax", "class"),
        ("logistic", "probability"),
    ],
)
def test_every_file_holds_the_bits_of_predict(command, tmp_path, ending, family, what):
    problem, result = train_into(tmp_path, family)
    write_data(tmp_path / "new.h5", problem, with_y=False)
    out = tmp_path / f"p.{ending}"
    said = only_json(
        command(*("predict", "run", "new.h5"), "--out", out, "--what", what, "--json")
    )
    expected = hpcsgd.predict(result, problem.X, problem.offset, what)
    np.testing.assert_array_equal(read(out), expected)
    assert said["rows"] == 53
    assert len(said["columns"]) == (1 if expected.ndim == 1 else expected.shape[1])
    assert {p.name for p in tmp_path.iterdir()} == {"run", "d.h5", "new.h5", out.name}


def test_columns_are_named(command, tmp_path):
    train_into(tmp_path, "softmax")
    command("predict", "run", "d.h5", "--out", "p.csv", "--what", "probability")
    names = "probability_0,probability_1,probability_2,probability_3"
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == names
    command("predict", "run", "d.h5", "--out", "c.csv", "--what", "class")
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert lines[0] == "class" and set(lines[1:]) <= {"0", "1", "2", "3"}
    command("predict", "run", "d.h5", "--out", "p.h5")
    with h5py.File(tmp_path / "p.h5") as file:
        assert list(file.attrs["columns"]) == [f"mean_{k}" for k in range(4)]
        assert file.attrs["family"] == "softmax" and file.attrs["what"] == "mean"


def test_many_blocks_are_written_in_order(command, tmp_path, monkeypatch):
    """In this process, with blocks of ten rows."""
    from hpcsgd.cli.parser import run
    from hpcsgd.runs import predict

    problem, result = train_into(tmp_path, "logistic")
    expected = hpcsgd.predict(result, problem.X, problem.offset)
    monkeypatch.setattr(predict, "CHUNK_BYTES", 10 * 7 * 8)
    monkeypatch.chdir(tmp_path)
    for ending in ("npy", "csv", "h5"):
        assert run(["predict", "run", "d.h5", "--out", f"p.{ending}"]) == 0
        given = read(tmp_path / f"p.{ending}")
        np.testing.assert_allclose(given, expected, rtol=1e-14)


def test_a_fault_in_a_later_block_leaves_what_was_there(tmp_path, monkeypatch, capsys):
    from hpcsgd.cli.parser import run
    from hpcsgd.runs import predict

    train_into(tmp_path, "logistic")
    with h5py.File(tmp_path / "d.h5", "a") as file:
        file["X"][50, 1] = np.nan
    monkeypatch.setattr(predict, "CHUNK_BYTES", 10 * 7 * 8)
    monkeypatch.chdir(tmp_path)
    for ending in ("npy", "csv", "h5"):
        out = tmp_path / f"p.{ending}"
        out.write_text("earlier")
        assert run(["predict", "run", "d.h5", "--out", str(out)]) == 2
        assert "row 50, column 1" in capsys.readouterr().err
        assert out.read_text() == "earlier"
    names = {"run", "d.h5", "p.npy", "p.csv", "p.h5"}
    assert {p.name for p in tmp_path.iterdir()} == names


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "ending, limit", [("npy", 64), ("csv", 64), ("h5", 64), ("h5", 2)]
)
def test_a_full_disk_is_one_sentence_and_no_file(tmp_path, ending, limit):
    """A limit on the size of files fails writes as a full disk does.

    The smaller one fails what HDF5 writes for itself, which would end the interpreter.
    """
    train_into(tmp_path, "logistic", n=20000 if limit > 2 else 60)
    command = f"ulimit -f {limit}; exec '{sys.executable}' -m hpcsgd predict run d.h5"
    done = subprocess.run(
        ["bash", "-c", f"{command} --out p.{ending}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    refuse(done, 2, f"p.{ending} cannot be written", "make room", "nothing was kept")
    assert {p.name for p in tmp_path.iterdir()} == {"run", "d.h5"}


def test_wrong_input_is_one_sentence(command, tmp_path):
    problem, _ = train_into(tmp_path, "gaussian")

    def predict(*arguments):
        return command("predict", "run", "d.h5", *arguments)

    refuse(predict("--out", "p.txt"), 2, ".npy", ".csv", ".h5")
    refuse(predict("--out", "p"), 2, ".npy", ".csv", ".h5")
    refuse(predict(), 2, "--out")
    refuse(predict("--out", "no/p.npy"), 2, "no/p.npy", "folder")
    refuse(predict("--out", "run.npy", "--what", "odds"), 2, "odds", "probability")
    refuse(predict("--out", "p.npy", "--what", "class"), 2, "gaussian", "score")
    (tmp_path / "f.npy").mkdir()
    refuse(predict("--out", "f.npy"), 2, "is a folder")
    refuse(command("predict", "d.h5", "d.h5", "--out", "p.npy"), 2, "not a result")
    with h5py.File(tmp_path / "d.h5", "a") as file:
        del file["X"]
        file["X"] = problem.X[:, :3]
    refuse(predict("--out", "p.npy"), 2, "3 columns", "trained on 7")
    assert not list(tmp_path.glob("p*")) and not list(tmp_path.glob(".*"))


def test_training_still_asks_for_targets(command, tmp_path):
    problem, _ = train_into(tmp_path, "gaussian")
    write_data(tmp_path / "new.h5", problem, with_y=False)
    refuse(command("train", "--data", "new.h5"), 2, "has no /y", "'X'")


@pytest.mark.parametrize("ending", ["npy", "csv", "h5"])
def test_an_incomplete_file_is_not_kept(tmp_path, ending):
    path = tmp_path / f"p.{ending}"
    with (
        pytest.raises(DataError, match="2 of 3 rows"),
        open_writer(path, 3, ["a"]) as writer,
    ):
        writer.append(np.zeros(2))
    with (
        pytest.raises(DataError, match="do not fit"),
        open_writer(path, 3, ["a"]) as writer,
    ):
        writer.append(np.zeros((3, 2)))
    assert not list(tmp_path.iterdir())
