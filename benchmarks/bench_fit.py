"""CPU seconds of a fit to (F − F_best) / |F_best| ≤ 1e-8, beside other packages.

One process for each fit, one thread, in turns. A method has the loosest tolerance of
`TOLS` with which it gets there; "hpcsgd, default" is a fit without a tolerance, which
goes on to the last digits. The first fit of a process is not counted: it imports and
compiles. F_best is the least F that anybody reached with any tolerance. Medians of
`TURNS`.

python -m benchmarks.bench_fit [--problems NAME ...] [--turns N]
"""

import argparse
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

from benchmarks.fit_methods import DEFAULT, TOLS, methods  # noqa: E402
from benchmarks.fit_problems import PROBLEMS, objective  # noqa: E402
from benchmarks.lines import in_lines  # noqa: E402
from benchmarks.run import HERE, machine  # noqa: E402

GOAL, TURNS, LIMIT = 1e-8, 3, 60  # LIMIT: seconds of all fits of one process
LADDER = object()  # all tolerances, one after the other
OUT = HERE / "results" / "bench_fit.json"


def measure() -> list[dict]:
    """Return a row for each problem and method."""
    return run(list(PROBLEMS), TURNS)


def run(names: list[str], turns: int, out: Path | None = None) -> list[dict]:
    """Return the rows of these problems; `out` gets them as they come."""
    rows: list[dict] = []
    for name in names:
        problem = PROBLEMS[name]
        if not problem.is_there:
            print(f"{name} is left out: {problem.file} is not there", flush=True)
            continue
        rows += of_problem(name, problem, turns)
        if out is not None:
            out.write_text(in_lines({"machine": machine(), "figures": rows}) + "\n")
    return rows


def of_problem(name: str, problem, turns: int) -> list[dict]:
    """Find the tolerance of each method, then time all of them in turns."""
    names = [one for one, _ in methods(problem)]
    tried = {one: child(name, one, tuned=LADDER) for one in names}
    best = min(f for found in tried.values() for f in found["values"])
    chosen = {one: tol_of(found, best) for one, found in tried.items()}
    seconds: dict[str, list] = {one: [] for one in names}
    for _ in range(turns):
        for one, tol in chosen.items():
            if tol is not False:
                seconds[one].append(child(name, one, tuned=tol)["seconds"])
    rows = []
    for one in names:
        reached = chosen[one] is not False
        row = {
            "problem": name,
            "method": one,
            "tol": chosen[one] if reached else None,
            "cpu_ms": 1e3 * median(s["cpu"] for s in seconds[one]) if reached else None,
            "wall_ms": 1e3 * median(s["wall"] for s in seconds[one])
            if reached
            else None,
            "least_gap": (min(tried[one]["values"]) - best) / abs(best),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def tol_of(found: dict, best: float):
    """Return the loosest tolerance that reaches the goal; False: none did."""
    for tol, value in zip(found["tols"], found["values"], strict=True):
        if value - best <= GOAL * abs(best):
            return tol
    return False


def child(problem: str, method: str, tuned) -> dict:
    """Return what a process of its own measures."""
    words = [sys.executable, "-m", "benchmarks.bench_fit", "--child", problem, method]
    words += ["--ladder"] if tuned is LADDER else ["--tol", json.dumps(tuned)]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=10 * LIMIT, check=True
        )
    except subprocess.TimeoutExpired:
        return {"tols": [None], "values": [float("inf")]}
    except subprocess.CalledProcessError as error:
        print(
            f"{problem}, {method}: {error.stderr[-500:]}", file=sys.stderr, flush=True
        )
        return {"tols": [None], "values": [float("inf")]}
    return json.loads(done.stdout.splitlines()[-1])


def in_child(name: str, method: str, ladder: bool, tol) -> dict:
    """Fit in this process: with one tolerance after the other, or with one again."""
    warnings.simplefilter("ignore")
    problem = PROBLEMS[name]
    fit = dict(methods(problem))[method]
    X, y = problem.make()
    if ladder:
        return up_the_ladder(problem, method, fit, X, y)
    fit(problem, X, y, tol)
    spent = []
    began = time.perf_counter()
    while len(spent) < 5 and (not spent or time.perf_counter() - began < LIMIT / 12):
        cpu, wall = time.process_time(), time.perf_counter()
        fit(problem, X, y, tol)
        spent.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = (median(one) for one in zip(*spent, strict=True))
    return {"seconds": {"cpu": cpu, "wall": wall}}


def up_the_ladder(problem, method, fit, X, y) -> dict:
    """Return F at each tolerance, as long as it takes no minutes."""
    tols = [None] if method == DEFAULT else list(TOLS)
    found = {"tols": [], "values": []}
    began = time.perf_counter()
    for tol in tols:
        weights, intercept = fit(problem, X, y, tol)
        found["tols"].append(tol)
        found["values"].append(objective(problem, X, y, weights, intercept))
        if time.perf_counter() - began > LIMIT:
            break
    return found


def main() -> int:
    """Run what was named and write the figures; as a child, fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=[*PROBLEMS])
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--child", nargs=2, metavar=("PROBLEM", "METHOD"))
    parser.add_argument("--ladder", action="store_true")
    parser.add_argument("--tol", type=json.loads)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(in_child(*given.child, given.ladder, given.tol)))
        return 0
    run(given.problems, given.turns, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
