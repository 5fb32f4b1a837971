"""No rank ever hangs because another died; the launcher plugin sees every ending."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import launcher
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]

UNCAUGHT = """
import numpy as np
from hpcsgd.comm import open_world
world = open_world()
if world.rank == 1:
    raise ValueError("boom on rank one")
world.sum(np.ones(3), "products")
"""
INSIDE_A_RUN = """
import numpy as np, hpcsgd
class Boom(hpcsgd.Callback):
    def on_exchange(self, view):
        if view.exchanges == 3 and RANK == 1:
            raise RuntimeError("callback failed")
from hpcsgd.comm import open_world
world = open_world()
RANK = world.rank
X = np.random.default_rng(0).normal(size=(400, 6))
config = {"products": {"kind": "gram"}, "schedule": {"batch": 4, "epochs": 50}}
hpcsgd.train(config, X=X, y=X[:, 0] > 0, world=world, callbacks=[Boom()])
"""


def run(code, ranks, limit=30):
    """A program on real ranks, in a process group of its own."""
    if launcher.mpiexec() is None:
        pytest.skip("no mpiexec")
    command = [*launcher.mpiexec(), "-n", str(ranks), sys.executable, "-c", code]
    environment = {**launcher.launch_environment(), "PYTHONPATH": str(ROOT)}
    return launcher.run(command, limit, ROOT, environment)


LEAVES = INSIDE_A_RUN.replace(
    'raise RuntimeError("callback failed")', "raise SystemExit(3)"
)


def test_a_rank_that_leaves_takes_all_along():
    """sys.exit on one rank passes no hook of uncaught exceptions."""
    status, output = run(LEAVES, 2)
    assert status not in (0, None), output
    assert "rank 1 leaves the run" in output


AFTER_CLOSE = """
from hpcsgd.comm import open_world
world = open_world()
world.close()
other = open_world()
other.close()
if other.rank == 1:
    raise ValueError("boom after close")
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
"""
AFTER_FACTS = """
import numpy as np
from hpcsgd.comm import open_world
from hpcsgd.comm.mpi import mpi_facts
assert mpi_facts()["library"] != "none"
world = open_world()
assert world.sum(np.ones(1), "products")[0] == 2
world.close()
"""


@pytest.mark.cases(2)
@pytest.mark.parametrize("code, said", [
    (UNCAUGHT, "boom on rank one"),
    (INSIDE_A_RUN, "callback failed"),
    (AFTER_CLOSE, "boom after close"),
], ids=["in-a-sum", "in-a-run", "after-close"])  # fmt: skip
def test_an_uncaught_exception_ends_the_job(code, said):
    began = time.monotonic()
    status, output = run(code, 2)
    assert status not in (0, None), output
    assert "rank 1 of 2 failed" in output and said in output
    assert "Traceback" in output
    assert time.monotonic() - began < 20


def test_facts_of_mpi_do_not_keep_it_from_starting():
    status, output = run(AFTER_FACTS, 2)
    assert status == 0, output


def test_a_mismatched_launcher_is_an_error(tmp_path):
    """Ranks were asked for and there are none: never n silent singletons."""
    environment = launcher.launch_environment()
    environment.update(HPCSGD_EXPECT_RANKS="4", PYTHONPATH=str(ROOT))
    code = "import sys; from hpcsgd.cli import main; sys.exit(main(sys.argv[1:]))"
    (tmp_path / "some.h5").touch()
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "--data", "some.h5"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=HANG,
    )
    assert done.returncode == 1
    assert "4 ranks were asked for and MPI gives 1" in done.stderr


ENDINGS = {
    "an assertion": "assert comm.rank != 1",
    "an exit with 3": "import os\n    comm.rank and os._exit(3)\n    comm.Barrier()",
    "an exit with 0": "import os\n    comm.rank and os._exit(0)\n    comm.Barrier()",
    "a signal": "import os\n    os.kill(os.getpid(), 11) if comm.rank == 1 else None",
    "a skip on one rank": "comm.rank != 1 or pytest.skip('x')",
    "a deadlock": "comm.Barrier() if comm.rank == 1 else comm.recv(source=1)",
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("body", ENDINGS.values(), ids=ENDINGS)
def test_one_bad_test_hides_no_other(tmp_path, body):
    """Tests of one file share a launch; the bad one is named, the others pass."""
    good = "@pytest.mark.ranks(2, timeout=30)\ndef test_{}(comm):\n    comm.Barrier()\n"
    bad = f"@pytest.mark.ranks(2, timeout=30)\ndef test_bad(comm):\n    {body}\n"
    _write(tmp_path, good.format("before") + bad + good.format("after"))
    done = _pytest(tmp_path)
    assert "1 failed, 2 passed" in done.stdout, done.stdout
    assert "FAILED test_child.py::test_bad[np2]" in done.stdout


def test_a_hung_rank_says_where_and_leaves_no_process(tmp_path):
    """Even a rank that will not listen to a polite signal."""
    body = (
        "    import os, pathlib, signal\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    pathlib.Path(f'pid{comm.rank}').write_text(str(os.getpid()))\n"
        "    comm.recv(source=1 - comm.rank)\n"
    )
    _write(tmp_path, f"@pytest.mark.ranks(2, timeout=3)\ndef test_it(comm):\n{body}")
    done = _pytest(tmp_path)
    assert "no news within 3 s" in done.stdout, done.stdout
    assert 'test_child.py", line 8 in test_it' in done.stdout
    for path in tmp_path.glob("pid*"):
        state = launcher.stat_fields(path.read_text())
        assert not state or state[0] == "Z"


@pytest.mark.full
def test_the_plugin_passes_and_skips(tmp_path):
    _write(
        tmp_path,
        "@pytest.mark.ranks(1, 2)\ndef test_good(comm):\n"
        "    assert comm.allreduce(1) == comm.size\n"
        "@pytest.mark.ranks(2)\ndef test_skip(comm):\n    pytest.skip('all of them')\n",
    )
    done = _pytest(tmp_path)
    assert "2 passed, 1 skipped" in done.stdout, done.stdout


def _write(folder, body):
    (folder / "test_child.py").write_text("import pytest\n\n" + body)
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    ranks(*counts, timeout=40): on real ranks\n"
    )


def _pytest(folder):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HPCSGD_")}
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTEST_PLUGINS": "tests.helpers.plugin_ranks",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "test_child.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG,
    )


TRAIN = ["-m", "hpcsgd", "train", "--family", "gaussian", "--batch", "4", "--json"]


@pytest.fixture
def data(tmp_path):
    """A small file."""
    from hpcsgd.data.synthetic import write_synthetic

    write_synthetic(tmp_path / "d.h5", "susy", 200, 5, 0)
    return tmp_path / "d.h5"


def mpiexec_hpcsgd(ranks, *flags):
    """`mpiexec -n ranks python -m hpcsgd train ...`, output and errors apart."""
    command = [*launcher.mpiexec(), "-n", str(ranks), sys.executable, *TRAIN]
    kept = launcher.launch_environment()
    return subprocess.run(
        [*command, *map(str, flags)],
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=HANG,
    )


def test_the_command_under_mpiexec_prints_once(data):
    """One document on standard output, whatever the number of ranks."""
    done = mpiexec_hpcsgd(2, "--data", data, "--check-members", 2)
    said = json.loads(done.stdout)
    assert said["ranks"] == 2 and said["mended_members"] == 0
    assert mpiexec_hpcsgd(2, "--data", data, "--ranks", 2).returncode == 0


def test_wrong_input_under_mpiexec_is_said_once(data):
    for flags, code in (
        (("--data", "none.h5"), 2),
        (("--data", data, "--grid", "1x3"), 2),
        (("--data", data, "--steps", "0"), 2),
        (("--data", data, "--ranks", "3"), 1),
    ):
        done = mpiexec_hpcsgd(2, *flags)
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        assert done.returncode == code and len(lines) == 1, done.stderr
        assert "Traceback" not in done.stderr and not done.stdout
