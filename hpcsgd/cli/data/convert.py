"""`hpcsgd data convert SRC DST`: text or arrays become a file that training reads."""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hpcsgd.cli import logs
from hpcsgd.cli.data.bar import make_meter
from hpcsgd.data.layout import ELEMENTS
from hpcsgd.data.source import SOURCES


def _column(text: str) -> int | str:
    """A number counts from 0; anything else is a name."""
    return int(text) if text.lstrip("-").isdigit() else text


# flag, what a source calls it, and what argparse needs to know
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--labels", {"metavar": "FILE", "help": "labels of .npy and sparse .npz"}),
    ("--label-column", {"type": _column, "help": "of labels: number from 0, or name"}),
    ("--weight-column", {"type": _column, "help": "of sample weights, in CSV"}),
    ("--offset-column", {"type": _column, "help": "of offsets, in CSV"}),
    ("--delimiter", {"help": "of CSV; default: what the first line shows"}),
    ("--missing", {"choices": ["error", "mean"], "help": "values missing in CSV"}),
    ("--index-base", {"choices": ["auto", "0", "1"], "help": "of LIBSVM columns"}),
    ("--x-name", {"metavar": "NAME", "help": "of the matrix in HDF5 and .npz"}),
    ("--y-name", {"metavar": "NAME", "help": "of the labels in HDF5 and .npz"}),
)


def add_parser(actions: Any) -> None:
    """Add `convert`."""
    parser = actions.add_parser(
        "convert",
        help="turn text or arrays into a file that training reads",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SRC", help="the file to convert")
    parser.add_argument("target", metavar="DST.h5", help="the file to write")
    parser.add_argument("--format", choices=["auto", *SOURCES], default="auto")
    parser.add_argument(
        "--element", choices=list(ELEMENTS), default="fp32", help="of X"
    )
    for flag, options in OPTIONS:
        parser.add_argument(flag, **options)
    _add_changes(parser)
    _add_running(parser)
    parser.set_defaults(run=run)


def _add_changes(parser: Any) -> None:
    """What happens to the rows."""
    parser.add_argument(
        "--standardize",
        action="store_true",
        help="columns of mean 0 and spread 1; sparse ones are scaled only",
    )
    parser.add_argument(
        "--unit-rows", action="store_true", help="rows of length 1, done last"
    )
    parser.add_argument(
        "--test-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="rows that go to DST-test",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the test rows")
    parser.add_argument("--rows", type=int, metavar="N", help="the first N alone")


def _add_running(parser: Any) -> None:
    """How it is done."""
    parser.add_argument(
        "--memory", type=float, default=512, metavar="MIB", help="default: 512"
    )
    parser.add_argument("--resume", action="store_true", help="go on where it broke")
    parser.add_argument("--force", action="store_true", help="replace DST")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--progress",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="between progress lines when the output is no terminal; 0 = none",
    )
    logs.add_volume(parser)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Convert, say what was written."""
    from hpcsgd.data.convert import Recipe, convert
    from hpcsgd.data.formats import open_any

    recipe = Recipe(
        element=arguments.element,
        standardize=arguments.standardize,
        unit_rows=arguments.unit_rows,
        test_fraction=arguments.test_fraction,
        seed=arguments.seed,
        rows=arguments.rows,
        memory=int(arguments.memory * 2**20),
    )
    options = {
        name: getattr(arguments, name)
        for name in (flag[2:].replace("-", "_") for flag, _ in OPTIONS)
    }
    source = open_any(Path(arguments.source), arguments.format, options)
    with ExitStack() as stack:
        meter = stack.enter_context(make_meter(arguments.quiet, arguments.progress))
        if source.path.is_file():
            meter.file_bytes = source.path.stat().st_size
        said = convert(
            source,
            Path(arguments.target),
            recipe,
            meter,
            resume=arguments.resume,
            force=arguments.force,
        )
    print(json.dumps(said, indent=2) if arguments.json else text(said))
    return 0


def text(said: dict[str, Any]) -> str:
    """As a person reads it."""
    lines = [
        f"{part['path']}: {part['rows']} rows x {said['columns']} columns of"
        f" {said['element']}, {part['bytes'] / 2**20:.1f} MiB"
        for part in said["files"]
    ]
    if said["standardized"]:
        lines.append(f"columns: {said['standardized']}; kept in the file")
    return "\n".join(lines)
