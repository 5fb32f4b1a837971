"""`hpcsgd jobs`: scripts for Slurm, and what became of them."""

from typing import Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.jobs import cancel, collect, new_site, render, smoke, status, submit

ACTIONS = (
    render.add_parser,
    submit.add_parser,
    status.add_parser,
    cancel.add_parser,
    collect.add_parser,
    new_site.add_parser,
    smoke.add_parser,
)


def add_parser(commands: Any) -> None:
    """Add `jobs` and its own commands."""
    parser = commands.add_parser("jobs", help=COMMANDS["jobs"], allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
