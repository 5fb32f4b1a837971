"""Real ranks, of which one has no GPU or loses it: all of them end, and say why."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.runs.checkpoint import CheckpointStore
from tests.helpers import launcher
from tests.helpers.kernels.emulator import COMPILER
from tests.helpers.problems import make_problem

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from hpcsgd.runs import gpu
from hpcsgd.backends.cuda import driver
from hpcsgd.comm import open_world
from tests.helpers.kernels.fake_device import FakeDevice
rank, (what, count), arguments = open_world().rank, sys.argv[1:3], sys.argv[3:]
if what == "driver":
    if rank != 1:
        gpu.take_gpu = lambda world, share: FakeDevice(place=f"node {rank}")
    driver.driver_major = lambda: None
else:
    def take(world, share):
        device = FakeDevice(place=f"node {rank}")
        if rank == 1:
            device.layer.break_at(what, int(count))
        return device
    gpu.take_gpu = take
from hpcsgd.cli import main
sys.exit(main(arguments))
"""
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


def run(tmp_path, what, count):
    """(exit code, output) of two ranks."""
    if launcher.mpiexec() is None:
        pytest.skip("no mpiexec")
    problem = make_problem("logistic", n=37, d=13)
    with StoreWriter(tmp_path / "x.h5", StoreLayout(13)) as writer:
        writer.append(problem.X.astype(np.float32), problem.y)
    arguments = ["train", "--data", str(tmp_path / "x.h5"), "--device", "cuda"]
    arguments += ["--out", str(tmp_path / "run"), "--transport", "mpi-host"]
    for setting in (
        *("schedule.batch=8", "schedule.steps=4", "schedule.epochs=4"),
        *("checkpoint.every=2", "precision.recipe=fp32", "problem.family=logistic"),
        "products.kind=gram",
    ):
        arguments += ["--set", setting]
    command = [*launcher.mpiexec(), "-n", "2", sys.executable, "-c", PROGRAM]
    environment = {**launcher.launch_environment(), "PYTHONPATH": str(ROOT)}
    command += [what, str(count), *arguments]
    return launcher.run(command, 60, ROOT, environment)


def test_one_that_loses_its_gpu_ends_them_all(tmp_path):
    # After exchange 5: what was saved after 2 is on disk since 4 was handed over.
    code, output = run(tmp_path, "replay", 6)
    assert code not in (0, None), output
    assert "rank 1: error: the GPU node 1 failed (cudaErrorIllegalAddress" in output
    said = re.search(r"; (\S+) has the state after exchange (\d+): start", output)
    path, checkpoint = CheckpointStore(tmp_path / "run", 1).newest()
    assert 2 <= int(said[2]) <= checkpoint.exchanges  # rank 0 may have written since
    assert Path(said[1]) in CheckpointStore(tmp_path / "run", 1).paths()


def test_one_without_a_driver_is_heard_of_by_all(tmp_path):
    code, output = run(tmp_path, "driver", 0)
    assert code == 2, output
    said = [line for line in output.splitlines() if "no NVIDIA driver is here" in line]
    assert len(said) == 1 and "use --device cpu" in said[0]
    assert not (tmp_path / "run").exists()
