"""The wheel of each Python that setup.cfg names and this machine has.

It downloads packages, so it belongs to `make test-all`.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
PYTHONS = re.findall(r"(?m)Python :: (3\.\d+)$", (ROOT / "setup.cfg").read_text())
SOURCES = ("hpcsgd", "kernels", "slurm", "data")
FILES = ("setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md")

pytestmark = pytest.mark.full


def interpreters():
    """Return version -> interpreter, of those on the path and those of pyenv."""
    found = {}
    for version in PYTHONS:
        others = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
        for path in [shutil.which(f"python{version}"), *others]:
            command = [str(path), "-c", "import ensurepip, venv"]
            if path and not subprocess.run(command, capture_output=True).returncode:
                found.setdefault(version, str(path))
    return found


@pytest.mark.cases("all")
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_runs_on_two_ranks(version, tmp_path):
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"there is no Python {version} with venv here")
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    source.mkdir()
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in (*FILES, "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    compiler = tmp_path / "quick-cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    own = tmp_path / "environment" / "bin"
    outer = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def run(*command, **more):
        done = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path,
            env={**outer, "PATH": f"{own}:/usr/bin:/bin", "CC": str(compiler), **more},
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return done.stdout

    run(python, "-m", "venv", own.parent)
    pip = (own / "python", "-m", "pip")
    run(*pip, "wheel", "-q", "--no-deps", "--wheel-dir", wheels, source)
    (wheel,) = wheels.glob("hpcsgd-*.whl")
    assert f"-cp{version.replace('.', '')}-" in wheel.name
    run(*pip, "install", "-q", f"{wheel}[mpich,sklearn]")
    assert "compiled yes" in run(own / "hpcsgd", "info")
    said = run(own / "hpcsgd", "jobs", "smoke", "--ranks", "2", HYDRA_LAUNCHER="fork")
    assert "smoke: good: 2 ranks" in said and f"python {version}." in said
    fit = (
        "import numpy as np, hpcsgd;"
        " X = np.random.default_rng(0).normal(size=(200, 3));"
        " m = hpcsgd.LinearRegression().fit(X, X @ [1.0, 2.0, 3.0]);"
        " print(abs(m.coef_ - [1, 2, 3]).max() < 1e-3)"
    )
    assert run(own / "python", "-c", fit).strip() == "True"
