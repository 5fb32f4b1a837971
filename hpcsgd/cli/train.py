"""`hpcsgd train`, `hpcsgd sweep` and `hpcsgd new`."""

import argparse
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch
from hpcsgd.cli import parser as parser_module
from hpcsgd.cli.flags import FLAGS
from hpcsgd.cli.names import COMMANDS
from hpcsgd.cli.parser import numbers, on_all_ranks
from hpcsgd.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.comm.communicator import Communicator
    from hpcsgd.config import RunConfig
    from hpcsgd.estimators.sweep import Sweep
    from hpcsgd.runs.result import Result
    from hpcsgd.solvers.callbacks import Callback


# The summary of a result, as text.


def summary(result: "Result") -> str:
    """Return the summary of a result: status, loss, steps, traffic and seconds."""
    from hpcsgd.runs.advice import in_short

    report = result.report
    ledger = result.ledger
    schedule = report["schedule"]
    grid = report["grid"]
    products = ledger["products"]
    lines = [
        f"status        {result.status.value}",
        f"loss          {_loss(result)}",
        f"steps         {result.iterations} in {result.exchanges} exchanges"
        f"   (batch {schedule['batch']}, global {schedule['global_batch']},"
        f" steps {schedule['steps']}, products {report['products']})",
        f"ranks         {report['ranks']} as {grid['replicas']} x {grid['members']}",
        f"synchronised  {products['calls']} times for products"
        f" ({products['words']} words), {ledger['agreement']['calls']} times to agree",
        f"seconds       {report['seconds_total']:.3f} training,"
        f" {report['seconds_setup']:.3f} set-up,"
        f" {report['seconds_evaluate']:.3f} evaluating"
        f"   ({report['rows_per_second']:.4g} rows/s)",
        f"weights       sha256 {result.weights_sha256[:16]}…",
    ]
    if "privacy" in report:
        spent = report["privacy"]
        lines.append(
            f"privacy       ε = {spent['epsilon']:.4g} at δ = {spent['delta']:g}"
            f"   (noise {spent['noise']:g}, clip {spent['clip']:g})"
        )
    if not report["emulated_members"]:  # emulated ranks have no loss
        lines += [f"{title:13s} {line}" for title, line in in_short(result).items()]
    return "\n".join(lines)


def _loss(result: "Result") -> str:
    report = result.report
    many = result.report["emulated_members"]
    if many:
        return f"not known: one rank was timed as one of {many}, and learnt nothing"
    return f"{result.loss:.8g}   (all {report['rows']} rows, float64)"


# The profile as a table, on standard error.

WIDTH = 100  # where standard error is no terminal
COLUMNS = ("seconds", "share", "µs/exchange", "slowest", "on rank")


def show_profile(report: Mapping[str, Any]) -> None:
    """Print the profile as one table, a block for each section, on standard error."""
    console = parser_module.new_console(WIDTH, sys.stderr)
    console.print(profile_table(report))


