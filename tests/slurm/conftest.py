"""One cluster for all tests of this folder, and every job of theirs sent at its start.

Jobs run at the same time, because most of them wait for something that Slurm does; a
test waits for its own, which is the fixture of the job's name.
"""

import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers import launcher
from tests.slurm.cluster import Cluster
from tests.slurm.desk import LONGEST, Desk
from tests.slurm.jobs import ACTS, BEFORE, JOBS
from tests.suite import UNRUN

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLUSTER = pytest.StashKey()


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


@pytest.fixture(scope="session")
def jobs(request, desk):
    """Every job that a selected test waits for, sent at once; what is to happen to
    some of them happens meanwhile."""
    wanted = {name for item in request.session.items for name in asked(item)}
    pool = ThreadPoolExecutor(len(JOBS) + len(ACTS))
    yield Jobs(desk, pool, [name for name in JOBS if name in wanted])
    desk.closed = True  # after a Ctrl-C some may still wait
    pool.shutdown(wait=False, cancel_futures=True)


class Jobs:
    """Name -> job, as soon as it is sent and what happens to it has happened."""

    def __init__(self, desk, pool, names):
        self._sent = {}
        self._acted = {}
        for name in names:
            self._sent[name] = pool.submit(JOBS[name], desk, self)
            if name == "limited":
                self.sent(name)  # it takes longest
        for name in set(names) & set(ACTS):
            self._acted[name] = pool.submit(self._act, name, desk.cluster)

    def _act(self, name, cluster):
        return ACTS[name](self.sent(name), cluster)

    def sent(self, name):
        """The job, which may not have begun."""
        return self._sent[name].result(LONGEST)

    def __getitem__(self, name):
        if name in self._acted:
            self._acted[name].result(LONGEST)
        return self.sent(name)


def asked(item):
    """Names of the jobs of a test, and of those that go before."""
    names = set(getattr(item, "fixturenames", ())) & set(JOBS)
    return names.union(*(BEFORE.get(name, ()) for name in names))


def fixture_of(name):
    """A job, as a fixture of that name."""
    return pytest.fixture(name=name)(lambda jobs: jobs[name])


for _name in JOBS:
    globals()[f"the_{_name}"] = fixture_of(_name)


@pytest.fixture(scope="session")
def undisturbed(desk):
    """The result of the same run by a plain srun, which nothing happens to."""
    out = desk.folder / "undisturbed"
    train = [sys.executable, "-m", "hpcsgd", "train", desk.run, "--out", out]
    words = ("srun", "--nodes=2", "--ntasks=4", "--mpi=pmi2", *train, "--timeout", 19)
    # The site's file says why: now and then MPICH's ranks of several nodes never meet.
    # The time limit of a start ends those, and they are started again.
    how = {"limit": LONGEST, "MPIR_CVAR_CH4_NETMOD": "ofi"}
    for _ in range(4):
        with suppress(AssertionError):
            desk.cluster.call(*words, **how)
            break
    else:
        desk.cluster.call(*words, **how)
    return json.loads((out / "result.json").read_text())
