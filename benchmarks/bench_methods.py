"""Every method on five shapes and three networks: who is how far, when, for how much.

Two ranks, a core each (real MPI), all methods of `hpcsgd compare --methods all` in
turns, on the same rows at one global batch for the same epochs. Each method has the one
of the shape's rates with which it ends lowest; losses do not depend on the network, so
rates are looked for once. The target of a shape is 0.5 % above the lowest loss that
sgd ends with; `to_target` is what a method had taken and sent when an evaluation, one
an epoch, first met it. Seconds are those of the run of median time.

`hybrid` needs four ranks. They share the cores here, so their times mean little: CROWD
has a few methods on four ranks behind the LAN, for losses, words and messages.

    python -m benchmarks.run bench_methods
    python -m benchmarks.bench_methods --shapes susy,rcv1 --networks lan --repeats 1

The second form measures some cells and puts them beside what is there already.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lines import in_lines
from benchmarks.methods_file import CURVE, POINT, packed
from benchmarks.methods_shapes import SHAPES, Shape

Figures = dict[str, Any]
RANKS, CROWD, BATCH, NEAR = 2, 4, 32, 1.005
NETWORKS = {
    "none": "",
    "lan": "lan",
    "wan": "alpha=1e-3,bandwidth=1.25e7",
}
# What waits for an emulated network most of the time is alike in every run.
REPEATS = {"none": 3, "lan": 3, "wan": 1}
STEPS = {"casgd s=2": 2, "casgd s=32": 32}  # beside the default of casgd, 8
RATES = (1, 1 / 2, 1 / 4, 1 / 16)  # what loses much needs less than others
ELEMENTWISE = 0.2  # the highest rate of rules that divide by the size of gradients
FEW = "sgd,casgd,hybrid,ddp,bf16,local"
RESULT = Path(__file__).parent / "results" / "bench_methods.json"
LINEAR = ("sgd", "momentum", "nesterov")  # rates of these are of gradients
LIMIT = 1800  # seconds of one shape


def measure() -> Figures:
    """All shapes on all networks, as the file has them."""
    asked = list(NETWORKS), "all", 0, True
    return {name: packed(_measure(name, *asked)) for name in SHAPES}


def _measure(
    shape: str, networks: list[str], methods: str, repeats: int, crowd: bool
) -> Figures:
    """network, or crowd -> what was found on one shape."""
    asked = {"shape": shape, "networks": networks, "repeats": repeats}
    found = _launch(RANKS, {**asked, "methods": methods})
    if crowd:
        few = {**asked, "methods": FEW, "networks": ["lan"], "repeats": 1}
        found["crowd"] = _launch(CROWD, few)["lan"]
    for network, cell in found.items():
        print(in_words(shape, network, cell), flush=True)
    return found


def _launch(ranks: int, asked: Figures) -> Figures:
    """What the ranks of one launch measured."""
    from hpcsgd.cli.launch import mpiexec

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        child = (sys.executable, "-m", "benchmarks.bench_methods", "--child")
        words = (*child, json.dumps({**asked, "out": str(out)}))
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*mpiexec(), "-n", str(ranks), *words],
            check=True,
            env={**os.environ, **threads},
            timeout=LIMIT,
        )
        return json.loads(out.read_text())


def _child(asked: Figures) -> None:
    """One rank: rates first, then a comparison behind each network."""
    from hpcsgd.comm import open_world

    world, shape = open_world("auto"), SHAPES[asked["shape"]]
    X, y = shape.data()
    given = {"X": X, "y": y, "world": world}
    parts, ends = _rates(shape, asked["methods"], given)
    found = {}
    for network in asked["networks"]:
        repeats = asked["repeats"] or REPEATS[network]
        cell = _compare(shape, asked["methods"], network, parts, repeats, given)
        found[network] = _cell(cell, ends, world.size)
    if world.rank == 0:
        Path(asked["out"]).write_text(json.dumps(found))
    world.close()


def _base(shape: Shape, network: str) -> Figures:
    run = {"network": NETWORKS[network]} if NETWORKS[network] else {}
    return {
        "problem": {"family": shape.family, "l2": shape.l2},
        "schedule": {"batch": BATCH, "epochs": shape.epochs},
        "precision": {"recipe": "fp32"},
        # As many epochs as there are would be over before the usual second look.
        "accordion": {"eta": 0.25, "interval": 1},
        "run": {**run, "fall_back": False},
    }


def _compare(
    shape: Shape,
    methods: str,
    network: str,
    parts: dict[str, float],
    repeats: int,
    given: Figures,
) -> Any:
    """All methods, each at its part of the highest rate."""
    from hpcsgd.studies import compare
    from hpcsgd.studies.compare import ALL, line_up
    from hpcsgd.studies.plan import NamedSetting

    base = _base(shape, network)
    entries = line_up(methods, base, given["world"].size)
    if methods == ALL:
        entries += [_casgd(base, name) for name in STEPS]
    for place, one in enumerate(entries):
        if isinstance(one, NamedSetting):
            top = shape.rate if one.config.update.kind in LINEAR else ELEMENTWISE
            rate = replace(one.config.rate, value=top * parts[one.name])
            entries[place] = replace(one, config=replace(one.config, rate=rate))
    with tempfile.TemporaryDirectory() as own:  # some keep states on disk
        out = given["world"].exchange_objects(own)[0]
        found = compare(entries, repeats=repeats, out=out, **given)
        given["world"].max_flag(0)  # nobody is in the folder of rank 0 any more
    return found


def _casgd(base: Figures, name: str) -> Any:
    """CA-SGD with other steps between two sums."""
    from hpcsgd.studies.plan import make_setting

    over = {"products": {"kind": "gram"}, "schedule": {"steps": STEPS[name]}}
    return make_setting(name, base, over)


def _rates(shape: Shape, methods: str, given: Figures) -> tuple[Figures, Figures]:
    """The part of the rate that each method ends lowest with; name -> part -> loss."""
    from hpcsgd.studies.compare import parse_methods

    names = [*parse_methods(methods), *STEPS]
    ends: dict[str, dict[float, float]] = {name: {} for name in names}
    for part in RATES:
        found = _compare(shape, methods, "none", dict.fromkeys(names, part), 1, given)
        for row in found.rows:
            if not row.diverged:
                ends[row.name][part] = row.result.loss
    lowest = {RATES[-1]: float("inf")}  # where every run diverged
    chosen = {
        name: min(tried or lowest, key=lambda part: (tried or lowest)[part])
        for name, tried in ends.items()
    }
    return chosen, ends


def _cell(found: Any, ends: Figures, ranks: int) -> Figures:
    """A line for each method, and the target."""
    best = min(ends["sgd"].values())
    target, said = NEAR * best, found.as_dict()
    lines: Figures = {row["method"]: row for row in said["rows"]}
    for row in found.rows:
        curve = [{key: r[key] for key in POINT} for r in row.result.history]
        there = [point for point in curve if point["loss"] <= target]
        lines[row.name] |= {
            "rate": row.setting.config.rate.value,
            "losses_of_rates": [ends[row.name].get(part) for part in RATES],
            "gap_to_best_sgd": row.result.loss / best - 1,
            "seconds_of_repeats": list(row.times),
            "to_target": there[0] if there else None,
            "curve": [[point[key] for key in CURVE] for point in curve],
        }
    return {
        "ranks": ranks,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "repeats": said["repeats"],
        "best_sgd_loss": best,
        "target": target,
        "parts_of_rate": list(RATES),
        "rows": lines,
    }


def in_words(shape: str, network: str, cell: Figures) -> str:
    """A line for each method."""
    lines = [
        f"\n{shape}, {network}, {cell['ranks']} ranks, target {cell['target']:.5f}"
    ]
    for name, row in cell["rows"].items():
        if row["status"] == "refused":
            lines.append(f"{name:14s} refused: {row['reason']}")
            continue
        there, met = row["to_target"], "target not met"
        if there:
            met = (
                f"target after {there['seconds']:.3f} s, {there['messages']} messages,"
            )
            met += f" {there['bytes']} bytes"
        lines.append(
            f"{name:14s} rate {row['rate']:7g} loss {row['loss']:.5f} ("
            f"{100 * row['gap_to_best_sgd']:+.2f} %) in {row['seconds']:.3f} s; {met}"
        )
    return "\n".join(lines)


def main() -> int:
    """Measure some cells; put them beside those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--methods", default="all", help="all, or names; with sgd")
    parser.add_argument("--repeats", type=int, default=0, help="of each; 0 = as usual")
    parser.add_argument("--no-crowd", action="store_true", help="no four ranks")
    parser.add_argument("--out", default=str(RESULT))
    given = parser.parse_args()
    if given.child:
        _child(json.loads(given.child))
        return 0
    from benchmarks.run import machine

    asked = (given.networks.split(","), given.methods, given.repeats)
    unknown = {*given.shapes.split(","), *asked[0]} - {*SHAPES, *NETWORKS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for shape in given.shapes.split(","):
        found = _measure(shape, *asked, not given.no_crowd)
        _keep(Path(given.out), shape, found, machine())
    return 0


def _keep(out: Path, shape: str, found: Figures, machine: Figures) -> None:
    """Beside what is there already; a shape that is over is not lost."""
    there = json.loads(out.read_text())["figures"] if out.exists() else {}
    there[shape] = {**there.get(shape, {}), **packed(found)}
    figures = {name: there[name] for name in SHAPES if name in there}
    out.write_text(in_lines({"machine": machine, "figures": figures}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
