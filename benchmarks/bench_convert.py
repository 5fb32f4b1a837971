"""What more ranks are worth to `hpcsgd data convert`, as a shell sees it.

One rank (without mpiexec) and two take turns on the same text, which is in memory
(/dev/shm where there is one), as is the store: disks have a speed of their own. Medians
of wall seconds and of processor seconds of all processes. `start` is what a text of two
rows takes, `apart` is the time without it. HPCSGD_BENCH_CONVERT_MB are the
sizes of a text ("400 1600"), HPCSGD_BENCH_RANKS the numbers of ranks ("1 2").
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks import text_files

REPEATS = 5  # after one to warm up
SIZES = [int(n) for n in os.environ.get("HPCSGD_BENCH_CONVERT_MB", "400 1600").split()]
RANKS = [int(n) for n in os.environ.get("HPCSGD_BENCH_RANKS", "1 2").split()]
MEMORY = Path("/dev/shm")
# name -> rows, options
TEXTS = {
    "epsilon.svm": (text_files.epsilon, ["--element", "bf16"]),
    "rcv1.svm": (text_files.rcv1, ["--element", "fp32", "--standardize"]),
    "higgs.csv": (text_files.higgs, ["--element", "bf16"]),
}


def measure() -> dict:
    """Every text, by every number of ranks."""
    where = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        tiny = Path(folder) / "tiny.svm"
        tiny.write_text("1 1:2\n-1 1:3\n")
        start = _in_turns(tiny, [])
        tiny.unlink()
        rows = [_of(Path(folder), n, size, start) for size in SIZES for n in TEXTS]
    cores = len(os.sched_getaffinity(0))
    return {"start": start, "cores": cores, "load": os.getloadavg(), "texts": rows}


def _of(folder: Path, name: str, size: int, start: dict) -> dict:
    row, options = TEXTS[name]
    path = text_files.write(folder / name, row, size * 10**6)
    megabytes = path.stat().st_size / 1e6
    times = _in_turns(path, options)
    path.unlink()
    figures = {
        "file": name,
        "megabytes": round(megabytes, 1),
        "options": " ".join(options),
    }
    for ranks, found in times.items():
        found["MB_s"] = round(megabytes / found["wall"])
        for kind in ("wall", "least_wall"):
            apart = found[kind] - start[ranks][kind]
            first = times[RANKS[0]][kind]
            found[f"times_as_fast_by_{kind}"] = round(first / found[kind], 2)
            first -= start[RANKS[0]][kind]
            found[f"times_as_fast_apart_by_{kind}"] = round(first / apart, 2)
    print(figures | times, flush=True)
    return figures | {"ranks": times}


def _in_turns(path: Path, options: list[str]) -> dict[int, dict]:
    """Ranks -> medians of seconds; the first turn only warms up."""
    times: dict[int, list] = {ranks: [] for ranks in RANKS}
    for turn in range(REPEATS + 1):
        for ranks in RANKS:
            spent = _timed(path, options, ranks)
            if turn:
                times[ranks].append(spent)
    return {
        ranks: {
            "wall": round(median(wall for wall, _ in own), 3),
            "processor": round(median(cpu for _, cpu in own), 3),
            "least_wall": round(min(wall for wall, _ in own), 3),
            "all_wall": [round(wall, 3) for wall, _ in own],
        }
        for ranks, own in times.items()
    }


def _timed(path: Path, options: list[str], ranks: int) -> tuple[float, float]:
    more = [] if ranks == 1 else ["--ranks", str(ranks)]
    words = ["data", "convert", str(path), str(path.with_suffix(".h5")), "--force"]
    command = [sys.executable, "-m", "hpcsgd", *words, "--quiet", *options, *more]
    began, before = perf_counter(), _processor()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - began, _processor() - before


def _processor() -> float:
    """Seconds that all processes started from here have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
