"""A run folder, its configuration, and the weights that it has to end with."""

import shutil

import pytest

from hpcsgd.data.synthetic import write_synthetic
from tests.helpers import launcher
from tests.helpers.killed_runs import Case


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "susy.h5"
    write_synthetic(path, "susy", 1200, 18, 3)
    return path


@pytest.fixture
def case(tmp_path, data):
    if launcher.mpiexec() is None:
        pytest.skip("no mpiexec; install one with: pip install mpi4py mpich")
    return Case(tmp_path, data)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, data):
    """ranks -> fingerprint of the weights of a run that nothing happened to."""
    known = {}

    def of(ranks):
        if ranks not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            ended = Case(folder, data, ranks).run()
            assert ended.code == 0, ended.output
            known[ranks] = ended.result["weights_sha256"]
        return known[ranks]

    return of


@pytest.fixture(scope="session")
def broken(tmp_path_factory, data):
    """A folder of a run whose rank 1 failed after exchange 33; tests take copies."""
    case = Case(tmp_path_factory.mktemp("broken"), data)
    assert case.run("--fault", "raises", "--at", 33).code not in (0, None)
    return case.out


@pytest.fixture
def broken_case(case, broken):
    """A case of that run."""
    shutil.copytree(broken, case.out)
    return case
