"""A conversion that loses a rank ends, leaves nothing half-written, and goes on."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.faults.processes import all_gone, wait_until, written_pids
from tests.helpers import launcher
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
LIMIT = 600.0
ROWS, COLS, RANKS = 3000, 8, 3
pytestmark = pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec")


@pytest.fixture
def text(tmp_path):
    X = np.random.default_rng(0).normal(size=(ROWS, COLS)).round(6)
    lines = [
        f"{number % 2} " + " ".join(f"{j}:{v}" for j, v in enumerate(row, 1))
        for number, row in enumerate(X)
    ]
    (tmp_path / "a.svm").write_text("\n".join(lines))
    return tmp_path


def convert(folder, how, piece, *more, ranks=RANKS):
    """(exit code, output) of a conversion on real ranks, nobody of which is left."""
    program = [sys.executable, "-m", "tests.faults.converting", how, str(piece)]
    arguments = ["a.svm", "a.h5", "--quiet", "--timeout", "2", *more]
    command = [*launcher.mpiexec(), "-n", str(ranks), *program, *arguments]
    environment = {**launcher.launch_environment(), "PYTHONPATH": str(ROOT)}
    code, output = launcher.run(command, LIMIT, folder, environment)
    assert code is not None, f"still there after {LIMIT} s:\n{output}"
    assert all_gone(written_pids(folder, ranks))
    return code, output


def content(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in ("X", "y", "checksums/X")}


def check_resumed(folder):
    """What was begun is completed, as if nothing had happened."""
    assert not (folder / "a.h5").exists()
    assert (folder / ".a.h5.parts").exists()
    code, output = convert(folder, "KILL", 0, "--resume", ranks=2)
    assert code == 0, output
    found = content(folder / "a.h5")
    assert not list(folder.glob(".*"))
    code, output = convert(folder, "KILL", 0, "--force", ranks=1)
    assert code == 0, output
    for name, whole in content(folder / "a.h5").items():
        assert (found[name] == whole).all()
    assert len(found["X"]) == ROWS


# Of 54 pieces each of three ranks loads 18 in the first pass.
# A rank loads 23 pieces in a pass; in its 40th others have begun to keep parts, too.
@pytest.mark.cases(1)
@pytest.mark.parametrize("piece", [3, 40])
def test_a_rank_that_stops_ends_all(text, piece):
    code, output = convert(text, "STOP", piece)
    assert code == 1, output
    assert "rank 1 does not answer: its process is stopped; the job ends" in output
    if piece < 18:
        assert not list(text.glob(".*")) and not (text / "a.h5").exists()
    else:
        check_resumed(text)


def test_a_rank_that_is_killed_ends_all(text):
    code, output = convert(text, "KILL", 40)
    assert code not in (0, None), output
    check_resumed(text)


@pytest.mark.full
def test_no_rank_leaves_an_interrupted_conversion_before_all_have_ended(text):
    """A launcher kills the others of a rank that leaves without the end of its MPI."""
    code, output = convert(text, "INT", 25)
    assert (code, output) == (130, "")
    assert (text / "ended").exists()
    check_resumed(text)


def test_the_command_says_how_to_go_on(tmp_path):
    """From `hpcsgd data convert --ranks` down, whose rank 1 is killed midway."""
    line = "1 " + " ".join(f"{j}:0.{j}" for j in range(1, 200)) + "\n"
    with open(tmp_path / "a.svm", "w") as file:
        for _ in range(40):
            file.write(line * 1000)
    words = ["a.svm", "a.h5", "--quiet", "--ranks", "2", "--force"]
    for _ in range(5):  # one that is done before the signal comes says nothing
        code, said = _killed_midway(words, tmp_path)
        if code != 0:
            break
    assert code == 1, said
    sentence = [s for s in said.splitlines() if s.startswith("hpcsgd: error")]
    assert len(sentence) == 1 and "was killed by SIGKILL" in sentence[0], said
    assert sentence[0].endswith("run again with --resume to go on with what was begun")
    assert not (tmp_path / "a.h5").exists()


def _killed_midway(words, folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcsgd", "data", "convert", *words],
        cwd=folder,
        env=launcher.launch_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        part = folder / ".a.h5.part"
        wait_until(lambda: part.exists() or process.poll() is not None, HANG)
        with suppress(ProcessLookupError, ValueError):
            os.kill(max(_ranks_below(process)), signal.SIGKILL)
        said, _ = process.communicate(timeout=HANG)
    finally:
        launcher.end(process)
    return process.returncode, said


def _ranks_below(process):
    found = []
    for pid in launcher.descendants(process.pid):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"-m", b"hpcsgd"]:
                found.append(pid)
    return found
