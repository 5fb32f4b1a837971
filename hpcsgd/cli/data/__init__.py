"""`hpcsgd data`: make, convert, inspect, verify and fetch data sets."""

from typing import Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.data import catalogue, convert, inspect, synth, verify

ACTIONS = (
    synth.add_parser,
    convert.add_parser,
    inspect.add_parser,
    verify.add_parser,
    catalogue.add_parser,
)


def add_parser(commands: Any) -> None:
    """Add `data` and its own commands."""
    parser = commands.add_parser("data", help=COMMANDS["data"], allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