def profile_table(report: Mapping[str, Any]) -> "Table":
    """Return the table of a profile: mean seconds over ranks, and the slowest rank."""
    ranks = report["ranks"]
    subject = f"mean of {ranks} ranks, and the slowest" if ranks > 1 else "one rank"
    table = parser_module.new_table(f"profile: {subject}", ("",), COLUMNS)
    for section, rows in report["profile"].items():
        for name, row in rows.items():
            table.add_row(f"{section} / {name}", *cells(row))
        table.add_section()
    return table


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the figures of one row of a profile as text, in the order of COLUMNS."""
    return (
        f"{row['seconds']:.4f}",
        f"{100 * row['share']:.1f} %",
        f"{row['us_per_exchange']:.1f}",
        f"{row['slowest_seconds']:.4f}",
        str(row["slowest_rank"]),
    )


# `hpcsgd train`: one run, from flags, a TOML file, or both.

RULE = (
    "By default the run is that of hpcsgd.fit: it fits an intercept with l2 = 1e-4,"
    " takes the rate from the data, and refines the weights to the optimum. It has the"
    " defaults of SGD instead with --plain, and where the command or the file names a"
    " setting of SGD: a key of the sections rate, update, coordinate, products,"
    " schedule, agreement, codec, mirror, accordion, average, stop or sweep,"
    " sampling.mode, --precision auto, or --emulate-members."
)


def add_train_parser(commands: Any) -> None:
    """Add `train` to the commands."""
    parser = commands.add_parser(
        "train",
        help=COMMANDS["train"],
        description="Train a generalized linear model. Flags override the TOML file."
        f" {RULE}",
        example="hpcsgd train --data rows.h5 --out runs/first",
    )
    add_settings(parser, fit=True)
    parser.general.add_argument(
        "--plan",
        action="store_true",
        help="print what the run would do and who chose each setting, and train"
        " nothing",
    )
    parser_module.add_json(parser)
    parser_module.add_progress(parser)
    parser.set_defaults(run=run_train)


def add_settings(
    parser: parser_module.Parser, without: Container[str] = (), fit: bool = False
) -> None:
    """Add the arguments of every command that trains: the file, the flags and --set.

    Flags named in `without` are not added, since the command defines them itself. `fit`
    is True for a command that has the defaults of `hpcsgd.fit`, unless a setting of SGD
    is named.
    """
    parser.add_argument(
        "config",
        nargs="?",
        metavar="run.toml",
        help="configuration file, as `hpcsgd new` writes it",
    )
    parser.add_flags((flag for flag in FLAGS if flag.name not in without), fit)


def run_train(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Run `hpcsgd train`, with --ranks under mpiexec; return the exit code.

    The configuration is checked before ranks start. With --plan, print the plan only.
    """
    config = configuration(arguments)
    check_data(config)
    launch.check_readable(config.data.path)
    if launch.must_relaunch(arguments.ranks):
        shrinks = config.run.on_failure == "shrink"
        keeps = bool(config.run.out)
        return launch.relaunch(arguments.ranks, argv, keeps, shrinks)
    if arguments.plan:
        return _plan(config, arguments)
    return _train(config, arguments)


def configuration(arguments: argparse.Namespace) -> "RunConfig":
    """Return all settings of a run of `train`, with the defaults as on one rank."""
    from hpcsgd.runs.defaults import resolve_defaults

    return resolve_defaults(named_settings(arguments))


