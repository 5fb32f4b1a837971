"""`hpcsgd report`: what was measured, as one page and as figures for a paper."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from hpcsgd import plots
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.names import PAGE
from hpcsgd.errors import MissingPackage

if TYPE_CHECKING:
    from hpcsgd.study.report import Report


def add_parser(commands: Any) -> None:
    """Add `report` to the commands."""
    parser = commands.add_parser(
        "report",
        help=COMMANDS["report"],
        description="Read the folders of studies, runs (--out) and comparisons, and"
        " write one HTML page with all figures and tables in it; it needs no network.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="of a study, a run or a comparison"
    )
    parser.add_argument(
        "--out", metavar="FILE.html", help=f"the page; {PAGE} unless --json is given"
    )
    parser.add_argument(
        "--figures",
        metavar="FOLDER",
        help="write every figure there too: .csv and, with matplotlib, .svg and .png",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the figures as one JSON document"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Read, write, and say what is best."""
    from hpcsgd.study.report import make_report, write_figures, write_page

    report = make_report(arguments.folders)
    written = []
    if arguments.out or not arguments.json:
        written.append(write_page(report, arguments.out or PAGE))
    if arguments.figures:
        written += write_figures(report, arguments.figures)
    if arguments.json:
        files = [str(path) for path in written]
        print(json.dumps(report.as_dict() | {"files": files}, indent=2), flush=True)
        return 0
    for part in report.parts:
        print(f"{part.problem.title}: {part.verdict}")
    print(f"{written[0]} holds {_contents(report)}", flush=True)
    return 0


def _contents(report: "Report") -> str:
    """Return how many figures the page has, or why it has none."""
    try:
        plots.require()
    except MissingPackage as missing:
        return f"tables and no figures: {missing}"
    return f"{len(report.charts)} figures"
