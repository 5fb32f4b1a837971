"""The loss curve on a disk that is full for a while."""

import json
import logging

import pytest

from hpcsgd.callbacks import History
from hpcsgd.callbacks.base import View


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


def test_training_goes_on_and_no_half_line_stays(tmp_path, monkeypatch, caplog):
    path = tmp_path / "h.jsonl"
    history = History(path)
    history.on_start(view_with())
    history.on_evaluate(view_with(3.0))
    full = pytest.MonkeyPatch()
    full.setattr("hpcsgd.callbacks.history.open", open_full, raising=False)
    with caplog.at_level(logging.WARNING):
        history.on_evaluate(view_with(3.0, 2.0))
        history.on_evaluate(view_with(3.0, 2.0, 1.0))
    full.undo()
    assert lines(path) == [3.0]
    assert caplog.text.count("cannot be written") == 1
    history.on_evaluate(view_with(3.0, 2.0, 1.0, 0.5))
    assert lines(path) == [3.0, 2.0, 1.0, 0.5]


def open_full(path, *arguments, **options):
    """A file that takes five bytes more."""
    file = open(path, *arguments, **options)
    write = file.write

    def short(text):
        write(text[:5])
        file.flush()
        raise OSError(28, "No space left on device")

    return _Wrapped(file, short)


class _Wrapped:
    def __init__(self, file, write):
        self.file, self.write = file, write

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()
