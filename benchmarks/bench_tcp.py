"""What a sum costs through TCP, beside MPI's: in turns, in one process a rank.

Both worlds are of the same processes, on one machine: what MPI does in shared memory is
compared with sockets of the loopback. Four ranks share what cores there are. Where
other programs use the cores, too, the least of all timings says more than the median.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from hpcsgd.comm import open_world

RANKS = (2, 4)
SIZES = (4, 512 * 2**10, 16 * 2**20)  # bytes
REPEATS = 101
LEAST = 0.001  # seconds that one timing lasts, by MPI's count


def measure() -> dict:
    """µs of a sum for each number of ranks and size, and how many times MPI's it is."""
    rows = [row for ranks in RANKS for row in _launch(ranks)]
    for row in rows:
        least = " ".join(f"{name} {row['least'][name]:.1f}" for name in row["least"])
        half = " ".join(f"{name} {row['median'][name]:.1f}" for name in row["median"])
        print(
            f"{row['ranks']} ranks, {row['bytes']:8d} bytes: least {least}, median"
            f" {half} µs, median ratio {row['ratio']:.1f}",
            flush=True,
        )
    return {"rows": rows, "load": os.getloadavg()[0]}


def _launch(ranks: int) -> list:
    command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(
            [*command, sys.executable, "-m", "benchmarks.bench_tcp", "ranks"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "HPCSGD_STORE": f"file:{folder}/store"},
        ).stdout
    return json.loads(said)


def on_ranks() -> None:
    """Measure on the ranks there are; rank 0 prints one document."""
    worlds = {"mpi": open_world("mpi"), "tcp": open_world("tcp")}
    rows = [_row(worlds, size) for size in SIZES]
    if worlds["mpi"].rank == 0:
        print(json.dumps(rows))
    for world in worlds.values():
        world.close()


def _row(worlds: dict, size: int) -> dict:
    buffer = np.zeros(size // 4, np.float32)
    count = _count(worlds["mpi"], buffer)
    times: dict[str, list[float]] = {name: [] for name in worlds}
    for _ in range(REPEATS):
        for name, world in worlds.items():
            times[name].append(_cycle(world, buffer, count))
    ratios = [t / m for m, t in zip(times["mpi"], times["tcp"], strict=True)]
    return {
        "ranks": worlds["mpi"].size,
        "bytes": size,
        "least": {name: min(each) for name, each in times.items()},
        "median": {name: statistics.median(each) for name, each in times.items()},
        "ratio": statistics.median(ratios),
    }


def _cycle(world, buffer, count: int) -> float:
    """µs of a sum; the slowest rank's."""
    world.max_flag(0)
    began = perf_counter()
    for _ in range(count):
        world.sum(buffer, "control")
    own = perf_counter() - began
    return 1e6 * max(world.exchange_objects(own)) / count


def _count(world, buffer) -> int:
    _cycle(world, buffer, 5)
    return max(2, min(200, int(1e6 * LEAST / _cycle(world, buffer, 5))))


if __name__ == "__main__":
    on_ranks()
