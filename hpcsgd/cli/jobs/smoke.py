"""`hpcsgd jobs smoke`: one verdict on MPI, GPUs, files and clocks."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch
from hpcsgd.cli.names import DEVICES, TRANSPORTS
from hpcsgd.cli.numbers import not_negative
from hpcsgd.cli.ranks import add_comm, on_all_ranks
from hpcsgd.errors import HpcsgdError

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator
    from hpcsgd.jobs.smoke import Check


def add_parser(actions: Any) -> None:
    """Add `smoke`."""
    parser = actions.add_parser(
        "smoke",
        help="check MPI, GPUs, files and clocks from all ranks",
        description="Run by the ranks of a job; the job: hpcsgd jobs submit smoke.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--folder", default=".", metavar="DIR", help="where runs will write; here"
    )
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto")
    parser.add_argument("--ranks", type=int, metavar="N", help="start N MPI ranks")
    add_comm(parser)
    parser.add_argument(
        "--expect", type=int, metavar="N", help="how many ranks there must be"
    )
    parser.add_argument(
        "--timeout",
        type=not_negative,
        default=60.0,
        metavar="SECONDS",
        help="that a rank waits for one that does nothing; default: 60",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Standard output has the verdict alone, standard error every look."""
    from hpcsgd.jobs.smoke import Check

    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv, remedy="mend the MPI first")
    try:
        return on_all_ranks(
            arguments.comm,
            lambda world: _smoke(world, arguments),
            show=lambda checks: _show(checks, arguments.json),
            code=lambda checks: int(not all(check.good for check in checks)),
            timeout=arguments.timeout,
        )
    except HpcsgdError as error:  # ranks that never met have a verdict, too
        if launch.speaks():
            _show([Check("ranks", False, str(error))], arguments.json)
        return 1


def _smoke(world: "Communicator", arguments: argparse.Namespace) -> "list[Check]":
    from hpcsgd.jobs.smoke import smoke

    world.is_patient = True
    world.watch(arguments.timeout)
    checks = smoke(
        world,
        Path(arguments.folder),
        arguments.device,
        arguments.transport,
        arguments.expect or arguments.ranks,
    )
    world.unwatch()
    return checks


def _show(checks: "list[Check]", as_json: bool) -> None:
    from hpcsgd.jobs.smoke import verdict

    for check in checks:
        word = "good" if check.good else "bad"
        print(f"hpcsgd: {word:<4} {check.name:<8} {check.text}", file=sys.stderr)
    if as_json:
        said = {"good": all(c.good for c in checks), "verdict": verdict(checks)}
        print(json.dumps({**said, "checks": [vars(c) for c in checks]}, indent=2))
    else:
        print(verdict(checks), flush=True)
