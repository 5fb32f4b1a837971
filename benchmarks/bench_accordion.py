"""What accordion saves against its two settings, and what batches that grow do.

    python -m benchmarks.bench_accordion [--epochs 80] [--eta 0.25] [--interval 1]
    python -m benchmarks.run bench_accordion    # CASES, into the file of figures

Four replicas that are threads of one process, logistic rows sorted by margin (the worst
of shards), a step for each batch; for each way the gap F − F* relative to F*, bytes of
one replica and, where something turns, the share of exchanges in low compression, along
the epochs. All of it is exact: no clock is read.
"""

import argparse

from benchmarks.sorted_rows import sorted_rows
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig, drop_unread_settings

REPLICAS, L2 = 4, 0.05
KINDS = {
    "topk": ("share", 0.5, 0.1, {"dense": "never"}),
    "powersgd": ("rank", 3, 1, {"start": 0, "min_rate": 0.0}),
    "qsgd": ("bits", 8, 3, {}),
}

CASES = {
    "eta 0.25": "",
    "eta 0.05": "--eta 0.05",
    "ten times the rate": "--rate 0.5",
}


def run(data, epochs, rate, codec, settings, accordion=None, **agreement):
    """(gap, megabytes, share of low)."""
    X, y, least, slope = data
    tables = {
        "problem": {"l2": L2},
        "schedule": {"batch": 75, "steps": 1, "epochs": epochs},
        "agreement": {"kind": "gradient", "codec": codec, **agreement},
        "codec": settings,
        "accordion": accordion or {},
        "grid": {"replicas": REPLICAS},
        "precision": {"recipe": "fp64"},
        "rate": {"value": float(rate / slope)},
        "run": {"evaluate_every": 0, "fall_back": False},
    }
    config = RunConfig.parse(drop_unread_settings(tables, tables))
    result = run_ranks(REPLICAS, lambda world: train(config, X=X, y=y, world=world))[0]
    said = result.report["agreement"]
    low = said.get("low_buckets", said.get("small_steps", 0))
    high = said.get("high_buckets", said.get("large_steps", 0))
    sent = result.ledger["agreement"]["bytes"] / 1e6
    return (result.loss - least) / least, sent, low / max(low + high, 1)


def ways(eta, interval):
    """Name -> arguments of `run`."""
    found = {"identity": ("identity", {})}
    for codec, (key, low, high, base) in KINDS.items():
        for value in (low, high):
            found[f"{codec} {key}={value}"] = (codec, {**base, key: value})
        turned = {"codec": codec, "low": f"{key}={low}", "high": f"{key}={high}"}
        turned |= {"eta": eta, "interval": interval}
        found[f"accordion of {codec}"] = ("accordion", base, turned)
    return found


def figures(options):
    """Name of a way -> for each number of epochs gap, megabytes and share of low."""
    data, found = sorted_rows(1200, 64, 4, L2), {}
    stops = [options.epochs // k for k in (8, 4, 2, 1)]
    for name, of in ways(options.eta, options.interval).items():
        found[name] = [run(data, epochs, options.rate, *of) for epochs in stops]
    turned = {"eta": options.eta, "interval": options.interval}
    for kind, times in (("gradient", 1), ("gradient", 4), ("growing", 4)):
        rate = options.rate * (times if kind == "gradient" else 1)
        found[f"{kind} batch x {times}"] = [
            run(data, e, rate, "identity", {}, turned, kind=kind, accumulate=times)
            for e in stops
        ]
    return {**vars(options), "stops": stops, "ways": found}


def measure():
    """As documented: two thresholds, and a rate ten times higher."""
    return {
        name: figures(asked().parse_args(words.split()))
        for name, words in CASES.items()
    }


def asked():
    """What may be asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--eta", type=float, default=0.25)
    parser.add_argument("--interval", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.05, help="times 1/L")
    return parser


def main():
    found = figures(asked().parse_args())
    print(f"{'':24}" + "".join(f"{f'{e} epochs':>26}" for e in found["stops"]))
    for name, cells in found["ways"].items():
        said = (f"{gap:12.1e} {sent:6.3f}MB {low:5.2f}" for gap, sent, low in cells)
        print(f"{name:24}" + "".join(said))


if __name__ == "__main__":
    main()
