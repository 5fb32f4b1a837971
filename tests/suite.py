"""The suite on all cores: python -m tests.suite [--quick] [arguments of pytest]

First what only computes, side by side, a worker a core, and beside it the jobs of a
Slurm, which mostly wait; then what starts ranks and processes of its own, one by one:
ranks of MPI that wait keep a core busy, so that several launches at once take longer.
Without pytest-xdist, or on one core, all of it is one ordinary run. With --quick only
the first group runs, without compiled kernels and commands, and one case of each test.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPUTE = (
    *("architecture", "cli", "contracts", "equivalence", "estimators", "gpu", "jobs"),
    *("kernels", "precision", "traffic", "unit"),
)
SLOW = ("cli", "estimators", "kernels")  # which --quick leaves out
WAITS = ("slurm",)  # for a scheduler, most of its time
COUNTS = "HPCSGD_TEST_COUNTS"  # a file that each run appends what it counted to
UNRUN = pytest.StashKey()  # a sentence on tests that did not run


def parts(count):
    """Arguments of pytest on so many cores: beside the first run, and the runs."""
    names = sorted(p.name for p in HERE.iterdir() if list(p.glob("test_*.py")))
    if count < 2 or find_spec("xdist") is None:
        return (), [("tests",)]
    workers = ("-n", str(min(count, 8)))
    launching = [f"tests/{name}" for name in names if name not in (*COMPUTE, *WAITS)]
    beside = tuple(f"tests/{name}" for name in WAITS)
    compute = tuple(f"tests/{name}" for name in COMPUTE)
    return beside, [(*workers, *compute), tuple(launching)]


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
    codes = []
    beside, runs = parts(cores())
    if "--quick" in arguments:
        beside, runs = (), [quick_part(cores())]
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        settings = {"cwd": HERE.parent, "env": {**os.environ, COUNTS: str(counts)}}
        with in_background(command(beside, arguments), settings, codes):
            # Jobs have time limits that count the start of their ranks.
            nice = command(runs[0], arguments, nice=10 if beside else 0)
            codes.append(subprocess.run(nice, **settings))
        for one in runs[1:]:
            codes.append(subprocess.run(command(one, arguments), **settings))
        lines = counts.read_text().splitlines() if counts.exists() else []
    said = [json.loads(line) for line in lines]
    print(added_up(said))
    for one in said:
        if one["unrun"]:
            print(one["unrun"])
    return max(done.returncode for done in codes)


def command(part, arguments, nice=0):
    """That runs a part of the suite; nothing where there is none."""
    first = ["nice", "-n", str(nice)] if nice and shutil.which("nice") else []
    run = [sys.executable, "-m", "pytest", "-q"]
    return [*first, *run, *part, *arguments] if part else []


@contextmanager
def in_background(line, settings, codes):
    """`with` it around what goes on meanwhile; its words come when both are over."""
    if not line:
        yield
        return
    with tempfile.TemporaryFile() as said:
        run = subprocess.Popen(line, stdout=said, stderr=subprocess.STDOUT, **settings)
        try:
            yield
            run.wait()
        finally:
            if run.poll() is None:  # interrupted: its cluster goes with it
                run.terminate()
                run.wait()
        codes.append(run)
        said.seek(0)
        print(said.read().decode(errors="replace"), end="", flush=True)


def added_up(said):
    """Of all runs, in the words of pytest; zeros too."""
    names = ("passed", "failed", "skipped")
    return ", ".join(f"{sum(one[name] for one in said)} {name}" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
