"""Starts that go wrong end in time and in one report; nothing is left behind."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcsgd.cli import launch
from tests.faults.processes import wait_until
from tests.faults.starts import (
    MARGIN,
    TIMEOUT,
    Start,
    Watched,
    campaign,
    command,
    kills,
    plan,
    state_of,
)
from tests.helpers import launcher
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec"),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc"),
]
LIMITED = """
import ctypes, os, sys
from hpcsgd.comm.rank_ends import start_limit
with start_limit(1.0, 1, 2):
    {body}
ctypes.PyDLL(None).sleep(3)
print("went on")
"""
# PyDLL keeps the interpreter locked, as the import of mpi4py does.
LOCKED, STOPPED = "ctypes.PyDLL(None).sleep(1000)", "os.kill(os.getpid(), 19)"
ONE_LEAVES = """
import os, sys, time
if os.environ["PMI_RANK"] == "1":
    sys.exit(2)
time.sleep(1000)
"""
NEVER_FITS = """
import time
import numpy as np
from mpi4py import MPI
import hpcsgd
if MPI.COMM_WORLD.rank == 1:
    time.sleep(1000)
X = np.random.default_rng(0).normal(size=(200, 3))
limit = {"run": {"timeout": 0.3}}
hpcsgd.fit(X, "gaussian", X[:, 0], comm=MPI.COMM_WORLD, config=limit)
"""


def python(code, *flags, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *flags],
        cwd=ROOT,
        env={**launcher.launch_environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG,
        **options,
    )


def mpiexec(*words, limit=90):
    command = [*launcher.mpiexec(), *words]
    environment = {**launcher.launch_environment(), "PYTHONPATH": str(ROOT)}
    code, output = launcher.run(command, limit, ROOT, environment)
    assert code is not None, f"still there after {limit} s:\n{output}"
    return code, output


def test_the_clock_of_a_start_needs_no_lock_of_the_interpreter():
    done = python(LIMITED.format(body=LOCKED))
    assert done.returncode == -signal.SIGKILL and "went on" not in done.stdout
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("hpcsgd: rank 1 of 2 has waited 1 s for MPI to start")
    assert "--timeout SECONDS" in sentence


def test_a_rank_that_is_stopped_while_mpi_starts_is_named():
    done = python(LIMITED.format(body=STOPPED))
    assert done.returncode == -signal.SIGKILL
    assert "hpcsgd: rank 1 of 2 is stopped by a signal" in done.stderr


def test_the_clock_ends_when_mpi_is_up():
    done = python(LIMITED.format(body="pass"))
    assert done.returncode == 0 and done.stdout == "went on\n" and not done.stderr


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "flags, fault",
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["--data", "missing.h5"], "missing.h5 does not exist"),
    ],
    ids=["bad-flag", "missing-file"],
)
def test_what_is_wrong_on_one_rank_alone_ends_all(flags, fault, tmp_path, data):
    good = [sys.executable, "-m", "hpcsgd", "train", "--data", str(data)]
    good += ["--timeout", "3"]
    code, output = mpiexec("-n", "2", *good, ":", "-n", "1", *good, *flags)
    assert code != 0
    reports = re.findall("^hpcsgd: rank 2: error: .*", output, re.MULTILINE)
    assert len(reports) == 1 and fault in reports[0], output
    waits = re.findall("^hpcsgd: rank . of 3 has waited .*", output, re.MULTILINE)
    assert len(waits) == 1 and "another rank has ended" in waits[0], output


def test_ranks_that_outlive_one_that_failed_are_ended(monkeypatch):
    """Before MPI is up mpiexec does not notice that a rank has ended with 2."""
    monkeypatch.setattr(launch, "FAREWELL", 1.0)
    command = [sys.executable, "-c", ONE_LEAVES]
    full = [*launcher.mpiexec(), "-n", "2", *launch.NOTED]
    ending = launch.RankLaunch(full, command, launcher.launch_environment()).run()
    assert ending.code == 2


def test_ranks_that_never_call_fit_are_named():
    code, output = mpiexec("-n", "3", sys.executable, "-c", NEVER_FITS)
    assert code != 0
    ends = [line for line in output.splitlines() if "the job ends" in line]
    assert len(ends) == 1, output
    # Ranks take turns by the clock: on a busy machine another one may be first.
    assert re.search("rank [02] of 3 has waited", ends[0])
    assert "rank 1 has not made" in ends[0]
    assert "the limit is 3 s" in output  # and before that there was a warning


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "rows",
    [
        [("mpiexec", "KILL", "one rank", 1.4), ("mpiexec", "TERM", "launcher", 1.0)],
        [("--ranks", "STOP", "one rank", 0.9), ("--ranks", "KILL", "one rank", 1.4)],
    ],
    ids=["mpiexec", "ranks"],
)
def test_a_few_starts_that_a_signal_meets_end_in_one_report(rows, tmp_path):
    """Two of them; `make soak` has sixty."""
    starts = [Start(number, *row) for number, row in enumerate(rows)]
    left = campaign(starts, tmp_path, random.Random(0))
    assert not [start.line() for start in starts if start.faults] and left == []


@pytest.mark.cases(1)
@pytest.mark.parametrize("how", ["--ranks", "mpiexec"])
def test_a_run_whose_launcher_is_killed_ends_and_its_folder_says_so(
    how, tmp_path, data
):
    """Ranks end in time; `inspect` tells how to go on, and the next start does."""
    out = tmp_path / "run"
    words = [*command(how, data, out), "--epochs", "30"]
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=launcher.launch_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    family = Watched(process)

    def is_saved():
        family.look()
        return bool(list(out.glob("checkpoints/*.h5")))

    assert wait_until(is_saved, 60)
    assert state_of(out).startswith("under way: process ")
    process.kill()
    process.wait()

    def is_over():
        # A busy machine may have hidden a rank from the looks at its family.
        family.look()
        return not family.alive() and not state_of(out).startswith("under way")

    assert wait_until(is_over, TIMEOUT + MARGIN), family.alive()
    said = state_of(out)
    assert re.match("result: preempted|ended without a result; --resume auto", said)
    words = [*command(how, data, out), "--epochs", "3", "--resume", "auto"]
    code, output = launcher.run(words, 120, ROOT, launcher.launch_environment())
    assert code == 0 and "going on after exchange" in output, output
    assert state_of(out) == "result: completed"


def test_a_campaign_is_drawn_from_its_seed():
    first, second = (plan(60, random.Random(7)) for _ in range(2))
    assert first == second and len({start.blow for start in first}) == 7
    assert {start.blow for start in kills(20, random.Random(7))} == {"KILL"}


def test_a_run_without_a_launcher_has_no_clock():
    """One process waits for nobody: it starts none beside it."""
    code = (
        "import os, subprocess; subprocess.Popen = None\n"
        "from hpcsgd.comm.rank_ends import start_limit\n"
        "with start_limit(20.0, 0, 1): print('alone')"
    )
    assert python(code).stdout == "alone\n"
    assert "PMI_RANK" not in os.environ
