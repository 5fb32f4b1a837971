"""The contract of communicators on real processes without MPI, and bits of runs."""

import json
import sys

import pytest

from hpcsgd.comm.threads import run_ranks
from tests.helpers import launcher
from tests.tcp.child import RUNS, train
from tests.tcp.harness import ROOT, Ranks, clean_environment

CHILD = ["-m", "tests.tcp.child"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_contract_and_the_bits_of_threads(size, tmp_path):
    """One launch for all of it; two ranks have the bits of MPI, too."""
    with Ranks(tmp_path, size, [*CHILD, "contract", "tcp"]) as ranks:
        codes, texts = ranks.ends()
    assert codes == [0] * size, "\n".join(texts)
    said = json.loads(texts[0].splitlines()[-1])
    for found, which in zip(said, RUNS, strict=True):
        assert {found} == set(run_ranks(size, lambda world, w=which: train(world, *w)))
    if size == 2 and launcher.mpiexec() is not None:
        assert said == of_mpi(tmp_path)


def of_mpi(folder):
    """The same runs on two ranks of MPI: of two numbers there is one sum."""
    command = [*launcher.mpiexec(), "-n", "2", sys.executable, *CHILD, "bits", "mpi"]
    code, text = launcher.run(command, 60, ROOT, clean_environment(folder))
    assert code == 0, text
    return json.loads(text)
