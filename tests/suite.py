"""The suite on all cores: python -m tests.suite [--quick] [arguments of pytest]

Three runs go side by side, and a fourth one of kernels where all cases run. Two of them
start commands, ranks and compilers, and wait a third of their time: for a scheduler,
for limits, for each other. The third computes, with a worker for each core but one. The
folders are dealt out so that all three take about as long. On one core all of it is one
ordinary run. With --quick only what computes runs, without compiled kernels, and one
case of each test.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
QUICK = (
    *("architecture", "contracts", "equivalence", "gpu", "jobs"),
    *("precision", "traffic", "unit"),
)
WAITING = ("slurm", "faults", "ranks")
LAUNCHING = ("cli", "estimators")
COMPILED = "kernels"  # with what launches; all of its cases in a run of their own
SITE = ("docs",)  # in the environment of the documentation: make test-docs
COUNTS = "HPCSGD_TEST_COUNTS"  # a file that each run appends what it counted to
UNRUN = pytest.StashKey()  # a sentence on tests that did not run


def parts(count, all_cases=False):
    """Return the arguments of pytest of the runs that go side by side.

    `count` is the number of cores; on one core there is one run of everything. With
    `all_cases` kernels take longer than anything else: a worker for each core gets a
    file of them as soon as it has done another one.
    """
    names = sorted(p.name for p in HERE.iterdir() if list(p.glob("test_*.py")))
    names = [name for name in names if name not in SITE]
    if count < 2:
        return [folders(names)]
    others = [name for name in names if name not in (*WAITING, *LAUNCHING, COMPILED)]
    kernels = folders([COMPILED])
    launching, more = (*folders(LAUNCHING), *kernels), []
    if all_cases and workers(count):
        launching = folders(LAUNCHING)
        more = [(*workers(count), "--dist", "loadfile", *kernels)]
    return [
        *more,
        folders(WAITING),
        launching,
        (*workers(count - 1), *folders(others)),
    ]


def folders(names):
    """Return the folders of tests with these names, as arguments of pytest."""
    return tuple(f"tests/{name}" for name in names)


def workers(count):
    """Return the option of pytest for so many workers; one is the run itself."""
    if count < 2 or find_spec("xdist") is None:
        return ()
    return ("-n", str(min(count, 8)))


def quick_part(count):
    """Return the arguments of pytest for the run after each change."""
    return (*workers(count), *folders(QUICK))


def cores():
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(arguments):
    """Return 0 where every run is good; the last lines are of all runs together."""
    runs = [quick_part(cores())]
    if "--quick" not in arguments:
        runs = parts(cores(), all_cases="-m" in arguments)
    *beside, last = [command(part, arguments) for part in runs]
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts"
        settings = {"cwd": HERE.parent, "env": {**os.environ, COUNTS: str(counts)}}
        with in_background(beside, settings) as codes:
            codes.append(subprocess.run(last, **settings).returncode)
        lines = counts.read_text().splitlines() if counts.exists() else []
    reports = [json.loads(line) for line in lines]
    print(added_up(reports))
    for report in reports:
        if report["unrun"]:
            print(report["unrun"])
    return max(abs(code) for code in codes)  # one below 0 was killed


def command(part, arguments):
    """Return the command that runs a part of the suite."""
    return [sys.executable, "-m", "pytest", "-q", *part, *arguments]


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
