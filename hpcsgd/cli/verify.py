"""`hpcsgd verify`: replay a run's recorded exchanges, count its messages again."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.errors import ConfigError, DataError

UNDECIDED = 3  # exit code: nothing fails, and something cannot be decided
WORDS = {"products": "for products", "agreement": "to agree"}


def add_parser(commands: Any) -> None:
    """Add `verify` to the commands."""
    parser = commands.add_parser(
        "verify",
        help=COMMANDS["verify"],
        description="Replay recorded exchanges as plain SGD in extended precision;"
        " recount messages; recompute the loss.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument(
        "--exchanges", type=int, default=3, metavar="K", help="how many are replayed"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="which of the recorded ones"
    )
    parser.add_argument("--data", metavar="FILE", help="where the data is now")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the certificate, say what holds."""
    from hpcsgd.verify import certify

    if arguments.exchanges < 1 or arguments.seed < 0:
        raise ConfigError("--exchanges must be at least 1 and --seed at least 0")
    found = certify(
        arguments.folder, arguments.exchanges, arguments.seed, arguments.data
    )
    print(found.json() if arguments.json else table(found), flush=True)
    if "data" in found.failed:
        raise DataError(
            "the data is not what the run was trained on; name the right file with"
            " --data"
        )
    if found.failed:
        failed = ", ".join(found.failed)
        print(f"hpcsgd: verify: does not hold: {failed}", file=sys.stderr)
        return 1
    if found.undecided:
        undecided = ", ".join(found.undecided)
        print(f"hpcsgd: verify: cannot decide: {undecided}", file=sys.stderr)
        return UNDECIDED
    return 0


def table(found: Any) -> str:
    """One line for each check."""
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
        deviation, allowed = check.figures["deviation"], check.figures["tolerance"]
        return f"deviation {deviation:.1e}, allowed {allowed:.1e}"
    if check.name == "traffic":
        found = check.figures["ledger"]
        return ", ".join(_sent(found[k], w) for k, w in WORDS.items() if found.get(k))
    return ""


def _sent(counted: Mapping[str, int], words: str) -> str:
    """Of codecs the bytes alone have a formula."""
    key = "calls" if "calls" in counted else "bytes"
    return f"{counted[key]} {key} {words}"
