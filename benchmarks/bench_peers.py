"""Time to 0.5 % of the optimum: hpcsgd beside scikit-learn, PyTorch and NumPy.

One process, one thread, one core. Everybody minimises the same objective from the same
float32 rows in memory and is tuned with the same trials on a second draw of the set;
then all are timed in turns, and medians are kept (docs/trust/benchmarks.md).
Figures are written as they come: started again, it goes on where it was interrupted.

python -m benchmarks.bench_peers [--rows N] [--problems NAME ...] [--methods TEXT ...]
"""

import argparse
import gc
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from benchmarks.peers.clock import TARGET  # noqa: E402
from benchmarks.peers.everyone import PACKAGES, methods, version  # noqa: E402
from benchmarks.peers.methods import Method  # noqa: E402
from benchmarks.peers.notebook import Figures, Notebook  # noqa: E402
from benchmarks.peers.problems import (  # noqa: E402
    KINDS,
    Problem,
    is_there,
    layouts,
    make,
    solved,
)
from benchmarks.peers.table import table  # noqa: E402
from benchmarks.run import HERE, machine  # noqa: E402

OUT = HERE / "results" / "bench_peers.json"
FEW = 256  # rows of the warm-up before tuning
Entry = tuple[Method, Problem, Problem]  # who, on what it is timed, on what tuned


def measure() -> Figures:
    """Everything, as `make bench-peers` has it."""
    return run(_arguments([]))


def run(asked: argparse.Namespace) -> Figures:
    """Problem after problem; what the notebook has already is not done again."""
    pin_to_one_core()
    _say_who_is_missing()
    book = Notebook(Path(asked.out), machine(), _configuration(asked), asked.fresh)
    if book.started_anew:
        print(f"{asked.out} is of another configuration: its figures are replaced")
    for name in asked.problems:
        if not is_there(name):
            print(f"{name} is left out: {KINDS[name].file} is not there")
            continue
        part = _problem(book, name, asked)
        print("\n" + table(name, part), flush=True)
    return book.figures


def _problem(book: Notebook, name: str, asked: argparse.Namespace) -> Figures:
    part = book.problem(name)
    timed = _with_optimum(part, "optimum", make(name, asked.rows, tuning=False))
    tuning = _with_optimum(part, "tuning_optimum", make(name, asked.rows, tuning=True))
    part |= {
        "family": timed.family,
        "rows": len(timed.y),
        "columns": timed.X.shape[1],
        "l2": timed.l2,
    }
    rows = part.setdefault("methods", {})
    entries = _entries(timed, tuning, asked.methods)
    for label, entry in entries.items():
        _tune(rows.setdefault(label, {}), label, entry, asked)
        book.save()
    tuned = {label: entries[label] for label in entries if "tuning" in rows[label]}
    _time(rows, tuned, asked, book.save)
    return part


def _with_optimum(part: Figures, key: str, problem: Problem) -> Problem:
    """Found once, then read."""
    if key not in part:
        solved_one, part[key] = solved(problem)
        return solved_one
    return replace(problem, best=part[key]["loss"])


def _entries(timed: Problem, tuning: Problem, names: list[str]) -> dict[str, Entry]:
    """Every method that was asked for, on every way the rows can be stored."""
    found = {}
    for one, other in zip(layouts(timed), layouts(tuning), strict=True):
        for method in methods(one):
            label = method.name + (" (CSR)" if one.layout == "csr" else "")
            if any(text in label for text in names):
                found[label] = (method, one, other)
    return found


def _warm_up(method: Method, problem: Problem) -> None:
    """Imports and compilations at the first call are nobody's time."""
    few = replace(problem, X=problem.X[:FEW], y=problem.y[:FEW], best=None)
    method.tune(solved(few)[0], trials=1, cap=0.05)


def _tune(row: Figures, label: str, entry: Entry, asked: argparse.Namespace) -> None:
    """Once; a method that cannot do it is said to, and takes nobody along."""
    if "tuning" in row:
        return
    row.clear()
    try:
        row |= _tuned(entry, asked)
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {error}"
    print(f"{entry[1].name}: {label}: {_in_words(row)}", flush=True)


def _tuned(entry: Entry, asked: argparse.Namespace) -> Figures:
    method, timed, tuning = entry
    _warm_up(method, tuning)
    tuned = method.tune(tuning, asked.trials, asked.cap)
    setting = method.settle(timed, tuned.setting, asked.cap)
    return {"tuning": asdict(tuned), "setting": setting}


def _in_words(row: Figures) -> str:
    if "failed" in row:
        return f"failed ({row['failed']})"
    tuning, best = row["tuning"], row["tuning"]["outcome"]
    said = f"{best['seconds']:.3f} s" if best["reached"] else "never"
    spent = f"{tuning['trials']} trials, {tuning['seconds']:.1f} s"
    return f"{spent}, best {said} with {row['setting']}"


def _time(
    rows: Figures,
    entries: dict[str, Entry],
    asked: argparse.Namespace,
    save: Callable[[], None],
) -> None:
    """In turns, so that all meet the same load; each is warmed up once before."""
    due = unfinished(rows, asked.repeats, list(entries))
    for label in due:
        _once(rows[label], entries[label], 0, asked.cap)
    for turn in range(asked.repeats):
        for label in due:
            runs = rows[label].setdefault("runs", [])
            if len(runs) <= turn:
                runs.append(_once(rows[label], entries[label], turn + 1, asked.cap))
                rows[label] |= summary(runs)
                save()


def _once(row: Figures, entry: Entry, seed: int, cap: float) -> Figures:
    method, timed, _ = entry
    gc.collect()
    return asdict(method.time(timed, row["setting"], seed, cap))


def unfinished(rows: Figures, repeats: int, labels: list[str]) -> list[str]:
    """Those that have not been timed often enough yet."""
    return [n for n in labels if len(rows.get(n, {}).get("runs", [])) < repeats]


def summary(runs: list[Figures]) -> Figures:
    """Medians; reached only where more than half of the runs got there."""
    there = [run for run in runs if run["reached"]]
    reached = 2 * len(there) > len(runs)
    gaps = [run["gap"] for run in runs if run["gap"] is not None]
    return {
        "reached": reached,
        "runs_that_reached": len(there),
        "seconds": median(r["seconds"] if r["reached"] else float("inf") for r in runs)
        if reached
        else None,
        "epochs": median(run["epochs"] for run in runs),
        "gap": median(gaps) if gaps else None,
    }


def pin_to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _say_who_is_missing() -> None:
    for module, name in PACKAGES.items():
        if not version(module):
            print(f"{name} is not installed: its rows are left out; pip install it")


def _configuration(asked: argparse.Namespace) -> Figures:
    """What has to be the same for rows to be skipped."""
    modules = ("hpcsgd", "numpy", "scipy", *PACKAGES)
    return {
        "rows": asked.rows,
        "trials": asked.trials,
        "repeats": asked.repeats,
        "cap_seconds": asked.cap,
        "target_gap": TARGET,
        "python": platform.python_version(),
        "versions": {module: version(module) for module in modules},
    }


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cap", type=float, default=20.0, help="seconds of a trial")
    parser.add_argument("--problems", nargs="*", choices=list(KINDS), default=[*KINDS])
    parser.add_argument("--methods", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--fresh", action="store_true", help="replace earlier figures")
    parser.add_argument("--out", default=str(OUT))
    return parser.parse_args(given)


if __name__ == "__main__":
    run(_arguments(None))
    sys.exit(0)
