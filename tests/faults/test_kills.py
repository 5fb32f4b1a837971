"""A rank is killed; the job ends, nothing is damaged, and a resume loses nothing."""

import os
import random
import signal
import time

import pytest

from hpcsgd.runs.checkpoint import CheckpointStore, read_checkpoint
from tests.faults.processes import all_gone, wait_until
from tests.helpers.killed_runs import LIMIT

MOMENTS = 20
SLOW = 0.02  # seconds an exchange: 114 of them take about two


def end_of(process, case):
    """The exit code, within the limit, with nobody left."""
    try:
        code = process.wait(LIMIT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    pids = [int(path.read_text()) for path in (case.folder / "pids").glob("*")]
    assert all_gone(pids)
    return code


def all_are_whole(case):
    """Every file under its final name is what was written."""
    for path in CheckpointStore(case.out, 2).paths():
        read_checkpoint(path)


def check_resume(case, undisturbed):
    all_are_whole(case)
    ended = case.run()
    assert ended.code == 0, ended.output
    assert ended.result["weights_sha256"] == undisturbed(case.ranks)
    all_are_whole(case)
    assert not list((case.out / "checkpoints").glob(".*")), "left half-written"


def kill(case, process, victim, when):
    """Kill rank `victim` once `when()` holds."""
    pid = case.pids()[victim]
    assert wait_until(when, LIMIT), case.said()
    os.kill(pid, signal.SIGKILL)
    code = end_of(process, case)
    assert code not in (0, None), case.said()


@pytest.mark.full
def test_killed_while_it_starts(case, undisturbed):
    process = case.start("--slow", SLOW)
    kill(case, process, 1, lambda: True)
    check_resume(case, undisturbed)


def test_killed_inside_an_exchange(case, undisturbed):
    """The other rank waits in a collective when it happens."""
    process = case.start("--slow", SLOW)
    kill(case, process, 1, lambda: len(CheckpointStore(case.out, 2).paths()) == 2)
    assert CheckpointStore(case.out, 2).newest()[1].exchanges < 100
    check_resume(case, undisturbed)


def test_killed_while_it_writes_a_checkpoint(case, undisturbed):
    process = case.start("--slow", SLOW, "--slow-disk", 0.3)
    folder = case.out / "checkpoints"

    def writes_the_third():
        parts = list(folder.glob(".*.part"))
        return len(CheckpointStore(case.out, 2).paths()) == 2 and parts

    kill(case, process, 0, writes_the_third)
    assert list(folder.glob(".*.part"))
    check_resume(case, undisturbed)


@pytest.mark.full
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_at_a_random_moment(moment, case, undisturbed):
    draw = random.Random(moment)
    case.ranks = draw.choice([2, 3])
    process = case.start("--slow", SLOW, "--slow-disk", 0.05)
    began, wait = time.monotonic(), draw.uniform(0.0, 4.5)
    victim = draw.randrange(case.ranks)
    if wait_until(lambda: (case.folder / "pids" / f"pid{victim}").exists(), LIMIT):
        time.sleep(max(began + wait - time.monotonic(), 0.0))
        pid = int((case.folder / "pids" / f"pid{victim}").read_text() or 0)
        if pid and process.poll() is None:
            os.kill(pid, signal.SIGKILL)
    code = end_of(process, case)
    assert code is not None
    check_resume(case, undisturbed)
