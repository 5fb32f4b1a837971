"""What transfers that cross the step save, and two halves that take turns.

    python -m benchmarks.bench_overlap [--columns 400000] [--network lan]

Two replicas that are threads of one process, behind an emulated network that sends one
message of a rank after the other. The same rows, batches and buckets for all of them,
in turns, again and again; medians. What is compared with what: `ddp` with `scheduled`
(the same steps; `scheduled, waits` has the same queue and waits at the end of a step),
`ddp of 2` (two batches a step) with `ticktock` (the same steps), `late`, which takes
other steps than `ddp` and says the same bytes, and `two fits` one after the other with
`tick_tock` of both (an exchange is one of each).

`--clock own-core` counts the CPU time of every rank and what it would have waited for
the network (`benchmarks/own_core.py`): for machines that others use. It has one thread
a rank, and leaves out the fits that take turns.
"""

import argparse
import json
from contextlib import nullcontext
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.own_core import now, own_cores
from benchmarks.two_networks import NETWORKS
from hpcsgd.agreements.more.scheduled import Scheduled
from hpcsgd.api import tick_tock, train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, drop_unread_settings
from hpcsgd.runs.progress import Callback

METHODS = {
    "ddp": {"method": "ddp"},
    "scheduled": {"method": "bytescheduler"},
    "scheduled, waits": {"method": "bytescheduler"},
    "ddp of 2": {"method": "ddp", "accumulate": 2},
    "ticktock": {"method": "wavelet", "mode": "exact-sum"},
    "late": {"method": "wavelet", "mode": "delayed"},
    "two fits": {"method": "ddp"},
    "tick_tock": {"method": "ddp"},
}
FITS = ("two fits", "tick_tock")


class Watch(Callback):
    """Seconds of the exchanges behind the first, by a clock."""

    def __init__(self, clock):
        self.clock = clock

    def on_exchange(self, view):
        if view.exchanges == 1:
            self.began = self.clock()
        self.seconds = (self.clock() - self.began) / max(view.exchanges - 1, 1)


crossing = Scheduled.after_exchange


def waiting(self, state, exchanges):
    """The same queue, but nothing crosses the step: what `scheduled` gains is that."""
    crossing(self, state, exchanges)
    self.arrive(state)


def on_two(X, y, name, config, clock):
    """Seconds of an exchange and the results, of rank 0."""

    def on_rank(world):
        if name in FITS:
            began = perf_counter()
            if name == "tick_tock":
                found = tick_tock(config, config, X=X, y=y, world=world)
            else:
                found = [train(config, X=X, y=y, world=world) for _ in range(2)]
            return (perf_counter() - began) / found[0].exchanges, found
        watch = Watch(clock)
        found = train(config, X=X, y=y, world=world, callbacks=[watch])
        return watch.seconds, [found]

    Scheduled.after_exchange = waiting if name == "scheduled, waits" else crossing
    try:
        return run_ranks(2, on_rank)[0]
    finally:
        Scheduled.after_exchange = crossing


def run(X, y, name, options):
    """(seconds of an exchange, hidden share, seconds of transfer of an exchange)."""
    size = X.shape[1] * 4 / 2**20 / options.buckets
    tables = {
        "schedule": {"batch": options.batch, "steps": 1, "epochs": options.epochs},
        "agreement": {
            **METHODS[name],
            "bucket": size,
            "partition": size,
            "credit": 1e9,
        },
        "grid": {"replicas": 2},
        "rate": {"value": 1e-3},
        "run": {"evaluate_every": 0, "network": options.network, "threads": 1},
    }
    config = RunConfig.parse(drop_unread_settings(tables, tables))
    own = options.clock == "own-core"
    with own_cores() if own else nullcontext():
        each, found = on_two(X, y, name, config, now if own else perf_counter)
    said = [one.report["agreement"] for one in found]
    transfer, hidden = (
        sum(one[figure] for one in said)
        for figure in ("transfer_seconds", "hidden_seconds")
    )
    return each, hidden / transfer, transfer / found[0].exchanges


def figures(options):
    """A row for each method."""
    rng = np.random.default_rng(0)
    rows = 8 * options.batch
    X = rng.standard_normal((rows, options.columns), dtype=np.float32)
    y = (rng.random(rows) < 0.5).astype(float)
    names = [n for n in METHODS if options.clock == "wall" or n not in FITS]
    found = {name: [] for name in names}
    for _ in range(options.repeats):
        for name in names:
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
    return {**vars(options), "rows": table}


def measure():
    """By the wall clock, on a fast network and on one of a tenth of its bandwidth."""
    return {
        name: figures(asked().parse_args(["--network", network]))
        for name, network in NETWORKS.items()
    }


def asked():
    """What may be asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--network", default="lan")
    parser.add_argument("--clock", choices=("wall", "own-core"), default="wall")
    parser.add_argument("--repeats", type=int, default=5)
    return parser


if __name__ == "__main__":
    print(json.dumps(figures(asked().parse_args())))
