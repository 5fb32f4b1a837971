"""`hpcsgd.train("run.toml")` does what `hpcsgd train run.toml` does."""

from pathlib import Path

import numpy as np
import pytest

import hpcsgd
from hpcsgd.cli import main
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError, DataError

RUN = """
[data]
path = "rows.h5"
[schedule]
epochs = 2
steps = 4
[rate]
value = 0.5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_synthetic(tmp_path / "rows.h5", "susy", rows=500)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("text", [RUN, '[data]\npath = "rows.h5"\n'])
def test_a_file_trains_as_on_the_command_line(folder, kind, text, capsys):
    (folder / "run.toml").write_text(text)
    found = hpcsgd.train(kind("run.toml"))
    assert main(["train", "run.toml", "--out", "run", "--quiet"]) == 0
    capsys.readouterr()
    again = hpcsgd.load_result("run")
    assert found.weights_sha256 == again.weights_sha256
    assert found.config["schedule"] == again.config["schedule"]


def test_a_file_with_every_setting_may_name_a_method(folder, capsys):
    assert main(["new", "run.toml"]) == 0
    capsys.readouterr()
    text = (folder / "run.toml").read_text()
    text = text.replace('path = ""', 'path = "rows.h5"')
    text = text.replace('method = ""', 'method = "ddp"')
    (folder / "run.toml").write_text(text)
    assert hpcsgd.train("run.toml").config["agreement"]["kind"] == "gradient"


def test_sweeps_races_and_pairs_take_files(folder):
    (folder / "run.toml").write_text(RUN)
    assert len(hpcsgd.sweep("run.toml", l2=[1e-4, 1e-2])) == 2
    assert hpcsgd.race("run.toml", rates=(1e-4, 0.5)) == 0.5
    one, other = hpcsgd.tick_tock("run.toml", "run.toml")
    assert one.weights_sha256 == other.weights_sha256


def test_files_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="cannot read the configuration none.toml"):
        hpcsgd.train("none.toml")


def test_what_is_no_result_is_answered(tmp_path):
    X = np.random.default_rng(0).normal(size=(64, 3))
    model = hpcsgd.Ridge().fit(X, X[:, 0])
    path = hpcsgd.path(X, X[:, 0], n_alphas=3)
    sweep = hpcsgd.sweep(l2=[1e-4, 1e-2], X=X, y=X[:, 0] > 0)
    for item, says in (
        (model, "is of type Ridge; call the estimator's own predict"),
        (path, r"is of type Path; give .* found.at\(alpha\)"),
        (sweep, r"is of type Sweep; give .* found.result\(found.best\)"),
        ("run", "is of type str; give what hpcsgd.fit"),
    ):
        with pytest.raises(ConfigError, match=says):
            hpcsgd.predict(item, X)
        with pytest.raises(ConfigError, match=says):
            hpcsgd.evaluate(item, X, X[:, 0])
    model.save(tmp_path / "model.h5")
    with pytest.raises(DataError, match="holds an estimator .* with hpcsgd.load"):
        hpcsgd.load_result(tmp_path / "model.h5")
