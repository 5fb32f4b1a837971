"""CA-SGD in recipe c beside plain SGD in FP32, on five shapes.

Seconds of a step are those of bare loops, launches and nothing else, on both sides;
beside the naive one stands the whole of `hpcsgd.train`, since that is Python, too.
A latency is a model: what was measured, and so much for every sum that plain SGD makes
a step and CA-SGD an exchange. Losses are those of `hpcsgd.train` at the end.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu import plain
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Clock, Way
from benchmarks.gpu.exchanges import Epoch
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.sizes import Case
from benchmarks.peers.problems import Kind, make_of
from hpcsgd.api import train

NAIVE, PLAIN, GAP = 6.8, 2.5, 0.005
OURS = {"graphs": plain.graphs, "persistent": plain.persistent}
RUNS = {
    "ca": {"precision": {"recipe": "c"}, "products": {"kind": "gram"}},
    "plain": {"precision": {"recipe": "fp32"}, "products": {"kind": "direct"}},
}


def of_case(case: Case) -> Callable[[Bench], Sequence[Figure]]:
    """All figures of one shape."""
    return lambda bench: _figures(bench, case)


def _figures(bench: Bench, case: Case) -> list[Figure]:
    X, y = make_of(Kind(case.shape, case.family), case.rows)
    runs = _runs(bench, case, X, y)
    seconds, details = _loops(bench, case, X, y)
    details |= {"run_us": {name: 1e6 * run[0] for name, run in runs.items()}}
    details |= {"losses": {name: run[1] for name, run in runs.items()}}
    gap = abs(details["losses"]["ca"] / details["losses"]["plain"] - 1)
    best = min(OURS, key=lambda name: seconds[name])
    batch, steps, _ = bench.sizes.exchange
    shape = f"{case.shape}, b = {batch}, s = {steps}"
    found = [
        Figure(
            *(f"{case.shape} naive", f"{shape}: hpcsgd.train beside naive CuPy", NAIVE),
            reached=seconds["naive"] / runs["ca"][0],
            **{"unit": "x", "details": details},
        ),
        Figure(
            *(f"{case.shape} plain", f"{shape}: beside our FP32 SGD, {best}", PLAIN),
            reached=seconds[best] / seconds["ca"],
            unit="x",
        ),
    ]
    for latency, target in bench.sizes.latencies:
        ratio = (seconds[best] + latency) / (seconds["ca"] + latency / steps)
        says = f"{shape}: the same, and {1e6 * latency:g} us a sum (a model)"
        name = f"{case.shape} +{1e6 * latency:g}us"
        found.append(Figure(name, says, target, reached=ratio, unit="x"))
    says = f"{case.shape}: loss of recipe c beside FP32, {bench.sizes.epochs} epochs"
    found.append(Figure(f"{case.shape} loss", says, GAP, True, gap))
    return found


def _loops(
    bench: Bench, case: Case, X: np.ndarray, y: np.ndarray
) -> tuple[dict[str, float], dict[str, Any]]:
    """name -> seconds of a step, and all that was seen of them."""
    batch, steps, _ = bench.sizes.exchange
    given = bench, X, y, case.family, case.rate, "c", (batch, steps)
    epoch = Epoch(*given)
    way = epoch.way(epoch.graph())
    ways = {"ca": Way(way.run, steps, way.most, way.before)}
    ways |= {name: make(bench, case, X, y) for name, make in OURS.items()}
    ways["naive"] = plain.naive(bench, case, X, y)
    clock = Clock(bench.device, bench.sizes.sgd_turns, bench.sizes.least)
    times = clock.measure(ways)
    seen = {"step_us": {name: each.us for name, each in times.items()}}
    return {name: each.median for name, each in times.items()}, seen


def _runs(
    bench: Bench, case: Case, X: np.ndarray, y: np.ndarray
) -> dict[str, tuple[float, float]]:
    """name -> (seconds of a step, loss) of whole runs, after one that warms up."""
    batch, steps, _ = bench.sizes.exchange
    found = {}
    for name, own in RUNS.items():
        for epochs in (1, bench.sizes.epochs):
            result = train(
                {
                    "problem": {"family": case.family},
                    "rate": {"value": case.rate},
                    "schedule": {"batch": batch, "steps": steps, "epochs": epochs},
                    "run": {"device": "cuda", "evaluate_every": 0},
                    **own,
                },
                X=X,
                y=y,
            )
        if not np.isfinite(result.loss):
            raise ArithmeticError(f"{case.shape}: {name} ended with {result.loss}")
        each = result.report["seconds_total"] / max(result.iterations, 1)
        found[name] = (each, float(result.loss))
    return found
