"""Shared by all tests: the launcher of real ranks, and the time each folder used."""

import gc
import json
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.helpers import launcher
from tests.helpers.cases import mark_repeats
from tests.suite import COUNTS, UNRUN

# One BLAS thread a rank: thread ranks and real ranks share two cores here.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Ranks of MPICH that wait sleep instead of spinning: there are more of them than cores,
# and the rank that computes, or another worker of these tests, needs the core.
os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")

# Kernels that tests compile, or pretend to, do not go to the home of the user.
os.environ.setdefault("CUPY_CACHE_DIR", os.path.join(gettempdir(), "hpcsgd-tests"))

# A shell without job control ignores SIGINT in what it starts by `&`, and every child
# would inherit that: tests that interrupt a command would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.helpers.plugin_ranks"]

HERE = Path(__file__).parent
BUDGET_MINUTES = {  # on two cores
    **{
        "unit": 3,
        "equivalence": 3,
        "precision": 2,
        "ranks": 4,
        "kernels": 5,
        "slurm": 2,
    },
    **{"faults": 4, "estimators": 2, "docs": 10},
}
SEGMENTS, PLACE = pytest.StashKey(), pytest.StashKey()
KINDS = {"passed": ["passed"], "failed": ["failed", "error"], "skipped": ["skipped"]}
_used: dict[str, float] = defaultdict(float)


def pytest_addoption(parser):
    parser.addoption(
        "--require-gpu", action="store_true", help="tests of a GPU fail without one"
    )
    parser.addoption("--quick", action="store_true", help="one case of each test")


def pytest_configure(config):
    """For this run alone: runs that tests start are not counted."""
    config.stash[PLACE] = os.environ.pop(COUNTS, None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before pytest selects by markers."""
    mark_repeats(items, config.getoption("quick"))


@pytest.fixture(autouse=True)
def same_environment():
    """What a test leaves there would be heard by whichever comes next."""
    before = _environment()
    yield
    left = {n for n, v in _environment().items() ^ before.items()}
    assert not left, f"the test leaves {sorted(left)} of the environment changed"


def _environment():
    """Return all variables but those that pytest or a library sets once and for all.

    NCCL's are for the whole program; scikit-learn's first import sets those of OpenMP.
    """
    own = ("PYTEST_CURRENT_TEST", "NCCL_", "KMP_")
    return {n: v for n, v in os.environ.items() if not n.startswith(own)}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    began = time.perf_counter()
    yield
    folder = Path(item.path).relative_to(HERE).parts[0]
    _used[folder] += time.perf_counter() - began


def pytest_runtest_logreport(report):
    """What workers have run is known by their reports alone."""
    if hasattr(report, "node"):
        _used[Path(report.nodeid).parts[1]] += report.duration


def pytest_collection_finish():
    """What was collected lives to the end: no collection need look at it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart(session):
    session.config.stash[SEGMENTS] = launcher.segments()


def pytest_sessionfinish(session):
    """Neither ranks nor workers sweep: others are still at work."""
    config = session.config
    if config.getoption("with_mpi", False) or hasattr(config, "workerinput"):
        return
    launcher.sweep(config.stash[SEGMENTS])


def pytest_terminal_summary(terminalreporter, config):
    """Seconds used beside seconds allowed; passing a budget is reported, not failed."""
    if not _used or os.environ.get("HPCSGD_QUIET_BUDGET"):
        return
    terminalreporter.section("time by folder")
    for folder, used in sorted(_used.items()):
        allowed = BUDGET_MINUTES.get(folder)
        over = " OVER" if allowed and used > 60 * allowed else ""
        limit = f" of {60 * allowed:4d}" if allowed else ""
        terminalreporter.write_line(f"{folder:14s} {used:7.1f} s{limit}{over}")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Counts for whoever adds up several runs."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if config.stash[PLACE] is None or reporter is None:
        return
    counts = {
        name: sum(len(reporter.stats.get(kind, [])) for kind in kinds)
        for name, kinds in KINDS.items()
    }
    counts["unrun"] = config.stash.get(UNRUN, "")
    with open(config.stash[PLACE], "a") as file:
        file.write(json.dumps(counts) + "\n")


@pytest.fixture
def ratios(monkeypatch):
    """gap / tolerance of everything that was compared, by what it was of."""
    import numpy as np

    from hpcsgd.products import monitor

    found = {"scores": [], "residuals": []}
    note = monitor.GapMonitor.note

    def noting(self, what, number, difference, allowed):
        found[what].append(float(np.max(difference / allowed)))
        note(self, what, number, difference, allowed)

    monkeypatch.setattr(monitor.GapMonitor, "note", noting)
    return found
