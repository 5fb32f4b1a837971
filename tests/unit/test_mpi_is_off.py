"""A communicator of mpi4py before MPI begins, or after it has ended."""

import subprocess
import sys

import pytest

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
    "fit": 'hpcsgd.fit(X, "gaussian", X[:, 0], comm=MPI.COMM_WORLD)',
    "path": "hpcsgd.path(X, X[:, 0], comm=MPI.COMM_WORLD)",
}
PHASES = {"": "not been initialised", "MPI.Init(); MPI.Finalize()": "been finalised"}


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
