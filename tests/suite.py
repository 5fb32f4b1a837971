"""The whole suite on all cores: python -m tests.suite [arguments of pytest]

First what only computes, side by side, a worker a core; then what starts ranks, jobs
and commands of its own, one by one, so that nothing else is on the cores that it counts
on. Without pytest-xdist, or on one core, all of it is one ordinary run.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
COMPUTE = (
    *("architecture", "equivalence", "gpu", "kernels", "precision", "traffic"),
    "unit",
)
COUNTS = "HPCSGD_TEST_COUNTS"  # a file that each run appends what it counted to


def halves(cores):
    """Arguments of pytest, one tuple a run."""
    names = sorted(p.name for p in HERE.iterdir() if list(p.glob("test_*.py")))
    if cores < 2 or find_spec("xdist") is None:
        return [("tests",)]
    workers = ("-n", str(min(cores, 8)))
    one_by_one = [f"tests/{name}" for name in names if name not in COMPUTE]
    return [(*workers, *(f"tests/{n}" for n in COMPUTE)), tuple(one_by_one)]


def main(arguments):
    """0 where every run is good; the last line adds their counts up."""
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        for half in halves(len(os.sched_getaffinity(0))):
            command = [sys.executable, "-m", "pytest", "-q", *half, *arguments]
            given = {**os.environ, COUNTS: str(counts)}
            codes.append(subprocess.run(command, cwd=HERE.parent, env=given).returncode)
        said = counts.read_text().splitlines() if counts.exists() else []
    print(added_up([json.loads(line) for line in said]))
    return max(codes)


def added_up(said):
    """Of all runs, in the words of pytest; zeros too."""
    names = ("passed", "failed", "skipped")
    return ", ".join(f"{sum(one[name] for one in said)} {name}" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
