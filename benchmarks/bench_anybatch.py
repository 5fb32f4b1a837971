"""Time to a loss where one replica of four is three times slower: any-batch and ddp.

    python -m benchmarks.bench_anybatch [--slow 3] [--repeats 3] [--spread]

Replicas are threads of one process whose chunks take `--chunk` ms (times `--slow` on
replica 0), most of it asleep, so that cores of this machine are not what is measured.
Rows are those of replicas in random order, or sorted by margin (`--spread`): the worst
of shards. Every method runs at several first rates, in turns, and shows its best one:
the median over repeats of the seconds until the relative gap of the objective is below
`--gap`, evaluations apart; `none` where it never was.
"""

import argparse
import json
import threading
import time
from statistics import median

import numpy as np

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.products.direct import Direct

REPLICAS, BATCH, L2 = 4, 20, 0.01
RATES = (2.0, 4.0, 8.0)
DECAY = {"kind": "inverse-sqrt", "decay": 0.02}
ROUNDS = {"accumulate": 8, "rounds": "clock"}
METHODS = {
    "ddp": {"kind": "gradient"},
    "ddp, accumulate 4": {"kind": "gradient", "accumulate": 4},
    "full, by rows": {"kind": "anybatch", "graph": "full", **ROUNDS},
    "ring, by rows": {"kind": "anybatch", "graph": "ring", **ROUNDS},
    "ring, alike": {
        "kind": "anybatch",
        "graph": "ring",
        "weighted": False,
        **ROUNDS,
    },
}
CASES = {
    "one slower": "--slow 3",
    "none slower": "--slow 1",
    "one slower, sorted": "--slow 3 --spread --repeats 1",
}
own = threading.local()


def rested(advance):
    """A chunk that takes what this replica takes for one."""

    def timed(self, state, group, upcoming):
        began = time.perf_counter()
        state = advance(self, state, group, upcoming)
        time.sleep(max(own.seconds - (time.perf_counter() - began), 0.0))
        return state

    return timed


def problem(rows, columns, spread):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns)) / np.sqrt(columns)
    t = 4 * X @ rng.standard_normal(columns)
    y = (rng.random(rows) < 1 / (1 + np.exp(-t))).astype(float)
    if spread:
        order = np.argsort(t)
        X, y = X[order], y[order]
    return X, y


def config_of(agreement, rate, epochs):
    return RunConfig.parse(
        {
            "problem": {"family": "logistic", "l2": L2},
            "schedule": {"batch": BATCH, "steps": 1, "epochs": epochs},
            "agreement": agreement,
            "grid": {"replicas": REPLICAS},
            "rate": {**DECAY, "value": rate},
            "precision": {"recipe": "fp64"},
            "sampling": {"mode": "reshuffle"},
        }
    )


def best_loss(X, y):
    from scipy.optimize import minimize

    def f(w):
        t = X @ w
        r = 1 / (1 + np.exp(-t)) - y
        value = np.mean(np.logaddexp(0, t) - y * t) + L2 / 2 * w @ w
        return value, X.T @ r / len(y) + L2 * w

    return minimize(f, np.zeros(X.shape[1]), jac=True, method="BFGS", tol=1e-10).fun


def run(X, y, config, chunk, slow, least, gap):
    """(seconds to the gap or None, gap at the end, rows by replica)."""

    def on_rank(world):
        own.seconds = chunk * (slow if world.rank == 0 else 1.0)
        return train(config, X=X, y=y, world=world)

    result = run_ranks(REPLICAS, on_rank)[0]
    gaps = [(r["seconds"], (r["loss"] - least) / least) for r in result.history]
    there = [seconds for seconds, found in gaps if found < gap]
    rows = result.report["agreement"].get("rows_by_replica")
    return there[0] if there else None, gaps[-1][1], rows


def shown(runs, by_rate):
    """The rate whose median is least, and what it came to."""
    medians = {}
    for rate, found in by_rate.items():
        seconds = [f[0] for f in found]
        medians[rate] = None if None in seconds else median(seconds)
    good = {rate: m for rate, m in medians.items() if m is not None}
    rate = (
        min(good, key=good.get)
        if good
        else min(by_rate, key=lambda r: by_rate[r][0][1])
    )
    rows = by_rate[rate][-1][2]
    return {
        "method": runs,
        "rate": rate,
        "seconds": round(good[rate], 3) if good else None,
        "gap_at_end": float(f"{median(f[1] for f in by_rate[rate]):.1e}"),
        "share_of_slow": round(rows[0] / sum(rows), 3) if rows else None,
    }


def figures(options):
    """A row for each method, at its best rate."""
    X, y = problem(options.rows, options.columns, options.spread)
    least = best_loss(X, y)
    found = {name: {rate: [] for rate in RATES} for name in METHODS}
    plain, Direct.advance = Direct.advance, rested(Direct.advance)
    try:
        for _ in range(options.repeats):
            for rate in RATES:
                for name, agreement in METHODS.items():
                    config = config_of(agreement, rate, options.epochs)
                    own_run = X, y, config, options.chunk / 1e3, options.slow
                    found[name][rate].append(run(*own_run, least, options.gap))
    finally:
        Direct.advance = plain
    table = [shown(name, by_rate) for name, by_rate in found.items()]
    return {**vars(options), "least": round(least, 6), "rows": table}


def measure():
    """One replica slower, none, and one where shards differ most."""
    return {
        name: figures(asked().parse_args(words.split()))
        for name, words in CASES.items()
    }


def asked():
    """What may be asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--chunk", type=float, default=5.0, help="milliseconds")
    parser.add_argument("--slow", type=float, default=3.0)
    parser.add_argument("--gap", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--spread", action="store_true")
    return parser


if __name__ == "__main__":
    print(json.dumps(figures(asked().parse_args()), indent=1))
