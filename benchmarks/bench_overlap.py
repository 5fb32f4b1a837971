"""What transfers that cross the step save, and two halves that take turns.

    python -m benchmarks.bench_overlap [--columns 400000] [--network lan]

Two replicas that are threads of one process, behind an emulated network that sends one
message of a rank after the other. The same rows, batches and buckets for all of them,
in turns, again and again; medians. What is compared with what: `ddp` with `scheduled`
(the same steps), `ddp of 2` (two batches a step) with `ticktock` (the same steps), and
`late`, which takes other steps than `ddp` and says the same bytes.
"""

import argparse
import json
from statistics import median

import numpy as np

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig

METHODS = {
    "ddp": {"method": "ddp"},
    "scheduled": {"method": "bytescheduler"},
    "scheduled, waits": {"method": "bytescheduler"},
    "ddp of 2": {"method": "ddp", "accumulate": 2},
    "ticktock": {"method": "wavelet"},
    "late": {"method": "wavelet", "mode": "delayed"},
}


def waits_at_the_end():
    """The same queue, but nothing crosses the step: what `scheduled` gains is that."""
    from hpcsgd.agreement import Scheduled

    crossing = Scheduled.after_exchange

    def waiting(self, state, exchanges):
        crossing(self, state, exchanges)
        self.arrive(state)

    return crossing, waiting


def run(X, y, name, options):
    """(seconds of an exchange, hidden share, seconds of transfer of an exchange)."""
    from hpcsgd.agreement import Scheduled

    size = X.shape[1] * 4 / 2**20
    agreement = {
        **METHODS[name],
        "bucket": size / options.buckets,
        "partition": size / options.buckets,
        "credit": 1e9,
    }
    config = RunConfig.parse(
        {
            "schedule": {"batch": options.batch, "steps": 1, "epochs": options.epochs},
            "agreement": agreement,
            "grid": {"replicas": 2},
            "rate": {"value": 1e-3},
            "run": {"evaluate_every": 0, "network": options.network},
        }
    )
    crossing, waiting = waits_at_the_end()
    if name == "scheduled, waits":
        Scheduled.after_exchange = waiting
    try:
        found = run_ranks(2, lambda world: train(config, X=X, y=y, world=world))[0]
    finally:
        Scheduled.after_exchange = crossing
    said, exchanges = found.report["agreement"], found.exchanges
    each = found.report["seconds_total"] / exchanges
    return each, said["hidden_share"], said["transfer_seconds"] / exchanges


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--network", default="lan")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows = 4 * options.batch
    X = rng.standard_normal((rows, options.columns), dtype=np.float32)
    y = (rng.random(rows) < 0.5).astype(float)
    found = {name: [] for name in METHODS}
    for _ in range(options.repeats):
        for name in METHODS:
            found[name].append(run(X, y, name, options))
    table = [
        {
            "method": name,
            "ms_an_exchange": round(1e3 * median(f[0] for f in runs), 2),
            "hidden_share": round(median(f[1] for f in runs), 3),
            "transfer_ms": round(1e3 * median(f[2] for f in runs), 2),
        }
        for name, runs in found.items()
    ]
    print(json.dumps({**vars(options), "runs": table}))


if __name__ == "__main__":
    main()
