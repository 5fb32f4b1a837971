"""Ctrl-C before a command has begun: 130, and no traceback."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.command_line import environment
from tests.helpers.limits import HANG

SCRIPT = Path(sys.executable).with_name("hpcsgd")
# A module that is imported amid the others sends the signal: no clock has to be right.
SENDER = """
import importlib.abc, os, signal, sys

class Sender(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Sender())
"""
MODULES = ["hpcsgd.cli.parser", "argparse", "numpy", "numpy.linalg", "hpcsgd.cli.train"]


def interrupted(tmp_path, command, module):
    """The command, with a SIGINT when `module` is looked for."""
    (tmp_path / "sitecustomize.py").write_text(SENDER)
    paths = [str(tmp_path), str(Path(__file__).parents[2])]
    names = {"INTERRUPTED_AT": module, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        command,
        env=environment() | names,
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=tmp_path,
    )


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("how", ["module", "script"])
def test_an_interrupt_amid_imports_is_130_without_a_traceback(tmp_path, how, module):
    if how == "script" and not SCRIPT.exists():
        pytest.skip("hpcsgd is not installed as a script here")
    start = [str(SCRIPT)] if how == "script" else [sys.executable, "-m", "hpcsgd"]
    found = interrupted(tmp_path, [*start, "train", "--data", "none.h5"], module)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


DELAYS = [k / 25 for k in range(1, 13)]  # seconds: the start takes about 0.3
OURS = re.compile(r'File "[^"]*/hpcsgd/[^"]*\.py"')


@pytest.mark.cases(1)
@pytest.mark.parametrize("how", ["module", "script"])
def test_an_interrupt_at_any_time_of_the_start_leaves_no_traceback_of_ours(
    tmp_path, how
):
    """Ahead of the first line of ours the interpreter may write one of its own.

    The command waits for a pipe that nobody writes, so that no signal is too late.
    """
    if how == "script" and not SCRIPT.exists():
        pytest.skip("hpcsgd is not installed as a script here")
    start = [str(SCRIPT)] if how == "script" else [sys.executable, "-m", "hpcsgd"]
    os.mkfifo(tmp_path / "run.toml")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    wrong = []
    for delay in DELAYS:
        command = [*start, "train", "run.toml"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment(), **pipes
        ) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=HANG)
        is_of_python = "KeyboardInterrupt" in errors and not OURS.search(errors)
        # The interpreter ends with 1 where it is amid its own `site`.
        codes = (1, -signal.SIGINT) if is_of_python else (130, -signal.SIGINT)
        if process.returncode not in codes or out or (errors and not is_of_python):
            wrong.append((delay, process.returncode, errors))
    assert not wrong


@pytest.mark.parametrize("how", ["module", "script"])
def test_an_interrupt_behind_the_first_line_ends_the_command(tmp_path, how):
    if how == "script" and not SCRIPT.exists():
        pytest.skip("hpcsgd is not installed as a script here")
    start = [str(SCRIPT)] if how == "script" else [sys.executable, "-m", "hpcsgd"]
    found = interrupted(tmp_path, [*start, "train", "--data", "none.h5"], "hpcsgd.cli")
    assert (found.returncode, found.stderr) == (-signal.SIGINT, "")


def test_a_program_that_imports_the_package_keeps_its_handler(tmp_path):
    code = (
        "import signal, hpcsgd, hpcsgd.cli; print(signal.getsignal(signal.SIGINT)"
        " is signal.default_int_handler)"
    )
    for words in (["-c", code], ["-c", code, "-m", "hpcsgd"]):
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=HANG,
        )
        assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("module", ["numpy", "hpcsgd.api"])
def test_an_interrupt_amid_imports_of_ranks_leaves_no_traceback(tmp_path, module):
    if shutil.which("mpiexec", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("no mpiexec belongs to this Python")
    command = [sys.executable, "-m", "hpcsgd", "train", "--data", "none.h5"]
    found = interrupted(tmp_path, [*command, "--ranks", "2"], module)
    assert found.returncode != 0
    assert "Traceback" not in found.stderr


def test_an_interrupt_of_a_command_that_works_is_130(tmp_path):
    """Read from a FIFO that no one writes: the command waits where it parses a file."""
    os.mkfifo(tmp_path / "run.toml")
    command = [sys.executable, "-m", "hpcsgd", "train", "run.toml"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(command, cwd=tmp_path, env=environment(), **pipes) as process,
        open(tmp_path / "run.toml", "w"),  # returns when the command has opened it
    ):
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=HANG)
    assert (process.returncode, out, errors) == (130, "", "")
