"""File operations of a rank: `hpcsgd train` beside the import of its packages alone.

Calls of open, stat, readlink, access and getdents by one rank, failures included, /proc
and /sys left out, counted by strace. Each command runs twice: the first may compile
modules. No clock is read.

    python -m benchmarks.run bench_files
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from hpcsgd.data.synthetic import write_synthetic
from tests.helpers.file_calls import STRACE, counted

PACKAGES = "import numpy, h5py, mpi4py.MPI"
TRAIN = ("-m", "hpcsgd", "train", "--comm", "mpi", "--data")


def measure() -> list[dict]:
    """One row for each command."""
    with tempfile.TemporaryDirectory() as folder:
        data, trace = Path(folder, "rows.h5"), Path(folder, "trace")
        write_synthetic(data, "susy", 2000, 18, 3)
        commands = {
            "hpcsgd train": (*TRAIN, str(data)),
            "hpcsgd train --plain": (*TRAIN, str(data), "--plain", "--epochs", "3"),
            f'python -c "{PACKAGES}"': ("-c", PACKAGES),
        }
        return [
            {"command": name, "calls": calls_of(words, trace)}
            for name, words in commands.items()
        ]


def calls_of(words: tuple[str, ...], trace: Path) -> int:
    """Return the calls of the second of two runs of Python with these arguments."""
    traced = [*STRACE, "-o", str(trace), sys.executable, *words]
    for _ in range(2):
        subprocess.run(traced, check=True, capture_output=True)
    return sum(counted(trace.read_text()).values())
