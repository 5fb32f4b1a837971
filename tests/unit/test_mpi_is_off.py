"""A communicator of mpi4py before MPI begins, or after it has ended."""

import subprocess
import sys

import pytest

from hpcsgd.data.synthetic import write_synthetic
from tests.helpers import launcher
from tests.helpers.limits import HANG

SCRIPT = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
import numpy as np
import hpcsgd
{before}
X = np.random.default_rng(0).normal(size=(20, 2))
try:
    {call}
except hpcsgd.ConfigError as error:
    print("refused:", error)
"""
CALLS = {
    "estimator": "hpcsgd.LinearRegression().fit(X, X[:, 0], comm=MPI.COMM_WORLD)",
    "fit": 'hpcsgd.fit(X, "gaussian", X[:, 0], comm=MPI.COMM_WORLD)',
    "path": "hpcsgd.path(X, X[:, 0], comm=MPI.COMM_WORLD)",
}
PHASES = {"": "not been initialised", "MPI.Init(); MPI.Finalize()": "been finalised"}


@pytest.mark.cases(1)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("before", PHASES)
def test_it_is_refused_and_the_interpreter_goes_on(call, before):
    code = SCRIPT.format(before=before, call=CALLS[call])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    assert "refused: comm cannot be used" in done.stdout
    assert PHASES[before] in done.stdout


def test_training_on_ranks_after_finalize_is_refused(tmp_path):
    data = tmp_path / "d.h5"
    write_synthetic(data, "susy", 40, 3, 0)
    call = (
        f"hpcsgd.train({{'data': {{'path': {str(data)!r}}}, 'run': {{'comm': 'mpi'}}}})"
    )
    code = SCRIPT.format(before="MPI.Init(); MPI.Finalize()", call=call)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "refused: ranks cannot communicate any more: MPI has been" in done.stdout


def test_a_communicator_without_ranks_is_refused():
    for before in (
        "MPI.Init()",
        "MPI.Init(); COMM = MPI.COMM_WORLD.Dup(); COMM.Free()",
    ):
        comm = "COMM" if "COMM =" in before else "MPI.COMM_NULL"
        call = f'hpcsgd.fit(X, "gaussian", X[:, 0], comm={comm})'
        code = SCRIPT.format(before=before, call=call)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert "refused: comm is MPI.COMM_NULL" in done.stdout, done.stderr


LEVEL = """
from hpcsgd.comm import open_world
world = open_world("mpi", timeout={timeout})
from mpi4py import MPI
names = [name for name in dir(MPI) if name.startswith("THREAD_")]
print([name for name in names if getattr(MPI, name) == MPI.Query_thread()])
world.close()
"""


@pytest.mark.parametrize("timeout, level", [(20, "MULTIPLE"), (0, "SERIALIZED")])
@pytest.mark.parametrize("before", ["", "mpi_facts()"])
def test_mpi_has_locks_only_where_a_watchdog_calls_it(before, timeout, level):
    """Nothing states here that all ranks are on one node."""
    code = f"from hpcsgd.comm.mpi import mpi_facts\n{before}\n"
    done = subprocess.run(
        [sys.executable, "-c", code + LEVEL.format(timeout=timeout)],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.stdout.strip() == f"['THREAD_{level}']", done.stderr


@pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec")
@pytest.mark.parametrize("variable, level", [
    ({}, "SERIALIZED"), ({"MPI4PY_RC_THREAD_LEVEL": "multiple"}, "MULTIPLE")
])  # fmt: skip
@pytest.mark.parametrize("before", ["", "mpi_facts()"])
def test_mpi_has_no_locks_for_ranks_of_one_node(before, variable, level):
    code = f"from hpcsgd.comm.mpi import mpi_facts\n{before}\n"
    code += LEVEL.format(timeout=20)
    command = [*launcher.mpiexec(), "-n", "2", sys.executable, "-c", code]
    environment = {**launcher.launch_environment(), **variable}
    returned, output = launcher.run(command, HANG, None, environment)
    assert returned == 0 and output.count(f"['THREAD_{level}']") == 2, output
