"""Weights and Adam's moments on disk: how much memory, how fast, what overlaps.

Every figure is of a process of its own: the resident set at its highest (VmHWM) less
what it was after a tiny run of the same kind, and steps timed with files read past the
page cache (O_DIRECT) and through it. Sparse rows: few of many columns are stored.

    python -m benchmarks.bench_infinity [--columns 53e6] [--tile 2]
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from hpcsgd.agreements.more.infinity.tiles import StateFile

ROWS, STORED, EXCHANGES = 64, 200, 4


def asked():
    """What may be asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=float, default=53e6)
    parser.add_argument("--tile", type=float, default=2.0)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", default="")
    return parser


def measure():
    """As documented."""
    return figures_of(asked().parse_args([]))


def figures_of(args):
    return {
        "memory": memory(args),
        "overlap": overlap(args),
        "checksums": checksums(args),
    }


def main() -> None:
    args = asked().parse_args()
    found = child(**json.loads(args.child)) if args.child else figures_of(args)
    print(json.dumps(found))


def memory(args):
    """D is at least a hundred times the budget of all buffers."""
    columns = int(args.columns)
    said = of_child(args, columns=columns, tile=args.tile, direct=True, sync=True)
    return {
        "columns": columns,
        "weights_mib": 4 * columns / 2**20,
        "states_mib": 12 * columns / 2**20,
        "tile_mib": args.tile,
        "weights_over_budget": 4 * columns / 2**20 / args.tile,
        **said,
    }


def overlap(args):
    """A tenth of it, through the page cache and past it, in turns."""
    columns, found = int(args.columns / 10), {}
    for name, direct, sync in (
        ("page cache, not synced", False, False),
        ("page cache, synced", False, True),
        ("past the page cache, synced", True, True),
    ):
        found[name] = {"direct": direct, "sync": sync, "runs": []}
    for _ in range(args.repeats):
        for row in found.values():
            asked = {"direct": row["direct"], "sync": row["sync"]}
            row["runs"].append(of_child(args, columns=columns, tile=16.0, **asked))
    for row in found.values():
        for key in (
            *("step_seconds", "reading_seconds", "writing_seconds"),
            *("flushing_seconds", "waiting_seconds", "compute_seconds"),
        ):
            row[key] = statistics.median(run[key] for run in row["runs"])
        row["bound_seconds"] = max(
            row["compute_seconds"], row["reading_seconds"], row["writing_seconds"]
        )
        row["step_over_bound"] = row["step_seconds"] / row["bound_seconds"]
        row["step_over_sum"] = row["step_seconds"] / (
            row["compute_seconds"] + row["reading_seconds"] + row["writing_seconds"]
        )
    return {"columns": columns, "tile_mib": 16.0, "ways": found}


def checksums(args):
    """What the CRC-32 of every tile takes beside the drive: steps with and without."""
    columns = int(args.columns / 10)
    runs = {True: [], False: []}
    for _ in range(args.repeats):
        for sums, found in runs.items():
            asked = {"direct": True, "sync": True, "sums": sums}
            found.append(of_child(args, columns=columns, tile=16.0, **asked))
    row = {
        key: statistics.median(run[key] for run in runs[True])
        for key in ("step_seconds", "writing_seconds", "checksum_seconds")
    }
    written = 12 * columns
    without = statistics.median(run["step_seconds"] for run in runs[False])
    return {
        "columns": columns,
        **row,
        "step_seconds_without": without,
        "checksum_gb_per_second": written / row["checksum_seconds"] / 1e9,
        "writing_gb_per_second": written / row["writing_seconds"] / 1e9,
    }


def of_child(args, **asked):
    """What a process of its own says."""
    command = [sys.executable, __file__]
    command += ["--child", json.dumps(asked | {"folder": args.folder})]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def child(columns, tile, direct, sync, folder, sums=True):
    """One run, after a tiny one."""
    if not sums:
        StateFile.checksum_of = lambda self, buffer, number: 0
    where = Path(tempfile.mkdtemp(dir=folder))
    try:
        train_once(1000, tile, direct, sync, where / "tiny")
        base = peak()
        began = time.perf_counter()
        result = train_once(columns, tile, direct, sync, where / "run")
        took = time.perf_counter() - began
        return figures(result, columns) | {
            "peak_rss_mib": peak(),
            "base_rss_mib": base,
            "grew_mib": peak() - base,
            "seconds": took,
        }
    finally:
        shutil.rmtree(where, ignore_errors=True)


def figures(result, columns):
    said, steps = result.report["agreement"], result.exchanges
    phases = result.report["seconds_by_phase"]
    step = (phases["scores"] + phases["inner"] + phases["update"]) / steps
    waits = said["seconds_waiting"] / steps
    return {
        "exchanges": steps,
        "tiles": said["tiles"],
        "bytes_read_a_step": said["bytes_read"] // steps,
        "bytes_written_a_step": said["bytes_written"] // steps,
        "formula": [16 * columns, 12 * columns],
        "padding": said["bytes_of_padding"],
        "past_the_page_cache": said["past_the_page_cache"],
        "step_seconds": step,
        "reading_seconds": said["seconds_reading"] / steps,
        "writing_seconds": said["seconds_writing"] / steps,
        "checksum_seconds": said["seconds_of_checksums"] / steps,
        "flushing_seconds": said["seconds_flushing"] / steps,
        "waiting_seconds": waits,
        "compute_seconds": step - waits - said["seconds_flushing"] / steps,
        "losses": [one["loss"] for one in result.history],
    }


def train_once(columns, tile, direct, sync, store):
    from hpcsgd.api import train
    from hpcsgd.config import RunConfig

    X, y = rows_of(columns)
    config = RunConfig.parse(
        {
            "problem": {"family": "logistic", "l2": 1e-4},
            "schedule": {"batch": ROWS // EXCHANGES, "epochs": 1},
            "agreement": {
                "method": "infinity",
                "store": str(store),
                "tile": tile,
                "direct": direct,
                "sync": sync,
            },
            "precision": {"recipe": "fp32"},
            "rate": {"value": 0.01},
            "run": {"evaluate_every": 1},
        }
    )
    return train(config, X=X, y=y)


def rows_of(columns):
    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    stored = min(STORED, columns // 2)
    step = columns // stored  # one place in each stretch: no two are the same
    places = np.arange(stored) * step + rng.integers(0, step, (ROWS, stored))
    values = rng.standard_normal(ROWS * stored).astype(np.float32)
    edges = np.arange(0, ROWS * stored + 1, stored)
    X = csr_array((values, places.reshape(-1), edges), shape=(ROWS, columns))
    return X, np.where(rng.uniform(size=ROWS) < 0.5, -1.0, 1.0)


def peak():
    """MiB of the resident set at its highest; pages of mapped files among them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmHWM here")


if __name__ == "__main__":
    main()
