"""What more ranks are worth to a conversion: `hpcsgd data convert` under mpiexec.

One rank (without mpiexec) and two take turns on the same text, which is in memory
(/dev/shm where there is one), as is the store: disks have a speed of their own. Medians
of wall seconds, of the processor seconds of all ranks, and of those of the busiest one,
which are what idle cores would take: a rank that waits sleeps. `start` is what a text
of two rows takes, `apart` is by the busiest rank without it. HPCSGD_BENCH_CONVERT_MB
are the sizes of a text ("400 1600"), HPCSGD_BENCH_RANKS the numbers of ranks ("1 2").
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from benchmarks import text_files

REPEATS = 5  # after one to warm up
SIZES = [int(n) for n in os.environ.get("HPCSGD_BENCH_CONVERT_MB", "400 1600").split()]
RANKS = [int(n) for n in os.environ.get("HPCSGD_BENCH_RANKS", "1 2").split()]
MEMORY = Path("/dev/shm")
KINDS = ("wall", "processor", "busiest")
# name -> rows, options
TEXTS = {
    "epsilon.svm": (text_files.epsilon, ["--element", "bf16"]),
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
    megabytes = round(path.stat().st_size / 1e6, 1)
    times = _in_turns(path, options)
    path.unlink()
    figures = {"file": name, "megabytes": megabytes, "options": " ".join(options)}
    for ranks, found in times.items():
        first = times[RANKS[0]]
        for kind in ("wall", "busiest"):
            found[f"times_as_fast_by_{kind}"] = round(first[kind] / found[kind], 2)
        apart = first["busiest"] - start[RANKS[0]]["busiest"]
        apart /= found["busiest"] - start[ranks]["busiest"]
        found["times_as_fast_apart"] = round(apart, 2)
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
            kind: round(median(column), 3)
            for kind, column in zip(KINDS, zip(*own, strict=True), strict=True)
        }
        for ranks, own in times.items()
    }


def _timed(path: Path, options: list[str], ranks: int) -> tuple[float, float, float]:
    """(wall, all ranks, the busiest rank) of one conversion."""
    from hpcsgd.cli.launch import mpiexec

    words = [str(path), str(path.with_suffix(".h5")), "--force", "--quiet", *options]
    launch = [] if ranks == 1 else [*mpiexec(), "-n", str(ranks)]
    command = [*launch, sys.executable, "-m", "benchmarks.bench_convert", *words]
    began = perf_counter()
    environment = {"HYDRA_LAUNCHER": "fork", **os.environ}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    wall = perf_counter() - began
    used = [float((path.parent / f"rank{r}").read_text()) for r in range(ranks)]
    return wall, sum(used), max(used)


def _one_rank(words: list[str]) -> int:
    """The command on this rank, which notes what it used."""
    from hpcsgd.cli import main
    from hpcsgd.cli.launch import launcher_rank

    code = main(["data", "convert", *words])
    place = Path(words[0]).with_name(f"rank{launcher_rank() or 0}")
    place.write_text(str(process_time()))
    return code


if __name__ == "__main__":
    sys.exit(_one_rank(sys.argv[1:]))
