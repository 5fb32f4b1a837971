"""Tests on real MPI ranks, from one plain pytest call or under mpiexec.

    @pytest.mark.ranks(1, 2, 3, 4, timeout=60)
    def test_x(comm): ...

Plain pytest: every (test, n) launches `mpiexec -n n python -m pytest` for that test in
a process group of its own, with a time limit; only that group is ever killed. Under
`mpiexec -n 4 python -m pytest --with-mpi tests/ranks` the tests run in place on the
communicator that is there. Either way a rank that fails calls Abort, because the others
may be waiting for it in a collective.
"""

import os
import shlex
import signal
import subprocess
import sys

import pytest

CHILD = "HPCSGD_TEST_RANKS"  # set in launched processes: how many ranks there must be
LAUNCHER = "HPCSGD_TEST_MPIEXEC"  # overrides the mpiexec that is found
SHOWN = 4000  # characters of a failed launch that are worth reading
LAUNCH_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "MPI_LOCAL", "HYDI_", "HPCSGD_EXPECT")


def pytest_configure(config):
    config.addinivalue_line("markers", "mpi(min_size=None): pytest-mpi's mark")


def is_in_place(config):
    """True where this process is one of the ranks."""
    return CHILD in os.environ or config.getoption("--with-mpi", default=False)


def world():
    """MPI_COMM_WORLD."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def pytest_generate_tests(metafunc):
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is None:
        return
    counts = [world().size] if is_in_place(metafunc.config) else mark.args
    metafunc.fixturenames.append("_ranks")
    metafunc.parametrize("_ranks", counts, ids=[f"np{n}" for n in counts])


def pytest_collection_modifyitems(config, items):
    if not is_in_place(config):
        return
    expected = os.environ.get(CHILD)
    if expected and world().size != int(expected):
        raise pytest.UsageError(
            f"{expected} ranks were launched and MPI gives {world().size}:"
            " mpiexec and the MPI library do not belong together"
        )
    for item in items:
        mark = item.get_closest_marker("ranks")
        if mark is None:
            if world().size > 1:
                reason = "not a test of ranks; it may start some of its own"
                item.add_marker(pytest.mark.skip(reason=reason))
        elif world().size in mark.args:
            item.add_marker(pytest.mark.mpi(min_size=min(mark.args)))
        else:
            item.add_marker(pytest.mark.skip(reason=f"runs on {mark.args} ranks"))


@pytest.fixture
def comm():
    """The mpi4py communicator of all ranks."""
    return world()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None or is_in_place(pyfuncitem.config):
        return None
    count = pyfuncitem.callspec.params["_ranks"]
    launch(pyfuncitem, count, mark.kwargs.get("timeout", 60))
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if not is_in_place(item.config):
        return
    if CHILD in os.environ and (report.when == "call" or report.skipped):
        # One write, so that the ranks' words cannot interleave within it.
        os.write(1, f"\n<<{report.outcome}>>\n".encode())
    if not report.failed:
        return
    if item.get_closest_marker("ranks") is None or world().size == 1:
        return
    said = f"--- rank {world().rank} of {world().size} failed in {report.when}"
    print(f"{said}\n{report.longreprtext}", file=sys.stderr, flush=True)
    world().Abort(1)


def launch(item, count, limit):
    """Run one test on `count` real ranks; fail, skip or return."""
    command = [*mpiexec(), "-n", str(count), sys.executable, "-m", "pytest", "-q", "-s"]
    command += ["--tb=short", "-p", "no:cacheprovider", "--with-mpi", "-m", ""]
    command += ["--rootdir", str(item.config.rootpath), _node(item)]
    code, output = run_group(command, limit, environment(count), item.config.rootpath)
    if code is None:
        pytest.fail(f"np={count}: no end within {limit} s; killed\n{output[-SHOWN:]}",
                    pytrace=False)  # fmt: skip
    judge(count, code, output)


def judge(count, code, output):
    """A pass is n passes; n skips are a skip; everything else is a failure."""
    passed, skipped = output.count("<<passed>>"), output.count("<<skipped>>")
    if code == 0 and skipped == count and not passed:
        pytest.skip("skipped on every rank")
    if code or passed != count:
        pytest.fail(
            f"np={count}: mpiexec ended with {code}, {passed} of {count} ranks passed,"
            f" {skipped} skipped\n{output[-SHOWN:]}",
            pytrace=False,
        )


def _node(item):
    return f"{item.path}::{item.nodeid.split('::', 1)[1]}"


def environment(count):
    """Ours, without the traces of a launcher around us."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)}
    return {
        **kept,
        CHILD: str(count),
        "HPCSGD_QUIET_BUDGET": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def mpiexec():
    """The launcher that belongs to this Python's MPI, or a skip."""
    from hpcsgd.cli.launch import mpiexec as find
    from hpcsgd.errors import ConfigError

    if LAUNCHER in os.environ:
        return shlex.split(os.environ[LAUNCHER])
    try:
        return find()
    except ConfigError as missing:
        pytest.skip(str(missing))


def run_group(command, limit, env, cwd):
    """(exit code or None when killed, output) of a command in its own process group."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        start_new_session=True,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, _end(process)


def _end(process):
    """Ask the group to stop, then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=3)[0]
        except ProcessLookupError:
            return process.communicate()[0]
        except subprocess.TimeoutExpired:
            continue
    return process.communicate()[0]
