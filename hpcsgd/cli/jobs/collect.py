"""`hpcsgd jobs collect`: the results of a job's runs in one table."""

import argparse
import json
from pathlib import Path
from typing import Any

from hpcsgd.cli.jobs.table import table


def add_parser(actions: Any) -> None:
    """Add `collect`."""
    parser = actions.add_parser(
        "collect", help="gather the results of a job's runs", allow_abbrev=False
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="as --out of submit")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON document")
    shape.add_argument("--csv", action="store_true", help="print CSV")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """One row for each run."""
    from hpcsgd.jobs.collect import as_csv, collect
    from hpcsgd.result import finite

    rows = [row for folder in arguments.folders for row in collect(Path(folder))]
    if arguments.json:
        print(json.dumps(finite({"runs": rows})["runs"], indent=2, allow_nan=False))
    elif arguments.csv:
        print(as_csv(rows), end="")
    else:
        print(text(rows))
    return 0


def text(rows: list[dict[str, Any]]) -> str:
    """As a person reads it."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(head)) for head in heads] for row in rows]
    return "\n".join(table(heads, cells)) if rows else "no runs yet"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
