"""CA-SGD against our own best plain SGD: five shapes, two ranks, an emulated LAN.

Both use the same compiled kernels on the same 20000 rows for ten epochs of batches of
32. Plain SGD is `direct` in FP32, in groups of the steps that were fastest; CA-SGD is
recipe `c` with products and steps chosen by `auto`. Runs take turns; figures are
medians of the seconds of training, set-up aside. Choices come from a machine file that
runs of each kind have filled, until two in a row chose alike. On a network as fast as a
supercomputer's, `auto` has to know when plain SGD is as good.

One rank as one of 64 members shows larger jobs: its own work is real, the network of 64
is modelled, and the baseline is the cheapest of three: member sums, a sum of the
gradient over 64 ranks (the messages alone: the work of half a row is left out), and one
rank that has all the data and no network.
"""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import hpcsgd, timed
from hpcsgd.comm import communicator
from hpcsgd.comm.network_model import parse_network

ROWS, BATCH, EPOCHS, REPEATS, MANY = 20000, 32, 10, 5, 64
TRIES = 5  # runs that a machine file may learn from
GROUPS = (1, 8, 32)  # steps between looks of plain SGD: the fastest counts
LAN_OF_MANY = f"alpha=5e-5,bandwidth=1.25e9,ranks={MANY}"


@dataclass(frozen=True)
class Shape:
    """A problem, with a rate that both ways take."""

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


def measure() -> list[dict]:
    """A row for each network and shape."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            data = str(Path(folder) / f"{shape.name}.h5")
            make = ("data", "synth", "--shape", shape.name, "--rows", str(ROWS))
            hpcsgd(*make, "--out", data)
            place = Place(shape, data, str(Path(folder) / "machine.json"))
            for network in ("lan", "hpc"):
                figures.append(place.two_ranks(network))
                print(_line(figures[-1]), flush=True)
            figures.append(place.one_of_many())
            print(_line(figures[-1]), flush=True)
    return figures


@dataclass(frozen=True)
class Place:
    """One data set and what is measured on it."""

    shape: Shape
    data: str
    machine: str

    def two_ranks(self, network: str) -> dict:
        """Plain SGD beside CA-SGD on two real ranks."""
        ranks = ("--ranks", "2", "--network", network)
        ways = {f"direct {s}": self.plain(s, *ranks) for s in GROUPS}
        ways["auto"] = self.auto(*ranks)
        _settle(ways["auto"])
        runs = _in_turns(ways)
        best = min((n for n in ways if n != "auto"), key=lambda n: runs[n]["us"])
        gap = runs["auto"]["loss"] / runs[best]["loss"] - 1
        return {
            "what": "two ranks",
            "network": network,
            "shape": self.shape.name,
            "baseline": best,
            **_compared(runs, best),
            "loss_gap_percent": 100 * gap,
        }

    def one_of_many(self) -> dict:
        """One of 64 members, beside the cheapest way without CA-SGD."""
        members = min(MANY, self.shape.columns)
        ranks = ("--emulate-members", str(members), "--network", LAN_OF_MANY)
        ways = {
            "member sums": self.plain(8, *ranks),
            "one rank": self.plain(32, "--ranks", "1"),
            "auto": self.auto(*ranks),
            "one rank, auto": self.auto("--ranks", "1"),
        }
        _settle(ways["auto"])
        runs = _in_turns(ways)
        runs["gradient sum"] = {"us": 1e6 * self.gradient_sum(), "loss": None}
        known = ("member sums", "one rank", "gradient sum")
        best = min(known, key=lambda name: runs[name]["us"])
        return {
            "what": f"one of {members} members",
            "network": LAN_OF_MANY,
            "shape": self.shape.name,
            "baseline": best,
            **_compared(runs, best),
            "beats_one_rank_in_fp32": runs["auto"]["us"] < runs["one rank"]["us"],
        }

    def gradient_sum(self) -> float:
        """Seconds of a sum of d words over 64 ranks: what DDP cannot avoid."""
        network = parse_network(LAN_OF_MANY)
        moved = communicator.sum_bytes(4 * self.shape.columns, MANY)
        return network.alpha * 6 + moved / network.bandwidth

    def plain(self, steps: int, *more: str) -> tuple[str, ...]:
        """The command of plain FP32 SGD."""
        way = ("--products", "direct", "--precision", "fp32", "--steps", str(steps))
        return (*self._common(), *way, *more)

    def auto(self, *more: str) -> tuple[str, ...]:
        """That of CA-SGD, everything left open."""
        way = ("--products", "auto", "--precision", "c", "--steps", "auto")
        return (*self._common(), *way, "--machine", self.machine, *more)

    def _common(self) -> tuple[str, ...]:
        shape = self.shape
        return (
            *("train", "--data", self.data, "--family", shape.family),
            *("--batch", str(BATCH), "--epochs", str(EPOCHS)),
            *("--rate", str(shape.rate), "--l2", "1e-5", "--json", "--quiet"),
            *("--set", "run.evaluate_every=0"),
        )


def _in_turns(ways: dict) -> dict:
    """Medians of runs that take turns."""
    runs = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, command in ways.items():
            runs[name].append(_train(command))
    return {name: _median(found) for name, found in runs.items()}


def _median(found: list) -> dict:
    last = found[-1]
    return {
        "us": statistics.median(run["us"] for run in found),
        "fastest_us": min(run["us"] for run in found),
        "cpu_per_wall": statistics.median(run["cpu_per_wall"] for run in found),
        **{key: last[key] for key in ("loss", "products", "steps")},
    }


def _compared(runs: dict, best: str) -> dict:
    return {
        "us_per_step": {name: run["us"] for name, run in runs.items()},
        "chosen": {key: runs["auto"][key] for key in ("products", "steps")},
        "speedup": runs[best]["us"] / runs["auto"]["us"],
        "runs": runs,
    }


def _settle(command: tuple) -> None:
    """Fill the machine file: runs correct the model until the same is chosen again."""
    before = None
    for _ in range(TRIES):
        run = _train(command)
        chosen = run["products"], run["steps"]
        if chosen == before:
            return
        before = chosen


def _train(command: tuple) -> dict:
    result, busy = timed(*command)
    return {
        "us": 1e6 * result["seconds_total"] / result["iterations"],
        "loss": result["loss"],
        "products": result["products"],
        "steps": result["schedule"]["steps"],
        "cpu_per_wall": busy,
    }


def _line(row: dict) -> str:
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us_per_step"].items())
    chosen, gap = row["chosen"], row.get("loss_gap_percent")
    return (
        f"{row['shape']:13s} {row['what']}, {row['network'][:12]}: µs a step: {times};"
        f" {chosen['products']} with s = {chosen['steps']}: {row['speedup']:.2f}x"
        f" of {row['baseline']}" + ("" if gap is None else f", loss {gap:+.3f} %")
    )
