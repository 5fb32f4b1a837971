"""A played Slurm, and sites that nobody's home folder changes."""

import shutil

import pytest

from tests.jobs.fakes import Fakes


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Slurm's programs, played, on PATH."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    found = Fakes(tmp_path / "fakes")
    for name, value in found.variables.items():
        monkeypatch.setenv(name, value)
    found.answer("sbatch", out="4711\n")
    found.answer("sacct", code=1, err="Slurm accounting storage is disabled\n")
    return found


@pytest.fixture(autouse=True)
def no_own_sites(tmp_path, monkeypatch):
    """Sites of whoever runs the tests are not ours; nor are a job's variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (
        *("HPCSGD_SITES", "HPCSGD_CENTRAL_SITES", "HPCSGD_SITE"),
        *("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ):
        monkeypatch.delenv(name, raising=False)
