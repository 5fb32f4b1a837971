"""When a run is saved, and that the disk is not waited for."""

import logging
import threading
import time

import pytest

from hpcsgd.backends.task import Snapshot
from hpcsgd.config import CheckpointConfig
from hpcsgd.errors import ConfigError
from hpcsgd.runs.checkpoint import Saver
from hpcsgd.solvers.callbacks import Callback, Request, View
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.limits import HANG


class SlowStore:
    """A disk that waits until it is told to go on."""

    folder = "somewhere"

    def __init__(self, error=None):
        self.go = threading.Event()
        self.written, self.error = [], error

    def write(self, checkpoint):
        assert self.go.wait(HANG)
        if self.error:
            raise self.error
        self.written.append(checkpoint.exchanges)
        return type("Path", (), {"name": str(checkpoint.exchanges)})


def saver_of(store, remember=0, **config):
    def capture(state, view):
        return Snapshot({"exchanges": view.exchanges}, {})

    return Saver(CheckpointConfig(**config), capture, store, None, remember)


def view_at(exchanges):
    return View(1, 100, 100, exchanges=exchanges)


def test_training_does_not_wait_for_the_disk():
    store = SlowStore()
    saver = saver_of(store)
    saver.save(None, view_at(5))
    assert store.written == []  # and we are here already
    store.go.set()
    saver.finish()
    assert store.written == [5] and saver.written == 1


def test_one_thread_writes_them_all_and_ends_with_the_run():
    threads = set()
    store = SlowStore()
    store.go.set()
    store.write = lambda checkpoint: (
        threads.add(threading.current_thread()) or type("Path", (), {"name": ""})
    )
    saver = saver_of(store)
    for exchanges in range(1, 4):
        saver.save(None, view_at(exchanges))
    saver.close()
    assert saver.written == 3 and len(threads) == 1
    assert not any(thread.is_alive() for thread in threads)


def test_by_number_and_at_the_end():
    saver = saver_of(SlowStore(), every=10)
    due = [n for n in range(1, 33) if saver.is_due(n, n == 32)]
    assert due == [10, 20, 30, 32]
    assert not any(saver_of(SlowStore()).is_due(n, False) for n in range(100))


def test_by_time_as_the_rank_that_writes_sees_it(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    saver, other = saver_of(SlowStore(), seconds=60), saver_of(None, seconds=60)
    assert saver.request() is Request.NONE
    now[0] += 61
    assert saver.request() is Request.SAVE and other.request() is Request.NONE
    saver.save(None, view_at(5))
    now[0] += 61
    assert saver.request() is Request.NONE  # the one before is still being written
    saver.store.go.set()
    saver.finish()
    assert saver.request() is Request.SAVE
    assert saver_of(SlowStore(), seconds=0).request() is Request.NONE


@pytest.mark.parametrize("error", [OSError(28, "No space left"), MemoryError()])
def test_what_fails_is_said_and_training_goes_on(error, caplog):
    store = SlowStore()
    store.go.set()
    saver = saver_of(store)
    saver.save(None, view_at(5))
    saver.finish()
    store.error = error
    with caplog.at_level(logging.WARNING):
        saver.save(None, view_at(9))
        saver.finish()
    assert saver.failed == 1
    assert "after exchange 9 cannot be written" in caplog.text
    assert "the one after exchange 5 is kept" in caplog.text


def test_the_last_two_are_remembered_where_that_is_asked_for():
    store = SlowStore()
    store.go.set()
    saver, forgetful = saver_of(store, remember=2), saver_of(store)
    for exchanges in (1, 2, 3):
        saver.save(None, view_at(exchanges))
        forgetful.save(None, view_at(exchanges))
    saver.finish()
    forgetful.finish()
    assert [c.exchanges for c in saver.remembered] == [2, 3]
    assert not forgetful.remembered


def test_a_run_without_a_folder_saves_nothing(monkeypatch):
    class Asks(Callback):
        def on_exchange(self, view):
            return Request.SAVE

    monkeypatch.setattr(Saver, "save", lambda *_: pytest.fail("collected"))
    problem = make_problem("logistic")
    result = train_on(1, config_for(problem), problem, callbacks=[Asks()])
    assert result.report["checkpoints_written"] == 0


@pytest.mark.parametrize("setting", [{"every": -1}, {"seconds": -1.0}, {"keep": 0}])
def test_settings_that_cannot_work_are_refused(setting):
    with pytest.raises(ConfigError, match="must be (finite and )?at least"):
        CheckpointConfig(**setting)
