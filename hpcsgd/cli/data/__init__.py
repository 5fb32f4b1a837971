"""`hpcsgd data`: make, convert, inspect, verify and fetch data sets."""

from typing import Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.data import catalogue, convert, inspect, synth, verify

ACTIONS = (synth, convert, inspect, verify, catalogue)


def add_parser(commands: Any) -> None:
    """Add `data` and its own commands."""
    parser = commands.add_parser("data", help=COMMANDS["data"], allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action in ACTIONS:
        action.add_parser(actions)
