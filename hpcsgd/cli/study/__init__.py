"""`hpcsgd study`: many runs on many ranks, each in a process of its own."""

from typing import Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.study import collect, point, predict, strong, sweep, weak

ACTIONS = (strong, weak, sweep, predict, collect, point)


def add_parser(commands: Any) -> None:
    """Add `study` and its own commands."""
    parser = commands.add_parser(
        "study",
        help=COMMANDS["study"],
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action in ACTIONS:
        action.add_parser(actions)
