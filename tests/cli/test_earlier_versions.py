"""Files of an earlier version: a run folder, a recording, a checkpoint, a model.

That run had 64 rows, two ranks on TCP (`comm = "tcp"`), `--precision auto` and
settings that are retired since.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hpcsgd import load_result
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.estimators.saved import load
from hpcsgd.runs.checkpoint import read_checkpoint
from tests.helpers.command_line import only_json

BEFORE = Path(__file__).parents[1] / "golden" / "before"


@pytest.fixture
def run(tmp_path):
    """Its folder, beside its data."""
    shutil.copytree(BEFORE / "run", tmp_path / "run")
    write_synthetic(tmp_path / "rows.h5", "susy", 64, 4, 3)
    return tmp_path / "run"


def test_a_run_is_verified(hpcsgd, run):
    done = hpcsgd("verify", "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exchange ") == 3 and "FAILS" not in done.stdout
    assert done.stderr.count("ignored: precision.recheck, run.comm") == 1


def test_a_run_is_inspected(hpcsgd, run):
    done = hpcsgd("inspect", "run")
    assert done.returncode == 0 and "completed" in done.stdout
    assert "recheck" not in done.stdout and "run.comm" not in done.stdout


def test_a_checkpoint_is_gone_on_with(hpcsgd, run):
    """The rest of the run has the bits that it had."""
    then = json.loads((run / "result.json").read_text())
    (run / "result.json").unlink()
    (run / "result.h5").unlink()
    where = ("--ranks", 2, "--resume", "auto", "--json")
    found = only_json(hpcsgd("train", "run/resolved.toml", "--out", "run", *where))
    assert found["exchanges"] == then["exchanges"]
    assert found["weights_sha256"] == then["weights_sha256"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("comm", ["tcp", "file:/shared/store"])
def test_its_settings_train_again(comm, hpcsgd, run):
    path = run / "resolved.toml"
    assert 'comm = "tcp"' in path.read_text()
    path.write_text(path.read_text().replace('comm = "tcp"', f'comm = "{comm}"'))
    words = ("run/resolved.toml", "--out", "again", "--json")
    done = hpcsgd("train", *words, "--ranks", 2)
    assert "ignored: precision.recheck, run.comm\n" in done.stderr
    then = json.loads((run / "result.json").read_text())
    assert only_json(done)["weights_sha256"] == then["weights_sha256"]
    assert 'comm = "auto"' in (run.parent / "again" / "resolved.toml").read_text()


def test_a_result_and_a_checkpoint_are_read_without_retired_settings(run):
    written = json.loads((run / "result.json").read_text())["config"]
    assert written["run"]["comm"] == "tcp"
    (saved,) = [read_checkpoint(p).document for p in (run / "checkpoints").glob("*.h5")]
    for config in (load_result(run).config, saved["config"]):
        assert "comm" not in config["run"] and "recheck" not in config["precision"]


def test_a_model_predicts():
    model = load(BEFORE / "model.h5")
    found = model.predict_proba(np.eye(4))
    assert found.shape == (4, 2) and np.isfinite(found).all()
    assert found[0, 1] > 0.5 > found[1, 1]


@pytest.mark.parametrize("how", ["file", "flag"])
def test_a_retired_setting_is_refused_in_a_new_file(hpcsgd, tmp_path, how):
    text = "[precision]\nrecheck = false\n" if how == "file" else ""
    (tmp_path / "run.toml").write_text(text)
    flag = ("--set", "precision.recheck=true") if how == "flag" else ()
    done = hpcsgd("train", "run.toml", *flag, "--data", "rows.h5")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "[precision] recheck is no setting any more" in done.stderr
    assert "leave it out" in done.stderr


@pytest.mark.parametrize("comm", ["tcp", "file:/shared/store"])
@pytest.mark.parametrize("how", ["file", "setting", "flag", "flag of another command"])
def test_a_retired_communicator_is_refused_where_it_is_asked_for(
    comm, how, hpcsgd, tmp_path
):
    (tmp_path / "run.toml").write_text(f'[run]\ncomm = "{comm}"\n')
    words = {
        "file": ("train", "run.toml", "--data", "rows.h5"),
        "setting": ("train", "--set", f"run.comm={comm}", "--data", "rows.h5"),
        "flag": ("train", "--comm", comm, "--data", "rows.h5", "--ranks", 2),
        "flag of another command": ("evaluate", "--comm", comm, "run", "rows.h5"),
    }[how]
    done = hpcsgd(*words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"[run] comm = {comm!r} is no setting any more" in done.stderr
    for remedy in ("mpiexec", "srun --mpi=pmi2 or pmix", "--ranks N", "leave it out"):
        assert remedy in done.stderr
