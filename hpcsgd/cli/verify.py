"""`hpcsgd verify` and `hpcsgd report`."""

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcsgd.cli.names import COMMANDS, PAGE
from hpcsgd.cli.parser import add_json
from hpcsgd.errors import ConfigError, DataError, MissingPackage

if TYPE_CHECKING:
    from hpcsgd.studies.report.page import Report


# `hpcsgd verify`: replay the recorded exchanges of a run, and recount its messages.

UNDECIDED = 3  # exit code: no check fails, and some check is undecided
WORDS = {"products": "for products", "agreement": "to agree"}


def add_verify_parser(commands: Any) -> None:
    """Add `verify` to the commands."""
    parser = commands.add_parser(
        "verify",
        help=COMMANDS["verify"],
        description="Replay recorded exchanges as plain SGD in extended precision,"
        " count the messages again, and recompute the loss.",
        example="hpcsgd verify runs/first",
    )
    parser.add_argument("folder", metavar="RUN", help="run folder of `hpcsgd train`")
    parser.add_argument(
        "--exchanges",
        type=int,
        default=3,
        metavar="K",
        help="number of recorded exchanges to replay",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of the choice of exchanges to replay",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="data file of the run, if it has moved since the run",
    )
    add_json(parser)
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the certificate of a run; return the exit code.

    It is 0 if all checks hold, 1 if one fails, and `UNDECIDED` if none fails and one is
    undecided. Raise DataError if the data are not those of the run.
    """
    from hpcsgd.studies.verify.certificate import certify

    if arguments.exchanges < 1 or arguments.seed < 0:
        raise ConfigError("--exchanges must be at least 1 and --seed at least 0")
    certificate = certify(
        arguments.folder, arguments.exchanges, arguments.seed, arguments.data
    )
    print(certificate.json() if arguments.json else table(certificate), flush=True)
    if "data" in certificate.failed:
        raise DataError(
            "the data is not what the run was trained on; name the right file with"
            " --data"
        )
    if certificate.failed:
        failed = ", ".join(certificate.failed)
        print(f"hpcsgd: verify: does not hold: {failed}", file=sys.stderr)
        return 1
    if certificate.undecided:
        undecided = ", ".join(certificate.undecided)
        print(f"hpcsgd: verify: cannot decide: {undecided}", file=sys.stderr)
        return UNDECIDED
    return 0


def table(found: Any) -> str:
    """Return a certificate as text, with one line for each check."""
    lines = [
        f"{check.name:14} {_verdict(check):12} {_figures(check)}".rstrip()
        for check in found.checks
    ]
    return "\n".join([*lines, f"again: {found.facts['command']}"])


def _verdict(check: Any) -> str:
    if check.undecided:
        return "UNDECIDED"
    return {True: "holds", False: "FAILS", None: "not checked"}[check.ok]


def _figures(check: Any) -> str:
    if check.why:
        return str(check.why)
    if "deviation" in check.figures:
        deviation = check.figures["deviation"]
        allowed = check.figures["tolerance"]
        return f"deviation {deviation:.1e}, allowed {allowed:.1e}"
    if check.name == "traffic":
        ledger = check.figures["ledger"]
        return ", ".join(_sent(ledger[k], w) for k, w in WORDS.items() if ledger.get(k))
    return ""


def _sent(counted: Mapping[str, int], words: str) -> str:
    """Return a figure of the traffic as text: calls, or with a codec bytes.

    The messages of codecs have a formula for bytes only.
    """
    key = "calls" if "calls" in counted else "bytes"
    return f"{counted[key]} {key} {words}"


# `hpcsgd report`: measurements as one page, and as figures for a paper.


def add_report_parser(commands: Any) -> None:
    """Add `report` to the commands."""
    parser = commands.add_parser(
        "report",
        help=COMMANDS["report"],
        description="Read the folders of studies, runs and comparisons, and write one"
        " HTML page with all figures and tables. The page needs no network.",
        example="hpcsgd report runs/first --out first.html",
    )
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="DIR",
        help="folder of a study, a run or a comparison",
    )
    parser.add_argument(
        "--out",
        metavar="FILE.html",
        help=f"HTML page to write; without the flag {PAGE}, or none with --json",
    )
    parser.add_argument(
        "--figures",
        metavar="FOLDER",
        help="also write every figure into this folder as .csv and, if matplotlib is"
        " installed, as .svg and .png",
    )
    add_json(parser)
    parser.set_defaults(run=run_report)


def run_report(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Read the folders, write the report, and print a verdict on each problem.

    With --json, print one document, and write the page only with --out.
    """
    from hpcsgd.studies.report.page import make_report, write_figures, write_page

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
        from hpcsgd.runs.figures import require

        require()
    except MissingPackage as missing:
        return f"tables and no figures: {missing}"
    return f"{len(report.charts)} figures"
