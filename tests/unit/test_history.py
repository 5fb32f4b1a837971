"""The loss curve on disk: whole lines, and never the end of a run."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcsgd.api import train
from hpcsgd.runs.progress import Callback, History, View
from tests.helpers.harness import config_for, make_problem
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]


def records_in(path):
    """Every line, which must be whole."""
    text = path.read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def evaluated(history, view, loss):
    view.history.append({"epoch": len(view.history), "loss": loss})
    history.on_evaluate(view)


@pytest.fixture
def limited():
    """Let no file of this process grow beyond so many bytes; None for no limit."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        soft = before[0] if size is None else size
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield limit
    limit(None)


def test_each_record_is_there_at_once(tmp_path):
    path = tmp_path / "history.jsonl"
    history, view = History(path), View(1, 1, 1)
    history.on_start(view)
    assert path.read_text() == ""
    for count in (1, 2, 3):
        evaluated(history, view, 1.0 / count)
        assert records_in(path) == view.history


def test_a_run_that_goes_on_keeps_what_its_checkpoint_knew(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"epoch": 0, "loss": 9}\n' * 5 + '{"epo')
    view = View(1, 1, 1, history=[{"epoch": 0, "loss": 3.0}])
    history = History(path)
    history.on_start(view)
    assert records_in(path) == view.history
    evaluated(history, view, 2.0)
    assert records_in(path) == view.history


def test_a_line_that_breaks_off_is_taken_back(tmp_path, limited, caplog):
    path = tmp_path / "history.jsonl"
    history, view = History(path), View(1, 1, 1)
    history.on_start(view)
    evaluated(history, view, 1.0)
    limited(path.stat().st_size + 10)
    with caplog.at_level(logging.WARNING):
        evaluated(history, view, 0.5)
        assert records_in(path) == view.history[:1]
        evaluated(history, view, 0.25)
    limited(None)
    assert len(caplog.records) == 1 and "history.jsonl" in caplog.text
    assert "File too large" in caplog.text
    evaluated(history, view, 0.125)
    assert records_in(path) == view.history and len(view.history) == 4


def test_what_is_missing_follows_at_the_end(tmp_path, limited):
    path = tmp_path / "history.jsonl"
    history, view = History(path), View(1, 1, 1)
    limited(5)
    history.on_start(view)
    evaluated(history, view, 1.0)
    assert records_in(path) == []
    limited(None)
    history.on_end(view)
    assert records_in(path) == view.history


def test_half_a_line_that_could_not_be_taken_back_is_written_over(
    tmp_path, limited, monkeypatch
):
    path = tmp_path / "history.jsonl"
    history, view = History(path), View(1, 1, 1)
    history.on_start(view)

    def refuse(*arguments):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", refuse)
        limited(7)
        evaluated(history, view, 1.0)
        assert path.stat().st_size == 7
    limited(None)
    evaluated(history, view, 0.5)
    assert records_in(path) == view.history


def test_a_file_that_somebody_removed_is_written_anew(tmp_path):
    path = tmp_path / "history.jsonl"
    history, view = History(path), View(1, 1, 1)
    history.on_start(view)
    evaluated(history, view, 1.0)
    path.unlink()
    evaluated(history, view, 0.5)
    assert records_in(path) == view.history


RUN = """
import logging, resource, sys
from pathlib import Path
import numpy as np, hpcsgd
from hpcsgd.runs.progress import Callback

out = Path(sys.argv[1])
logging.basicConfig(level=logging.WARNING)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

class FullForAWhile(Callback):
    def on_evaluate(self, view):
        if len(view.history) == 2:
            size = (out / "history.jsonl").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        if len(view.history) == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

X = np.random.default_rng(0).normal(size=(64, 3))
config = {"schedule": {"epochs": 5}, "run": {"out": str(out), "record": 0}}
y = (X[:, 0] > 0).astype(float)
result = hpcsgd.train(config, X=X, y=y, callbacks=[FullForAWhile()])
print(result.status.value, len(result.history))
"""


def test_a_full_disk_does_not_end_a_run(tmp_path):
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(out)],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=ROOT,
    )
    assert done.stdout.split() == ["completed", "6"], done.stderr
    assert done.stderr.count("cannot be written") == 1
    assert [record["epoch"] for record in records_in(out / "history.jsonl")] == list(
        range(6)
    )


def test_a_run_whose_curve_had_no_room_has_it_at_the_end(tmp_path):
    """Its folder writes it once more, with the result."""
    curve = tmp_path / "history.jsonl"

    class Spoils(Callback):
        def on_end(self, view):
            curve.write_text("{}\n")

    problem = make_problem("logistic")
    config = config_for(problem, run={"out": str(tmp_path)})
    result = train(config, X=problem.X, y=problem.y, callbacks=[Spoils()])
    found = [json.loads(line)["loss"] for line in curve.read_text().splitlines()]
    assert found == [record["loss"] for record in result.history]


def test_events_stand_between_the_losses_that_they_came_between(tmp_path):
    path = tmp_path / "history.jsonl"
    history, view = History(path), View(1, 1, 1)
    history.on_start(view)
    evaluated(history, view, 1.0)
    view.events.append({"kind": "event", "evaluations": 1, "text": "first"})
    evaluated(history, view, 0.5)
    view.events.append({"kind": "event", "evaluations": 2, "text": "last"})
    assert [r.get("loss", r.get("text")) for r in records_in(path)] == [1, "first", 0.5]
    history.on_end(view)
    whole = records_in(path)
    assert [r.get("loss", r.get("text")) for r in whole] == [1, "first", 0.5, "last"]
    again = History(path)
    again.on_start(view)
    assert records_in(path) == whole
