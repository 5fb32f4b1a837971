"""Fits of files that do not fit into the memory that they may use, beside reading them.

Newton's method on 100 columns, L-BFGS on 1000; float32 rows, 3 GiB of memory. Before
each pass, of the fit and of the bare reader, the system is asked to forget the file
(POSIX_FADV_DONTNEED); the seconds that this takes are not counted. `share` is the time
that bare passes over as many bytes take, over that of the fit: 1 is the speed at which
the file is read. `newton` multiplies 100 numbers for each one that it reads, in one
thread.

python -m benchmarks.bench_streamed_fit [--gigabytes N] [--folder PATH]
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import h5py  # noqa: E402
import numpy as np  # noqa: E402

import hpcsgd  # noqa: E402
from benchmarks.lines import in_lines  # noqa: E402
from benchmarks.run import HERE, machine  # noqa: E402
from hpcsgd.data.hdf5 import Hdf5Reader  # noqa: E402
from hpcsgd.data.synthetic import write_synthetic  # noqa: E402

SHAPES = {"newton": 100, "lbfgs": 1000}
MEMORY = 3.0  # GiB: vectors of 25 million rows take half of it
PIECE = 2**22  # bytes of a read of the bare reader
OUT = HERE / "results" / "bench_streamed_fit.json"


def forget(path: Path) -> float:
    """Ask the system to drop the file from its cache; return the seconds it took."""
    began = time.perf_counter()
    number = os.open(path, os.O_RDONLY)
    os.fdatasync(number)
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(number)
    return time.perf_counter() - began


def bare_pass(path: Path) -> float:
    """Return the bytes a second of a pass that only reads X."""
    forget(path)
    began = time.perf_counter()
    with h5py.File(path) as file:
        X = file["X"]
        step = max(PIECE // (X.shape[1] * X.dtype.itemsize), 1)
        buffer = np.empty((step, X.shape[1]), X.dtype)
        for first in range(0, len(X), step):
            rows = slice(first, min(first + step, len(X)))
            X.read_direct(buffer, np.s_[rows], np.s_[: rows.stop - rows.start])
    size = X_bytes(path)
    return size / (time.perf_counter() - began)


def X_bytes(path: Path) -> int:
    """Return the bytes of all values of X."""
    with h5py.File(path) as file:
        return int(np.prod(file["X"].shape)) * file["X"].dtype.itemsize


class Watched:
    """Counts the bytes of X that a reader takes, and drops the file before a pass."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes, self.forgetting = path, 0, 0.0
        self.read = Hdf5Reader.read_stored

    def __enter__(self):
        def read(reader, rows, columns):
            if rows.start == 0:
                self.forgetting += forget(self.path)
            values = self.read(reader, rows, columns)
            self.bytes += values.nbytes
            return values

        Hdf5Reader.read_stored = read
        return self

    def __exit__(self, *raised):
        Hdf5Reader.read_stored = self.read


def figures(path: Path, solver: str) -> dict:
    """Fit a file, between two bare passes."""
    bare = [bare_pass(path)]
    settings = {"sampling": {"mode": "blocks"}, "run": {"memory": MEMORY}}
    with Watched(path) as watched:
        began, cpu = time.perf_counter(), time.process_time()
        result = hpcsgd.fit(path, "logistic", solver=solver, config=settings)
        seconds = time.perf_counter() - began - watched.forgetting
        cpu = time.process_time() - cpu
    bare.append(bare_pass(path))
    speed = float(np.mean(bare))
    return {
        "solver": solver,
        "columns": SHAPES[solver],
        "gigabytes": X_bytes(path) / 1e9,
        "bare_gb_per_s": speed / 1e9,
        "passes_over_the_file": watched.bytes / X_bytes(path),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "gb_per_s": watched.bytes / seconds / 1e9,
        "share": watched.bytes / speed / seconds,
        "certified": result.report["certified"],
    }


def run(gigabytes: float, folder: Path) -> list[dict]:
    """Return a row for each solver; files that are there already are used."""
    rows = []
    for solver, columns in SHAPES.items():
        path = folder / f"d{columns}.h5"
        if not path.exists():
            count = int(gigabytes * 1e9 / (4 * columns))
            write_synthetic(path, "synth", count, columns, 0)
        row = figures(path, solver)
        print(row, flush=True)
        rows.append(row)
    return rows


def measure() -> list[dict]:
    """Return the rows of files of 10 GB, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return run(10.0, Path(folder))


def main() -> int:
    """Make the files, fit them and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = run(given.gigabytes, given.folder or Path(temporary))
    OUT.write_text(in_lines({"machine": machine(), "figures": rows}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
