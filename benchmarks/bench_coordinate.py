"""Coordinate forms to a gap of 1e-6 on two MPI ranks behind an emulated LAN.

The same iterates for every s: what changes is messages, words and seconds. The Gram is
kept where groups come again: primal in one order for all epochs, newton for the sweeps
of an epoch; the dual form reshuffles, and sums it anew.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

STEPS = (1, 4, 16)
RANKS, REPEATS, TOL, EPOCHS = 2, 3, 1e-6, 400
RESHUFFLE = ("--sampling", "reshuffle")
# form -> rows, columns, and its settings
FORMS = {
    "primal": (4000, 400, ("--family", "gaussian", "--l1", "0.05", "--intercept")),
    "dual": (800, 200, ("--family", "squared-hinge", "--l2", "0.1", *RESHUFFLE)),
    "newton": (4000, 200, ("--family", "logistic", "--l1", "0.01", "--intercept")),
}


def measure() -> list[dict]:
    """One row for each form: medians, interleaved over s."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for form, (rows, columns, settings) in FORMS.items():
            data = Path(folder) / f"{form}.h5"
            _write(data, form, rows, columns)
            row = {"form": form, "rows": rows, "columns": columns, "network": "lan"}
            asked = (*settings, "--network", "lan")
            figures.append(row | _row(str(data), asked))
            print(_line(figures[-1]), flush=True)
    return figures


def _write(path, form, rows, columns):
    """Columns that are a little alike, and targets of a tenth of them."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(rows, columns)) + 0.5 * rng.normal(size=(rows, 1))
    few = max(columns // 10, 1)
    t = X[:, :few] @ rng.normal(size=few) / np.sqrt(few) + 0.3 * rng.normal(size=rows)
    y = t if form == "primal" else np.where(t > 0, 1.0, -1.0)
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = X, y


def _row(data, asked):
    runs = {steps: [] for steps in STEPS}
    for _ in range(REPEATS):
        for steps in STEPS:
            runs[steps].append(_train(data, steps, asked))
    row = {"tol": TOL}
    for steps, results in runs.items():
        row[f"s{steps}"] = {
            "seconds": statistics.median(one["seconds"] for one in results),
            **{k: results[0][k] for k in ("messages", "words", "epochs", "loss")},
        }
    first = row["s1"]
    row["speedup"] = {
        f"s{s}": first["seconds"] / row[f"s{s}"]["seconds"] for s in STEPS
    }
    return row


def _train(data, steps, asked):
    result = json.loads(
        subprocess.run(
            [sys.executable, "-m", "hpcsgd", "train", "--data", data, "--json"]
            + ["--update", "coordinate", "--batch", "1", "--steps", str(steps)]
            + ["--precision", "fp64", "--ranks", str(RANKS), "--epochs", str(EPOCHS)]
            + ["--set", f"coordinate.tol={TOL}", *asked],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        ).stdout
    )
    if result["coordinate"]["ended"] != "converged":
        raise RuntimeError(f"{data}: {result['coordinate']}")
    return {
        "seconds": result["seconds_total"],
        "messages": result["ledger"]["products"]["calls"],
        "words": result["ledger"]["products"]["words"],
        "epochs": result["history"][-1]["epoch"],
        "loss": result["loss"],
    }


def _line(row):
    each = "; ".join(
        f"s {s}: {row[f's{s}']['messages']} messages,"
        f" {1e3 * row[f's{s}']['seconds']:.0f} ms ({row['speedup'][f's{s}']:.1f}x)"
        for s in STEPS
    )
    return f"{row['form']:6s} {each}"
