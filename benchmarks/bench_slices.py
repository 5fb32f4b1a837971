"""Seconds of an exchange of ddp, of slices, and of steps that the host takes.

    python -m benchmarks.bench_slices [--columns 400000] [--network lan]

Two replicas that are threads of one process, behind a network (`lan`: 50 µs,
1.25 GB/s); Adam, eight tiles, runs in turns, medians.
"""

import shutil
import tempfile
from statistics import median

import numpy as np

from benchmarks.two_networks import main, on_both
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, drop_unread_settings

ROWS = {
    "ddp": {"method": "ddp"},
    "zero1": {"method": "zero1"},
    "zero2": {"method": "zero2"},
    "zero3": {"method": "zero3"},
    "offload": {"method": "offload"},
    "offload, late": {"method": "offload", "delay_after": 0},
    "infinity": {"method": "infinity", "sync": False},
}
HELD = 208  # bytes a column of what a rank holds of a tile, with 32 dense rows


def run(X, y, asked, network):
    """(ms an exchange, hidden share of transfers, and of the host's steps)."""
    tile, folder = X.shape[1] / 8 / 2**20, tempfile.mkdtemp()
    each = {"bucket": 4 * tile, "tile": HELD * tile, "store": folder}
    tables = {
        "schedule": {"batch": 32, "epochs": 8},
        "agreement": {**asked, **each},
        "update": {"kind": "adam"},
        "grid": {"replicas": 2},
        "rate": {"value": 1e-3},
        "run": {"evaluate_every": 0, "network": network},
    }
    config = RunConfig.parse(drop_unread_settings(tables, {"agreement": each}))
    try:
        result = run_ranks(2, lambda world: train(config, X=X, y=y, world=world))[0]
    finally:
        shutil.rmtree(folder)
    said = result.report["agreement"]
    host = said.get("host_seconds", 0.0)
    share = said.get("hidden_host_seconds", 0.0) / host if host else 0.0
    each = 1e3 * result.report["seconds_total"] / result.exchanges
    return each, said["hidden_share"], share


def figures(network, columns, repeats):
    """A row for each method."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((128, columns), dtype=np.float32)
    y = (rng.random(128) < 0.5).astype(float)
    found = {name: [] for name in ROWS}
    for _ in range(repeats):
        for name, asked in ROWS.items():
            found[name].append(run(X, y, asked, network))
    keys = ("ms_an_exchange", "hidden_share", "hidden_host_share")
    table = [
        {"method": name}
        | {k: round(median(v), 2) for k, v in zip(keys, runs, strict=True)}
        for name, runs in (
            (name, list(zip(*f, strict=True))) for name, f in found.items()
        )
    ]
    return {"columns": columns, "network": network, "rows": table}


def measure():
    """On both networks."""
    return on_both(figures)


if __name__ == "__main__":
    main(figures)
