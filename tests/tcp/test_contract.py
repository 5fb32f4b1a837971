"""The contract of communicators on real processes without MPI, and bits of runs."""

import json
import sys

import pytest

from hpcsgd.comm.threads import run_ranks
from tests import launcher
from tests.tcp.child import RUNS, train
from tests.tcp.harness import ROOT, Ranks, clean_environment


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_contract_and_the_bits_of_threads(size, tmp_path):
    """One launch for all of it; runs have the bits of ranks that are threads."""
    with Ranks(tmp_path, size, ["-m", "tests.tcp.child", "contract", "tcp"]) as ranks:
        codes, texts = ranks.ends()
    assert codes == [0] * size, "\n".join(texts)
    said = json.loads(texts[0].splitlines()[-1])["bits"]
    for found, which in zip(said, RUNS, strict=True):
        assert {found} == set(run_ranks(size, lambda world, w=which: train(world, *w)))


def test_two_ranks_have_the_bits_of_mpi(tmp_path):
    """Of two numbers there is one sum."""
    if launcher.mpiexec() is None:
        pytest.skip("no mpiexec; install one with: pip install mpi4py mpich")
    child = ["-m", "tests.tcp.child", "bits"]
    command = [*launcher.mpiexec(), "-n", "2", sys.executable, *child, "mpi"]
    code, text = launcher.run(command, 60, ROOT, clean_environment(tmp_path))
    assert code == 0, text
    with Ranks(tmp_path, 2, [*child, "tcp"]) as ranks:
        codes, texts = ranks.ends()
    assert codes == [0, 0], texts
    assert json.loads(texts[0]) == json.loads(text)
