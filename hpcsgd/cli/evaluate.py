"""`hpcsgd evaluate`: how good a model is on a file."""

import argparse
import json
from pathlib import Path
from typing import Any

from hpcsgd.cli import launch
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.ranks import add_comm
from hpcsgd.comm import open_world

TITLES = {
    "mean_loss": "mean loss",
    "clipped_scores": "clipped",
    "r2": "R^2",
    "mean_deviance": "mean deviance",
}


def add_parser(commands: Any) -> None:
    """Add `evaluate` to the commands."""
    parser = commands.add_parser(
        "evaluate",
        help=COMMANDS["evaluate"],
        description="Loss, objective, and accuracy or R^2 of a model on a file.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="run folder or its result.h5")
    parser.add_argument("data", metavar="DATA", help="file with rows and targets")
    parser.add_argument("--ranks", type=int, metavar="N", help="start N MPI ranks")
    add_comm(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Evaluate here or under mpiexec; the first rank speaks."""
    from hpcsgd.assessment import evaluate_reader
    from hpcsgd.data.readers import open_reader
    from hpcsgd.result import load_result

    launch.check_readable(arguments.data)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv)
    world = open_world(arguments.comm)
    result = world.together(lambda: load_result(arguments.model))
    figures = evaluate_reader(result, lambda: open_reader(Path(arguments.data)), world)
    if world.rank == 0:
        document = {"model": arguments.model, "data": arguments.data}
        document |= {"ranks": world.size, **figures}
        print(_json(document) if arguments.json else table(document), flush=True)
    world.close()
    return 0


def _json(document: dict[str, Any]) -> str:
    from hpcsgd.result import finite

    return json.dumps(finite(document), indent=2, allow_nan=False)


def table(document: dict[str, Any]) -> str:
    """A line for each figure, and one for each label."""
    lines = []
    for key, value in document.items():
        if key == "errors_by_label":
            lines += [
                f"  label {label:7s} {entry['errors']} of {entry['rows']} rows wrong"
                for label, entry in value.items()
            ]
        else:
            lines.append(f"{TITLES.get(key, key):15s} {_text(value)}")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if value is None:
        return "undefined: all targets are equal"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
