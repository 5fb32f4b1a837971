"""What streaming costs: an epoch from the file, beside reading it and computing it.

One rank, a file of 67 200 × 1000 float32 values (256 MiB, in the system's cache),
b = 64, s = 4, plain SGD (`direct`) and CA-SGD's arithmetic (`gram`). `read` goes
through the file block by block in the order of an epoch; `compute` is an epoch with all
rows in memory; `streamed` one with a tenth of them. The target is 1.25 times the larger
of the first two.
"""

import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from hpcsgd.api import train
from hpcsgd.data.hdf5 import Hdf5Reader
from hpcsgd.data.sampling import Sampler
from hpcsgd.data.synthetic import write_synthetic

ROWS, COLS, BLOCK, WINDOW = 67_200, 1000, 256, 8
REPEATS, EPOCHS, TARGET = 7, 2, 1.25


def measure() -> list[dict]:
    """One row a product; seconds of an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synth.h5"
        write_synthetic(path, "synth", ROWS, COLS, 0)
        return [row(path, product) for product in ("direct", "gram")]


def row(path: Path, product: str) -> dict:
    """Medians of interleaved runs."""
    found = {"read": [], "compute": [], "streamed": []}
    for _ in range(REPEATS):
        found["read"].append(read(path))
        found["compute"].append(epoch(path, product, streams=False))
        found["streamed"].append(epoch(path, product, streams=True))
    seconds = {name: statistics.median(values) for name, values in found.items()}
    ratio = seconds["streamed"] / max(seconds["read"], seconds["compute"])
    shown = {name: round(value, 3) for name, value in seconds.items()}
    print(f"{product}: {shown}, {ratio:.2f} (target {TARGET})", flush=True)
    return {"product": product, **shown, "ratio": round(ratio, 3), "target": TARGET}


def read(path: Path) -> float:
    """Every block once."""
    reader, sampler = Hdf5Reader(path), Sampler("blocks", 0, ROWS, 0, BLOCK, WINDOW)
    take = reader.reader_of_blocks()
    began = time.perf_counter()
    for blocks in sampler.windows(0):
        for block in blocks:
            rows = sampler.rows_of(int(block))
            part = take(slice(int(rows[0]), int(rows[-1]) + 1), slice(0, COLS))
            assert np.isfinite(part[0, 0])
    elapsed = time.perf_counter() - began
    reader.close()
    return elapsed


def epoch(path: Path, product: str, streams: bool) -> float:
    """Seconds of training an epoch, evaluations left out."""
    config = {
        "data": {"path": str(path)},
        "schedule": {"batch": 64, "steps": 4, "epochs": EPOCHS},
        "sampling": {"mode": "blocks", "block": BLOCK, "window": WINDOW},
        "products": {"kind": product},
        "run": {"evaluate_every": 0},
        "rate": {"value": 1e-3},
    }
    with mock.patch("hpcsgd.runs.opened_run.check_memory", lambda *arguments: streams):
        result = train(config)
    return result.report["seconds_total"] / EPOCHS
