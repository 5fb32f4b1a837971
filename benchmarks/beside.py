"""Microseconds of an exchange beside another version of the package, in turns.

python -m benchmarks.beside FOLDER [--pairs N] [--collectives | --commands]

FOLDER is a checkout of the other version, compiled kernels included. A process of each
version, one after the other, times whole runs on one rank (m = 64 rows an exchange,
d = 100 columns); a third one, of the other version again, shows how far a version
differs from itself. The figures are medians of ratios over the pairs. With
--collectives it is the sums and runs of bench_collectives on two ranks, which each
version measures by its own copy of that file. With --commands it is the CPU seconds of
whole commands, start and end included, which either version knows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# Run in either version: nothing of it is newer than the older one.
TIMED = """
import json, statistics, time
import numpy as np
import hpcsgd
from hpcsgd.comm.threads import SerialCommunicator

rng = np.random.default_rng(0)
X = rng.normal(size=(64 * 400, 100)).astype(np.float32)
y = (X[:, 0] + rng.normal(size=len(X)) > 0).astype(float)
WAYS = {
    "gram, s = 8": ("gram", 8, 8, "off"),
    "gram, s = 2": ("gram", 32, 2, "off"),
    "direct": ("direct", 8, 8, "off"),
    "cached": ("cached", 8, 8, "off"),
    "look-ahead": ("gram", 8, 8, "on"),
}

def timed(kind, batch, steps, ahead):
    tables = {
        "products": {"kind": kind, "look_ahead": ahead},
        "schedule": {"batch": batch, "steps": steps, "epochs": 2},
        "rate": {"value": 0.1},
        "run": {"gap_every": 0, "evaluate_every": 0},
    }
    if kind == "direct":
        del tables["products"]["look_ahead"]
    result = hpcsgd.train(tables, X=X, y=y, world=SerialCommunicator())
    return 1e6 * result.history[-1]["seconds"] / result.exchanges

for way in WAYS.values():
    timed(*way)
print(json.dumps({
    name: statistics.median(timed(*way) for _ in range(5)) for name, way in WAYS.items()
}))
"""


def one(folder: Path) -> dict[str, float]:
    """Return µs of an exchange of each kind, in a process of the version there."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TIMED],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(other: Path, pairs: int) -> list[dict]:
    """Return a row for each kind of exchange."""
    here = HERE.parent
    triples = [(one(here), one(other), one(other)) for _ in range(pairs)]
    return [
        {
            "exchange": name,
            "us": median(now[name] for now, _, _ in triples),
            "ratio": median(now[name] / then[name] for now, then, _ in triples),
            "same": median(then[name] / again[name] for _, then, again in triples),
            "same_least": min(then[name] / again[name] for _, then, again in triples),
            "same_most": max(then[name] / again[name] for _, then, again in triples),
        }
        for name in triples[0][0]
    ]


def collectives(folder: Path) -> dict[str, float]:
    """Return all µs that bench_collectives measures there, by their place."""
    words = "-m", "benchmarks.run", "bench_collectives", "--suffix", "beside"
    path = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run(
        [sys.executable, *words], env=path, cwd=folder, capture_output=True, check=True
    )
    file = folder / "benchmarks" / "results" / "bench_collectives-beside.json"
    found = dict(_times(json.loads(file.read_text())["figures"]))
    file.unlink()
    return found


def _times(figures, place=""):
    """Yield place and value of each number below a key of microseconds."""
    if isinstance(figures, dict):
        for key, value in figures.items():
            yield from _times(value, f"{place}/{key}")
    elif isinstance(figures, list):
        for number, value in enumerate(figures):
            yield from _times(value, f"{place}/{number}")
    elif isinstance(figures, float) and "us" in place.replace("/", "_").split("_"):
        yield place, figures


def measure_collectives(other: Path, pairs: int) -> list[dict]:
    """Return a row for each time: its median ratio, and how far two runs differ."""
    runs = [(collectives(HERE.parent), collectives(other)) for _ in range(pairs)]
    rows = []
    for place in runs[0][0]:
        then = [before[place] for _, before in runs]
        rows.append(
            {
                "time": place.strip("/"),
                "ratio": median(now[place] / before[place] for now, before in runs),
                "same_least": min(then) / median(then),
                "same_most": max(then) / median(then),
            }
        )
    return rows


# Commands on files of their own, each in the order in which the next one needs it.