def named_settings(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the settings of the TOML file, overridden by --set and the flags.

    If any of them requests the defaults of SGD or of `fit`, `run.defaults` is set.
    """
    from hpcsgd.config import read_toml
    from hpcsgd.runs.defaults import requested_defaults

    tables = read_toml(arguments.config) if arguments.config else {}
    merged = overlaid(tables, arguments)
    # The file may contain settings that `overlaid` leaves to a method.
    requested = requested_defaults(merged) or requested_defaults(tables)
    if requested:
        merged["run"] = {**merged.get("run", {}), "defaults": requested}
    return merged


def check_data(config: "RunConfig") -> None:
    """Raise ConfigError for a run without data, or with an invalid network."""
    if not config.data.path:
        raise ConfigError(
            "no data: add --data FILE.h5, or [data] path in the configuration file"
        )
    if config.run.network:
        from hpcsgd.comm.network_model import parse_network

        parse_network(config.run.network)


def overlaid(
    tables: Mapping[str, Mapping[str, Any]], arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Return the settings in `tables`, overridden by --set, then by flags.

    Defaults in `tables` that keep a method from being chosen are left out.
    """
    from hpcsgd.comm.grid import parse_grid
    from hpcsgd.config import apply_settings, chosen_settings

    merged = apply_settings(chosen_settings(tables), arguments.sets)
    for setting in (flag.setting for flag in FLAGS if flag.is_setting):
        value = getattr(arguments, setting, None)
        if value is not None:
            section, key = setting.split(".")
            merged.setdefault(section, {})[key] = value
    if getattr(arguments, "grid", None):
        replicas, members = parse_grid(arguments.grid)
        merged["grid"] = {"replicas": replicas, "members": members}
    return merged


def _train(config: "RunConfig", arguments: argparse.Namespace) -> int:
    from hpcsgd.api import run_training
    from hpcsgd.runs.recovery import Signals

    settings = named_settings(arguments)

    def action(world: "Communicator") -> "Result":
        callbacks = progress(arguments) if world.rank == 0 else []
        with Signals(world.abort) as signals:
            return run_training(settings, world=world, callbacks=[*callbacks, signals])

    return on_all_ranks(
        config.run.comm,
        action,
        show=lambda result: _show(result, arguments),
        code=exit_code,
        timeout=config.run.timeout,
    )


def _plan(config: "RunConfig", arguments: argparse.Namespace) -> int:
    """Print the plan of the run on rank 0."""
    from hpcsgd.api import plan_training

    settings = named_settings(arguments)
    return on_all_ranks(
        config.run.comm,
        lambda world: plan_training(settings, world=world),
        show=lambda plan: print(plan.json() if arguments.json else plan, flush=True),
        code=lambda plan: 0,
        timeout=config.run.timeout,
    )


def exit_code(result: "Result") -> int:
    """Return the exit code of the status; if that is 0 and a file is unsaved, 1."""
    return result.status.exit_code or int("unsaved" in result.report)


def progress(arguments: argparse.Namespace) -> "list[Callback]":
    """Return the callbacks by which rank 0 shows progress; none with --quiet."""
    from hpcsgd.runs.progress import make_progress

    return [] if arguments.quiet else make_progress(arguments.progress)


def _show(result: "Result", arguments: argparse.Namespace) -> None:
    """Print the result, its profile, and the advice of its status."""
    print(result.json() if arguments.json else summary(result), flush=True)
    if "profile" in result.report:
        show_profile(result.report)
    if result.advice:
        message = f"{result.status.value}: {result.advice}"
        print(f"hpcsgd: {message}", file=sys.stderr)


# `hpcsgd sweep`: many penalties, rates and folds for the messages of one run.

LISTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "--l2",
        "l2",
        {
            "type": numbers,
            "metavar": "A,B,...",
            "help": "ridge penalties; every penalty gives a model",
        },
    ),
    (
        "--rates",
        "rate",
        {
            "type": numbers,
            "metavar": "A,B,...",
            "help": "learning rates; every rate gives a model for each penalty",
        },
    ),
    (
        "--folds",
        "folds",
        {
            "type": int,
            "metavar": "N",
            "help": "folds of a cross-validation: every setting gives a model for each"
            " fold and one for all rows; 0 trains without folds",
        },
    ),
    (
        "--fold-seed",
        "fold_seed",
        {
            "type": int,
            "metavar": "N",
            "help": "seed of the random assignment of rows to folds",
        },
    ),
)


def add_sweep_parser(commands: Any) -> None:
    """Add `sweep` to the commands."""
    parser = commands.add_parser(
        "sweep",
        help=COMMANDS["sweep"],
        description="Train a model for every penalty, rate and fold. All models share"
        " the rows, the products and the messages of one run. Flags override the TOML"
        " file.",
        example="hpcsgd sweep --data rows.h5 --rate 0.5 --l2 1e-5,1e-4,1e-3 --folds 3",
    )
    add_settings(parser, without=("--l2", "--plain"))
    for flag, key, options in LISTS:
        parser.add_argument(flag, dest=f"sweep.{key}", default=None, **options)
    parser_module.add_json(parser)
    parser_module.add_progress(parser)
    parser.set_defaults(run=run_sweep)


