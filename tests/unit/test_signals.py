"""Signals become wishes; handlers are there for the length of a `with`, no longer."""

import os
import queue
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.recovery import SIGNAL_REQUESTS, Signals
from hpcsgd.runs.result import Status
from hpcsgd.solvers.callbacks import Request, View, request_of
from tests.helpers.harness import config_for, make_problem

VIEW = View(1, 1, 1)


class Send(Callback):
    """Sends a signal to this process after some exchange."""

    def __init__(self, number, at):
        self.number, self.at = number, at

    def on_exchange(self, view):
        if view.exchanges == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    "number, status, code",
    [
        (signal.SIGINT, Status.INTERRUPTED, 130),
        (signal.SIGTERM, Status.PREEMPTED, 75),
        (signal.SIGUSR2, Status.PREEMPTED, 75),
    ],
)
def test_the_exchange_is_finished_and_the_result_says_why(number, status, code):
    problem = make_problem("logistic")
    config = config_for(problem, run={"check_every": 1}, schedule={"epochs": 5})
    with Signals() as signals:
        result = train(
            config, X=problem.X, y=problem.y, callbacks=[Send(number, 3), signals]
        )
    assert result.status is status and result.status.exit_code == code
    assert result.exchanges in (3, 4)
    assert "--resume auto" in result.status.advice
    # The loss is that of the last evaluation: at the start, and said to be.
    assert result.loss == result.history[-1]["loss"]
    assert len(result.history) == 1


def test_a_finisher_hears_them():
    """No exchange comes any more, and its passes may take as long as one."""

    class Late(Callback):
        def on_evaluate(self, view):
            if view.history[-1].get("passes") == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    problem = make_problem("logistic")
    config = config_for(problem, polish={"kind": "lbfgs", "tol": 0.0})
    with Signals() as signals:
        given = {"X": problem.X, "y": problem.y, "callbacks": [Late(), signals]}
        result = train(config, **given)
    assert result.status is Status.PREEMPTED
    assert result.report["polish"]["passes"] == 3


def test_handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in SIGNAL_REQUESTS}
    threads = threading.active_count()
    with Signals():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in SIGNAL_REQUESTS} == before
    assert signal.set_wakeup_fd(-1) == -1
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.daemon:
            thread.join(2.0)
    assert threading.active_count() <= threads


def test_before_training_a_signal_ends_the_program():
    with Signals() as signals:
        with pytest.raises(SystemExit) as raised:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 1.0)
        assert raised.value.code == 75
        signals.on_start(VIEW)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.on_exchange(VIEW) is Request.PREEMPT


def test_before_training_it_ends_all_ranks_and_not_this_one_alone():
    codes = []
    with Signals(codes.append):
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 0.2)
    assert codes == [130]


def test_before_training_every_rank_of_a_step_leaves_by_itself(monkeypatch):
    """Slurm tells all of them; an abort would make srun report 137 and not 75."""
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    left, aborted = queue.Queue(), []
    with Signals(aborted.append, leave=left.put):
        for number in (signal.SIGUSR2, signal.SIGTERM):
            os.kill(os.getpid(), number)
            assert left.get(timeout=5.0) == 75
        os.kill(os.getpid(), signal.SIGINT)
        signal.sigtimedwait([], 0.2)
    assert left.empty()
    assert aborted == [130]


BLOCKED = """
import ctypes
from hpcsgd.runs.recovery import (Signals)

mutex = ctypes.create_string_buffer(64)
lock = ctypes.CDLL(None).pthread_mutex_lock
with Signals():
    lock(mutex)
    print("up", flush=True)
    lock(mutex)  # like a collective that others have left: no handler of Python runs
"""


def test_a_rank_of_a_step_leaves_out_of_a_collective():
    command = [sys.executable, "-c", BLOCKED]
    environment = {**os.environ, "SLURM_STEP_ID": "0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as rank:
        try:
            assert rank.stdout.readline() == b"up\n"
            rank.send_signal(signal.SIGUSR2)
            assert rank.wait(60.0) == 75
        finally:
            rank.kill()


def test_the_second_interrupt_waits_for_nothing():
    left = threading.Event()
    codes = []
    signals = Signals(leave=lambda code: (codes.append(code), left.set()))
    with signals:
        signals.on_start(VIEW)
        os.kill(os.getpid(), signal.SIGINT)
        assert not left.wait(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        assert left.wait(5.0) and codes[0] == 130


def test_a_person_outranks_the_system():
    with Signals() as signals:
        signals.on_start(VIEW)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.on_exchange(VIEW) is Request.INTERRUPT


def test_what_callbacks_may_answer():
    assert request_of(None) is Request.NONE and request_of(False) is Request.NONE
    assert request_of(True) is Request.STOP and request_of(np.True_) is Request.STOP
    assert request_of(Request.SAVE) is Request.SAVE