SGD = ("--rate", "0.1", "--batch", "64")
STEPS = (*SGD, "--steps", "8")
KEPT = ("--out", "run", "--set", "checkpoint.every=200", "--resume", "no")
FILES = {
    "rows.h5": ("--shape", "higgs", "--rows", "1500000"),
    "wide.h5": ("--shape", "epsilon", "--rows", "24000", "--cols", "1000"),
    "few.h5": ("--shape", "higgs", "--rows", "1000"),
}
COMMANDS = {
    "data synth": (
        *("data", "synth", "--shape", "susy", "--rows", "2000000", "--out", "x.h5"),
    ),
    "data convert, CSV": ("data", "convert", "t.csv", "c.h5", "--force"),
    "data convert, LIBSVM": ("data", "convert", "t.svm", "l.h5", "--force"),
    "train, 1000 rows": ("train", "--data", "few.h5", *SGD, "--epochs", "1"),
    "train, direct": ("train", "--data", "rows.h5", *SGD, "--products", "direct"),
    "train, gram": ("train", "--data", "wide.h5", *STEPS, "--products", "gram"),
    "train, gather": ("train", "--data", "rows.h5", *STEPS, "--products", "gather"),
    "train, cached in recipe c": (
        *("train", "--data", "wide.h5", *STEPS, "--products", "cached"),
        *("--precision", "c"),
    ),
    "train, streamed": (
        *("train", "--data", "rows.h5", *STEPS, "--sampling", "blocks"),
        *("--memory", "600MiB"),
    ),
    "train, gram on 2 ranks": (
        *("train", "--ranks", "2", "--data", "wide.h5", *STEPS, "--products", "gram"),
    ),
    "train, ddp on 2 ranks": (
        *("train", "--ranks", "2", "--data", "rows.h5", *SGD, "--method", "ddp"),
        *("--epochs", "1"),
    ),
    "train, momentum and checkpoints": (
        *("train", "--data", "rows.h5", "--rate", "0.01", "--batch", "256"),
        *("--steps", "4", "--update", "momentum", "--epochs", "1", *KEPT),
    ),
    "evaluate": ("evaluate", "run", "rows.h5"),
    "predict": ("predict", "run", "rows.h5", "--out", "p.npy"),
}


def command(folder: Path, words, place: Path) -> float:
    """Return the CPU seconds of a command of the version in `folder`, in `place`."""
    with subprocess.Popen(
        [sys.executable, "-m", "hpcsgd", *words],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} in {folder}: {said[-500:]}")
    for left in ("x.h5", "p.npy"):
        (place / left).unlink(missing_ok=True)
    return used.ru_utime + used.ru_stime


def write_texts(place: Path) -> None:
    """Write 400,000 rows of 20 columns as CSV and, without negatives, as LIBSVM."""
    import numpy as np

    rng = np.random.default_rng(1)
    with open(place / "t.csv", "w") as csv, open(place / "t.svm", "w") as svm:
        csv.write("y," + ",".join(f"x{k}" for k in range(20)) + "\n")
        for row in rng.standard_normal((400_000, 20)):
            label = int(row[0] > 0)
            csv.write(f"{label}," + ",".join(f"{v:.6g}" for v in row) + "\n")
            stored = (f"{k + 1}:{v:.6g}" for k, v in enumerate(row) if v > 0)
            svm.write(f"{2 * label - 1} " + " ".join(stored) + "\n")


def measure_commands(other: Path, pairs: int) -> list[dict]:
    """Return a row for each command: its CPU seconds here, and their median ratio.

    The ratio is of this version to the other one.
    """
    versions = {"here": HERE.parent, "other": other}
    seconds = {name: {version: [] for version in versions} for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for version, path in versions.items():
            place = Path(folder) / version
            place.mkdir()
            write_texts(place)
            for file, shape in FILES.items():
                command(path, ("data", "synth", *shape, "--out", file), place)
        for turn in range(pairs):
            order = list(versions)[:: 1 - 2 * (turn % 2)]
            for name, words in COMMANDS.items():
                for version in order:
                    found = command(versions[version], words, Path(folder) / version)
                    seconds[name][version].append(found)
    return [
        {
            "command": name,
            "cpu_s": median(found["here"]),
            "ratio": median(found["here"]) / median(found["other"]),
        }
        for name, found in seconds.items()
    ]


def main() -> int:
    """Measure and write the figures."""
    from benchmarks.lines import in_lines
    from benchmarks.run import machine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="a checkout of the other version")
    parser.add_argument("--pairs", type=int, default=15)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--collectives", action="store_true")
    kinds.add_argument("--commands", action="store_true")
    parser.add_argument("--version", default="", help="of the other one, for the file")
    given = parser.parse_args()
    measured, name = measure, "beside.json"
    if given.collectives:
        measured, name = measure_collectives, "beside_collectives.json"
    if given.commands:
        measured, name = measure_commands, "beside_commands.json"
    rows = measured(given.other.resolve(), given.pairs)
    for row in rows:
        print(row, flush=True)
    document = {
        "machine": machine(),
        "other": given.version,
        "pairs": given.pairs,
        "figures": rows,
    }
    (RESULTS / name).write_text(in_lines(document) + "\n")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
