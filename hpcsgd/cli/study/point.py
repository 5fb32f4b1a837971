"""`hpcsgd study point`: one run of a study, on the ranks that are there."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch, logs
from hpcsgd.cli.numbers import not_negative
from hpcsgd.cli.ranks import add_comm, on_all_ranks
from hpcsgd.cli.train import exit_code

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator
    from hpcsgd.result import Result


def add_parser(actions: Any) -> None:
    """Add `point`."""
    parser = actions.add_parser(
        "point",
        help="one run of a study; jobs call it",
        description="Train points/NAME.toml of a study and leave ends/NAME.json, of"
        " which hpcsgd study collect makes a line.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="DIR", help="the --out of a study")
    parser.add_argument("name", metavar="NAME", help="of a file in points/")
    parser.add_argument("--ranks", type=int, metavar="N", help="start N MPI ranks")
    add_comm(parser, default=None)
    parser.add_argument(
        "--point-timeout",
        type=not_negative,
        default=0.0,
        metavar="SECONDS",
        help="it may take, 0 = for ever",
    )
    logs.add_volume(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Train here, or under mpiexec."""
    from hpcsgd.signals import Signals
    from hpcsgd.study.alone import read_config, train_point

    folder, name = Path(arguments.folder), arguments.name
    config = read_config(folder, name)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv)

    def action(world: "Communicator") -> "Result":
        with Signals(world.abort) as signals:
            limit = arguments.point_timeout
            return train_point(folder, name, world, limit, [signals])

    return on_all_ranks(
        arguments.comm or config.run.comm,
        action,
        show=lambda result: None,
        code=exit_code,
        timeout=config.run.timeout,
    )
