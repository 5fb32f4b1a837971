"""One of several ranks is killed amid a write; the others end, and a run goes on."""

import sys
from pathlib import Path

import pytest

from tests.faults.processes import all_gone
from tests.helpers import launcher
from tests.helpers.infinity_child import run

ROOT = Path(__file__).parents[2]
LIMIT = 600.0
pytestmark = pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec")


def launch(ranks, out, *more):
    """(exit code, output), and nobody of it is left."""
    program = [sys.executable, "-m", "tests.faults.infinity_ranks", str(out), *more]
    command = [*launcher.mpiexec(), "-n", str(ranks), *program]
    known = launcher.segments()
    environment = {
        **launcher.launch_environment(),
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
    }
    code, output = launcher.run(command, LIMIT, ROOT, environment)
    assert code is not None, f"still there after {LIMIT} s:\n{output}"
    pids = [Path(f"{out}-pid{rank}") for rank in range(ranks)]
    assert all_gone([int(path.read_text()) for path in pids])
    launcher.sweep(known)
    return code, output


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.full)])
def test_a_rank_is_killed_amid_a_write(tmp_path, ranks):
    """Half of a write is there: all go on from the step before, to the same bits."""
    code, output = launch(ranks, tmp_path / "run", "no", "torn-write", "52")
    assert code in (9, 137), output
    code, output = launch(ranks, tmp_path / "run", "auto")
    assert code == 0, output
    sha, resumes = output.split("sha256 ")[1].split()[:2]
    assert resumes == "1"
    if ranks == 2:  # whose sums have one order
        assert sha == run(tmp_path / "whole", 2).weights_sha256


def test_others_go_on_with_what_it_left(tmp_path):
    """Killed on two ranks; three replicas take the steps that are missing."""
    code, output = launch(2, tmp_path / "run", "no", "torn-write", "95")
    assert code in (9, 137), output
    result = run(tmp_path / "run", 3, "auto")
    assert result.status.is_finished and result.report["resumes"] == 1
    assert result.loss < run(tmp_path / "one", epochs=1).loss
