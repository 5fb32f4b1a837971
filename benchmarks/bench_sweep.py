"""64 models beside one: epsilon's shape, two real ranks, an emulated LAN.

Both train the same 20000 rows in batches of 32, with the same precision, products and
steps asked for: the sweep has 64 penalties, the other run one. Runs take turns; figures
are medians. `ratio` compares the seconds of training, `ratio_whole` those with the full
losses before the first and after every epoch; `ratio_fastest` is of the fastest run of
each, which says more on a machine that does other things, too.
"""

import statistics
import tempfile
from pathlib import Path

from benchmarks.command import hpcsgd, timed

ROWS, BATCH, MODELS, REPEATS = 20000, 32, 64, 5
PRECISIONS = ("fp32", "c")
# What is asked of both: a fixed s, and what the tool chooses for each of them.
WAYS = (
    ("gram, s = 16", 1, ("--products", "gram", "--steps", "16")),
    ("auto, one epoch", 1, ("--products", "auto", "--steps", "auto")),
    ("auto, four epochs", 4, ("--products", "auto", "--steps", "auto")),
)


def measure() -> list[dict]:
    """A row for each precision and way."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "epsilon.h5")
        make = ("data", "synth", "--shape", "epsilon", "--rows", str(ROWS))
        hpcsgd(*make, "--out", data)
        for precision in PRECISIONS:
            for name, epochs, asked in WAYS:
                common = _common(data, precision, epochs, asked)
                row = {"precision": precision, "asked": name, "epochs": epochs}
                figures.append(row | _compared(common))
                print(_line(figures[-1]), flush=True)
    return figures


def _common(data: str, precision: str, epochs: int, asked: tuple) -> tuple[str, ...]:
    return (
        *("--data", data, "--family", "logistic", "--batch", str(BATCH)),
        *("--epochs", str(epochs), "--rate", "8", "--precision", precision, *asked),
        *("--ranks", "2", "--network", "lan", "--json", "--quiet"),
    )


def _compared(common: tuple) -> dict:
    """Medians of runs that take turns."""
    penalties = ",".join(f"{1e-7 * 1.25**k:.6g}" for k in range(MODELS))
    ways = {
        "one": ("train", *common, "--l2", "1e-5"),
        "many": ("sweep", *common, "--l2", penalties),
    }
    runs: dict[str, list[dict]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, command in ways.items():
            runs[name].append(_run(command))
    found = {name: _median(own) for name, own in runs.items()}
    one, many = found["one"], found["many"]
    return {
        "models": MODELS,
        "runs": found,
        "ratio": many["us_per_step"] / one["us_per_step"],
        "ratio_fastest": many["fastest_us_per_step"] / one["fastest_us_per_step"],
        "ratio_whole": many["seconds_whole"] / one["seconds_whole"],
    }


def _median(runs: list[dict]) -> dict:
    middle = {
        key: statistics.median(run[key] for run in runs)
        for key, value in runs[-1].items()
        if isinstance(value, float)
    }
    fastest = min(run["us_per_step"] for run in runs)
    return runs[-1] | middle | {"fastest_us_per_step": fastest}


def _run(command: tuple) -> dict:
    document, busy = timed(*command)
    result = document.get("run", document)
    seconds, products = result["seconds_total"], result["ledger"]["products"]
    return {
        "us_per_step": 1e6 * seconds / result["iterations"],
        "us_per_exchange": 1e6 * seconds / result["exchanges"],
        "seconds_training": seconds,
        "seconds_evaluating": result["seconds_evaluate"],
        "seconds_whole": seconds + result["seconds_evaluate"],
        "cpu_per_wall": busy,
        "products": result["products"],
        "look_ahead": result["look_ahead"],
        "steps": result["schedule"]["steps"],
        "calls": products["calls"],
        "words": products["words"],
        "loss": result["loss"],
    }


def _line(row: dict) -> str:
    one, many = row["runs"]["one"], row["runs"]["many"]
    return (
        f"{row['precision']:5s} {row['asked']:18s} µs a step: one {_said(one)},"
        f" {row['models']} models {_said(many)}: {row['ratio']:.2f}x,"
        f" {row['ratio_whole']:.2f}x with evaluations,"
        f" {row['ratio_fastest']:.2f}x of the fastest"
    )


def _said(run: dict) -> str:
    return f"{run['us_per_step']:.1f} ({run['products']}, s = {run['steps']})"
