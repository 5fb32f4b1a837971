"""`hpcsgd precision`: what number formats cost and gain on the data at hand."""

import argparse
import logging
import sys
from typing import TYPE_CHECKING, Any

from hpcsgd import plots
from hpcsgd.cli import launch, logs
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.names import FORMATS
from hpcsgd.cli.numbers import not_negative
from hpcsgd.cli.train import add_settings, check_data, configuration
from hpcsgd.comm.network import parse_network
from hpcsgd.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.config import RunConfig
    from hpcsgd.study.precision import PrecisionReport
    from hpcsgd.study.precision_rows import Question

WIDTH = 130  # where standard output is no terminal
log = logging.getLogger(__name__)


def add_parser(commands: Any) -> None:
    """Add `precision` to the commands."""
    parser = commands.add_parser(
        "precision",
        help=COMMANDS["precision"],
        description="Bound and measure the error of every field of the precision on"
        " groups of real rows, run pilots of the recipes, and recommend one.",
        allow_abbrev=False,
    )
    add_settings(parser)
    parser.add_argument(
        "--members", type=int, metavar="C", help="of a replica; the grid's by default"
    )
    parser.add_argument(
        "--format",
        action="append",
        choices=[*FORMATS, "all"],
        dest="formats",
        help="of the fields, one after the other; bf16 by default",
    )
    parser.add_argument(
        "--groups", type=int, default=3, metavar="N", help="exchanges looked at; 3"
    )
    parser.add_argument(
        "--tolerance",
        type=not_negative,
        default=0.005,
        metavar="SHARE",
        help="loss gap that the recommendation may have; 0.005",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw bounds and errors")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_progress(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Look at the data in this process, and print."""
    from hpcsgd.data.readers import open_reader
    from hpcsgd.study.precision import study

    config = configuration(arguments)
    check_data(config)
    launch.check_readable(config.data.path)
    if arguments.ranks not in (None, 1):
        raise ConfigError(
            "precision looks at the data in one process; say --members C for a run"
            " on C ranks, and leave --ranks out"
        )
    if arguments.plot:
        plots.require()
    reader = open_reader(_path(config))
    try:
        found = study(_question(config, arguments), reader, log.info)
    finally:
        reader.close()
    _show(found, arguments)
    return 0


def _path(config: "RunConfig") -> Any:
    from pathlib import Path

    return Path(config.data.path)


def _question(config: "RunConfig", arguments: argparse.Namespace) -> "Question":
    from hpcsgd.study.precision_rows import Question

    formats = arguments.formats or ["bf16"]
    if "all" in formats:
        formats = [name for name in FORMATS if name != "fp64"]
    return Question(
        config=config,
        members=arguments.members or config.grid.members or 1,
        formats=tuple(dict.fromkeys(formats)),
        groups=arguments.groups,
        tolerance=arguments.tolerance,
        network=parse_network(config.run.network) if config.run.network else None,
    )


def _show(found: "PrecisionReport", arguments: argparse.Namespace) -> None:
    from rich.console import Console

    if arguments.plot:
        plots.error_bars(found.as_dict(), arguments.plot)
    if arguments.json:
        print(found.json(), flush=True)
    else:
        width = None if sys.stdout.isatty() else WIDTH
        console = Console(highlight=False, width=width)
        for table in (fields_table(found), recipes_table(found)):
            console.print(table)
        console.print(*sentences(found), sep="\n", soft_wrap=True)
    for said in warnings(found):
        print(f"hpcsgd: {said}", file=sys.stderr)


def warnings(found: "PrecisionReport") -> list[str]:
    """What not to trust."""
    said = []
    if not found.covers_update:
        said.append(
            "bounds and errors are of plain SGD, momentum is beyond the theory; the"
            " pilots have it"
        )
    if not found.is_safe:
        said.append(
            f"the rate {found.rate:g} is above the limit of stability on these rows:"
            " errors may grow from step to step; the largest safe rate is"
            f" {found.safe_rate:.3g}"
        )
    return said


def fields_table(found: "PrecisionReport") -> "Table":
    """A row for each field and format."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    asked = found.question
    schedule = asked.config.schedule
    drawn = Table(
        title=f"one field low, the others fp64: error of w after one exchange, relative"
        f" to its update (b = {schedule.batch}, s = {schedule.steps or 'auto'},"
        f" C = {asked.members}, median of {asked.groups})",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    drawn.add_column("field")
    drawn.add_column("format")
    for name in ("roundoff", "bound", "measured", "bytes saved", "µs saved"):
        drawn.add_column(name, justify="right")
    for row in found.fields:
        drawn.add_row(
            row.field,
            row.format,
            f"{row.roundoff:.1e}",
            "none" if row.bound == float("inf") else f"{row.bound:.1e}",
            f"{row.measured:.1e}",
            str(row.bytes_saved),
            "emulated"
            if row.seconds_saved is None
            else f"{row.seconds_saved * 1e6:.1f}",
        )
    return drawn


def recipes_table(found: "PrecisionReport") -> "Table":
    """A row for each recipe."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    drawn = Table(title="whole recipes", title_justify="left", box=SIMPLE_HEAD)
    drawn.add_column("recipe")
    names = ("bound", "measured", "loss gap, pilot", "predicted", "bytes sent", "µs")
    for name in names:
        drawn.add_column(name, justify="right")
    for row in found.recipes:
        seconds = row.seconds
        drawn.add_row(
            row.recipe,
            "none" if row.bound == float("inf") else f"{row.bound:.1e}",
            f"{row.measured:.1e}",
            _percent(row.loss_gap),
            _percent(row.predicted_gap),
            str(row.bytes_sent),
            "emulated"
            if seconds is None
            else f"{1e6 * (seconds + row.network_seconds):.1f}",
        )
    return drawn


def _percent(gap: float) -> str:
    return "diverged" if gap == float("inf") else f"{100 * gap:.5f} %"


def sentences(found: "PrecisionReport") -> list[str]:
    """What to do."""
    best, tolerance = found.recommended, found.question.tolerance
    said = f"recommended: --precision {best.recipe}"
    if best.predicted_gap > tolerance:
        return [f"{said}; no recipe is expected to stay within {100 * tolerance:g} %"]
    return [
        f"{said}: the cheapest that runs here and whose predicted loss gap,"
        f" {_percent(best.predicted_gap)}, stays under {100 * tolerance:g} %"
    ]
