"""Tests on real MPI ranks, from one plain `pytest`.

    @pytest.mark.ranks(1, 2, 3, 4, timeout=30)
    def test_something(comm): ...

Parent (plain pytest): every (test, n) is an item. Those of one file and one n share
a launch of `mpiexec -n n python -m pytest --with-mpi`, in which every rank writes down
what became of every test. A test that some rank did not finish is launched once
more, alone, and those after it once more, together: a crash or a deadlock is reported
for the test it belongs to and hides no other.

Child (`--with-mpi`, under our launch or anybody's mpiexec): the tests run in place on
the ranks there are. A rank that fails prints its traceback and aborts the job.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SIZE = "HPCSGD_TEST_RANKS"
REPORTS = "HPCSGD_TEST_REPORTS"
TIMEOUT = 60.0  # seconds without news from any rank, unless the mark says otherwise
START = 60.0  # seconds until the first test begins: n interpreters on few cores
GRACE = 5.0  # seconds between asking a launch to end and making it
TAIL = 4000  # characters of output shown for a launch that broke


def pytest_addoption(parser):
    # pytest-mpi has the option already, where it is installed.
    with suppress(ValueError):
        parser.addoption(
            "--with-mpi", action="store_true", help="run rank tests in place"
        )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "ranks(*n, timeout=60): run on n real MPI ranks, for each n"
    )
    in_place = config.getoption("with_mpi") or config.getoption("only_mpi", False)
    config.pluginmanager.register(Child() if in_place else Parent(), "ranks")


@pytest.fixture
def comm():
    """All ranks, as an mpi4py communicator of this test's own."""
    from mpi4py import MPI

    own = MPI.COMM_WORLD.Dup()
    yield own
    own.Free()


# ------------------------------------------------------------------ parent


@dataclass(frozen=True)
class Verdict:
    """What all ranks together say of one test."""

    outcome: str
    text: str = ""


class RanksFailed(Exception):
    """The ranks' own account; a traceback of the parent would add nothing."""


