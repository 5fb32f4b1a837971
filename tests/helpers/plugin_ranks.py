"""Tests on real MPI ranks, from one plain `pytest`.

    @pytest.mark.ranks(1, 2, 3, 4)
    def test_something(comm): ...

Parent (plain pytest): every (test, n) is an item. Those of one n share a launch of
`mpiexec -n n python -m pytest --with-mpi`, because n interpreters take seconds to start
on few cores. Every rank writes down what became of every test. A test that some rank
did not finish is launched once more, alone, and those after it once more, together: a
crash or a deadlock is reported for the test it belongs to and hides no other.

Child (`--with-mpi`, under our launch or anybody's mpiexec): the tests run in place on
the ranks there are. A rank that fails prints its traceback and aborts the job.
"""

import json
import os
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.cases import RANKS
from tests.helpers.launcher import REPORTS, SIZE, Launch, Verdict, mpiexec

TIMEOUT = 600.0  # seconds without news from any rank, unless the mark says otherwise


def pytest_addoption(parser):
    # pytest-mpi has the option already, where it is installed.
    with suppress(ValueError):
        parser.addoption(
            "--with-mpi", action="store_true", help="run rank tests in place"
        )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "ranks(*n, timeout=600): run on n real MPI ranks, for each n"
    )
    config.addinivalue_line("markers", "mpi(min_size=None): pytest-mpi's mark")
    config.addinivalue_line("markers", "xdist_group(name): pytest-xdist's mark")
    in_place = config.getoption("with_mpi") or config.getoption("only_mpi", False)
    config.pluginmanager.register(Child() if in_place else Parent(), "ranks")


@pytest.fixture
def comm():
    """All ranks, as an mpi4py communicator of this test's own."""
    from mpi4py import MPI

    own = MPI.COMM_WORLD.Dup()
    yield own
    own.Free()


def parametrize(metafunc, sizes, marks=()):
    """One item a size, `[np2]`; the test itself need not ask for the number."""
    if RANKS not in metafunc.fixturenames:
        metafunc.fixturenames.append(RANKS)
    params = [pytest.param(n, id=f"np{n}", marks=marks) for n in sizes]
    metafunc.parametrize(RANKS, params)


class RanksFailed(Exception):
    """The ranks' own account; a traceback of the parent would add nothing."""


class RanksItem(pytest.Item):
    """One test on n ranks; a plain item, so that no fixture is set up in the parent."""

    def __init__(self, *, function, plugin, **kwargs):
        super().__init__(**kwargs)
        self.plugin, self.stands_for = plugin, function
        self.node = self.nodeid  # pytest-xdist adds the name of a group to nodeid
        self.size = function.callspec.params[RANKS]
        mark = function.get_closest_marker("ranks")
        self.timeout = float(mark.kwargs.get("timeout", TIMEOUT))
        self.line = function.reportinfo()[1]
        self.own_markers = list(function.own_markers)
        self.keywords.update(function.keywords)
        # One worker launches all tests of so many ranks.
        self.add_marker(pytest.mark.xdist_group(f"{self.size}-ranks"))

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
                self.groups[item.size].append(item)

    def verdict(self, item):
        """The verdict on `item`; the first of a group to ask has all of it launched."""
        if mpiexec() is None:
            pytest.skip("no mpiexec; install one with: pip install mpi4py mpich")
        if item.node not in self.verdicts:
            self.settle(self.groups[item.size])
        return self.verdicts[item.node]

    def settle(self, items):
        """Launch until every item has a verdict; each launch settles at least one."""
        while items:
            launch = Launch(items)
            found = {item: launch.verdict(item.node) for item in items}
            self.verdicts |= {item.node: v for item, v in found.items() if v}
            items = self._left_over(launch, found)

    def _left_over(self, launch, found):
        """What has to be launched again, once whoever broke this launch is settled."""
        items = list(found)
        left = [item for item in items if found[item] is None]
        if not launch.started:  # nothing began, so no single test is to blame
            self._blame(launch, items)
            return []
        if any(verdict and verdict.outcome == "failed" for verdict in found.values()):
            return left  # what an abort took down with it
        if left:
            self._settle_alone(launch, left[:1])
        elif launch.code:  # all passed, and yet it broke: some test did it silently
            self._settle_alone(launch, items)
        return left[1:]

    def _settle_alone(self, launch, suspects):
        """One launch for each; whoever came first in this one has had a fair chance."""
        if suspects == launch.items[: len(suspects)] and len(suspects) == 1:
            self._blame(launch, suspects)
            return
        for item in suspects:
            self.settle([item])

    def _blame(self, launch, items):
        for item in items:
            story = launch.story(item.node)
            self.verdicts[item.node] = Verdict("failed", story)


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
        self.account = Path(folder) / f"{self.comm.rank}.jsonl" if folder else None

    def pytest_generate_tests(self, metafunc):
        mark = metafunc.definition.get_closest_marker("ranks")
        if mark:
            skip = pytest.mark.skip(reason=f"runs on {mark.args} ranks")
            suits = self.comm.size in mark.args
            parametrize(metafunc, [self.comm.size], () if suits else skip)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        for item in items:
            mark = item.get_closest_marker("ranks")
            if mark:
                item.add_marker(pytest.mark.mpi(min_size=min(mark.args)))
            elif self.comm.size > 1 and item.get_closest_marker("mpi") is None:
                reason = "not a test of ranks; it may start some of its own"
                item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_runtest_logstart(self, nodeid):
        self._say(nodeid, "started")

    def pytest_runtest_logreport(self, report):
        node = report.nodeid
        if report.failed:
            text = self._describe(report)
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
        # This rank could not even run its tests: the others would wait for ever.
        fine = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.code not in fine and self.comm.size > 1:
            self._abort(f"rank {self.comm.rank}: pytest ended with {self.code}")

    def _describe(self, report):
        title = f"rank {self.comm.rank} of {self.comm.size} failed in {report.when}"
        parts = [f"{name}\n{text}" for name, text in report.sections]
        return "\n".join([f"--- {title}", report.longreprtext, *parts])

    def _say(self, node, outcome, text=""):
        if self.account:
            with open(self.account, "a") as file:
                file.write(json.dumps([node, outcome, text]) + "\n")

    def _abort(self, text):
        sys.stdout.flush()
        print(f"\n{text}", file=sys.stderr, flush=True)
        self.comm.Abort(1)
