"""`hpcsgd study collect`: what a study has found so far."""

import argparse
import sys
from typing import Any

from hpcsgd.cli import logs
from hpcsgd.cli.study.running import show


def add_parser(actions: Any) -> None:
    """Add `collect`."""
    parser = actions.add_parser(
        "collect",
        help="gather the runs of a study, from jobs too, in one table",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="DIR", help="the --out of a study")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_volume(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write a line for each run that is over since, show them all."""
    from hpcsgd.study.submitted import collect

    found, active = collect(arguments.folder)
    if active:
        print(f"hpcsgd: {active} runs are under way", file=sys.stderr)
    return show(found, arguments.json)
