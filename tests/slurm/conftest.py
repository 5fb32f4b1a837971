"""One cluster for all tests of this folder, and every job of theirs sent at its start.

Jobs run at the same time, because most of them wait for something that Slurm does; a test
waits for its own. The order of JOBS is that in which they are sent: the longest first.
"""

import importlib.util
from pathlib import Path

import pytest

from tests import launcher
from tests.slurm.cluster import Cluster
from tests.slurm.desk import Desk

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLUSTER = pytest.StashKey()
UNRUN = pytest.StashKey()


def load_setup():
    """What installs Slurm, as a module: it knows what is needed and the line for it."""
    path = ROOT / ".ci" / "slurm.py"
    spec = importlib.util.spec_from_file_location("ci_slurm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def why_not():
    """Why these tests cannot run here, with the remedy; empty where they can."""
    setup = load_setup()
    if setup.missing():
        return f"no {', '.join(setup.missing())} here; on Debian: {setup.APT_LINE}"
    if launcher.mpiexec() is None:
        return "no MPI here; install one with: pip install mpi4py mpich"
    return ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    own = [item for item in items if item.path.parent == HERE]
    for item in own:
        item.add_marker(pytest.mark.slurm)
    reason = why_not() if own else ""
    if reason:
        config.stash[UNRUN] = f"slurm: {len(own)} tests NOT RUN: {reason}"
        for item in own:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_unconfigure(config):
    """The very last line, where nobody overlooks it."""
    if UNRUN in config.stash:
        print(config.stash[UNRUN], flush=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    cluster = item.config.stash.get(CLUSTER, None)
    if report.failed and cluster and item.path.parent == HERE:
        report.sections.append(("Slurm", cluster.logs()))


@pytest.fixture(scope="session")
def cluster(request):
    with Cluster() as cluster:
        request.config.stash[CLUSTER] = cluster
        yield cluster
    del request.config.stash[CLUSTER]


@pytest.fixture(scope="session")
def desk(cluster, tmp_path_factory):
    return Desk(cluster, tmp_path_factory.mktemp("slurm"))


ACROSS = ("--nodes", "2", "--tasks", "4", "--walltime", "00:05:00")
PAIR = ("--nodes", "1", "--tasks", "2", "--walltime", "00:05:00")
ALONE = ("--walltime", "00:05:00")


@pytest.fixture(scope="session")
def limited_job(desk):
    """Has a minute, and is told to save 25 s before: Slurm looks every 30 s."""
    flags = ("--nodes", "2", "--tasks", "4", "--walltime", "00:01:00", "--signal", "25")
    return desk.submit("train", "limited", desk.run, *SLOW, flags=flags)


@pytest.fixture(scope="session", params=["first", "last"])
def lost_job(request, desk):
    """Will lose the node of its script, or the other one."""
    flags = (*ACROSS, "--partition", "frail")
    name = f"lost-{request.param}"
    sent = desk.submit("train", name, desk.run, *SOMEWHAT_SLOW, flags=flags)
    return sent, request.param
