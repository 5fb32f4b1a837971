"""Each product beside plain SGD: five shapes, two ranks, emulated networks.

All train on the same 20000 rows for ten epochs of batches of 32. Plain SGD is `direct`
in FP32, which sums in every step; `gram`, `cached` and `gather-once` are in recipe `c`,
and so is `auto`: the product and the steps that `auto` chooses from a machine file,
which runs have filled until two in a row chose alike. Every product runs with each s of
STEPS, and the fastest of them counts. All runs of a cell take turns in one `hpcsgd
compare`; times are medians of the seconds of training, set-up aside. Messages, words
and bytes are those of the ledger. Held bytes are what a rank retains from one epoch to
the next for its product, beside its own columns.

One rank as one of 64 members shows larger jobs: its own work is real, the network of 64
is modelled. Beside the products stand a sum of the gradient over 64 ranks (its message
alone, computed) and one rank that has all the data and no network.

Cells are saved in build/ as they are measured, so that an interrupted benchmark
resumes. `load` is the load average of the machine when a cell ended: two ranks make it
2, and a sum waits for whatever else runs on a machine of two cores.

    python -m benchmarks.run bench_headline
    python -m benchmarks.headline       # tables of docs, picture of the README
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import hpcsgd
from benchmarks.peers.notebook import Notebook
from benchmarks.run import HERE, machine
from hpcsgd.comm import communicator
from hpcsgd.comm.network_model import parse_network
from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import CostInputs, ValueBytes, kept_bytes

Figures = dict[str, Any]
ROWS, BATCH, EPOCHS, REPEATS, MANY = 20000, 32, 10, 5, 64
TRIES = 5  # runs that a machine file may learn from
# s of each product: the fastest counts. Of `direct` these are steps of one call.
STEPS = {
    "direct": (32,),
    "gram": (4, 8, 16),
    "cached": (8, 16, 32),
    "gather-once": (64,),
}
BYTES_OF_A_VALUE = {"fp32": 4, "c": 2}
NETWORKS = ("lan", "hpc")
LAN_OF_MANY = f"alpha=5e-5,bandwidth=1.25e9,ranks={MANY}"
UNFINISHED = HERE.parent / "build" / "bench_headline.json"


@dataclass(frozen=True)
class Shape:
    """A problem, with a rate that every product takes."""

    name: str
    columns: int
    family: str
    rate: float


SHAPES = (
    Shape("epsilon", 2000, "logistic", 8.0),
    Shape("susy", 18, "logistic", 1.0),
    Shape("higgs", 28, "logistic", 1.0),
    Shape("synth", 1000, "logistic", 0.05),
    Shape("poisson-synth", 500, "poisson", 0.2),
)


def measure() -> Figures:
    """Measure every shape behind every network, and one rank of 64 members."""
    book = notebook()
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            cells, bench = book.problem(shape.name), ShapeBench(shape, Path(folder))
            for network in (*NETWORKS, "many"):
                if network not in cells:
                    cells[network] = bench.cell(network)
                    book.save()
                print(in_words(shape.name, network, cells[network]), flush=True)
    UNFINISHED.unlink()
    return book.figures


def notebook() -> Notebook:
    """Return the cells that an earlier, interrupted run has measured."""
    configuration = {
        "rows": ROWS,
        "batch": BATCH,
        "epochs": EPOCHS,
        "repeats": REPEATS,
        "steps": {name: list(tried) for name, tried in STEPS.items()},
    }
    return Notebook(UNFINISHED, machine(), configuration)


@dataclass(frozen=True)
class Setting:
    """A product with its steps and its recipe."""

    product: str
    steps: int
    recipe: str = "c"

    @property
    def text(self) -> str:
        """The setting as `hpcsgd compare` takes it."""
        return f"products={self.product} steps={self.steps} precision={self.recipe}"


class ShapeBench:
    """The data set of one shape, and what is measured on it."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        self.data = folder / f"{shape.name}.h5"
        self.machine = folder / "machine.json"

    def cell(self, network: str) -> Figures:
        """Measure all products behind `lan`, `hpc` or, as one of 64 members, `many`."""
        if not self.data.exists():
            make = ("data", "synth", "--shape", self.shape.name, "--rows", str(ROWS))
            hpcsgd(*make, "--out", str(self.data))
        if network != "many":
            return self._products(2, 2, "--network", network)
        members = min(MANY, self.shape.columns)
        emulated = ("--emulate-members", str(members), "--network", LAN_OF_MANY)
        one = {
            "direct": Setting("direct", 32, "fp32"),
            "auto": self._choice(1),
        }
        return {
            **self._products(members, 1, *emulated),
            "gradient_sum_us": 1e6 * self.gradient_sum(),
            "one_rank": self._compare(one, 1, 1),
        }

    def gradient_sum(self) -> float:
        """Return the seconds of a sum of d words over 64 ranks, as DDP needs it."""
        network = parse_network(LAN_OF_MANY)
        moved = communicator.sum_bytes(4 * self.shape.columns, MANY)
        return network.alpha * 6 + moved / network.bandwidth

    def _products(self, members: int, ranks: int, *network: str) -> Figures:
        settings = {
            f"{product} {s}": Setting(
                product, s, "fp32" if product == "direct" else "c"
            )
            for product, steps in STEPS.items()
            for s in steps
        }
        settings["auto"] = self._choice(ranks, *network)
        runs = self._compare(settings, members, ranks, *network)
        rows = {}
        for product, steps in STEPS.items():
            names = [f"{product} {s}" for s in steps]
            rows[product] = runs[min(names, key=lambda name: runs[name]["us"])]
        rows["auto"] = runs["auto"]
        plain = rows["direct"]
        for row in rows.values():
            row["speedup"] = plain["us"] / row["us"]
            if plain["loss"] is not None:  # None: emulated members learn nothing
                row["loss_gap_percent"] = 100 * (row["loss"] / plain["loss"] - 1)
        return {
            "members": members,
            "load": os.getloadavg()[0],
            "cores": os.cpu_count(),
            "rows": rows,
            "us_of_all": {name: run["us"] for name, run in runs.items()},
        }

    def _choice(self, ranks: int, *network: str) -> Setting:
        """Return what `auto` chooses once runs have corrected its machine file."""
        before = None
        for _ in range(TRIES):
            train = ("train", "--products", "auto", "--steps", "auto", *ranked(ranks))
            more = ("--precision", "c", "--machine", str(self.machine), "--quiet")
            words = (*train, *more, *self._shared(), *network)
            run = json.loads(hpcsgd(*words))
            choice = Setting(run["products"], run["schedule"]["steps"])
            if choice == before:
                break
            before = choice
        return choice

    def _compare(
        self, settings: dict[str, Setting], members: int, ranks: int, *network: str
    ) -> dict[str, Figures]:
        """Return a row for each setting; all have run in turns."""
        words = [
            word
            for name, setting in settings.items()
            for word in ("--setting", f"{name}: {setting.text}")
        ]
        repeats = ("--repeats", str(REPEATS), "--progress", "0", "--quiet")
        words = ["compare", *self._shared(), *ranked(ranks), *network, *repeats, *words]
        text = hpcsgd(*words)
        return {
            run["name"]: self._row(settings[run["name"]], run, members)
            for run in json.loads(text)["settings"]
        }

    def _row(self, setting: Setting, run: Figures, members: int) -> Figures:
        sent, steps = run["ledger"]["products"], run["iterations"]
        return {
            "product": setting.product,
            "s": setting.steps,
            "recipe": setting.recipe,
            "us": 1e6 * run["seconds"] / steps,
            "us_of_repeats": [1e6 * one / steps for one in run["seconds_of_repeats"]],
            "loss": run["loss"],
            "messages": sent["calls"],
            "words": sent["words"],
            "bytes": sent["bytes"],
            "wire_bytes": sent["wire_bytes"],
            "held_bytes": self._held(setting, members),
        }

    def _held(self, setting: Setting, members: int) -> int:
        """Return the bytes that a rank retains from epoch to epoch for its product."""
        columns = self.shape.columns
        job = CostInputs(
            replica=ReplicaSize(
                rows=ROWS,
                columns=columns,
                local_columns=-(-columns // members),
                members=members,
            ),
            value_bytes=ValueBytes(
                matrix=BYTES_OF_A_VALUE[setting.recipe],
                gram_wire=4,
                margin_sum=4,
            ),
            batch=BATCH,
            epochs=EPOCHS,
            comes_again=True,
        )
        return kept_bytes(setting.product, setting.steps, job)

    def _shared(self) -> tuple[str, ...]:
        shape = self.shape
        return (
            *("--data", str(self.data), "--family", shape.family, "--json"),
            *("--batch", str(BATCH), "--epochs", str(EPOCHS)),
            *("--rate", str(shape.rate), "--l2", "1e-5"),
            *("--set", "run.evaluate_every=0"),
        )


def ranked(ranks: int) -> tuple[str, ...]:
    """Return what asks for several ranks; one is the process of the command."""
    return ("--ranks", str(ranks)) if ranks > 1 else ()


def in_words(shape: str, network: str, cell: Figures) -> str:
    """Return a line for each product of a cell."""
    lines = [f"{shape}, {network}, {cell['members']} members, load {cell['load']:.1f}"]
    for name, row in cell["rows"].items():
        lines.append(
            f"  {name:11s} {row['us']:8.1f} µs a step ({row['speedup']:.2f}x),"
            f" {row['product']} s = {row['s']}, {row['messages']} messages,"
            f" {row['words']} words, {row['held_bytes']} bytes held"
        )
    return "\n".join(lines)
