"""Bytes that a rank holds at most in the steps of DDP and of ZeRO, measured.

    mpiexec -n 4 python -m benchmarks.bench_zero [--columns 2000000] [--tiles 16]

`tracemalloc` counts every array of the process, from the end of the first evaluation
on. Left out are the row that an exchange gathers and the copy of the last weights with
a good loss, which every run keeps beside its state; the rows are the caller's.
"""

import argparse
import json
import subprocess
import sys
import tracemalloc

import numpy as np

from hpcsgd.api import train
from hpcsgd.cli.launch import mpiexec
from hpcsgd.config import RunConfig
from hpcsgd.runs.progress import Callback

METHODS = ("ddp", "zero1", "zero2", "offload", "zero3")
UPDATES = ("sgd", "momentum", "adagrad", "adam")
STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "offload": 2, "zero3": 3}
ROWS, WORD = 2, 4  # of each replica, taken one by one; bytes in float32
STORED = 100  # values of a sparse row
KEPT = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2}  # words a weight


class Peaks(Callback):
    """The most bytes at a time, of the steps of an epoch and of the loss after it."""

    def __init__(self):
        self.steps = self.look = self.base = 0

    def on_exchange(self, view):
        self.steps = max(self.steps, tracemalloc.get_traced_memory()[1])
        if view.exchanges % ROWS == 0:
            tracemalloc.reset_peak()

    def on_evaluate(self, view):
        if view.exchanges:
            self.look = max(self.look, tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()


def computed(method, update, columns, ranks, tiles):
    """Bytes by the table: parameters, gradient, state, and tiles beside them.

    Where the host takes the steps it has slices of w and of the gradient, too.
    """
    D, s, tile = WORD * columns, KEPT[update], WORD * -(-columns // tiles)
    stage = STAGES[method]
    parts = [1, 1, s + 2 * (method == "offload")]
    for number, first in ((2, 1), (1, 2), (0, 3)):
        if stage >= first:
            parts[number] /= ranks
    return D * sum(parts) + 2 * tile * (stage > 1)


def rows_of(count, columns, sparse):
    """Dense ones, or some with few of their columns stored."""
    rng = np.random.default_rng(0)
    if not sparse:
        return rng.standard_normal((count, columns), dtype=np.float32)
    from scipy.sparse import csr_array

    places = np.sort(rng.choice(columns, (count, STORED), replace=False), axis=1)
    values = rng.standard_normal(count * STORED, dtype=np.float32)
    edges = np.arange(0, count * STORED + 1, STORED)
    return csr_array((values, places.reshape(-1), edges), shape=(count, columns))


def peaks_of(world, method, update, columns, tiles, sparse=False):
    """(bytes at most in steps, and in looks) of this rank, rows left out."""
    n = ROWS * world.size
    X = rows_of(n, columns, sparse)
    y = np.arange(n) % 2.0
    config = RunConfig.parse(
        {
            "schedule": {"batch": 1, "epochs": 2},
            "agreement": {"method": method, "bucket": WORD * columns / tiles / 2**20},
            "update": {"kind": update},
            "precision": {"recipe": "fp32"},
            "grid": {"replicas": world.size},
            "rate": {"value": 1e-3},
            "run": {"evaluate_every": 1, "fall_back": False},
        }
    )
    peaks = Peaks()
    tracemalloc.start()
    try:
        result = train(config, X=X, y=y, world=world, callbacks=[peaks])
    finally:
        tracemalloc.stop()
    assert result.report["agreement"]["buckets"] == tiles
    gathered = not sparse  # a row, which is as long as the weights
    rest = WORD * columns * (gathered + good(method, update, world.size))
    return peaks.steps - rest, peaks.look - rest


def good(method, update, ranks):
    """Words a column of the copy of the last good weights, with a velocity in them."""
    if method == "ddp":
        return 1 + (update == "momentum")
    return 1 / ranks if method == "zero3" else 1


def measure():
    """On four ranks."""
    words = [sys.executable, "-m", "benchmarks.bench_zero"]
    said = subprocess.run(
        [*mpiexec(), "-n", "4", *words], check=True, capture_output=True, text=True
    )
    return json.loads(said.stdout)


def main():
    from hpcsgd.comm import open_world

    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", type=int, default=2_000_000)
    parser.add_argument("--tiles", type=int, default=16)
    options = parser.parse_args()
    world, table = open_world("mpi"), []
    peaks_of(world, "ddp", "sgd", 16 * options.tiles, options.tiles)  # imports
    cases = [(update, method, False) for update in UPDATES for method in METHODS]
    cases += [("adam", method, True) for method in METHODS[1:]]
    for update, method, sparse in cases:
        shape = update, options.columns
        found = peaks_of(world, method, *shape, options.tiles, sparse)
        steps, look = np.max(world.exchange_objects(found), axis=0)
        wanted = computed(method, *shape, world.size, options.tiles)
        D = WORD * options.columns
        row = {"update": update, "method": method, "sparse": sparse}
        table.append(
            row | {"computed": wanted / D, "steps": steps / D, "look": look / D}
        )
    if world.rank == 0:
        print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
