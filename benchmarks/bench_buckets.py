"""How much of a gradient's transfer hides behind the columns that are still computed.

    python -m benchmarks.bench_buckets [--columns 400000] [--network lan]

Two replicas that are threads of one process, behind a network (`lan`: 50 µs,
1.25 GB/s); runs of one bucket and of several in turns, medians of seconds an exchange.
"""

from statistics import median

import numpy as np

from benchmarks.two_networks import main, on_both
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig

BUCKETS = (1, 2, 4, 8, 16)


def run(X, y, buckets, network):
    """(seconds an exchange, hidden share, waited seconds an exchange)."""
    size = X.shape[1] * 4 / 2**20
    config = RunConfig.parse(
        {
            "schedule": {"batch": 32, "steps": 1, "epochs": 12},
            "agreement": {"method": "ddp", "bucket": size / buckets},
            "grid": {"replicas": 2},
            "rate": {"value": 1e-3},
            "run": {"evaluate_every": 0, "network": network},
        }
    )
    result = run_ranks(2, lambda world: train(config, X=X, y=y, world=world))[0]
    said = result.report["agreement"]
    assert said["buckets"] == buckets
    each = result.report["seconds_total"] / result.exchanges
    return each, said["hidden_share"], said["transfer_seconds"] / result.exchanges


def figures(network, columns, repeats):
    """A row for each number of buckets."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((128, columns), dtype=np.float32)
    y = (rng.random(128) < 0.5).astype(float)
    found = {buckets: [] for buckets in BUCKETS}
    for _ in range(repeats):
        for buckets in BUCKETS:
            found[buckets].append(run(X, y, buckets, network))
    table = [
        {
            "buckets": buckets,
            "ms_an_exchange": round(1e3 * median(f[0] for f in runs), 2),
            "hidden_share": round(median(f[1] for f in runs), 2),
            "transfer_ms": round(1e3 * median(f[2] for f in runs), 2),
        }
        for buckets, runs in found.items()
    ]
    return {"columns": columns, "network": network, "rows": table}


def measure():
    """On both networks."""
    return on_both(figures)


if __name__ == "__main__":
    main(figures)
