"""`hpcsgd study`: what many runs say together."""

from typing import Any

from hpcsgd.cli.study import predict

ACTIONS = (predict,)


def add_parser(commands: Any) -> None:
    """Add `study` and its own commands."""
    parser = commands.add_parser(
        "study", help="scaling studies and predictions", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action in ACTIONS:
        action.add_parser(actions)
