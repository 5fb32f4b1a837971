"""`hpcsgd sweep`: many penalties, rates and folds for the messages of one run."""

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch, logs
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.ranks import on_all_ranks
from hpcsgd.cli.train import (
    add_settings,
    check_data,
    exit_code,
    overlaid,
    progress,
)
from hpcsgd.cli.words import numbers
from hpcsgd.errors import ConfigError

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator
    from hpcsgd.config import RunConfig
    from hpcsgd.sweeps.outcome import Sweep

LISTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "--l2",
        "l2",
        {"type": numbers, "metavar": "A,B,...", "help": "ridge penalties"},
    ),
    ("--rates", "rate", {"type": numbers, "metavar": "A,B,...", "help": "step sizes"}),
    (
        "--folds",
        "folds",
        {"type": int, "metavar": "N", "help": "a model without each part, and one"},
    ),
    (
        "--fold-seed",
        "fold_seed",
        {"type": int, "metavar": "N", "help": "which rows belong together"},
    ),
)


def add_parser(commands: Any) -> None:
    """Add `sweep` to the commands."""
    parser = commands.add_parser(
        "sweep",
        help=COMMANDS["sweep"],
        description="Train a model for every penalty, rate and fold at once; flags"
        " override the TOML file.",
        allow_abbrev=False,
    )
    add_settings(parser, without=("--l2",))
    for flag, key, options in LISTS:
        parser.add_argument(flag, dest=f"sweep.{key}", default=None, **options)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_progress(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Check the configuration, then train here or under mpiexec."""
    from hpcsgd.unread import check_read

    config = configuration(arguments)
    check_data(config)
    launch.check_readable(config.data.path)
    check_read(config)
    if launch.must_relaunch(arguments.ranks):
        shrinks = config.run.on_failure == "shrink"
        keeps = bool(config.run.out)
        return launch.relaunch(arguments.ranks, argv, keeps, shrinks)
    return _sweep(config, arguments)


def configuration(arguments: argparse.Namespace) -> "RunConfig":
    """The TOML file, then --set, then the flags."""
    from hpcsgd.config import RunConfig, read_toml
    from hpcsgd.sweeps.api import with_sweep

    tables = read_toml(arguments.config) if arguments.config else {}
    merged: dict[str, Any] = overlaid(tables, arguments)
    for _, key, _ in LISTS:
        value = getattr(arguments, f"sweep.{key}")
        if value is not None:
            merged.setdefault("sweep", {})[key] = value
    return with_sweep(RunConfig.parse(merged), {})


def _sweep(config: "RunConfig", arguments: argparse.Namespace) -> int:
    from hpcsgd.signals import Signals
    from hpcsgd.sweeps.api import sweep

    def action(world: "Communicator") -> "Sweep":
        callbacks = progress(arguments) if world.rank == 0 else []
        with Signals(world.abort) as signals:
            return sweep(config, world=world, callbacks=[*callbacks, signals])

    return on_all_ranks(
        config.run.comm,
        action,
        show=lambda found: _show(found, arguments),
        code=lambda found: exit_code(found.outcome),
        timeout=config.run.timeout,
    )


def _show(found: "Sweep", arguments: argparse.Namespace) -> None:
    """Print the table, and what the ending says."""
    print(found.json() if arguments.json else table(found), flush=True)
    outcome = found.outcome
    if outcome.advice:
        said = f"{outcome.status.value}: {outcome.advice}"
        print(f"hpcsgd: {said}", file=sys.stderr)


def table(found: "Sweep") -> str:
    """A line for each model, or for each setting where there are folds; the best."""
    shown = [row for row in found.rows() if row["fold"] is None]
    names = ("l2", "rate", "status", "loss", "mean_held")
    titles = ("l2", "rate", "status", "loss", "held-out loss")
    lines = [[f"{'model':>5}"] + [f"{title:>14}" for title in titles]]
    for row in shown:
        cells = [f"{row['model']:>5}"] + [f"{_cell(row[name]):>14}" for name in names]
        lines.append(cells)
    return "\n".join([*("".join(line) for line in lines), "", *_below(found)])


def _below(found: "Sweep") -> list[str]:
    from hpcsgd.result import WORSE

    outcome, report = found.outcome, found.outcome.report
    products = outcome.ledger["products"]
    try:
        best = f"model {found.best}{_named(vars(found.models[found.best]))}"
        if found.ending(found.best) == WORSE:
            best += ", which ended above where it began; use smaller rates"
    except ConfigError as error:
        best = f"not known: {error}"
    return [
        f"best          {best}",
        f"models        {len(found)} in {outcome.exchanges} exchanges on"
        f" {report['ranks']} ranks ({products['calls']} sums,"
        f" {products['words']} words)",
        f"seconds       {report['seconds_total']:.3f} training,"
        f" {report['seconds_setup']:.3f} set-up,"
        f" {report['seconds_evaluate']:.3f} evaluating",
    ]


def _named(model: Mapping[str, Any]) -> str:
    return f" (l2 {model['l2']:g}, rate {model['rate']:g})"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.7g}"
    return str(value)
