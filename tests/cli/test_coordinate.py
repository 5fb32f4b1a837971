"""Coordinate forms from the command line."""

import json

import h5py
import numpy as np
import pytest

from hpcsgd.cli import main


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6))
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["X"], file["y"] = X, X[:, 0] - X[:, 1] + 0.1 * rng.normal(size=60)
    return str(tmp_path / "rows.h5")


LASSO = ("--family", "gaussian", "--l1", "0.01", "--quiet")
DESCEND = ("--update", "coordinate", "--batch", "1", "--epochs", "50")


def test_train_says_what_it_found(data, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["train", "--data", data, *LASSO, *DESCEND, "--out", run]) == 0
    said = capsys.readouterr().out
    assert "status        converged" in said and "rate" not in said.split("next")[1]
    assert main(["train", "--data", data, *LASSO, *DESCEND, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coordinate"]["gap"] <= 1e-6
    assert main(["verify", run]) == 2
    assert "is of a coordinate form" in capsys.readouterr().err


def test_compare_sets_it_beside_proximal_sgd(data, capsys):
    rows = ["--setting", "descent: update=coordinate batch=1 epochs=20"]
    rows += ["--setting", "proximal: steps=1 batch=1 epochs=2"]
    shared = ["--data", data, *LASSO, "--repeats", "1"]
    assert main(["compare", *shared, *rows]) == 0
    said = capsys.readouterr().out
    assert "descent" in said and "proximal" in said


def test_what_speaks_of_sgd_refuses_it(data, capsys):
    config = ["--data", data, *LASSO[:-1], "--update", "coordinate"]
    assert main(["train", *config, "--steps", "auto"]) == 2
    assert "choose --steps" in capsys.readouterr().err