def run_sweep(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Run `hpcsgd sweep`, with --ranks under mpiexec; return the exit code.

    The configuration is checked before ranks start.
    """
    from hpcsgd.runs.checks import check_configuration

    config = sweep_configuration(arguments)
    check_data(config)
    launch.check_readable(config.data.path)
    check_configuration(config)
    if launch.must_relaunch(arguments.ranks):
        shrinks = config.run.on_failure == "shrink"
        keeps = bool(config.run.out)
        return launch.relaunch(arguments.ranks, argv, keeps, shrinks)
    return _sweep(config, arguments)


def sweep_configuration(arguments: argparse.Namespace) -> "RunConfig":
    """Return all settings of a sweep: the TOML file, overridden by --set and flags."""
    from hpcsgd.config import read_toml
    from hpcsgd.estimators.sweep import with_sweep

    tables = read_toml(arguments.config) if arguments.config else {}
    merged: dict[str, Any] = overlaid(tables, arguments)
    for _, key, _ in LISTS:
        value = getattr(arguments, f"sweep.{key}")
        if value is not None:
            merged.setdefault("sweep", {})[key] = value
    return with_sweep(merged, {})


def _sweep(config: "RunConfig", arguments: argparse.Namespace) -> int:
    from hpcsgd.estimators.sweep import sweep
    from hpcsgd.runs.recovery import Signals

    def action(world: "Communicator") -> "Sweep":
        callbacks = progress(arguments) if world.rank == 0 else []
        with Signals(world.abort) as signals:
            return sweep(config, world=world, callbacks=[*callbacks, signals])

    return on_all_ranks(
        config.run.comm,
        action,
        show=lambda found: _show_sweep(found, arguments),
        code=lambda found: exit_code(found.outcome),
        timeout=config.run.timeout,
    )


def _show_sweep(found: "Sweep", arguments: argparse.Namespace) -> None:
    """Print the table of a sweep, and the advice of its status."""
    print(found.json() if arguments.json else table(found), flush=True)
    outcome = found.outcome
    if outcome.advice:
        message = f"{outcome.status.value}: {outcome.advice}"
        print(f"hpcsgd: {message}", file=sys.stderr)


def table(found: "Sweep") -> str:
    """Return a sweep as text: a line for each model trained on all rows, and a summary.

    The summary names the best model, and the messages and seconds of the sweep.
    """
    shown = [row for row in found.rows() if row["fold"] is None]
    names = ("l2", "rate", "status", "loss", "mean_held")
    titles = ("l2", "rate", "status", "loss", "held-out loss")
    lines = [[f"{'model':>5}"] + [f"{title:>14}" for title in titles]]
    for row in shown:
        cells = [f"{row['model']:>5}"] + [f"{_cell(row[name]):>14}" for name in names]
        lines.append(cells)
    return "\n".join([*("".join(line) for line in lines), "", *_below(found)])


def _below(found: "Sweep") -> list[str]:
    from hpcsgd.runs.result import WORSE

    outcome = found.outcome
    report = found.outcome.report
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


# `hpcsgd new`: a configuration file to start from.


def add_new_parser(commands: Any) -> None:
    """Add `new` to the commands."""
    parser = commands.add_parser(
        "new",
        help=COMMANDS["new"],
        description="Write a configuration file with every section and every key at"
        " its default and with an explanation.",
        example="hpcsgd new run.toml",
    )
    parser.add_argument("file", metavar="run.toml", help="file to write")
    parser.add_argument(
        "--force", action="store_true", help="overwrite a file that exists"
    )
    parser.set_defaults(run=run_new)


def run_new(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Run `hpcsgd new`: write a file of all settings, and print the next command.

    Return the exit code.
    """
    from hpcsgd.cli.template import template
    from hpcsgd.files import write_text

    path = Path(arguments.file)
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; name a file")
    if path.exists() and not arguments.force:
        raise ConfigError(f"{path} exists; name another file, or add --force")
    try:
        write_text(path, template())
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; choose a folder that can be"
            " written"
        ) from error
    print(f"{path}: now set [data] path, then: hpcsgd train {path}")
    return 0
