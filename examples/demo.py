"""What CA-SGD is worth, on two real MPI ranks, in one table.

Makes an epsilon-shaped data set (20000 × 2000), trains it by plain FP32 SGD and by
CA-SGD with recipe `c` (bf16 matrix and margins, fp32 sums), first on this machine as
it is and then behind an emulated LAN, and prints what each cost. Every figure comes
from the runs' own result files; each is the median of a few interleaved runs.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

RANKS, BATCH, STEPS, EPOCHS = 2, 8, 8, 3
METHODS = {
    # Plain SGD sums in every step; --steps only lightens its loop, not its messages.
    "FP32 SGD": ["--products", "direct", "--precision", "fp32"],
    "CA-SGD, recipe c": ["--products", "gram", "--precision", "c"],
}
NETWORKS = {"this machine as it is": [], "--network lan": ["--network", "lan"]}


def main() -> int:
    """Make the data, run everything, print the table."""
    options = parse()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"epsilon-{options.rows}x{options.cols}.h5"
    say = Console(stderr=True, highlight=False)
    if not data.exists():
        say.print(f"making {data.name}")
        shape = ["--rows", str(options.rows), "--cols", str(options.cols)]
        hpcsgd("data", "synth", "--shape", "epsilon", *shape, "--out", str(data))
    if ranks() == 1:
        say.print("no MPI here: one rank, which has nobody to wait for")
    runs = measure(data, folder, options.repeats, say)
    console = Console(highlight=False, width=120 if not sys.stdout.isatty() else None)
    for block, results in runs.items():
        console.print(table(block, results))
        console.print(verdict(results) + "\n")
    draw(runs, folder / "loss.png", say)
    say.print(f"run folders and loss.png are in {folder}")
    return 0


def parse() -> argparse.Namespace:
    """Sizes, for those who want others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--cols", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default="runs/demo")
    return parser.parse_args()


def ranks() -> int:
    """RANKS, or one where this machine has no MPI to start them."""
    from hpcsgd.cli.launch import mpiexec
    from hpcsgd.errors import ConfigError

    try:
        return RANKS if mpiexec() else 1
    except ConfigError:
        return 1


def hpcsgd(*arguments: str) -> str:
    """One command of the package; its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "hpcsgd", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"demo: hpcsgd {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


def measure(data: Path, folder: Path, repeats: int, say: Console) -> dict:
    """block -> method -> the run whose time is the median, methods interleaved."""
    runs = {}
    for block, network in NETWORKS.items():
        timed = {method: [] for method in METHODS}
        for number in range(repeats):
            for method, flags in METHODS.items():
                say.print(f"{block}: {method}, run {number + 1} of {repeats}")
                out = folder / name_of(block) / f"{name_of(method)}-{number + 1}"
                timed[method].append(train(data, out, [*flags, *network]))
        runs[block] = {m: median_run(results) for m, results in timed.items()}
    return runs


def train(data: Path, out: Path, flags: list[str]) -> dict:
    """One training run on real ranks."""
    fixed = {
        "--data": data,
        "--family": "logistic",
        "--batch": BATCH,
        "--steps": STEPS,
        "--epochs": EPOCHS,
        "--rate": 8.0,
        "--l2": 1e-5,
        "--grid": f"1x{ranks()}",
        "--out": out,
    }
    words = [str(word) for pair in fixed.items() for word in pair]
    words += ["--ranks", str(RANKS)] if ranks() > 1 else []
    return json.loads(hpcsgd("train", *words, *flags, "--json", "--quiet"))


def median_run(results: list[dict]) -> dict:
    """The run in the middle: its own figures belong together."""
    middle = statistics.median_low([r["seconds_total"] for r in results])
    return next(r for r in results if r["seconds_total"] == middle)


def name_of(text: str) -> str:
    """A folder name."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def table(block: str, results: dict) -> Table:
    """One block of the table."""
    drawn = Table(title=block, title_justify="left", title_style="bold")
    for column in ("method", "ranks", "steps", "final loss", "loss gap"):
        drawn.add_column(column, justify="left" if column == "method" else "right")
    for column in ("synchronisations", "words sent", "seconds"):
        drawn.add_column(column, justify="right")
    reference = results["FP32 SGD"]["loss"]
    for method, run in results.items():
        products = run["ledger"]["products"]
        gap = 100 * (run["loss"] - reference) / abs(reference)
        drawn.add_row(
            method,
            str(run["ranks"]),
            str(run["iterations"]),
            f"{run['loss']:.6f}",
            f"{gap:+.4f} %",
            str(products["calls"]),
            str(products["words"]),
            f"{run['seconds_total']:.3f}",
        )
    return drawn


def verdict(results: dict) -> str:
    """Who wins here, and why, from the figures themselves."""
    plain, saving = results.values()
    a, b = plain["seconds_total"], saving["seconds_total"]
    (waits, works), (also_waits, also_works) = parts(plain), parts(saving)
    reason = "work shared by s steps outweighs the Gram"
    if also_works > works:
        reason = "the Gram is the price of fewer messages"
    winner, factor = ("CA-SGD", a / b) if b < a else ("Plain SGD", b / a)
    return (
        f"{winner} wins by {factor:.2f}x: a step of plain SGD waits {waits:.0f} µs in"
        f" its sum and works {works:.0f} µs, one of CA-SGD waits {also_waits:.0f} µs"
        f" and works {also_works:.0f} µs ({reason})."
    )


def parts(run: dict) -> tuple[float, float]:
    """µs of a step spent waiting for sums, and working."""
    step = 1e6 * run["seconds_total"] / run["iterations"]
    waits = 1e6 * run["ledger"]["products"]["seconds"] / run["iterations"]
    return waits, step - waits


def draw(runs: dict, path: Path, say: Console) -> None:
    """Both loss curves, if matplotlib is there."""
    from hpcsgd.errors import MissingPackage
    from hpcsgd.runs.figures import loss_curves

    panels = {b: {m: r["history"] for m, r in rs.items()} for b, rs in runs.items()}
    try:
        loss_curves(panels, path)
    except MissingPackage as missing:
        say.print(f"no figure: {missing}")


if __name__ == "__main__":
    sys.exit(main())
