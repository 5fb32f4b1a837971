"""What CA-SGD saves, and where it does not: FP32 SGD beside recipe c on two real ranks.

An epsilon-shaped set (20000 × 2000), 2 MPI ranks, batches and steps around the point
where the Gram costs as much as the messages it saves, with no network and behind an
emulated LAN. Plain SGD is `direct` in groups of s steps: its messages are the same, its
loop is lighter than with s = 1, which makes it the strongest baseline there is here.
"""

import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.command import hpcsgd

SETTINGS = ((8, 8), (16, 4), (16, 8), (32, 4), (32, 8))
METHODS = {"sgd": ("direct", "fp32"), "ca_sgd": ("gram", "c")}
NETWORKS = {"none": [], "lan": ["--network", "lan"], "cloud": ["--network", "cloud"]}
ROWS, COLUMNS, RANKS, EPOCHS, REPEATS = 20000, 2000, 2, 1, 5


def measure() -> list[dict]:
    """One row for each setting and network: µs of a step, medians, interleaved."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "epsilon.h5")
        shape = ["--rows", str(ROWS), "--cols", str(COLUMNS)]
        hpcsgd("data", "synth", "--shape", "epsilon", *shape, "--out", data)
        for network, flags in NETWORKS.items():
            for batch, steps in SETTINGS:
                figures.append(_row(data, network, flags, batch, steps))
                print(_line(figures[-1]), flush=True)
    return figures


def _row(data, network, flags, batch, steps):
    runs = {name: [] for name in METHODS}
    for _ in range(REPEATS):
        for name, (product, recipe) in METHODS.items():
            runs[name].append(_train(data, product, recipe, batch, steps, flags))
    row = {"network": network, "batch": batch, "steps": steps}
    for name, results in runs.items():
        row[f"{name}_us_per_step"] = statistics.median(r["us"] for r in results)
        row[f"{name}_loss"] = results[0]["loss"]
    row["speedup"] = row["sgd_us_per_step"] / row["ca_sgd_us_per_step"]
    row["loss_gap_percent"] = 100 * (row["ca_sgd_loss"] / row["sgd_loss"] - 1)
    return row


def _train(data, product, recipe, batch, steps, flags):
    said = hpcsgd(
        *("train", "--data", data, "--products", product, "--precision", recipe),
        *("--batch", str(batch), "--steps", str(steps), "--epochs", str(EPOCHS)),
        *("--rate", "8", "--l2", "1e-5", "--ranks", str(RANKS), "--json", *flags),
        *("--set", "run.evaluate_every=0"),
    )
    result = json.loads(said)
    return {
        "us": 1e6 * result["seconds_total"] / result["iterations"],
        "loss": result["loss"],
    }


def _line(row):
    return (
        f"{row['network']:5s} b {row['batch']:2d} s {row['steps']}:"
        f" SGD {row['sgd_us_per_step']:6.1f} µs/step,"
        f" CA-SGD {row['ca_sgd_us_per_step']:6.1f}, {row['speedup']:.2f}x,"
        f" loss {row['loss_gap_percent']:+.4f} %"
    )
