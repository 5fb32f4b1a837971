"""What the cost model is worth: predictions beside runs of settings it never saw.

For each shape, number of ranks and network the tuner takes its figures and fits its
model to bursts at the steps of `hpcsgd.tuning.tuner.PROBED`. Then every product runs
with other steps, JUDGED: how far off was the prediction, and how far from the fastest
of them all is what the tuner chooses among the same? Medians of runs that take turns.

python -m benchmarks.bench_model [--quick] [--ranks 1,2,3,4] [--out FILE.json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.run import HERE, machine

SHAPES = {  # name -> rows, columns, epochs, family, recipe
    "epsilon": (8000, 2000, 4, "logistic", "c"),
    "synth": (16000, 1000, 4, "logistic", "fp32"),
    "poisson-synth": (16000, 500, 6, "poisson", "c"),
    "higgs": (40000, 28, 10, "logistic", "fp32"),
    "susy": (40000, 18, 10, "logistic", "c"),
}
NETWORKS = ("none", "lan", "cloud")
JUDGED = (1, 4, 12, 32)  # steps, none of them among those that are probed
BATCH = 32
REPEATS, LIMIT = (
    3,
    0.12,
)  # runs of a setting, and seconds after which one is long enough
SECONDS = 5.0  # that the tuner has for a shape on a network
CLOSE, NEAR = 0.25, 0.10  # an error that is good, a loss against the best that is
TARGET = 0.80  # share of the settings that are predicted that well
PATIENCE = 900  # seconds for one number of ranks
OUT = HERE / "results" / "bench_model.json"


def measure() -> dict:
    """Everything, as `make bench-model` has it."""
    return run(_arguments([]))


def run(asked: argparse.Namespace) -> dict:
    """Every number of ranks under its own mpiexec; then the sums."""
    began, rows = time.time(), []
    with tempfile.TemporaryDirectory(prefix="bench-model-") as folder:
        shapes = list(SHAPES)[1:4:2] if asked.quick else list(SHAPES)
        for shape in shapes:
            _make(shape, Path(folder))
        for ranks in asked.ranks:
            networks = NETWORKS if ranks > 1 else NETWORKS[:1]
            networks = networks[:2] if asked.quick else networks
            rows += _ranks(ranks, shapes, networks, Path(folder))
    figures = summed(rows) | {"seconds": time.time() - began, "load": os.getloadavg()}
    print(in_words(figures), flush=True)
    return figures


def summed(rows: list[dict]) -> dict:
    """How many are predicted well, and how good the choices are."""
    errors = [
        abs(one["predicted"] / one["measured"] - 1) for r in rows for one in r["all"]
    ]
    lost = [
        r["chosen"]["measured"] / min(o["measured"] for o in r["all"]) - 1 for r in rows
    ]
    by_ranks = {}
    for ranks in sorted({r["ranks"] for r in rows}):
        own = [r for r in rows if r["ranks"] == ranks]
        off = [abs(o["predicted"] / o["measured"] - 1) for r in own for o in r["all"]]
        behind = [
            r["chosen"]["measured"] / min(o["measured"] for o in r["all"]) - 1
            for r in own
        ]
        by_ranks[str(ranks)] = {
            "settings": len(off),
            "predicted_within_25_percent": _share(off, CLOSE),
            "choices_within_10_percent": _share(behind, NEAR),
        }
    return {
        "settings": len(errors),
        "median_error": median(errors),
        "predicted_within_25_percent": _share(errors, CLOSE),
        "choices": len(lost),
        "choices_within_10_percent": _share(lost, NEAR),
        "worst_choice": max(lost),
        "by_ranks": by_ranks,
        "rows": rows,
    }


def in_words(figures: dict) -> str:
    """Two lines."""
    lines = [
        f"{100 * figures['predicted_within_25_percent']:.0f} % of"
        f" {figures['settings']} settings are predicted within 25 % (target"
        f" {100 * TARGET:.0f} %), the median error is"
        f" {100 * figures['median_error']:.0f} %",
        f"{100 * figures['choices_within_10_percent']:.0f} % of {figures['choices']}"
        " choices are within 10 % of the fastest of all, the worst is"
        f" {100 * figures['worst_choice']:.0f} % behind",
    ]
    for ranks, own in figures["by_ranks"].items():
        lines.append(
            f"  {ranks} rank(s): {own['settings']} settings,"
            f" {100 * own['predicted_within_25_percent']:.0f} % predicted,"
            f" {100 * own['choices_within_10_percent']:.0f} % of choices"
        )
    return "\n".join(lines)


def _share(values: list[float], limit: float) -> float:
    return sum(value <= limit for value in values) / max(len(values), 1)


def _make(shape: str, folder: Path) -> None:
    from hpcsgd.data.synthetic import write_synthetic

    rows, columns, *_ = SHAPES[shape]
    write_synthetic(folder / f"{shape}.h5", shape, rows, columns)


def _ranks(ranks: int, shapes: list, networks: tuple, folder: Path) -> list[dict]:
    beside = Path(sys.executable).with_name("mpiexec")
    out = folder / f"{ranks}.jsonl"
    command = [str(beside if beside.exists() else "mpiexec"), "-n", str(ranks)]
    command += [sys.executable, "-m", "benchmarks.bench_model", "--worker", str(folder)]
    command += ["--out", str(out), "--shapes", ",".join(shapes)]
    command += ["--networks", ",".join(networks)]
    subprocess.run(command, check=True, timeout=PATIENCE, cwd=HERE.parent)
    return [json.loads(line) for line in out.read_text().splitlines()]


def _work(asked: argparse.Namespace) -> None:
    """One rank of many: every shape on every network."""
    from hpcsgd.comm import open_world

    world = open_world()
    for shape in asked.shapes.split(","):
        for network in asked.networks.split(","):
            row = _row(shape, network, Path(asked.worker), world)
            if world.rank == 0:
                with open(asked.out, "a") as file:
                    file.write(json.dumps(row) + "\n")
                print(_line(row), flush=True)
    world.close()


def _row(shape: str, network: str, folder: Path, world) -> dict:
    """Fit, choose, then run everything."""
    from hpcsgd.config import RunConfig
    from hpcsgd.tuning.timed_exchanges import TimeBudget
    from hpcsgd.tuning.tuner import (
        LearningSetting,
        Learnt,
        TimedRows,
        TuningQuestion,
        open_candidate_group,
        time_best_candidates,
    )

    rows, _, epochs, family, recipe = SHAPES[shape]
    tables = {
        "data": {"path": str(folder / f"{shape}.h5")},
        "problem": {"family": family},
        "schedule": {"batch": BATCH, "steps": "auto", "epochs": epochs},
        "precision": {"recipe": recipe},
        "run": {"network": network} if network != "none" else {},
    }
    question = TuningQuestion(RunConfig.parse(tables), (BATCH,), SECONDS)
    budget, grid = TimeBudget(world, SECONDS), (1, world.size)
    sample = TimedRows(rows, rows, 1.0)
    room = open_candidate_group(question, grid, recipe, world, sample, budget, 0.25)
    room.fit(question, [BATCH], budget, 0.6)
    way = Learnt(LearningSetting(BATCH, 0.1), 1.0)
    every = [c for c in room.candidates(question, [way]) if c.setting.steps in JUDGED]
    chosen = time_best_candidates(every, [room], budget)[0]
    took = {c: [] for c in every}
    for _ in range(REPEATS):
        for candidate in every:
            took[candidate].append(_run(candidate.setting, room, world, epochs))
    room.stage.close()
    found = {_name(c): _told(c, took[c]) for c in every}
    return {
        "shape": shape,
        "network": network,
        "ranks": world.size,
        "chosen": found[_name(chosen)],
        "all": list(found.values()),
    }


def _run(setting, room, world, epochs: int) -> float:
    """Seconds of a step of a real run: all its epochs, or as many as time allows."""
    from hpcsgd.runs.build import assemble_run

    values = {"schedule.epochs": epochs, "run.check_every": 16}
    config = room.stage.settings({**setting.values(), **values})
    watch = _watch(setting.product in ("cached", "gather-once"), world.rank)
    live = assemble_run(config, room.stage.opened, [watch])
    live.warm_up()
    live.view.history.append({})  # the loss before the first exchange is not asked
    live.training.run(live.state)
    own = watch.step_seconds(live.view, epochs)
    return max(world.exchange_objects(own))


def _watch(keeps: bool, rank: int):
    """Notes when epochs end, and ends a run that is long enough."""
    from hpcsgd.runs.progress import Callback

    class Watch(Callback):
        def __init__(self):
            self.ends = []  # (steps, seconds) at the end of the first epoch

        def on_exchange(self, view):
            if view.epoch >= 1 and not self.ends:
                self.ends.append((view.steps, view.seconds))
            enough = view.seconds > LIMIT * (1 + keeps * len(self.ends))
            return rank == 0 and enough and (len(self.ends) == 1 or not keeps)

        def step_seconds(self, view, epochs):
            if not keeps or not self.ends or view.steps == self.ends[0][0]:
                return view.seconds / view.steps
            steps, seconds = self.ends[0]
            later = (view.seconds - seconds) / (view.steps - steps)
            return seconds / steps / epochs + later * (1 - 1 / epochs)

    return Watch()


def _name(candidate) -> tuple:
    return candidate.setting.kind, candidate.setting.steps


def _told(candidate, times: list[float]) -> dict:
    return {
        "product": candidate.setting.kind,
        "steps": candidate.setting.steps,
        "predicted": candidate.predicted,
        "measured": median(times),
        "times": times,
    }


def _line(row: dict) -> str:
    off = [one["predicted"] / one["measured"] - 1 for one in row["all"]]
    best = min(row["all"], key=lambda one: one["measured"])
    chosen = row["chosen"]
    return (
        f"{row['ranks']} ranks {row['network']:5s} {row['shape']:13s}"
        f" {sum(abs(e) <= CLOSE for e in off):2d} of {len(off):2d} within 25 %,"
        f" median {100 * median(off):+4.0f} %; chosen {chosen['product']}"
        f" s = {chosen['steps']} {1e6 * chosen['measured']:.1f} µs, best"
        f" {best['product']} s = {best['steps']} {1e6 * best['measured']:.1f}"
    )


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two shapes, two networks")
    parser.add_argument("--ranks", default="", help="1,2,3,4; with --quick 1,2")
    parser.add_argument("--out", default=str(OUT))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--shapes", help=argparse.SUPPRESS)
    parser.add_argument("--networks", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    text = asked.ranks or ("1,2" if asked.quick else "1,2,3,4")
    asked.ranks = [int(word) for word in text.split(",")]
    return asked


def main() -> int:
    """Measure, and write the figures with the machine that they are of."""
    asked = _arguments(sys.argv[1:])
    if asked.worker:
        _work(asked)
        return 0
    document = {"machine": machine(), "figures": run(asked)}
    Path(asked.out).write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {asked.out}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