class RanksItem(pytest.Item):
    """One test on n ranks; a plain item, so that no fixture is set up in the parent."""

    def __init__(self, *, function, plugin, **kwargs):
        super().__init__(**kwargs)
        self.plugin = plugin
        self.size = function.callspec.params["_ranks"]
        mark = function.get_closest_marker("ranks")
        self.timeout = float(mark.kwargs.get("timeout", TIMEOUT))
        self.line = function.reportinfo()[1]
        self.own_markers = list(function.own_markers)
        self.keywords.update(function.keywords)

    def runtest(self):
        verdict = self.plugin.verdict(self)
        if verdict.outcome == "skipped":
            pytest.skip(verdict.text)
        if verdict.outcome == "failed":
            raise RanksFailed(verdict.text)

    def repr_failure(self, excinfo):
        if isinstance(excinfo.value, RanksFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, self.line, self.name


class Parent:
    """Stands for the ranks in the process that the user started."""

    def __init__(self):
        self.verdicts = {}
        self.groups = defaultdict(list)

    def pytest_generate_tests(self, metafunc):
        mark = metafunc.definition.get_closest_marker("ranks")
        if mark:
            parametrize(metafunc, mark.args)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [self._stand_in(item) for item in items]

    def _stand_in(self, item):
        if item.get_closest_marker("ranks") is None:
            return item
        return RanksItem.from_parent(
            item.parent, name=item.name, function=item, plugin=self
        )

    def pytest_collection_finish(self, session):
        for item in session.items:
            if isinstance(item, RanksItem):
                self.groups[item.path, item.size].append(item)

    def verdict(self, item):
        """The verdict on `item`; the first of a group to ask has all of it launched."""
        if mpiexec() is None:
            pytest.skip("no mpiexec; install one with: pip install mpi4py mpich")
        if item.nodeid not in self.verdicts:
            self.settle(self.groups[item.path, item.size])
        return self.verdicts[item.nodeid]

    def settle(self, items):
        """Launch until every item has a verdict; each launch settles at least one."""
        while items:
            launch = Launch(items)
            found = {item: launch.verdict(item.nodeid) for item in items}
            self.verdicts |= {item.nodeid: v for item, v in found.items() if v}
            items = self._settle_rest(launch, items, found)

    def _settle_rest(self, launch, items, found):
        """What has to be launched again, after whoever broke this launch got his."""
        failed = any(v and v.outcome == "failed" for v in found.values())
        left = [item for item in items if found[item] is None]
        if not launch.started:  # nothing began, so no single test is to blame
            self._blame(launch, items)
            return []
        if not left and launch.code and not failed:
            self._find_culprit(launch, items)  # all passed, and yet it broke at the end
            return []
        if not left or failed:
            return left  # what an abort took down with it
        culprit, *rest = left
        self._find_culprit(launch, [culprit] if culprit is not items[0] else items[:1])
        return rest

    def _find_culprit(self, launch, suspects):
        """Each suspect alone; one that already was has had its chance."""
        if launch.items[0] is suspects[0] and len(suspects) == 1:
            return self._blame(launch, suspects)
        for item in suspects:
            self.settle([item])

    def _blame(self, launch, items):
        for item in items:
            self.verdicts[item.nodeid] = Verdict("failed", launch.story())


class Launch:
    """One mpiexec, run to its end or to its time limit."""

    def __init__(self, items):
        self.items, self.size = items, items[0].size
        self.timed_out = 0.0
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            self.folder = Path(folder)
            with open(self.folder / "output", "wb") as output:
                process = subprocess.Popen(
                    self._command(),
                    cwd=items[0].config.rootpath,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    self._watch(process)
                finally:
                    end(process)
            self.code = process.returncode
            self.said = [self._read(rank) for rank in range(self.size)]
            self.output = (self.folder / "output").read_text(errors="replace")
        self.started = any(self.said)

    def _command(self):
        config, limit = self.items[0].config, max(i.timeout for i in self.items)
        pytest_ = [sys.executable, "-m", "pytest", "--with-mpi", "-q", "--tb=short"]
        # A rank that hangs says where, shortly before its time is up.
        shown = ["-o", f"faulthandler_timeout={0.8 * limit}"]
        place = ["-p", "no:cacheprovider", f"--rootdir={config.rootpath}"]
        if config.inipath:
            place += ["-c", str(config.inipath)]
        nodes = [item.nodeid for item in self.items]
        return [*mpiexec(), "-n", str(self.size), *pytest_, *shown, *place, *nodes]

    def _environment(self):
        quiet = {SIZE: str(self.size), REPORTS: str(self.folder)}
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**os.environ, **root, **quiet, "HPCSGD_QUIET_BUDGET": "1"}

    def _watch(self, process):
        """Wait for the end; every line that a rank writes starts the limit anew."""
        heard, since, limit = 0, time.monotonic(), START
        while process.poll() is None:
            size = sum(f.stat().st_size for f in self.folder.glob("*.jsonl"))
            if size != heard:
                limit = max(item.timeout for item in self.items)
                heard, since = size, time.monotonic()
            if time.monotonic() - since > limit:
                self.timed_out = limit
                return
            time.sleep(0.02)

    def _read(self, rank):
        """nodeid -> (outcome, text) as this rank wrote it."""
        path = self.folder / f"{rank}.jsonl"
        if not path.exists():
            return {}
        # A line that a dying rank did not end is no line.
        lines = [s for s in path.read_text().splitlines(True) if s.endswith("\n")]
        return {node: (how, text) for node, how, text in map(json.loads, lines)}

    def verdict(self, node):
        """What all ranks say of a test, or None where one did not finish it."""
        said = [ranks.get(node, ("", "")) for ranks in self.said]
        outcomes = [outcome for outcome, _ in said]
        if "failed" in outcomes:
            texts = [text for outcome, text in said if outcome == "failed"]
            return Verdict("failed", "\n".join(texts))
        if not set(outcomes) <= {"passed", "skipped"}:
            return None
        if len(set(outcomes)) > 1:
            return Verdict("failed", f"np={self.size}: not the same on all: {outcomes}")
        return Verdict(outcomes[0], said[0][1])

    def story(self):
        """How a launch ended that has no better account of itself."""
        how = f"mpiexec ended with code {self.code}"
        if self.timed_out:
            how = f"no news within {self.timed_out:.0f} s (a deadlock?), killed"
        return f"np={self.size}: {how}\n{self.output[-TAIL:]}"


@cache
def mpiexec():
    """The launcher as a list of words, or None; HPCSGD_TEST_MPIEXEC overrides."""
    words = shlex.split(os.environ.get("HPCSGD_TEST_MPIEXEC", ""))
    if words:
        return words
    # The one beside this Python belongs to the MPI that mpi4py finds here.
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    path = beside or shutil.which("mpiexec")
    if path is None:
        return None
    shown = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    is_open_mpi = any(name in shown for name in ("Open MPI", "OpenRTE", "PRTE", "prte"))
    return [path, "--oversubscribe", "--bind-to", "none"] if is_open_mpi else [path]


def end(process):
    """End a launch and all it started, and nothing else.

    Launchers put ranks into sessions of their own, so the group is not enough.
    """
    if process.poll() is not None:
        return
    family = descendants(process.pid)
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    for pid, started in family.items():
        if start_time(pid) == started:  # still the same process, not a new one
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def descendants(pid):
    """pid -> start time of everything below `pid`; empty where there is no /proc."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat_fields(path.name)
        if fields:
            children[int(fields[1])].append(int(path.name))
    found, todo = {}, [pid]
    while todo:
        below = children[todo.pop()]
        found |= {child: start_time(child) for child in below}
        todo += below
    return found


def start_time(pid):
    """When a process began, in ticks; None once it is gone."""
    fields = stat_fields(pid)
    return fields[19] if fields else None


def stat_fields(pid):
    """/proc/PID/stat from the state on; the name before it may hold anything."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


# ------------------------------------------------------------------- child


class Child:
    """One rank of a run under mpiexec."""

    def __init__(self):
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            message = "--with-mpi needs an MPI: pip install mpi4py mpich"
            raise pytest.UsageError(message) from error
        self.comm, self.outcomes, self.code = MPI.COMM_WORLD, {}, 0
        expected = int(os.environ.get(SIZE, self.comm.size))
        if self.comm.size != expected:
            raise pytest.UsageError(
                f"{expected} ranks were launched and MPI sees {self.comm.size}:"
                " this mpiexec does not belong to the MPI that mpi4py loads"
            )
        folder = os.environ.get(REPORTS)
        name = f"{self.comm.rank}.jsonl"
        self.file = open(Path(folder) / name, "a") if folder else None

    def pytest_generate_tests(self, metafunc):
        mark = metafunc.definition.get_closest_marker("ranks")
        if mark:
            skip = pytest.mark.skip(reason=f"needs one of {mark.args} ranks")
            suits = self.comm.size in mark.args
            parametrize(metafunc, [self.comm.size], () if suits else skip)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        for item in items:
            if item.get_closest_marker("ranks"):
                item.add_marker(pytest.mark.mpi(min_size=self.comm.size))

    def pytest_runtest_logstart(self, nodeid):
        self._say(nodeid, "started")

    def pytest_runtest_logreport(self, report):
        node = report.nodeid
        if report.failed:
            text = self._account(report)
            self.outcomes[node] = ("failed", text)
            if self.comm.size > 1:
                self._say(node, "failed", text)
                self._abort(text)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            self.outcomes.setdefault(node, ("skipped", reason))
        if report.when == "teardown":
            self._say(node, *self.outcomes.get(node, ("passed", "")))

    def pytest_sessionfinish(self, exitstatus):
        self.code = int(exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self):
        # No test ran here, or pytest itself failed: the others would wait for ever.
        if self.code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            if self.comm.size > 1:
                self._abort(f"rank {self.comm.rank}: pytest ended with {self.code}")

    def _account(self, report):
        title = f"rank {self.comm.rank} of {self.comm.size} failed in {report.when}"
        parts = [f"{name}\n{text}" for name, text in report.sections]
        return "\n".join([f"--- {title}", report.longreprtext, *parts])

    def _say(self, node, outcome, text=""):
        if self.file:
            print(json.dumps([node, outcome, text]), file=self.file, flush=True)

    def _abort(self, text):
        sys.stdout.flush()
        print(f"\n{text}", file=sys.stderr, flush=True)
        self.comm.Abort(1)


def parametrize(metafunc, sizes, marks=()):
    """One item a size, `[np2]`; the test itself need not ask for the number."""
    if "_ranks" not in metafunc.fixturenames:
        metafunc.fixturenames.append("_ranks")
    params = [pytest.param(n, id=f"np{n}", marks=marks) for n in sizes]
    metafunc.parametrize("_ranks", params)
