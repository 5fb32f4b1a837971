"""`hpcsgd tune`: measure this machine, choose what is open, write it down."""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch, logs
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.numbers import not_negative
from hpcsgd.cli.ranks import on_all_ranks
from hpcsgd.cli.train import add_settings, check_data, overlaid
from hpcsgd.errors import ConfigError
from hpcsgd.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.comm.base import Communicator
    from hpcsgd.tuner.question import Question

BEGAN = "HPCSGD_TUNE_BEGAN"  # when the first process of a tuning did
WIDTH = 120  # where standard output is no terminal
COLUMNS = ("grid", "recipe", "product", "s", "batch", "period", "predicted", "measured")


def add_parser(commands: Any) -> None:
    """Add `tune` to the commands."""
    parser = commands.add_parser(
        "tune",
        help=COMMANDS["tune"],
        description="Measure the network and the kernels on your data, predict every"
        " setting that is open, run the best five for a moment, and write the choice"
        " for `hpcsgd train`. Flags and the file say what is not open.",
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    add_settings(parser)
    parser.add_argument(
        "--batch",
        dest="batches",
        metavar="B|B,B|auto",
        help="rows a step, or several to choose from",
    )
    parser.add_argument(
        "--ranks", metavar="N|N,N", help="start N MPI ranks; several are compared"
    )
    parser.add_argument(
        "--out", dest="tuned", metavar="FILE.toml", help="write what was chosen"
    )
    parser.add_argument(
        "--seconds", type=not_negative, default=30.0, metavar="T", help="to spend; 30"
    )
    parser.add_argument(
        "--allow-replicas",
        action="store_true",
        help="also grids whose replicas average weights, which changes what is learnt",
    )
    parser.add_argument(
        "--write-machine",
        metavar="FILE.toml",
        help="write what was measured, for `hpcsgd study predict`",
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_progress(parser)
    parser.set_defaults(run=run, **{"schedule.batch": None, "run.out": None})


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Here, under one mpiexec, or under one for each number of ranks."""
    asked = question(arguments)
    check_data(asked.config)
    launch.check_readable(asked.config.data.path)
    counts = parse_ranks(arguments.ranks)
    for path in (arguments.tuned, arguments.write_machine):
        _check_place(path)
    if len(counts) > 1:
        return _several(arguments, argv, counts)
    os.environ.setdefault(BEGAN, repr(time.monotonic()))
    if launch.must_relaunch(counts[0] if counts else None):
        return launch.relaunch(counts[0], argv, remedy="run tune again")
    return _tune(asked, arguments)


def question(arguments: argparse.Namespace) -> "Question":
    """What is open: all that neither the file nor a flag says."""
    from hpcsgd.config import RunConfig, read_toml
    from hpcsgd.precision import AUTO
    from hpcsgd.tuner.question import Question, parse_batches
    from hpcsgd.unread import check_read

    tables = read_toml(arguments.config) if arguments.config else {}
    said = overlaid(tables, arguments)
    said.setdefault("schedule", {}).setdefault("steps", "auto")
    recipe = said.get("precision", {}).get("recipe", AUTO)
    said.setdefault("precision", {})["recipe"] = "fp32" if recipe == AUTO else recipe
    config = RunConfig.parse(said)
    check_read(config)
    batches: tuple[int, ...] = (config.schedule.batch,)
    if arguments.batches is not None:
        batches = parse_batches(arguments.batches)
        config = replace(config, schedule=replace(config.schedule, batch=batches[0]))
    return Question(
        config=config,
        batches=batches,
        seconds=arguments.seconds,
        any_recipe=recipe == AUTO,
        any_replicas=arguments.allow_replicas,
    )


def parse_ranks(text: str | None) -> list[int]:
    """Numbers of ranks; none where nothing is said.

    >>> parse_ranks("1,2,4")
    [1, 2, 4]
    """
    if text is None:
        return []
    try:
        found = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ConfigError(
            f"--ranks {text}: give a whole number of at least 1, several as 1,2,4"
        )
    return found


def _check_place(path: str | None) -> None:
    """Where something is to be written half a minute from now."""
    if path and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no such folder; make it first")


def _tune(asked: "Question", arguments: argparse.Namespace) -> int:
    from hpcsgd.tuner.question import LEAST_SECONDS
    from hpcsgd.tuner.told import document
    from hpcsgd.tuner.tune import Tuning, tune

    # What it took to start the ranks is time, too.
    spent = max(time.monotonic() - float(os.environ.pop(BEGAN)), 0.0)
    own = max(asked.seconds - spent, LEAST_SECONDS)

    def action(world: "Communicator") -> Tuning:
        seconds = world.exchange_objects(own)[0]  # ranks start one after the other
        return tune(replace(asked, seconds=seconds), world)

    def show(found: Tuning) -> None:
        _finish(document(found), arguments)

    run = asked.config.run
    return on_all_ranks(run.comm, action, show, code=lambda _: 0, timeout=run.timeout)


def _several(arguments: argparse.Namespace, argv: list[str], counts: list[int]) -> int:
    """One tuning for each number of ranks, each with its share of the time."""
    from hpcsgd.tuner.told import merged

    parts = []
    with tempfile.TemporaryDirectory(prefix="hpcsgd-tune-") as folder:
        for count in counts:
            path = Path(folder) / f"{count}.json"
            own = [*argv, "--ranks", str(count), "--part", str(path)]
            own += ["--seconds", str(arguments.seconds / len(counts))]
            os.environ[BEGAN] = repr(time.monotonic())
            code = launch.relaunch(count, own, remedy="run tune again")
            if code:
                return code
            parts.append(json.loads(path.read_text()))
    del os.environ[BEGAN]
    _finish(merged(parts), arguments)
    return 0


def _finish(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write what was asked for, then print."""
    from rich.console import Console

    from hpcsgd.tuner.told import explained

    if arguments.part:
        write_text(Path(arguments.part), json.dumps(found))
        return
    if arguments.tuned:
        write_text(Path(arguments.tuned), found["toml"])
    if arguments.write_machine:
        path = Path(arguments.write_machine)
        _, rest = found["machine_toml"].split("\n", 1)  # the file's name is its own
        write_text(path, f"name = {json.dumps(path.stem)}\n{rest}")
    if arguments.json:
        print(json.dumps(found, indent=2), flush=True)
        return
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(highlight=False, width=width)
    console.print(table(found))
    console.print(*explained(found, arguments.tuned), sep="\n", soft_wrap=True)


def table(found: dict[str, Any]) -> "Table":
    """The best five: what was expected of a step, and what it took."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, title="seconds of a step, the best first")
    for name in ("ranks", *COLUMNS, "error"):
        shown.add_column(name, justify="right")
    for row in found["best"]:
        ahead = " ahead" if row["look_ahead"] else ""
        shown.add_row(
            *(str(row["ranks"]), row["grid"], row["recipe"], row["product"] + ahead),
            *(str(row["steps"]), str(row["batch"]), str(row["period"] or "")),
            f"{1e6 * row['predicted']:.1f} µs",
            f"{1e6 * row['measured']:.1f} µs",
            f"{100 * (row['predicted'] / row['measured'] - 1):+.0f} %",
        )
    return shown
