"""`--hdf5 mpio`: the same run where h5py can, one sentence where it cannot."""

import h5py
import pytest

from tests.helpers.command_line import only_json

has_mpi = h5py.get_config().mpi
COMMAND = ("train", "--batch", 16, "--steps", 4, "--epochs", 1, "--json")


@pytest.mark.skipif(not has_mpi, reason="h5py was built without MPI")
def test_the_weights_are_those_of_independent_reads(hpcsgd, susy):
    said = [
        only_json(hpcsgd(*COMMAND, "--data", susy, "--ranks", 2, "--hdf5", how))
        for how in ("mpio", "independent")
    ]
    assert said[0]["weights_sha256"] == said[1]["weights_sha256"]


@pytest.mark.skipif(not has_mpi, reason="h5py was built without MPI")
def test_it_needs_ranks_of_mpi(hpcsgd, susy):
    done = hpcsgd(
        *COMMAND, "--data", susy, "--hdf5", "mpio", "--set", "run.comm=serial"
    )
    assert done.returncode == 2 and "needs MPI ranks" in done.stderr


@pytest.mark.skipif(has_mpi, reason="h5py was built with MPI")
def test_an_h5py_without_mpi_is_said(hpcsgd, susy, tmp_path):
    done = hpcsgd(
        *COMMAND, "--data", susy, "--ranks", 2, "--hdf5", "mpio", "--out", "r"
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "built with MPI; leave --hdf5 out" in done.stderr
    assert not (tmp_path / "r" / "result.h5").exists()
