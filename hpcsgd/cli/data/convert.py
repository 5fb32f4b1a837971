"""`hpcsgd data convert SRC DST`: text or arrays become a file that training reads."""

import argparse
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch, logs
from hpcsgd.cli.names import ELEMENTS, LAYOUTS, SOURCES
from hpcsgd.cli.numbers import not_negative
from hpcsgd.cli.ranks import add_comm, on_all_ranks
from hpcsgd.data.heap import keep_freed

if TYPE_CHECKING:
    from hpcsgd.comm.base import Communicator
    from hpcsgd.data.crew import Crew
    from hpcsgd.data.recipe import Recipe
    from hpcsgd.data.source import Source


def _pairs(text: str) -> tuple[tuple[float, float], ...]:
    """Pairs of labels, as in 1=-1,2=1."""
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        return tuple((float(old), float(new)) for old, new in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write it as 1=-1,2=1, old labels first"
        ) from None


def _column(text: str) -> int | str:
    """A number counts from 0; anything else is a name."""
    return int(text) if text.lstrip("-").isdigit() else text


GO_ON = "run again with --resume to go on with what was begun"
# flag, what a source calls it, and what argparse needs to know
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--labels", {"metavar": "FILE", "help": "labels of .npy and sparse .npz"}),
    ("--label-column", {"type": _column, "help": "of labels: number from 0, or name"}),
    ("--weight-column", {"type": _column, "help": "of sample weights, in CSV"}),
    ("--offset-column", {"type": _column, "help": "of offsets, in CSV"}),
    ("--header", {"choices": ["auto", "yes", "no"], "help": "whether CSV has one"}),
    (
        "--delimiter",
        {"help": "of CSV: comma, tab or semicolon; default: what the first lines show"},
    ),
    ("--missing", {"choices": ["error", "mean"], "help": "values missing in CSV"}),
    ("--index-base", {"choices": ["auto", "0", "1"], "help": "of LIBSVM columns"}),
    ("--cols", {"type": int, "metavar": "N", "help": "of LIBSVM, if more than seen"}),
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
    parser.add_argument("--element", choices=ELEMENTS, default="fp32", help="of X")
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
        "--like",
        metavar="TRAIN.h5",
        help="columns, their means and scales and unit rows as this file has them",
    )
    parser.add_argument(
        "--unit-rows", action="store_true", help="rows of length 1, done last"
    )
    parser.add_argument(
        "--test-fraction",
        type=not_negative,
        default=0.0,
        metavar="F",
        help="rows that go to DST-test",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the test rows")
    parser.add_argument("--rows", type=int, metavar="N", help="the first N alone")
    parser.add_argument(
        "--layout", choices=LAYOUTS, default="auto", help="sparse (CSR) or dense rows"
    )
    parser.add_argument(
        "--map-labels",
        type=_pairs,
        default=(),
        metavar="OLD=NEW,...",
        help="labels to write in the place of those in the file",
    )


def _add_running(parser: Any) -> None:
    """How it is done."""
    parser.add_argument(
        "--memory", type=not_negative, default=512, metavar="MIB", help="default: 512"
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="start N MPI ranks to share plain text"
    )
    add_comm(parser)
    parser.add_argument(
        "--timeout",
        type=not_negative,
        default=20.0,
        metavar="SECONDS",
        help="that a rank waits for one that does nothing; 0 = for ever",
    )
    parser.add_argument("--resume", action="store_true", help="go on where it broke")
    parser.add_argument("--force", action="store_true", help="replace DST")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_progress(parser)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Convert here, on the ranks there are or under mpiexec; say what was written."""
    recipe = _recipe(arguments)
    launch.check_readable(arguments.source)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv, remedy=GO_ON)
    return on_all_ranks(
        arguments.comm,
        lambda world: _convert(world, arguments, recipe),
        show=lambda said: print(
            json.dumps(said, indent=2) if arguments.json else text(said), flush=True
        ),
        code=lambda said: 0,
        timeout=arguments.timeout,
    )


def _recipe(arguments: argparse.Namespace) -> "Recipe":
    from hpcsgd.data.recipe import Recipe

    return Recipe(
        element=arguments.element,
        standardize=arguments.standardize,
        unit_rows=arguments.unit_rows,
        test_fraction=arguments.test_fraction,
        seed=arguments.seed,
        rows=arguments.rows,
        layout=arguments.layout,
        labels=arguments.map_labels,
        memory=int(arguments.memory * 2**20),
    )


def _convert(
    world: "Communicator", arguments: argparse.Namespace, recipe: "Recipe"
) -> dict[str, Any]:
    """The work of one rank, under the eyes of a watchdog."""
    world.is_patient = True  # for work of tens of milliseconds a message
    world.watch(arguments.timeout)
    said = _watched(world, arguments, recipe)
    world.unwatch()
    return said


def _watched(
    world: "Communicator", arguments: argparse.Namespace, recipe: "Recipe"
) -> dict[str, Any]:
    """Convert, and let a key end all ranks."""
    from hpcsgd.cli.data.bar import Meter, make_meter
    from hpcsgd.data.convert import convert
    from hpcsgd.data.crew import Crew

    keep_freed(recipe.block)
    crew = Crew(world)
    source, wanted = crew.everywhere(
        lambda: (_source(arguments), _like(arguments, recipe))
    )
    with _interruptible(crew), ExitStack() as stack:
        meter = Meter()
        if crew.is_root:
            meter = make_meter(arguments.quiet, arguments.progress)
        stack.enter_context(meter)
        if source.path.is_file():
            meter.file_bytes = source.path.stat().st_size
        return convert(
            source,
            Path(arguments.target),
            wanted,
            meter,
            resume=arguments.resume,
            force=arguments.force,
            crew=crew,
        )


def _like(arguments: argparse.Namespace, recipe: "Recipe") -> "Recipe":
    """The recipe with what the file of --like says."""
    if arguments.like is None:
        return recipe
    from hpcsgd.data.like import read_like

    return replace(recipe, like=read_like(Path(arguments.like)))


def _source(arguments: argparse.Namespace) -> "Source":
    """What is to be converted, with the options its format knows."""
    from hpcsgd.data.formats import open_any

    options = {
        name: getattr(arguments, name)
        for name in (flag[2:].replace("-", "_") for flag, _ in OPTIONS)
    }
    return open_any(Path(arguments.source), arguments.format, options)


@contextmanager
def _interruptible(crew: "Crew") -> Iterator[None]:
    """Ctrl-C ends all ranks together, and never in the middle of a message."""
    if crew.size == 1:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: crew.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def text(said: dict[str, Any]) -> str:
    """As a person reads it."""
    lines = [
        f"{part['path']}: {part['rows']} rows x {said['columns']} columns of"
        f" {said['element']}, {part['bytes'] / 2**20:.1f} MiB"
        for part in said["files"]
    ]
    if said["standardized"]:
        lines.append(f"columns: {said['standardized']}; kept in the file")
    if said.get("reordered"):
        lines.append("columns: in the order of the file of --like, by their names")
    if "label_column" in said:
        lines.append(f"labels: {said['label_column']} (--label-column names another)")
    return "\n".join(lines)
