"""Weights on disk on real MPI ranks: equal, counted, killed on one rank, gone on."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hpcsgd.agreements.more.infinity.tiles import StateFile
from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.errors import DataError
from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem
from tests.helpers.infinity_child import config_of
from tests.helpers.sparse import make_sparse

TILE = 0.001


@pytest.fixture
def folder(comm):
    """One folder for all ranks."""
    own = tempfile.mkdtemp() if comm.rank == 0 else None
    path = Path(comm.bcast(own, 0))
    yield path
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


def run(comm, config, problem):
    return train(config, X=problem.X, y=problem.y, world=MpiCommunicator(comm.Dup()))


@pytest.mark.ranks(2, 4)
def test_it_is_ddp(comm, folder):
    """Dense and sparse, members too; the same model on all ranks."""
    for drawn in (make_problem("softmax"), make_sparse("logistic", d=41)[0]):
        for members in (1, 2) if comm.size == 4 else (1,):
            for kind in ("adam", "nesterov"):
                more = {"update": {"kind": kind}, "problem": {"intercept": True}}
                grid = comm.size // members, members
                there = run(comm, agreed(drawn, *grid, **more), drawn)
                asked = {"kind": "infinity", "store": str(folder), "tile": TILE}
                config = agreed(drawn, *grid, agreement=asked, **more)
                here = run(comm, config, drawn)
                assert here.report["agreement"]["tiles"] > 1
                assert np.abs(here.weights - there.weights).max() <= 1e-12
                assert len(set(comm.allgather(here.weights_sha256))) == 1


@pytest.mark.ranks(2, 4)
def test_a_drive_that_fails_on_one_rank_ends_all_and_all_go_on(comm, folder):
    """With the bits of a run that nothing happened to; --reproducible sums."""
    drawn = make_problem("logistic", n=53, d=37)
    size = comm.size
    repeat = {"tile": TILE}
    whole = run(comm, config_of(drawn, folder / "whole", size, **repeat), drawn)
    write, calls = StateFile.write, []

    def fails(self, *arguments):
        calls.append(1)
        if len(calls) == 30 and comm.rank == size - 1:
            raise DataError("the drive is gone")
        return write(self, *arguments)

    StateFile.write = fails
    try:
        with pytest.raises(DataError, match="the drive is gone"):
            run(comm, config_of(drawn, folder / "run", size, **repeat), drawn)
    finally:
        StateFile.write = write
    again = config_of(drawn, folder / "run", size, "auto", **repeat)
    result = run(comm, again, drawn)
    assert result.report["resumes"] == 1
    assert np.abs(result.weights - whole.weights).max() <= 1e-14
    assert os.path.exists(folder / "run" / "result.json") or comm.rank
