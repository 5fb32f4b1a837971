"""The command as a user runs it: a process, its output, its exit code."""

import json
import os
import subprocess
import sys

import pytest

LAUNCH_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "MPI_", "HPCSGD_", "HYDI_")


@pytest.fixture
def hpcsgd(tmp_path):
    """Run `hpcsgd ...` in an empty folder; returns the finished process."""

    def run(*arguments, timeout=60):
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)
        }
        return subprocess.run(
            [sys.executable, "-m", "hpcsgd", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def command(hpcsgd):
    """`hpcsgd ...` by another name, for files that import the package too."""
    return hpcsgd


@pytest.fixture(scope="session")
def susy(tmp_path_factory):
    """A small SUSY-shaped file."""
    from hpcsgd.data.synthetic import write_synthetic

    path = tmp_path_factory.mktemp("data") / "susy.h5"
    write_synthetic(path, "susy", 2000, 18, 0)
    return path


def only_json(process):
    """The one document on standard output."""
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
