"""The suite on all cores: python -m tests.suite [--quick] [arguments of pytest]

What only computes runs side by side, a worker a core, and gives way to two runs beside
it: the jobs of a Slurm with the tests of commands, and the tests of ranks and of
faults. Both wait half of their time, for a scheduler or for processes that they have
started. On one core all of it is one ordinary run. With --quick only what computes
runs, without compiled kernels, and one case of each test.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPUTE = (  # two halves of about the same length
    ("contracts", "equivalence", "kernels", "precision", "traffic"),
    ("architecture", "estimators", "gpu", "jobs", "unit"),
)
SLOW = ("estimators", "kernels")  # which --quick leaves out
COMMANDS = ("slurm", "cli")  # which wait for a scheduler and for processes
SITE = ("docs",)  # in the environment of the documentation: make test-docs
COUNTS = "HPCSGD_TEST_COUNTS"  # a file that each run appends what it counted to
UNRUN = pytest.StashKey()  # a sentence on tests that did not run


def parts(count):
    """Return the arguments of pytest of runs in the background, and of the one beside.

    `count` is the number of cores. Two cores have a run each of what computes: workers
    of pytest-xdist would all collect all of it first.
    """
    names = sorted(p.name for p in HERE.iterdir() if list(p.glob("test_*.py")))
    names = [name for name in names if name not in SITE]
    if count < 2:
        return [], [folders(names)]
    launching = [n for n in names if n not in {*COMMANDS, *chain(*COMPUTE)}]
    background = [folders(COMMANDS), folders(launching)]
    if count == 2 or find_spec("xdist") is None:
        return background, [folders(half) for half in COMPUTE]
    return background, [("-n", str(min(count, 8)), *folders(chain(*COMPUTE)))]


def folders(names):
    """Return the folders of tests with these names, as arguments of pytest."""
    return tuple(f"tests/{name}" for name in names)


def quick_part(count):
    """Return the arguments of pytest for the run after each change."""
    workers = ("-n", str(min(count, 8))) if find_spec("xdist") else ()
    return (*workers, *folders(n for n in chain(*COMPUTE) if n not in SLOW))


def cores():
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(arguments):
    """Return 0 where every run is good; the last lines are of all runs together."""
    background, computing = parts(cores())
    if "--quick" in arguments:
        background, computing = [], [quick_part(cores())]
    # Jobs have time limits that count the start of their ranks.
    nice = 10 if background else 0
    lines = [command(part, arguments) for part in background]
    lines += [command(part, arguments, nice) for part in computing]
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        settings = {"cwd": HERE.parent, "env": {**os.environ, COUNTS: str(counts)}}
        *beside, last = lines
        with in_background(beside, settings) as codes:
            codes.append(subprocess.run(last, **settings).returncode)
        lines = counts.read_text().splitlines() if counts.exists() else []
    reports = [json.loads(line) for line in lines]
    print(added_up(reports))
    for report in reports:
        if report["unrun"]:
            print(report["unrun"])
    return max(abs(code) for code in codes)  # one below 0 was killed


def command(part, arguments, nice=0):
    """That runs a part of the suite."""
    first = ["nice", "-n", str(nice)] if nice and shutil.which("nice") else []
    return [*first, sys.executable, "-m", "pytest", "-q", *part, *arguments]


@contextmanager
def in_background(lines, settings):
    """Run commands beside what the `with` encloses; yield the list of exit codes.

    What they print is shown when all is over, one after the other. An interrupt ends
    them, and the cluster or the ranks that they have started with them.
    """
    codes = []
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in lines]
        runs = [
            subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, **settings)
            for line, file in zip(lines, files, strict=True)
        ]
        try:
            yield codes
            codes += [run.wait() for run in runs]
        finally:
            for run in runs:
                if run.poll() is None:
                    run.terminate()
            for run, file in zip(runs, files, strict=True):
                run.wait()
                file.seek(0)
                print(file.read().decode(errors="replace"), end="", flush=True)


def added_up(reports):
    """Return the counts of all runs in the words of pytest; zeros too."""
    names = ("passed", "failed", "skipped")
    return ", ".join(f"{sum(r[name] for r in reports)} {name}" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
