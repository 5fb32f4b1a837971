"""What one exchange costs besides BLAS: the overhead that Python adds.

A whole run on one rank at m = 64 rows and d_c = 100 columns, its seconds divided by
its exchanges, less the time of exactly its BLAS calls on the same shapes. Target:
at most 25 µs. What looks of the gap monitor, one in 50 exchanges, add is said apart.
"""

import statistics
import time

import numpy as np

import hpcsgd
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.glm.unrolling import uniform_blocks

ROWS, COLUMNS, M = 64 * 400, 100, 64
TARGET = 25.0  # µs
REPEATS = 7
LOOKS = 50  # exchanges between them, as by default
SHOWN = (
    "{recipe:5s} b {batch:2d} s {steps}: exchange {exchange_us:6.1f} µs,"
    " BLAS {blas_us:5.1f}, overhead {overhead_us:5.1f} (target {target_us:.0f}),"
    " looks {looks_us:4.1f}"
)


def measure() -> list[dict]:
    """One row for each (b, s) with s·b = 64, and each precision."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    y = (X[:, 0] + rng.normal(size=ROWS) > 0).astype(float)
    figures = []
    for recipe in ("fp32", "c"):
        for batch, steps in ((32, 2), (16, 4), (8, 8)):
            figures.append(_row(X, y, recipe, batch, steps))
            print(SHOWN.format(**figures[-1]), flush=True)
    return figures


def _row(X, y, recipe, batch, steps):
    totals, watched, blas = [], [], []
    for _ in range(REPEATS):  # interleaved: both feel the same noise
        totals.append(_exchange(X, y, recipe, batch, steps, 0))
        watched.append(_exchange(X, y, recipe, batch, steps, LOOKS))
        blas.append(_blas(batch, steps))
    exchange, floor = statistics.median(totals), statistics.median(blas)
    return {
        "recipe": recipe,
        "batch": batch,
        "steps": steps,
        "exchange_us": exchange,
        "blas_us": floor,
        "overhead_us": exchange - floor,
        "looks_us": statistics.median(watched) - exchange,
        "target_us": TARGET,
    }


def _exchange(X, y, recipe, batch, steps, looks):
    """µs of an exchange in a real run, evaluations left out."""
    result = hpcsgd.train(
        {
            "schedule": {"batch": batch, "steps": steps, "epochs": 2},
            "products": {"kind": "gram"},
            "precision": {"recipe": recipe},
            "run": {"evaluate_every": 0, "gap_every": looks},
        },
        X=X,
        y=y,
        world=SerialCommunicator(),
    )
    return 1e6 * result.report["seconds_total"] / result.exchanges


def _blas(batch, steps, count=400):
    """µs of the BLAS calls of one exchange: Gram panels, Yw, corrections, Yᵀr."""
    blocks = uniform_blocks(batch, steps)
    rows = np.ones((M, COLUMNS), dtype=np.float32)
    turned, w = rows.T, np.ones((COLUMNS, 1), dtype=np.float32)
    r, z = np.ones((M, 1), dtype=np.float32), np.empty((M, 1), dtype=np.float32)
    panels = [np.empty((batch, j * batch), dtype=np.float32) for j in range(1, steps)]
    began = time.perf_counter()
    for _ in range(count):
        for j, panel in enumerate(panels, start=1):
            first, last = blocks.starts[j], blocks.starts[j + 1]
            np.dot(rows[first:last], turned[:, :first], out=panel)
            np.dot(panel, r[:first])
        np.dot(rows, w, out=z)
        np.dot(turned, r)
    return 1e6 * (time.perf_counter() - began) / count
