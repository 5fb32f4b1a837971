"""What sharing gradients adds to a step on one GPU, before any network is there.

Whole runs of `hpcsgd.train`, one step an exchange: plain SGD, the same as a gradient
agreement of one replica, whose sums and steps stay on the GPU, and Adam, for which
gradients come to the host and weights go back; at once, or in tiles, one of which is
stepped while another travels, or while the GPU computes the next gradient; and the same
Adam on the GPU, as slices take it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figure import Figure
from hpcsgd.api import train

AGREED = {"agreement": {"kind": "gradient"}}
OFFLOAD: dict[str, Any] = {
    "agreement": {"kind": "offload"},
    "update": {"kind": "adam"},
}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"products": {"kind": "direct"}},
    "there": AGREED,
    "by the host": {**AGREED, "update": {"kind": "adam"}},
    "offload": OFFLOAD,
    "offload, late": {**OFFLOAD, "agreement": {"kind": "offload", "delay_after": 0}},
    "zero2": {**OFFLOAD, "agreement": {"kind": "sharded", "stage": 2}},
    "zero3": {**OFFLOAD, "agreement": {"kind": "sharded", "stage": 3}},
}


def steps(bench: Bench) -> Sequence[Figure]:
    """Seconds of a step of each, one after the other, the median of some turns."""
    batch, _, columns = bench.sizes.exchange
    rows = 16 * batch
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    y = np.where(X @ rng.normal(size=columns) > 0, 1.0, -1.0)
    times: dict[str, list[float]] = {name: [] for name in RUNS}
    for turn in range(bench.sizes.sgd_turns + 1):
        for name, own in RUNS.items():
            seconds = _seconds(own, batch, bench.sizes.epochs, X, y)
            times[name] += [seconds] if turn else []  # the first compiles
    middle = {name: float(np.median(each)) for name, each in times.items()}
    details = {"step_us": {name: 1e6 * one for name, one in middle.items()}}
    shape = f"b = {batch}, {columns} columns, one replica"
    return [
        Figure(
            *("ddp", f"{shape}: a step whose gradient is agreed on, beside plain SGD"),
            reached=middle["there"] / middle["plain"],
            **{"unit": "x", "at_most": True, "details": details},
        ),
        Figure(
            *("ddp by the host", f"{shape}: the same with a step that the host takes"),
            reached=middle["by the host"] / middle["plain"],
            **{"unit": "x", "at_most": True},
        ),
        *(
            Figure(
                *(name, f"{shape}: the same by slices"),
                reached=middle[name] / middle["plain"],
                **{"unit": "x", "at_most": True},
            )
            for name in ("offload", "offload, late", "zero2", "zero3")
        ),
    ]


def _seconds(
    own: dict[str, Any], batch: int, epochs: int, X: np.ndarray, y: np.ndarray
) -> float:
    result = train(
        {
            "schedule": {"batch": batch, "steps": 1, "epochs": epochs},
            "precision": {"recipe": "fp32"},
            "rate": {"value": 0.01},
            "run": {"device": "cuda", "evaluate_every": 0},
            **own,
        },
        X=X,
        y=y,
    )
    return float(result.report["seconds_total"] / max(result.iterations, 1))
