"""`hpcsgd inspect` from a process: what it says, and what it does not believe."""

import json
import os
import shutil

import numpy as np
import pytest

import hpcsgd
from hpcsgd.files import FolderLock
from tests.cli.models import train_into
from tests.helpers.command_line import only_json, refuse


def test_a_run_folder(command, tmp_path):
    _, result = train_into(tmp_path, "softmax")
    said = only_json(command("inspect", "run", "--json"))
    assert said["kind"] == "run folder" and said["parts"] == "agree"
    assert said["status"] == "completed" and said["loss"] == result.loss
    assert (said["family"], said["columns"], said["classes"]) == (
        *("softmax", 7),
        [0, 1, 2, 3],
    )
    assert said["norm"] == pytest.approx(np.linalg.norm(result.weights), rel=1e-14)
    assert said["sha256"] == result.weights_sha256
    assert said["settings"] == {
        "problem.family": "softmax",
        "problem.l2": 0.03,
        "problem.intercept": True,
        "data.path": str(tmp_path / "d.h5"),
        "schedule.batch": 8,
        "schedule.steps": 2,
        "schedule.epochs": 2,
        "rate.value": 0.05,
        "products.kind": "direct",
        "products.look_ahead": "off",
        "precision.recipe": "fp64",
        "run.out": str(tmp_path / "run"),
    }
    assert said["source"]["found"] is True
    assert said["versions"]["numpy"] == np.__version__
    (tmp_path / "d.h5").unlink()
    assert only_json(command("inspect", "run", "--json"))["source"]["found"] is False


def test_the_ten_largest_weights(command, tmp_path):
    _, result = train_into(tmp_path, "softmax")
    found = only_json(command("inspect", "run", "--json"))["largest"]
    magnitudes = sorted(np.abs(result.weights).ravel(), reverse=True)[:10]
    assert [abs(entry["weight"]) for entry in found] == magnitudes
    for entry in found:
        assert result.weights[entry["column"], int(entry["class"])] == entry["weight"]


def test_a_model_file(command, tmp_path):
    _, result = train_into(tmp_path, "gaussian")
    said = only_json(command("inspect", "run/result.h5", "--json"))
    assert said["kind"] == "model file" and "parts" not in said
    assert len(said["largest"]) == 7 and said["classes"] == []
    assert said["intercept"] == float(result.intercept)


def test_a_person_reads_a_table(command, tmp_path):
    _, result = train_into(tmp_path, "logistic")
    done = command("inspect", "run")
    assert done.returncode == 0 and done.stderr == ""
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["status"] == "completed" and lines["parts"] == "agree"
    first = int(np.argmax(np.abs(result.weights)))
    assert lines["largest"].startswith(f"[{first}] {result.weights[first]:.6g}")
    assert "schedule.batch 8" in lines["settings"]


def test_parts_that_do_not_agree(command, tmp_path):
    _, result = train_into(tmp_path, "logistic")

    def parts():
        return only_json(command("inspect", "run", "--json"))["parts"]

    document = tmp_path / "run" / "result.json"
    resolved = tmp_path / "run" / "resolved.toml"
    text = resolved.read_text()
    resolved.write_text(text.replace("batch = 8", "batch = 9"))
    assert parts() == "resolved.toml is of another run than result.h5"
    resolved.unlink()
    assert parts() == "resolved.toml is missing"
    said = json.loads(document.read_text())
    document.write_text(json.dumps(said | {"weights_sha256": "0" * 64}))
    assert parts() == "result.json is of another model than result.h5"
    document.write_text("{")
    assert parts() == "result.json cannot be read"
    document.unlink()
    assert parts() == "result.json is missing"


def test_parts_of_an_earlier_version_agree(command, tmp_path):
    """It did not record whose defaults a run had, neither here nor there."""
    _, result = train_into(tmp_path, "logistic")
    del result.config["run"]["defaults"]
    result.save(tmp_path / "run")
    resolved = tmp_path / "run" / "resolved.toml"
    resolved.write_text(resolved.read_text().replace('defaults = "sgd"\n', ""))
    said = only_json(command("inspect", "run", "--json"))
    assert said["parts"] == "agree"


def test_a_run_that_was_cut_off(command, tmp_path):
    train_into(tmp_path, "logistic")
    run = tmp_path / "run"
    for name in ("result.h5", "result.json"):
        (run / name).unlink()
    with open(run / "history.jsonl", "a") as file:
        file.write('{"epoch": 3, "lo')
    said = only_json(command("inspect", "run", "--json"))
    assert "unfinished" in said["status"] and said["evaluated"]["epoch"] == 2
    assert said["settings"]["schedule.batch"] == 8
    assert said["run"].startswith("ended without a result; --resume auto goes on from")
    lock = FolderLock(run)
    lock.take()
    said = only_json(command("inspect", "run", "--json"))
    assert said["run"].startswith(f"under way: process {os.getpid()} on ")
    lock.release()
    shutil.rmtree(run / "checkpoints")
    said = only_json(command("inspect", "run", "--json"))
    assert "without a checkpoint; train again" in said["run"]


def test_wrong_input_is_one_sentence(command, tmp_path):
    train_into(tmp_path, "logistic")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    refuse(command("inspect", "none"), 2, "none does not exist")
    refuse(command("inspect", "text"), 2, "neither a run folder", "model")
    refuse(command("inspect", "empty"), 2, "neither a run folder", "model")
    refuse(command("inspect", "d.h5"), 2, "neither a run folder", "checkpoint")
    result = tmp_path / "run" / "result.h5"
    result.write_bytes(result.read_bytes()[:-100])
    refuse(command("inspect", "run"), 2, "result.h5 cannot be used", "bytes")
    refuse(command("inspect", "run/result.h5"), 2, "result.h5 cannot be used")


def test_a_checkpoint(command, tmp_path):
    train_into(tmp_path, "logistic")
    (path,) = (tmp_path / "run" / "checkpoints").iterdir()
    said = only_json(command("inspect", path, "--json"))
    result = only_json(command("inspect", "run", "--json"))
    assert said["kind"] == "checkpoint"
    for name in ("family", "rows", "columns", "loss", "settings"):
        assert said[name] == result[name], name
    assert said["arrays"] == ["good_intercept", "good_weights", "intercept", "weights"]
    assert str(result["steps"]).endswith(
        f"in {said['exchanges'].split(',')[0]} exchanges"
    )
    path.write_bytes(path.read_bytes()[:-1])
    refuse(command("inspect", path), 2, "cannot be used")


def test_a_new_kind_is_one_row(tmp_path, monkeypatch, capsys):
    from hpcsgd.cli import models
    from hpcsgd.cli.parser import run

    (tmp_path / "x.odd").write_text("")
    row = (lambda path: path.suffix == ".odd", lambda path: {"name": path.name})
    monkeypatch.setitem(models.FILE_KINDS, "odd file", row)
    assert run(["inspect", str(tmp_path / "x.odd"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "odd file" and said["name"] == "x.odd"


def test_a_diverged_run_says_so(command, tmp_path):
    X = np.random.default_rng(0).normal(size=(400, 5))
    hpcsgd.train(
        {
            "problem": {"family": "gaussian"},
            "rate": {"value": 50.0},
            "schedule": {"batch": 4, "epochs": 20},
            "run": {"out": str(tmp_path / "run")},
        },
        X=X,
        y=X @ np.ones(5),
    )
    said = only_json(command("inspect", "run", "--json"))
    assert said["status"] == "diverged" and said["source"]["kind"] == "memory"
