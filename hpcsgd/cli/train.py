"""`hpcsgd train`: one run, from flags, a TOML file, or both."""

import argparse
import sys
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch, logs
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.flags import FLAGS, NEGATIVE, SWITCHES
from hpcsgd.cli.profile import show_profile
from hpcsgd.cli.ranks import on_all_ranks
from hpcsgd.cli.summary import summary
from hpcsgd.cli.written import chosen
from hpcsgd.comm.network import parse_network
from hpcsgd.errors import ConfigError

if TYPE_CHECKING:
    from hpcsgd.callbacks.base import Callback
    from hpcsgd.comm.base import Communicator
    from hpcsgd.config import RunConfig
    from hpcsgd.result import Result


def add_parser(commands: Any) -> None:
    """Add `train` to the commands."""
    parser = commands.add_parser(
        "train",
        help=COMMANDS["train"],
        description="Train a generalized linear model; flags override the TOML file.",
        allow_abbrev=False,
    )
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_progress(parser)
    parser.set_defaults(run=run)


def add_settings(parser: Any, without: Container[str] = ()) -> None:
    """The file, the flags and --set: what every command that trains understands.

    Flags named in `without` are left to the command itself.
    """
    parser.add_argument("config", nargs="?", metavar="run.toml", help="configuration")
    for flag, setting, options in FLAGS:
        if flag not in without:
            parser.add_argument(
                flag,
                dest=setting,
                default=None,
                **{**_metavar(setting, options), **options},
            )
    for flag, setting, text in SWITCHES:
        parser.add_argument(
            flag, dest=setting, default=None, action="store_true", help=text
        )
    for flag, setting, text in NEGATIVE:
        parser.add_argument(
            flag, dest=setting, default=None, action="store_false", help=text
        )
    if "--grid" not in without:
        text = "replicas x members; 1xN default, Nx1 with a method of replicas"
        parser.add_argument("--grid", metavar="RxC", help=text)
    if "--ranks" not in without:
        parser.add_argument("--ranks", type=int, metavar="N", help="start N MPI ranks")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="sets"
    )


def _metavar(setting: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The key in capitals, unless the choices say more."""
    names = not {"choices", "const"} & set(options)
    return {} if not names else {"metavar": setting.split(".")[1].upper()}


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
    return _train(config, arguments)


def configuration(arguments: argparse.Namespace) -> "RunConfig":
    """The TOML file, then --set, then the flags."""
    from hpcsgd.config import RunConfig, read_toml

    tables = read_toml(arguments.config) if arguments.config else {}
    return RunConfig.parse(overlaid(tables, arguments))


def check_data(config: "RunConfig") -> None:
    """Refuse a run without data, or on no network, where one process can say so."""
    if not config.data.path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path in the file")
    if config.run.network:
        parse_network(config.run.network)


def overlaid(
    tables: Mapping[str, Mapping[str, Any]], arguments: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """What a file's `tables` choose, with --set over it and the flags over both."""
    from hpcsgd.comm.grid import parse_grid
    from hpcsgd.config import apply_settings

    merged = apply_settings(chosen(tables), arguments.sets)
    asked = [name for _, name, _ in (*FLAGS, *SWITCHES, *NEGATIVE)]
    for setting in asked:
        value = getattr(arguments, setting, None)
        if value is not None:
            section, key = setting.split(".")
            merged.setdefault(section, {})[key] = value
    if getattr(arguments, "grid", None):
        replicas, members = parse_grid(arguments.grid)
        merged["grid"] = {"replicas": replicas, "members": members}
    return merged


def _train(config: "RunConfig", arguments: argparse.Namespace) -> int:
    from hpcsgd.api import train
    from hpcsgd.signals import Signals

    def action(world: "Communicator") -> "Result":
        callbacks = progress(arguments) if world.rank == 0 else []
        with Signals(world.abort) as signals:
            return train(config, world=world, callbacks=[*callbacks, signals])

    return on_all_ranks(
        config.run.comm,
        action,
        show=lambda result: _show(result, arguments),
        code=exit_code,
        timeout=config.run.timeout,
    )


def exit_code(result: "Result") -> int:
    """1 where all went well but the disk; an ending that is none says more."""
    return result.status.exit_code or int("unsaved" in result.report)


def progress(arguments: argparse.Namespace) -> "list[Callback]":
    """What rank 0 shows while it runs."""
    from hpcsgd.callbacks.progress import make_progress

    return [] if arguments.quiet else make_progress(arguments.progress)


def _show(result: "Result", arguments: argparse.Namespace) -> None:
    """Print the result, and what its profile and its ending say."""
    print(result.json() if arguments.json else summary(result), flush=True)
    if "profile" in result.report:
        show_profile(result.report)
    if result.advice:
        said = f"{result.status.value}: {result.advice}"
        print(f"hpcsgd: {said}", file=sys.stderr)
