"""Seconds of a fit on two ranks beside one, each rank with one thread.

The fits are those of bench_fit that take long, with the default arguments. One launch
of mpiexec for each number of ranks, in turns; the first fit of a launch is not counted.
Medians of `TURNS`.

python -m benchmarks.run bench_fit_ranks
"""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from statistics import median

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

PROBLEMS, TURNS, RANKS = ("wide", "covtype", "claims"), 3, (1, 2)


def measure() -> list[dict]:
    """Return a row for each problem: seconds on one and on two ranks, their ratio."""
    rows = []
    for name in PROBLEMS:
        seconds: dict[int, list[float]] = {ranks: [] for ranks in RANKS}
        losses = []
        for _ in range(TURNS):
            for ranks in RANKS:
                found = launched(name, ranks)
                seconds[ranks].append(found["seconds"])
                losses.append(found["loss"])
        one, two = (median(seconds[ranks]) for ranks in RANKS)
        # The optimum is the same on any number of ranks.
        assert max(losses) - min(losses) <= 1e-8 * abs(min(losses)), losses
        row = {"problem": name, "one_rank": one, "two_ranks": two, "ratio": one / two}
        print(row, flush=True)
        rows.append(row)
    return rows


def launched(name: str, ranks: int) -> dict:
    """Return what rank 0 of a launch measures."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    launcher = str(mpiexec) if mpiexec.exists() else "mpiexec"
    words = [launcher, "-n", str(ranks), sys.executable]
    words += ["-m", "benchmarks.bench_fit_ranks", name]
    environment = {**os.environ, "HYDRA_LAUNCHER": "fork"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env=environment, timeout=600
    )
    return json.loads(done.stdout.splitlines()[-1])


def on_rank(name: str) -> None:
    """Fit twice on the ranks of this launch; rank 0 prints the second time."""
    from mpi4py import MPI

    import hpcsgd
    from benchmarks.fit_problems import PROBLEMS as MADE

    warnings.simplefilter("ignore")
    comm = MPI.COMM_WORLD
    problem = MADE[name]
    X, y = problem.make()
    spent, loss = 0.0, 0.0
    for _ in range(2):
        comm.Barrier()
        began = time.perf_counter()
        result = hpcsgd.fit(X, problem.family, y, alpha=problem.l2, comm=comm)
        comm.Barrier()
        spent, loss = time.perf_counter() - began, result.loss
    if comm.rank == 0:
        print(json.dumps({"seconds": spent, "loss": loss}), flush=True)


if __name__ == "__main__":
    on_rank(sys.argv[1])
