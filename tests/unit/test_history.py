"""The loss curve on a disk that is full for a while."""

import errno
import io
import json
import logging
import os

from hpcsgd.api import train
from hpcsgd.callbacks import Callback, History
from hpcsgd.callbacks.base import View
from tests.harness import config_for, make_problem


def view_with(*losses):
    view = View(9, 9, 9)
    view.history = [{"epoch": i, "loss": loss} for i, loss in enumerate(losses)]
    return view


def lines(path):
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()]


def test_it_begins_with_what_is_known(tmp_path):
    path = tmp_path / "h.jsonl"
    path.write_text("something older\n")
    History(path).on_start(view_with(3.0, 2.0))
    assert lines(path) == [3.0, 2.0]


def full(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFile(io.TextIOWrapper):
    """Takes five characters more."""

    def write(self, text):
        super().write(text[:5])
        self.flush()
        full(0)


def open_full(path, mode, encoding):
    return FullFile(io.FileIO(path, mode), encoding=encoding)


def test_training_goes_on_and_no_half_line_stays(tmp_path, monkeypatch, caplog):
    """And what is missing comes with the next record."""
    path = tmp_path / "h.jsonl"
    history = History(path)
    history.on_start(view_with())
    history.on_evaluate(view_with(3.0))
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr("hpcsgd.callbacks.history.open", open_full, raising=False)
        patch.setattr(os, "fsync", full)
        history.on_evaluate(view_with(3.0, 2.0))
        history.on_evaluate(view_with(3.0, 2.0, 1.0))
    assert lines(path) == [3.0]
    assert caplog.text.count("cannot be written (No space left on device)") == 1
    history.on_evaluate(view_with(3.0, 2.0, 1.0, 0.5))
    assert lines(path) == [3.0, 2.0, 1.0, 0.5]
    assert [p.name for p in tmp_path.iterdir()] == ["h.jsonl"]


def test_a_run_whose_curve_had_no_room_has_it_at_the_end(tmp_path):
    """Its folder writes it once more, with the result."""
    curve = tmp_path / "history.jsonl"

    class Spoils(Callback):
        def on_end(self, view):
            curve.write_text("{}\n")

    problem = make_problem("logistic")
    config = config_for(problem, run={"out": str(tmp_path)})
    result = train(config, X=problem.X, y=problem.y, callbacks=[Spoils()])
    assert lines(curve) == [record["loss"] for record in result.history]
