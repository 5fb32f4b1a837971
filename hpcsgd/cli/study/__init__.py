"""`hpcsgd study`: many runs on many ranks, each in a process of its own."""

from typing import Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.study import collect, point, predict, strong, sweep, weak

ACTIONS = (
    strong.add_parser,
    weak.add_parser,
    sweep.add_parser,
    predict.add_parser,
    collect.add_parser,
    point.add_parser,
)


def add_parser(commands: Any) -> None:
    """Add `study` and its own commands."""
    parser = commands.add_parser(
        "study",
        help=COMMANDS["study"],
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
