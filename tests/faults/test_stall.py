"""No rank waits for ever: real ranks, one of which stalls, within a stated limit."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hpcsgd.data.synthetic import write_synthetic
from tests.faults.processes import all_gone, wait_until, written_pids
from tests.helpers import launcher
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec")


def run(how, ranks, timeout, limit, folder, **variables):
    """(exit code, output) of tests/faults/stalling.py, and nobody of it is left."""
    program = [sys.executable, "-m", "tests.faults.stalling", how, str(timeout)]
    command = [*launcher.mpiexec(), "-n", str(ranks), *program, str(folder)]
    environment = {**launcher.launch_environment(), "PYTHONPATH": str(ROOT)}
    environment |= variables
    code, output = launcher.run(command, limit, ROOT, environment)
    assert code is not None, f"still there after {limit} s:\n{output}"
    assert all_gone(written_pids(folder, ranks))
    return code, output


SUM = "in the sum for products (collective "
# What rank 1 does, ranks, --timeout, seconds until the end, what is said.
STALLS = [
    ("sleeps", 4, 2, 30, (SUM, "rank 1 is not there: idle", "in sleeps")),
    ("loops", 2, 1, 35, (SUM, "rank 1 is not there: busy", "in loops")),
    (
        "is_stopped",
        3,
        2,
        30,
        (
            SUM,
            "rank 1 does not answer: its process is stop",
        ),
    ),
    (
        "keeps_the_interpreter",
        2,
        2,
        30,
        (
            SUM,
            "rank 1 does not answer",
        ),
    ),
    ("sleeps-loading", 3, 2, 25, ("in the largest flag for control", "stuck")),
    ("sleeps-starting", 2, 0.5, 25, ("rank 1 has not made the same call of hpcsgd",)),
    ("is_stopped-loading", 2, 2, 25, ("in the largest flag for control",)),
]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "how, ranks, timeout, limit, said",
    STALLS,
    ids=[f"{how}-on-{ranks}" for how, ranks, *_ in STALLS],
)
def test_a_stall_is_named_and_ends_the_job(how, ranks, timeout, limit, said, tmp_path):
    code, output = run(how, ranks, timeout, limit, tmp_path)
    assert code == 1, output
    reports = [s for s in output.splitlines() if f"of {ranks} has waited" in s]
    ends = [s for s in reports if "the job ends" in s]
    assert len(ends) == 1 and ends[0].startswith("hpcsgd: rank 0"), output
    assert all(text in output for text in said), output
    assert "ended well" not in output


@pytest.mark.parametrize("level, limit, said", [
    ("multiple", 30, "rank 1 is not there: idle"),
    ("serialized", 60, "several nodes and an MPI without MPI_THREAD_MULTIPLE"),
], ids=["multiple", "serialized"])  # fmt: skip
def test_a_stall_on_another_node_ends_the_job(level, limit, said, tmp_path):
    """Watchdogs of several nodes reach each other by MPI, if it allows their calls."""
    variable = {"MPI4PY_RC_THREAD_LEVEL": level}
    code, output = run("sleeps-across", 2, 1, limit, tmp_path, **variable)
    assert code == 1, output
    assert SUM in output and said in output, output
    assert ("in sleeps" in output) == (level == "multiple"), output
    assert "ended well" not in output


@pytest.mark.full
def test_slow_work_is_no_stall(tmp_path):
    """More than twice the timeout: a warning, and all goes well."""
    code, output = run("works_for_a_while", 2, 1, 40, tmp_path)
    assert code == 0 and "ended well completed" in output, output
    assert "rank 1 is not there: busy" in output and "the limit is 10 s" in output


def test_a_short_rest_goes_unnoticed(tmp_path):
    code, output = run("rests_for_a_moment", 3, 5, 40, tmp_path)
    assert code == 0 and output.strip() == "ended well completed", output


def test_timeout_0_waits(tmp_path):
    """Nobody ends it before we do."""
    with pytest.raises(AssertionError, match="still there after 6 s"):
        run("sleeps", 2, 0, 6, tmp_path)
    assert all_gone(written_pids(tmp_path, 2))


def test_the_command_ends_with_1_when_a_rank_is_stopped(tmp_path):
    """From `hpcsgd train --ranks` down: one report, exit code 1, nobody left."""
    data = tmp_path / "d.h5"
    write_synthetic(data, "susy", 2000, 5, 0)
    out = tmp_path / "run"
    flags = ["--batch", "4", "--epochs", "1000000", "--timeout", "10", "--ranks", "2"]
    flags += ["--out", str(out), "--checkpoint-every", "10"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcsgd", "train", "--data", str(data), *flags],
        cwd=ROOT,
        env=launcher.launch_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = _stop_one_rank(process, out / "checkpoints")
    finally:
        launcher.end(process)
    assert process.returncode == 1, output
    assert "its process is stopped; the job ends (10 s are allowed" in output
    assert "exit code" not in output  # our launcher has nothing to add


def _stop_one_rank(process, checkpoints):
    """Once both train: rank 0 saves after exchanges of both."""
    assert wait_until(lambda: list(checkpoints.glob("*.h5")), HANG)
    family = list(launcher.descendants(process.pid))
    with suppress(ProcessLookupError):
        os.kill(max(_ranks_below(process)), signal.SIGSTOP)
    output, _ = process.communicate(timeout=HANG)
    assert all_gone(family)
    return output


def _ranks_below(process):
    found = []
    for pid in launcher.descendants(process.pid):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"-m", b"hpcsgd"]:
                found.append(pid)
    return found
