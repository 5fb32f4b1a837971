"""Who installs Slurm and Chromium: root who asks for them, and nobody else."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
CI = ROOT / ".ci"


@pytest.fixture(params=["slurm", "browser"])
def setup(monkeypatch, request):
    """The program, on a machine without what it installs."""
    monkeypatch.syspath_prepend(str(CI))
    path = CI / f"{request.param}.py"
    spec = importlib.util.spec_from_file_location(f"ci_{request.param}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import environment

    def which(name, path=None):
        return name if name == "apt-get" else None

    ran = []

    def run(command):
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="")

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(module.shutil, "which", which)
    yield module, ran
    del sys.modules["environment"]


@pytest.mark.parametrize("asked", ["", "0", "1"])
@pytest.mark.parametrize("user", [0, 1000])
def test_the_system_is_changed_by_root_who_asks(setup, monkeypatch, asked, user):
    module, ran = setup
    monkeypatch.setenv("HPCSGD_APT", asked)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert module.main() == 0
    if (asked, user) == ("1", 0):
        update, install = ran
        assert update == ["apt-get", "update"]
        assert " ".join(install) == module.APT_LINE
    else:
        assert ran == []


def test_what_is_there_is_not_installed(setup, monkeypatch):
    module, ran = setup
    monkeypatch.setenv("HPCSGD_APT", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module.shutil, "which", lambda name, path=None: name)
    assert module.main() == 0 and ran == []


@pytest.mark.parametrize(
    "tests, shown, line",
    [
        ("slurm", "NOT RUN: no munged, slurmctld", "slurm-wlm munge libpmix-dev"),
        ("docs/test_browser.py", "NOT RUN: no chromium", "chromium"),
    ],
)
def test_what_is_missing_is_in_the_last_line(tmp_path, tests, shown, line):
    """Tests that cannot run are counted there, with the command that installs it."""
    hides = "import shutil; shutil.which = lambda *a, **k: None\n"
    (tmp_path / "sitecustomize.py").write_text(hides)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"tests/{tests}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0 and shown in last and " tests NOT RUN: " in last
    assert last.endswith(f"apt-get install -y {line}")
    assert " passed" not in done.stdout and " skipped" in done.stdout
