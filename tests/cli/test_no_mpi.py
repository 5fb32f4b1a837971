"""An MPI library that does not load: the loader's own words, and a site's remedy."""

import os
import subprocess
import sys

import pytest

from hpcsgd.comm.mpi import why_not_loaded
from tests.helpers.limits import HANG

LOADER = "/nowhere/libmpi.so.12: cannot open shared object file"


def run_command(*words):
    environment = {**os.environ, "MPI4PY_LIBMPI": "/nowhere/libmpi.so.12"}
    return subprocess.run(
        [sys.executable, "-m", "hpcsgd", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
    )


def test_a_command_repeats_what_the_loader_says(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('[problem]\nfamily = "logistic"\n')
    rows = tmp_path / "rows.h5"
    rows.write_bytes(b"")
    done = run_command("train", str(config), "--comm", "mpi", "--data", str(rows))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert LOADER in done.stderr
    for remedy in ("module load", "MPI4PY_LIBMPI", "--no-binary mpi4py mpi4py"):
        assert remedy in done.stderr
    assert "pip install mpi4py mpich" not in done.stderr


def test_info_repeats_what_the_loader_says():
    done = run_command("info")
    assert done.returncode == 0 and LOADER in done.stdout


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'mpi4py'"), "pip install mpi4py"),
        (ImportError("libmpi.so.40: cannot open"), "libmpi.so.40: cannot open"),
        (RuntimeError("cannot load MPI library\nlibmpi.so: no"), "libmpi.so: no"),
    ],
)
def test_every_build_of_mpi4py_is_answered_in_one_sentence(error, said):
    sentence = why_not_loaded(error)
    assert said in sentence and "\n" not in sentence
