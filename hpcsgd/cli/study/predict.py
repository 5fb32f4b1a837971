"""`hpcsgd study predict`: what a step would take on ranks that are not here."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd import plots
from hpcsgd.cli.names import MACHINES, RECIPES
from hpcsgd.cli.words import steps
from hpcsgd.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.study.predict import Prediction

WIDTH = 130  # where standard output is no terminal
COLUMNS = ("ranks", "grid", "SGD", "CA-SGD", "by", "sums", "speed-up", "limit")


def add_parser(actions: Any) -> None:
    """Add `predict` to the actions."""
    parser = actions.add_parser(
        "predict",
        help="extrapolate to ranks that are not here",
        description="Seconds of a step of plain SGD and of CA-SGD on many ranks, by the"
        " cost model and a machine file: where CA-SGD wins, and which part limits it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--machine",
        required=True,
        metavar="NAME|FILE.toml",
        help=f"a machine file, or one of {', '.join(MACHINES)}",
    )
    parser.add_argument(
        "--ranks", default="1..65536", metavar="A..B", help="powers of two, or 1,2,4"
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="ROWS,COLUMNS|FILE.h5",
        help="the shape of the data",
    )
    parser.add_argument("--batch", type=int, default=32, help="rows a step; 32")
    parser.add_argument("--epochs", type=int, default=10, help="of the run; 10")
    parser.add_argument(
        "--steps", type=steps, default=0, metavar="S", help="s, or auto (the fastest)"
    )
    parser.add_argument("--precision", choices=RECIPES, default="fp32")
    parser.add_argument("--classes", type=int, default=1, help="columns of weights; 1")
    parser.add_argument(
        "--period", type=int, default=8, help="exchanges per agreement of replicas; 8"
    )
    parser.add_argument("--plot", metavar="FILE.png", help="draw it")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Look nothing up but files, and print."""
    from rich.console import Console

    from hpcsgd.hardware import load_hardware
    from hpcsgd.study.predict import Asked, parse_ranks, predict

    if arguments.plot:
        plots.require()
    hardware = load_hardware(arguments.machine)
    rows, columns = _shape(arguments.data)
    asked = Asked(
        rows=rows,
        columns=columns,
        batch=_positive("--batch", arguments.batch),
        epochs=_positive("--epochs", arguments.epochs),
        steps=arguments.steps if isinstance(arguments.steps, int) else 0,
        recipe=arguments.precision,
        scores=_positive("--classes", arguments.classes),
        period=_positive("--period", arguments.period),
    )
    found = predict(hardware, asked, parse_ranks(arguments.ranks))
    if arguments.plot:
        plots.predicted(found.as_dict(), arguments.plot)
    if arguments.json:
        print(json.dumps(found.as_dict(), indent=2), flush=True)
        return 0
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(highlight=False, width=width)
    console.print(table(found))
    console.print(*sentences(found), sep="\n", soft_wrap=True)
    return 0


def _positive(flag: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{flag} {value}: at least 1 is needed")
    return value


def _shape(text: str) -> tuple[int, int]:
    """(rows, columns) of "400000,2000", or of a file."""
    from hpcsgd.data.readers import open_reader

    if Path(text).is_file():
        reader = open_reader(Path(text))
        shape = reader.rows, reader.cols
        reader.close()
        return shape
    rows, comma, columns = text.partition(",")
    if not comma or not (rows.isdigit() and columns.isdigit()):
        raise ConfigError(
            f"--data {text}: give ROWS,COLUMNS as 400000,2000, or a file that is there"
        )
    return int(rows), int(columns)


def table(found: "Prediction") -> "Table":
    """A line for each number of ranks."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, title=f"a step on {found.hardware.name}, predicted")
    for name in COLUMNS:
        shown.add_column(name, justify="right")
    for point in found.points:
        best = point.best
        share = point.terms[point.limit] / best.seconds
        shown.add_row(
            *(str(point.ranks), f"{point.grid[0]}x{point.grid[1]}"),
            *(f"{1e6 * point.sgd:.1f} µs", f"{1e6 * best.seconds:.1f} µs"),
            *(f"{best.product}, s = {best.steps}", point.by),
            f"{point.speed_up:.2f}",
            f"{point.limit}, {100 * share:.0f} %",
        )
    return shown


def sentences(found: "Prediction") -> Iterator[str]:
    """Where CA-SGD wins, where more ranks stop paying, and what to believe of it."""
    wins, points = found.wins(), found.points
    if wins:
        best = max(points, key=lambda p: p.speed_up)
        yield (
            f"CA-SGD wins at {_ranges(wins, [p.ranks for p in points])} ranks, most at"
            f" {best.ranks}: {best.speed_up:.1f} times"
        )
    else:
        yield "CA-SGD wins nowhere here: no sum takes long enough to be worth a Gram"
    fastest = found.fastest()
    if fastest.speed_up < 1.0:
        yield f"an epoch is fastest on {fastest.ranks} ranks, by plain SGD"
    else:
        yield (
            f"an epoch is fastest on {fastest.ranks} ranks; what limits it there is"
            f" {fastest.limit}"
        )
    if fastest.ranks < points[-1].ranks:
        yield f"beyond {fastest.ranks} ranks more of them no longer pay"
    if any(p.grid[0] > 1 for p in points):
        yield (
            "grids of several replicas average weights: other iterates than SGD's, and"
            " more rows for the same loss"
        )
    marks = [number.mark for _, number in found.hardware.numbers()]
    stated = marks.count("stated")
    yield (
        f"{len(marks) - stated} figures of this machine are measured, {stated} stated"
        " (their sources are in the machine file)"
    )


def _ranges(wins: list[int], every: list[int]) -> str:
    """Of [2, 4, 8, 32] among powers of two: "2 to 8, 32"."""
    runs: list[list[int]] = []
    for ranks in wins:
        place = every.index(ranks)
        if runs and place and runs[-1][-1] == every[place - 1]:
            runs[-1].append(ranks)
        else:
            runs.append([ranks])
    said = [str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs]
    return ", ".join(said)
