"""What a sum over two ranks costs: MPI's own, prepared once, through shared memory.

A message is written, summed and read, as a product does it, by all kinds of workspace
in turns in one process a rank; medians. Whole runs with shared memory on and off
follow, and the memory (proportional set size) of one that keeps targets and Grams.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import hpcsgd
from hpcsgd.comm import open_world, shared_memory
from hpcsgd.comm.communicator import Workspace

RANKS, REPEATS, RUN_REPEATS = 2, 41, 9
EXCHANGES = ((8, 8), (16, 8), (32, 8), (32, 16), (64, 16))
SHORT = (8, 64, 256, 512, 1024)  # margins alone, in words
RUNS = ((8, 8), (16, 8), (32, 8))
LEAST = 0.002  # seconds that one timing lasts


def measure() -> dict:
    """The figures of two ranks; those of memory in processes of their own."""
    figures = _launch("times")
    figures["memory_mib"] = {how: _launch(how) for how in ("off", "auto")}
    for row in figures["sums"]:
        print(f"{row['words']:7d} words:", _spelled(row["us"], "µs"))
    for row in figures["runs"]:
        setting = f"exchange b {row['batch']}, s {row['steps']}:"
        print(setting, _spelled(row["us"], "µs"))
    print("memory of all ranks:", _spelled(figures["memory_mib"], "MiB"), flush=True)
    return figures


def _launch(what: str):
    """What rank 0 of an mpiexec of our own prints."""
    command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(RANKS)]
    said = subprocess.run(
        [*command, sys.executable, "-m", "benchmarks.bench_collectives", what],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ).stdout
    return json.loads(said)


def _spelled(values: dict, unit: str) -> str:
    return ", ".join(f"{name} {value:.1f} {unit}" for name, value in values.items())


def on_ranks(what: str) -> None:
    """Measure on the ranks there are; rank 0 prints one document."""
    world = open_world("mpi")
    figures = _times(world) if what == "times" else _memory(world, what)
    if world.rank == 0:
        print(json.dumps(figures))
    world.close()


def _times(world) -> dict:
    sizes = [b * b * s * (s - 1) // 2 + s * b for b, s in EXCHANGES]
    return {
        "ranks": world.size,
        "mpi": world.transport,
        "sums": [_sums(world, words) for words in sorted({*SHORT, *sizes})],
        "runs": [_runs(world, *setting) for setting in RUNS],
    }


def _sums(world, words: int) -> dict:
    """Every kind at one size: first all opened, then timed in turns."""
    spaces = _every_kind(world, words)
    part = np.random.default_rng(world.rank).normal(size=words).astype(np.float32)
    count = _count(world, spaces["ordinary"], part)
    times = {name: [] for name in [*spaces, "untouched"]}
    for _ in range(REPEATS):
        for name, space in spaces.items():
            times[name].append(_cycle(world, space, part, count))
        times["untouched"].append(_untouched(part, count))
    us = {name: statistics.median(each) for name, each in times.items()}
    alone = us.pop("untouched")
    return {"words": words, "us": {name: each - alone for name, each in us.items()}}


def _every_kind(world, words: int) -> dict:
    kinds = {"ordinary": Workspace(world, words, np.float32)}
    limits = shared_memory.UP_TO, shared_memory.ALONE_UP_TO
    shared_memory.UP_TO = 2**40
    world.share_nodes("off")
    kinds["persistent"] = world.workspace(words, np.float32)
    world.share_nodes("on")
    for name, limit in (("shared_each", 2**40), ("shared_slices", -1)):
        shared_memory.ALONE_UP_TO = limit
        kinds[name] = world.workspace(words, np.float32)
    shared_memory.UP_TO, shared_memory.ALONE_UP_TO = limits
    return kinds


def _cycle(world, space, part, count: int) -> float:
    """µs to write, sum and read, each of `count` times; the slower rank's."""
    world.max_flag(0)
    began = perf_counter()
    for _ in range(count):
        np.copyto(space.array, part)
        np.add.reduce(space.sum("products"))
    own = perf_counter() - began
    return 1e6 * max(world.exchange_objects(own)) / count


def _untouched(part, count: int) -> float:
    """µs of the writing and reading alone, in memory that nobody else touches."""
    array = np.empty_like(part)
    began = perf_counter()
    for _ in range(count):
        np.copyto(array, part)
        np.add.reduce(array)
    return 1e6 * (perf_counter() - began) / count


def _count(world, space, part) -> int:
    """How often to repeat: the same on all ranks, as `_cycle` is."""
    _cycle(world, space, part, 20)
    return max(5, min(500, int(1e6 * LEAST / _cycle(world, space, part, 20))))


def _runs(world, batch: int, steps: int) -> dict:
    """µs of an exchange in whole runs of gram, 200 columns a rank."""
    data = _data(batch * steps * 200, 200 * world.size)
    times = {"off": [], "auto": []}
    for _ in range(RUN_REPEATS):
        for how, each in times.items():
            result = _train(world, data, "gram", how, batch, steps, epochs=1)
            each.append(1e6 * result.report["seconds_total"] / result.exchanges)
    us = {how: statistics.median(each) for how, each in times.items()}
    return {"batch": batch, "steps": steps, "us": us}


def _memory(world, how: str) -> float:
    """MiB that all ranks together hold at the end of a cached run, beyond its start."""
    data, look = _data(200_000, 4), Look(world)
    _train(world, _data(512, 4), "cached", how, 32, 8, epochs=2)  # wakes everything
    before = sum(world.exchange_objects(_proportional()))
    world.max_flag(0)
    _train(world, data, "cached", how, 32, 8, epochs=2, callbacks=[look])
    return (look.bytes - before) / 2**20


def _data(rows: int, columns: int) -> dict:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    return {"X": X, "y": (X[:, 0] + rng.normal(size=rows) > 0).astype(float)}


def _train(world, data, product, how, batch, steps, epochs, callbacks=None):
    return hpcsgd.train(
        {
            "schedule": {"batch": batch, "steps": steps, "epochs": epochs},
            "products": {"kind": product},
            "run": {"evaluate_every": 0, "node_sharing": how},
        },
        **data,
        world=world,
        callbacks=callbacks,
    )


class Look(hpcsgd.Callback):
    """At the memory of all ranks, while the arrays of the run are still there."""

    def __init__(self, world) -> None:
        self.world, self.bytes = world, 0

    def on_end(self, view) -> None:
        self.world.max_flag(0)
        self.bytes = sum(self.world.exchange_objects(_proportional()))
        self.world.max_flag(0)


def _proportional() -> int:
    """Bytes of this process, what others share with it divided among them."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line[:4] == "Pss:")


if __name__ == "__main__":
    on_ranks(sys.argv[1])
