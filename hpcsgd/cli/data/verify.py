"""`hpcsgd data verify`: every byte of a file against its checksums."""

import argparse
import json
from pathlib import Path
from typing import Any

from hpcsgd.cli import logs
from hpcsgd.cli.data.bar import make_meter


def add_parser(actions: Any) -> None:
    """Add `verify`."""
    parser = actions.add_parser(
        "verify", help="hold a file against its checksums", allow_abbrev=False
    )
    parser.add_argument("data", metavar="DATA", help="a file that training reads")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_volume(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Read all of it; 1 where something is damaged."""
    from hpcsgd.data.verify_store import verify_store

    path = Path(arguments.data)
    with make_meter(arguments.quiet) as meter:
        meter.begin("verifying", 0)
        check = verify_store(path, lambda done, whole: meter.at(done))
    said = {
        "path": str(path),
        "rows": check.rows,
        "columns": check.cols,
        "blocks": check.blocks,
        "has_checksums": check.checked,
        "faults": list(check.faults),
    }
    if arguments.json:
        print(json.dumps(said, indent=2))
    else:
        how = "no checksums, but readable" if not check.checked else "as written"
        verdict = f"{len(check.faults)} faults" if check.faults else how
        print("\n".join([f"{path}: {check.blocks} blocks, {verdict}", *check.faults]))
    return 0 if check.is_good else 1
