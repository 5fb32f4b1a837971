"""What the command and the package cost before they do anything, in CPU seconds.

Each row is a process of its own, user and system time of it and of what it waited for;
rows take turns, medians of 9. `python -X importtime -m hpcsgd ...` names what is left.

    python -m benchmarks.run bench_start        (as `make bench-start`)
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 9
ROWS = 1000
HPCSGD = ("-m", "hpcsgd")


def measure():
    """Name of a start -> median CPU seconds, and the smallest of all rounds."""
    with tempfile.TemporaryDirectory() as folder:
        starts = _starts(_write_rows(Path(folder) / "rows.h5"))
        seconds = {name: [] for name in starts}
        for _ in range(ROUNDS):
            for name, (words, code) in starts.items():
                seconds[name].append(_cpu_seconds(words, code, folder))
    return {
        name: {"median": statistics.median(found), "least": min(found)}
        for name, found in seconds.items()
    }


def _starts(data):
    """Name -> (arguments of the interpreter, exit code)."""
    train = ("train", "--data", str(data), "--epochs", "1", "--quiet")
    return {
        "python": (("-c", "pass"), 0),
        "import numpy": (("-c", "import numpy"), 0),
        "import hpcsgd": (("-c", "import hpcsgd"), 0),
        "hpcsgd --version": ((*HPCSGD, "--version"), 0),
        "hpcsgd --help": ((*HPCSGD, "--help"), 0),
        "a command that does not exist": ((*HPCSGD, "trian"), 2),
        "a flag that does not exist": ((*HPCSGD, "train", "--bach", "4"), 2),
        "hpcsgd train --help": ((*HPCSGD, "train", "--help"), 0),
        "hpcsgd completion bash": ((*HPCSGD, "completion", "bash"), 0),
        f"hpcsgd train, {ROWS} rows": ((*HPCSGD, *train), 0),
    }


def _write_rows(path):
    from hpcsgd.data.synthetic import write_synthetic

    write_synthetic(path, "susy", ROWS, 18, 3)
    return path


def _cpu_seconds(words, code, folder):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    if done.returncode != code:
        raise RuntimeError(f"{' '.join(words)}: {done.returncode}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(used, 3)
