"""How long `hpcsgd tune` takes, beside what it was given.

From the command to its last word, the start of Python and of MPI included, on wide and
on narrow data.

python -m benchmarks.run bench_tune
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hpcsgd.data.synthetic import write_synthetic

SHAPES = {"epsilon": (16000, 2000), "higgs": (100000, 28)}
RANKS, SECONDS = (1, 2), 30.0


def measure() -> list[dict]:
    """A row for each shape and number of ranks, printed as it comes."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="bench-tune-") as folder:
        for shape, (rows, columns) in SHAPES.items():
            path = Path(folder) / f"{shape}.h5"
            write_synthetic(path, shape, rows, columns)
            for ranks in RANKS:
                figures.append(_row(shape, ranks, path))
                print(_line(figures[-1]), flush=True)
    return figures


def _row(shape: str, ranks: int, path: Path) -> dict:
    command = [sys.executable, "-m", "hpcsgd", "tune", "--data", str(path), "--json"]
    command += ["--seconds", str(SECONDS), "--ranks", str(ranks), "--epochs", "4"]
    load, began = os.getloadavg()[0], time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - began
    best = json.loads(done.stdout)["best"]
    return {
        **{"shape": shape, "ranks": ranks, "asked": SECONDS, "wall": wall},
        **{"load": load, "best": best},
    }


def _line(row: dict) -> str:
    return (
        f"{row['shape']}, {row['ranks']} rank(s): {row['wall']:.1f} s of"
        f" {row['asked']:.0f}, {len(row['best'])} settings run, load {row['load']:.1f}"
    )
