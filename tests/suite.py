"""The suite on all cores: python -m tests.suite [--quick] [arguments of pytest]

What only computes runs side by side, a worker a core, and gives way to what runs
beside it, one by one: the jobs of a Slurm, and then the tests that start commands and
ranks. These wait half of their time, but ranks of MPI that wait for each other keep a
core busy, so that several launches at once would take several times as long. Without
pytest-xdist, or on one core, all of it is one ordinary run. With --quick only what
computes runs, without compiled kernels, and one case of each test.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPUTE = (
    *("architecture", "contracts", "equivalence", "estimators", "gpu", "jobs"),
    *("kernels", "precision", "traffic", "unit"),
)
SLOW = ("estimators", "kernels")  # which --quick leaves out
WAITS = ("slurm",)  # for a scheduler, most of its time
SITE = ("docs",)  # in the environment of the documentation: make test-docs
COUNTS = "HPCSGD_TEST_COUNTS"  # a file that each run appends what it counted to
UNRUN = pytest.StashKey()  # a sentence on tests that did not run


def parts(count):
    """Arguments of pytest on so many cores: runs one by one, and one beside them."""
    names = sorted(p.name for p in HERE.iterdir() if list(p.glob("test_*.py")))
    names = [name for name in names if name not in SITE]
    if count < 2 or find_spec("xdist") is None:
        return [], tuple(f"tests/{name}" for name in names)
    launching = [f"tests/{name}" for name in names if name not in (*COMPUTE, *WAITS)]
    waiting = [f"tests/{name}" for name in WAITS]
    compute = [f"tests/{name}" for name in COMPUTE]
    return [tuple(waiting), tuple(launching)], ("-n", str(min(count, 8)), *compute)


def quick_part(count):
    """Return the arguments of pytest for the run after each change."""
    workers = ("-n", str(min(count, 8))) if find_spec("xdist") else ()
    return (*workers, *(f"tests/{name}" for name in COMPUTE if name not in SLOW))


def cores():
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(arguments):
    """0 where every run is good; the last lines are of all runs together."""
    one_by_one, beside = parts(cores())
    if "--quick" in arguments:
        one_by_one, beside = [], quick_part(cores())
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        settings = {"cwd": HERE.parent, "env": {**os.environ, COUNTS: str(counts)}}
        lines = [command(run, arguments) for run in one_by_one]
        with in_background(lines, settings) as codes:
            # Jobs have time limits that count the start of their ranks.
            nice = command(beside, arguments, nice=10 if one_by_one else 0)
            codes.append(subprocess.run(nice, **settings).returncode)
        lines = counts.read_text().splitlines() if counts.exists() else []
    said = [json.loads(line) for line in lines]
    print(added_up(said))
    for one in said:
        if one["unrun"]:
            print(one["unrun"])
    return max(codes)


def command(part, arguments, nice=0):
    """That runs a part of the suite."""
    first = ["nice", "-n", str(nice)] if nice and shutil.which("nice") else []
    return [*first, sys.executable, "-m", "pytest", "-q", *part, *arguments]


@contextmanager
def in_background(lines, settings):
    """Run commands one by one beside what the `with` encloses; yields the exit codes.

    What they print is shown when all is over. An interrupt ends the one that runs, and
    the cluster or the ranks that it has started with it.
    """
    codes, runs, is_over = [], [], threading.Event()
    with tempfile.TemporaryFile() as said:

        def run_all():
            for line in lines:
                if is_over.is_set():
                    return
                both = {"stdout": said, "stderr": subprocess.STDOUT}
                runs.append(subprocess.Popen(line, **both, **settings))
                codes.append(runs[-1].wait())

        thread = threading.Thread(target=run_all)
        thread.start()
        try:
            yield codes
            thread.join()
        finally:
            is_over.set()
            for run in runs:
                if run.poll() is None:
                    run.terminate()
            thread.join()
            said.seek(0)
            print(said.read().decode(errors="replace"), end="", flush=True)


def added_up(said):
    """Of all runs, in the words of pytest; zeros too."""
    names = ("passed", "failed", "skipped")
    return ", ".join(f"{sum(one[name] for one in said)} {name}" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
