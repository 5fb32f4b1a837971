"""`hpcsgd jobs cancel`: end what waits or runs of a folder."""

import argparse
import json
from pathlib import Path
from typing import Any


def add_parser(actions: Any) -> None:
    """Add `cancel`."""
    parser = actions.add_parser(
        "cancel", help="cancel the jobs of a folder", allow_abbrev=False
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="as --out of submit")
    parser.add_argument("--job", default="", metavar="ID", help="this one alone")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Standard output has the numbers of what was cancelled."""
    from hpcsgd.jobs.cancel import cancel

    done = [j for f in arguments.folders for j in cancel(Path(f), arguments.job)]
    if arguments.json:
        print(json.dumps({"cancelled": done}, indent=2))
    elif done:
        print("\n".join(done))
    return 0
