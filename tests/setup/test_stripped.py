"""Set-up and a run on a machine that has next to nothing.

No gcc, no mpiexec, no HOME, a space in the path, and another user than root. It
downloads packages, so it belongs to `make test-all`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "env", "make", "sed", "expand", "tail", "mkdir", "rm", "uname")
PASSED_ON = ("PIP_", "SSL_", "REQUESTS_", "CURL_", "http_proxy", "https_proxy")
NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"

pytestmark = pytest.mark.full


@pytest.fixture
def stripped():
    """(folder with a space, its environment, what to run commands as).

    Not below pytest's own folder: every session of pytest closes that to others.
    """
    base = Path(tempfile.mkdtemp(prefix="stripped-"))
    checkout, tools = base / "a check out", base / "bin"
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, names):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (tools / tool).symlink_to(found)
    _python_into(tools)
    kept = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
    environment = {"PATH": str(tools), "LC_ALL": "C.UTF-8", **kept}
    yield checkout, environment, _as_nobody(base)
    shutil.rmtree(base)


def _python_into(tools):
    """An interpreter every user may run, with virtualenv where it lacks ensurepip."""
    own = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    if os.geteuid() != 0 or _readable_by_all(own.parent):
        (tools / "python3").symlink_to(own)
        return
    (tools / "python3").symlink_to(SYSTEM_PYTHON)
    folder = tools.parent / "virtualenv"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder)]
    subprocess.run([*pip, "virtualenv"], check=True, timeout=HANG)
    script = tools / "virtualenv"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{folder}" exec {SYSTEM_PYTHON} -m virtualenv "$@"\n'
    )
    script.chmod(0o755)


def _as_nobody(base):
    """The command in front of others that makes them another user's."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    for path in [base, *base.rglob("*")]:
        if not path.is_symlink():
            os.chown(path, NOBODY, NOBODY)
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return [shutil.which("setpriv"), *user]


def _readable_by_all(path):
    return all(p.stat().st_mode & 0o005 == 0o005 for p in [path, *path.parents])


def test_set_up_and_train(stripped):
    checkout, environment, user = stripped

    def run(*command, limit=600):
        done = subprocess.run(
            [*user, *command],
            cwd=checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    make = shutil.which("make")
    said = run(make, "environment")
    assert "kernels not compiled" in said and "NumPy path" in said
    assert run(make, "environment") == "", "nothing is done a second time"
    beside = {p.name for p in checkout.parent.iterdir()}
    assert beside <= {"a check out", "bin", "virtualenv"}, "nothing is put outside"
    if os.geteuid() == 0 and user:
        assert (checkout / ".venv").stat().st_uid == NOBODY
    hpcsgd = [".venv/bin/python", "-m", "hpcsgd"]
    info = run(*hpcsgd, "info")
    assert "compiled no" in info and "MPICH" in info
    run(*hpcsgd, "data", "synth", "--shape", "susy", "--rows", "500", "--out", "s.h5")
    said = run(*hpcsgd, "train", "--data", "s.h5", "--ranks", "2", "--precision", "c")
    assert "2 as 2 x 1" in said and "completed" in said
