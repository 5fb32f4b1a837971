"""`hpcsgd data`: synth, convert, inspect, verify, list, card, fetch."""

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch, names
from hpcsgd.cli import parser as parser_module
from hpcsgd.cli.interrupts import INTERRUPTED
from hpcsgd.cli.names import COMMANDS, ELEMENTS, LAYOUTS, SOURCES
from hpcsgd.cli.parser import add_comm, add_json, not_negative, on_all_ranks
from hpcsgd.errors import ConfigError
from hpcsgd.files import format_bytes

if TYPE_CHECKING:
    from hpcsgd.comm.communicator import Communicator
    from hpcsgd.data.catalogue import Card
    from hpcsgd.data.convert.parallel import Crew
    from hpcsgd.data.convert.sources import Source
    from hpcsgd.data.convert.transform import Recipe


# The progress of a pass over a file: a bar on a terminal, plain lines elsewhere.

MEGABYTE = 1e6


class ConversionMeter:
    """A meter that measures progress and shows nothing; base class of the others."""

    def __init__(self) -> None:
        self.what = ""
        self.size = 0
        self.started = time.monotonic()
        self.first: int | None = None
        self.now = 0
        self.file_bytes = 0  # of a source whose positions are rows, or 0

    def begin(self, what: str, size: int) -> None:
        """Begin a pass, called `what`, over `size` bytes or rows; 0 if unknown."""
        self.what = what
        self.size = size
        self.started = time.monotonic()
        self.first = None
        self.now = 0

    def at(self, position: int) -> None:
        """Set the position of the pass, in bytes or rows as its size."""
        # The part that a resumed pass skips does not count for the speed.
        self.first = position if self.first is None else self.first
        self.now = position

    def figures(self) -> str:
        """Return the speed and the time left as text; "" if they are not yet known."""
        done = self.now - (self.first or 0)
        elapsed = time.monotonic() - self.started
        if done <= 0 or elapsed <= 0:
            return ""
        speed = done / elapsed
        left = max(self.size - self.now, 0) / speed
        each = self.file_bytes / self.size if self.file_bytes and self.size else 1.0
        return f"{speed * each / MEGABYTE:.1f} MB/s, {left:.0f} s left"

    def __enter__(self) -> "ConversionMeter":
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove what the meter displays; this base class displays nothing."""


class ConversionLines(ConversionMeter):
    """A meter that writes a plain line every `seconds` seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.last = time.monotonic()

    def at(self, position: int) -> None:
        """Set the position; write a line if the last one is `seconds` seconds old."""
        from hpcsgd.runs.progress import write_line

        super().at(position)
        now = time.monotonic()
        if now - self.last >= self.seconds:
            self.last = now
            share = f"{100 * position / self.size:.0f} %  " if self.size else ""
            write_line(f"{self.what}  {share}{self.figures()}")


class ConversionBar(ConversionMeter):
    """A meter with a bar on a terminal, which disappears at the end."""

    def __init__(self, columns: int) -> None:
        from hpcsgd.runs.progress import TerminalBar

        super().__init__()
        self.bar = TerminalBar(columns, 20)

    def begin(self, what: str, size: int) -> None:
        """Begin a pass, and draw its bar in place of that of the pass before."""
        super().begin(what, size)
        self.bar.begin(size or None, what)

    def at(self, position: int) -> None:
        """Set the position, and move the bar."""
        super().at(position)
        self.bar.move(position, f" {self.figures()}")

    def stop(self) -> None:
        """Remove the bar."""
        self.bar.stop()


def make_meter(quiet: bool, seconds: float = 10.0) -> ConversionMeter:
    """Return a meter: a bar on a terminal, else a line every `seconds` seconds.

    With `quiet`, or with `seconds` 0 and no terminal, it shows nothing.
    """
    if quiet:
        return ConversionMeter()
    from hpcsgd.runs.progress import terminal_columns

    columns = terminal_columns()
    if columns is not None:
        return ConversionBar(columns)
    return ConversionLines(seconds) if seconds > 0 else ConversionMeter()


def progress_of(meter: ConversionMeter, what: str) -> Callable[[int, int], None]:
    """Return a callback with (position, size) that shows one pass, called `what`.

    Its first call begins the pass.
    """
    has_begun = False

    def progress(position: int, size: int) -> None:
        nonlocal has_begun
        if not has_begun:
            meter.begin(what, size)
            has_begun = True
        meter.at(position)

    return progress


# `hpcsgd data list`, `card` and `fetch`: the catalogue.


def add_catalogue_parser(actions: Any) -> None:
    """Add the parsers of `hpcsgd data list`, `card` and `fetch`."""
    listed = actions.add_parser(
        "list",
        help="list the data sets of the catalogue",
        description="List the public data sets of the catalogue with their sizes.",
        example="hpcsgd data list",
    )
    listed.set_defaults(run=run_list)
    card = actions.add_parser(
        "card",
        help="show the facts of one data set of the catalogue",
        description="Show size, source, licence and conversion of one data set of the"
        " catalogue.",
        example="hpcsgd data card susy",
    )
    card.set_defaults(run=run_card)
    fetch = actions.add_parser(
        "fetch",
        help="download one data set of the catalogue",
        description="Download one data set of the catalogue from its site and check its"
        " size and its checksum.",
        example="hpcsgd data fetch susy --out data",
    )
    fetch.add_argument(
        "--out", default=".", metavar="DIR", help="folder of the downloaded file"
    )
    parser_module.add_volume(fetch)
    fetch.set_defaults(run=run_fetch)
    for parser in (card, fetch):
        parser.add_argument(
            "name", metavar="NAME", help="name of the data set in `hpcsgd data list`"
        )
    for parser in (listed, card, fetch):
        add_json(parser)


def run_list(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print one line, or with --json all facts, for each data set of the catalogue."""
    from hpcsgd.data.catalogue import load_catalogue

    cards = load_catalogue().values()
    if arguments.json:
        print(json.dumps([card.as_dict() for card in cards], indent=2))
        return 0
    print(f"{'name':<18} {'rows':>11} {'columns':>9}  {'task':<7} {'density':>8}  form")
    for card in cards:
        print(
            f"{card.name:<18} {card.shape.rows:>11} {card.shape.columns:>9}"
            f"  {card.task:<7} {card.shape.density:>8.2g}  {card.shape.form}"
        )
    return 0


def run_card(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print all facts on one data set of the catalogue."""
    from hpcsgd.data.catalogue import get_card

    card = get_card(arguments.name)
    print(
        json.dumps(card.as_dict(), indent=2) if arguments.json else catalogue_text(card)
    )
    return 0


def catalogue_text(card: "Card") -> str:
    """Return the facts of a card of the catalogue as text, one fact per line."""
    return "\n".join(f"{key:<10} {value}" for key, value in card.as_dict().items())


def run_fetch(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Download a data set; print its path, size, checksum and how to convert it."""
    from hpcsgd.data.catalogue import fetch, get_card, sha256

    card = get_card(arguments.name)
    with make_meter(arguments.quiet) as meter:
        progress = progress_of(meter, "fetching")
        path = fetch(card, Path(arguments.out), progress)
    report = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(f"{path}: {report['bytes']} bytes, SHA-256 {report['sha256']}")
        print(f"next: {card.convert}")
    return 0


# `hpcsgd data convert SRC DST`: text or arrays become a file that training reads.


def _pairs(text: str) -> tuple[tuple[float, float], ...]:
    """Parse pairs OLD=NEW of numeric labels, as in 1=-1,2=1."""
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        return tuple((float(old), float(new)) for old, new in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write it as 1=-1,2=1, old labels first; labels of text are"
            " for --label, as --label yes=1,no=0"
        ) from None


def _column(text: str) -> int | str:
    """Parse a column: a name, or a number from 0 (negative: from the end)."""
    return int(text) if text.lstrip("-").isdigit() else text


def _columns(text: str) -> tuple[str, ...]:
    """Parse several columns, each a number or a name."""
    return tuple(column.strip() for column in text.split(","))


def _labels_of_text(text: str) -> tuple[tuple[str, float], ...]:
    """Parse labels and their numbers, as in yes=1,no=0."""
    try:
        pairs = [pair.rpartition("=") for pair in text.split(",")]
        numbers = tuple((label.strip(), float(number)) for label, _, number in pairs)
    except ValueError:
        numbers = ()
    if not numbers or not all(label for label, _ in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r}: write it as yes=1,no=0, the labels of the file first"
        )
    return numbers


GO_ON = "run again with --resume to go on with what was begun"
# (flag, options of argparse); a source has the name of the flag for its option
OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--labels",
        {"metavar": "FILE", "help": "file with the labels of .npy and sparse .npz"},
    ),
    (
        "--label-column",
        {
            "type": _column,
            "metavar": "COLUMN",
            "help": "CSV column with the labels: its name, or its number from 0"
            " (negative: from the end)",
        },
    ),
    (
        "--weight-column",
        {
            "type": _column,
            "metavar": "COLUMN",
            "help": "CSV column with the sample weights",
        },
    ),
    (
        "--offset-column",
        {"type": _column, "metavar": "COLUMN", "help": "CSV column with the offsets"},
    ),
    (
        "--header",
        {
            "choices": ["auto", "yes", "no"],
            "help": "whether the first line of the CSV file names the columns",
        },
    ),
    (
        "--delimiter",
        {
            "metavar": "NAME",
            "help": "delimiter of the CSV file: comma, tab, semicolon or whitespace"
            " (one blank or more); without the flag the first lines decide",
        },
    ),
    (
        "--categories",
        {
            "type": _columns,
            "metavar": "COLUMN,...",
            "help": "CSV columns of text to encode one-hot: one column for each level",
        },
    ),
    (
        "--label",
        {
            "type": _labels_of_text,
            "metavar": "TEXT=NUMBER,...",
            "help": "numbers for labels that are text in the CSV file, as yes=1,no=0",
        },
    ),
    (
        "--missing",
        {
            "choices": ["error", "mean"],
            "help": "treatment of missing CSV values: stop with an error, or take the"
            " mean of the column",
        },
    ),
    (
        "--index-base",
        {
            "choices": ["auto", "0", "1"],
            "help": "number of the first column in a LIBSVM file; auto takes 0 if the"
            " file has an index 0, else 1",
        },
    ),
    (
        "--cols",
        {
            "type": int,
            "metavar": "N",
            "help": "columns of a LIBSVM file, if it has more than its lines show",
        },
    ),
    (
        "--x-name",
        {"metavar": "NAME", "help": "name of the matrix in an HDF5 or .npz source"},
    ),
    (
        "--y-name",
        {"metavar": "NAME", "help": "name of the labels in an HDF5 or .npz source"},
    ),
)


def add_convert_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd data convert`."""
    parser = actions.add_parser(
        "convert",
        help="convert CSV, LIBSVM, NumPy or HDF5 into a data file for training",
        description="Convert a text file or arrays into the HDF5 file that training"
        " reads.",
        example="hpcsgd data convert table.csv table.h5 --label-column y --standardize",
    )
    parser.add_argument("source", metavar="SRC", help="file to convert")
    parser.add_argument("target", metavar="DST.h5", help="data file to write")
    parser.add_argument(
        "--format",
        choices=["auto", *SOURCES],
        default="auto",
        help="format of SRC; auto recognises it by the ending of the name, or else by"
        " the first lines",
    )
    parser.add_argument(
        "--element",
        choices=ELEMENTS,
        default="fp32",
        help="number format of the stored matrix",
    )
    for flag, options in OPTIONS:
        parser.add_argument(flag, **options)
    _add_changes(parser)
    _add_running(parser)
    parser.set_defaults(run=run_convert)


def _add_changes(parser: Any) -> None:
    """Add the flags that change or select rows."""
    parser.add_argument(
        "--standardize",
        action="store_true",
        help="scale columns to mean 0 and standard deviation 1; sparse columns keep"
        " their zeros and are scaled only",
    )
    parser.add_argument(
        "--like",
        metavar="TRAIN.h5",
        help="repeat the conversion of this data file: its columns, levels, means,"
        " scales, labels and unit rows",
    )
    parser.add_argument(
        "--unit-rows",
        action="store_true",
        help="scale every row to length 1, after all other changes",
    )
    parser.add_argument(
        "--test-fraction",
        type=not_negative,
        default=0.0,
        metavar="F",
        help="share of the rows that are written to DST-test.h5 instead",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the choice of test rows"
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="convert the first N rows only"
    )
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="auto",
        help="layout of the stored rows: sparse (CSR) or dense",
    )
    parser.add_argument(
        "--map-labels",
        type=_pairs,
        default=(),
        metavar="OLD=NEW,...",
        help="new numbers for the numeric labels of the file, as 1=-1,2=1",
    )


def _add_running(parser: Any) -> None:
    """Add the flags of memory, ranks, resuming and output."""
    parser.add_argument(
        "--memory",
        type=not_negative,
        default=512,
        metavar="MIB",
        help="MiB of memory for the conversion",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="start this number of MPI ranks, which share the lines of a text file that"
        " is not compressed",
    )
    add_comm(parser)
    parser.add_argument(
        "--timeout",
        type=not_negative,
        default=20.0,
        metavar="SECONDS",
        help="seconds that a rank waits for a rank that makes no progress; 0 waits for"
        " ever",
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume an interrupted conversion"
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite DST.h5 if it exists"
    )
    add_json(parser)
    parser_module.add_progress(parser)


def run_convert(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Run `data convert`; with --ranks, start mpiexec, whose ranks convert together.

    Rank 0 prints the files written.
    """
    recipe = _recipe(arguments)
    launch.check_readable(arguments.source)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv, remedy=GO_ON)
    return on_all_ranks(
        arguments.comm,
        lambda world: _convert(world, arguments, recipe),
        show=lambda said: show(said, arguments.json),
        code=lambda said: INTERRUPTED if said is None else 0,
        timeout=arguments.timeout,
    )


def show(said: dict[str, Any] | None, as_json: bool) -> None:
    """Print a report of the files written; nothing after an interrupt."""
    if said is not None:
        text = json.dumps(said, indent=2) if as_json else conversion_text(said)
        print(text, flush=True)


def _recipe(arguments: argparse.Namespace) -> "Recipe":
    from hpcsgd.data.convert.transform import Recipe, RowSelection

    return Recipe(
        element=arguments.element,
        standardize=arguments.standardize,
        unit_rows=arguments.unit_rows,
        selection=RowSelection(arguments.test_fraction, arguments.seed, arguments.rows),
        layout=arguments.layout,
        labels=arguments.map_labels,
        memory=int(arguments.memory * 2**20),
    )


def _convert(
    world: "Communicator", arguments: argparse.Namespace, recipe: "Recipe"
) -> dict[str, Any] | None:
    """Convert with a watchdog; return the report, None after Ctrl-C. Collective."""
    world.is_patient = True  # each message takes tens of milliseconds of work
    world.watch(arguments.timeout)
    report = _watched(world, arguments, recipe)
    world.unwatch()
    return report


def _watched(
    world: "Communicator", arguments: argparse.Namespace, recipe: "Recipe"
) -> dict[str, Any] | None:
    """Convert; return the report, or None if Ctrl-C has stopped several ranks.

    With one rank, Ctrl-C raises KeyboardInterrupt. Collective.
    """
    from hpcsgd.data.convert.parallel import Crew
    from hpcsgd.data.convert.pipeline import convert
    from hpcsgd.data.convert.transform import retain_freed_memory

    retain_freed_memory(recipe.block)
    crew = Crew(world)
    source, full_recipe = crew.everywhere(
        lambda: (_source(arguments), _like(arguments, recipe))
    )
    try:
        with _interruptible(crew), ExitStack() as stack:
            meter = ConversionMeter()
            if crew.is_root:
                meter = make_meter(arguments.quiet, arguments.progress)
            stack.enter_context(meter)
            if source.path.is_file():
                meter.file_bytes = source.path.stat().st_size
            return convert(
                source,
                Path(arguments.target),
                full_recipe,
                meter,
                resume=arguments.resume,
                force=arguments.force,
                crew=crew,
            )
    except KeyboardInterrupt:
        if crew.size == 1:
            raise
        # All ranks have agreed to stop. They finalize MPI first: if a rank just exits,
        # a launcher kills the others, while rank 0 may still close its files.
        return None


def _like(arguments: argparse.Namespace, recipe: "Recipe") -> "Recipe":
    """Return the recipe, to which --like adds the conversion of its data file."""
    if arguments.like is None:
        return recipe
    from hpcsgd.data.convert.transform import read_like

    return replace(recipe, like=read_like(Path(arguments.like)))


def _source(arguments: argparse.Namespace) -> "Source":
    """Return the source of a conversion, opened with the options of its format."""
    from hpcsgd.data.convert.sources import open_any

    options = {
        name: getattr(arguments, name)
        for name in (flag[2:].replace("-", "_") for flag, _ in OPTIONS)
    }
    return open_any(Path(arguments.source), arguments.format, options)


@contextmanager
def _interruptible(crew: "Crew") -> Iterator[None]:
    """Let Ctrl-C end the conversion on all ranks together, never during a message.

    With one rank nothing is changed.
    """
    if crew.size == 1:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: crew.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _size(count: int) -> str:
    """Return a number of bytes in KiB or MiB, as text."""
    return format_bytes(count, ("KiB", "MiB"), ".1f")


def conversion_text(said: dict[str, Any]) -> str:
    """Return the report of a conversion as text."""
    lines = [
        f"{part['path']}: {part['rows']} rows x {said['columns']} columns of"
        f" {said['element']}, {_size(part['bytes'])}"
        for part in said["files"]
    ]
    if said["standardized"]:
        lines.append(f"columns: {said['standardized']}; kept in the file")
    if said.get("reordered"):
        lines.append("columns: in the order of the file of --like, by their names")
    if "categories" in said:
        levels = [f"{name} ({count})" for name, count in said["categories"].items()]
        lines.append(f"one-hot columns, a level each: {', '.join(levels)}")
    if "label_numbers" in said:
        numbers = [f"{text} = {n:g}" for text, n in said["label_numbers"].items()]
        lines.append(f"labels: {', '.join(numbers)}")
    if "label_column" in said:
        lines.append(f"labels: {said['label_column']} (--label-column names another)")
    return "\n".join(lines)


# `hpcsgd data inspect`: facts on a file of rows.


def add_inspect_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd data inspect`."""
    parser = actions.add_parser(
        "inspect",
        help="show size, labels, row norms and a suggested learning rate",
        description="Read a data file once and show its size, its labels, the norms of"
        " its rows, and a suggested family and learning rate.",
        example="hpcsgd data inspect rows.h5",
    )
    parser.add_argument("data", metavar="DATA", help="data file to read")
    add_json(parser)
    parser.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Read a file once; print the facts on its rows."""
    from hpcsgd.data.inspection import inspect
    from hpcsgd.data.readers import open_reader

    reader = open_reader(Path(arguments.data))
    try:
        facts = inspect(reader)
    finally:
        reader.close()
    print(json.dumps(facts, indent=2) if arguments.json else inspection_text(facts))
    return 0


SHOWN_NAMES = 10


def inspection_text(said: dict[str, Any]) -> str:
    """Return the facts on a file of rows as text."""
    norm = said["row_norm"]
    lines = [
        f"{said.get('path', 'data')}: {said['rows']} rows x {said['columns']} columns"
        f" of {said['element']}, density {said['density']:.3g}",
        *_columns_text(said),
        f"row norms: largest {norm['max']:.6g}, mean {norm['mean']:.6g}",
    ]
    prepared = said["preparation"]
    if prepared["columns"] != "raw":
        scale_range = said["kept_scales"]
        scales = "" if scale_range is None else f", scales {_range_text(scale_range)}"
        lines.append(
            f"columns: {prepared['columns']}; the file keeps their moments{scales}"
        )
    if prepared["unit_rows"]:
        lines.append("rows: of length 1")
    if said["not_finite"]:
        lines.append(f"not finite: {said['not_finite']} values; training refuses them")
    if said["queries"]:
        groups = said["queries"]
        lines.append(
            f"queries: {groups['distinct']} distinct, {groups['min']} to"
            f" {groups['max']}; training does not look at them"
        )
    for name, use in SIDES.items():
        side = said[name]
        if side is not None:
            zeros = f", {side['zeros']} of them 0" if side["zeros"] else ""
            lines.append(
                f"{name}: {side['min']:.6g} to {side['max']:.6g}, mean"
                f" {side['mean']:.6g}{zeros}; {use}"
            )
    lines += [*_labels(said["labels"], said["label_numbers"]), *_rows(said)]
    return "\n".join(lines + _advice(said["suggested"]))


# column beside X and y -> its use in training
SIDES = {
    "weights": "the loss of a row counts so many times",
    "offsets": "added to the score of a row, as log exposure is",
}


def _columns_text(said: dict[str, Any]) -> list[str]:
    """Return the lines on columns: their names, one-hot levels and spreads."""
    lines = []
    if said["column_names"]:
        names = said["column_names"]
        more = len(names) - SHOWN_NAMES
        shown = ", ".join(names[:SHOWN_NAMES])
        lines.append(f"names: {shown}" + (f" and {more} more" if more > 0 else ""))
    if said["categories"]:
        levels = [f"{name} ({len(of)})" for name, of in said["categories"].items()]
        lines.append(f"one-hot columns, a level each: {', '.join(levels)}")
    spreads = said["spreads"]
    if spreads is not None:
        constant = spreads["constant_columns"]
        lines.append(
            f"spread of a column: {_range_text(spreads)}"
            + (f"; {constant} constant" if constant else "")
        )
    return lines


def _range_text(found: dict[str, Any]) -> str:
    """Return the least and the largest value as text, each with its column."""
    ends = [
        f"{end['value']:.4g} (column {end['name'] or end['column']})"
        for end in (found["min"], found["max"])
    ]
    return " to ".join(ends)


def _labels(
    labels: dict[str, Any] | None, numbers: dict[str, float] | None
) -> list[str]:
    if labels is None:
        return ["labels: none; good for predictions only"]
    head = (
        f"labels: {labels['distinct']} distinct, {labels['min']:g} to {labels['max']:g}"
    )
    histogram = labels["histogram"] or {}
    texts = {f"{number:g}": text for text, number in (numbers or {}).items()}
    return [
        head,
        *(
            f"  {label:>8}  {count}" + (f"  {texts[label]}" if label in texts else "")
            for label, count in histogram.items()
        ),
    ]


def _rows(said: dict[str, Any]) -> list[str]:
    more = ", ..." if said["columns"] > len(said["first_rows"][0]["x"]) else ""
    return [
        f"row {number}: y = {row['y']}, x = "
        + ", ".join(f"{value:.5g}" for value in row["x"])
        + more
        for number, row in enumerate(said["first_rows"])
    ]


def _advice(suggested: dict[str, Any] | None) -> list[str]:
    if suggested is None:
        return []
    lines = [f"try: --family {suggested['family']} ({suggested['because']})"]
    if suggested["rate"] is None:
        lines.append("no step size follows: this family's curvature has no bound")
    else:
        lines.append(f"     --rate {suggested['rate']:.3g}, which is 1/L")
    if suggested["standardize"]:
        lines.append(
            "columns differ much in spread: convert with --standardize, so that one"
            " rate suits them all"
        )
    return lines


# `hpcsgd data synth`: a synthetic data set in the shape of a known one.

DATA_EXAMPLE = "hpcsgd data synth --shape susy --rows 4000 --out rows.h5"
# (flag, help)
KNOBS = (
    ("--condition", "ratio of the largest to the smallest column variance; default 1"),
    ("--correlation", "correlation of neighbouring columns; default 0"),
    ("--density", "share of the values that are not 0; default 1"),
    (
        "--noise",
        "share of flipped labels, or standard deviation of the noise on log rates;"
        " default 0",
    ),
    ("--balance", "share of the label 1; without the flag the margins decide"),
    (
        "--period",
        "rows in which the true weights turn once around, for a stream that drifts;"
        " default 0, never",
    ),
)


def add_synth_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd data synth`."""
    synth = actions.add_parser(
        "synth",
        help="generate a synthetic data file with the size of a known data set",
        description="Generate random rows and targets. The kind of targets and, without"
        " --rows and --cols, the size are those of a known data set.",
        example=DATA_EXAMPLE,
    )
    synth.add_argument(
        "--shape",
        required=True,
        choices=names.SHAPES,
        metavar="NAME",
        help=f"data set whose size is copied: {', '.join(names.SHAPES)}",
    )
    synth.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="number of rows; without the flag that of the data set",
    )
    synth.add_argument(
        "--cols",
        type=int,
        metavar="N",
        help="number of columns; without the flag that of the data set",
    )
    synth.add_argument(
        "--out", required=True, metavar="FILE.h5", help="data file to write"
    )
    synth.add_argument("--seed", type=int, default=0, help="seed of the random numbers")
    for flag, text in KNOBS:
        synth.add_argument(flag, type=float, metavar="X", help=text)
    add_json(synth)
    synth.set_defaults(run=run_synth)


def run_synth(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write a synthetic data file; print its path and size."""
    from hpcsgd.data.synthetic import SHAPES, Knobs, write_synthetic

    shape = SHAPES[arguments.shape]
    rows = shape.rows if arguments.rows is None else arguments.rows
    cols = shape.cols if arguments.cols is None else arguments.cols
    if rows < 1 or cols < 1:
        raise ConfigError(
            f"--rows {rows} --cols {cols}: both must be at least 1;"
            " leave them out to use the numbers of --shape"
        )
    path = Path(arguments.out)
    flags = {flag[2:]: getattr(arguments, flag[2:]) for flag, _ in KNOBS}
    knobs = Knobs(**{name: value for name, value in flags.items() if value is not None})
    write_synthetic(path, arguments.shape, rows, cols, arguments.seed, knobs=knobs)
    report = {
        "path": str(path),
        "shape": arguments.shape,
        "rows": rows,
        "cols": cols,
        "seed": arguments.seed,
        **({} if knobs == Knobs() else asdict(knobs)),
        "bytes": path.stat().st_size,
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(f"{path}: {rows} rows x {cols} columns, {_size(report['bytes'])}")
    return 0


# `hpcsgd data verify`: every byte of a file against its checksums.


def add_verify_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd data verify`."""
    parser = actions.add_parser(
        "verify",
        help="check a data file against its checksums",
        description="Read a data file and compare its contents with the checksums that"
        " it contains.",
        example="hpcsgd data verify rows.h5",
    )
    parser.add_argument("data", metavar="DATA", help="data file to check")
    add_json(parser)
    parser_module.add_volume(parser)
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Compare a file with its checksums; return 1 if a part is damaged, else 0."""
    from hpcsgd.data.store import verify_store

    path = Path(arguments.data)
    with make_meter(arguments.quiet) as meter:
        if path.is_file():
            meter.file_bytes = path.stat().st_size
        check = verify_store(path, progress_of(meter, "verifying"))
    report = {
        "path": str(path),
        "rows": check.rows,
        "columns": check.cols,
        "blocks": check.blocks,
        "has_checksums": check.checked,
        "faults": list(check.faults),
    }
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        how = "no checksums, but readable" if not check.checked else "as written"
        verdict = f"{len(check.faults)} faults" if check.faults else how
        print("\n".join([f"{path}: {check.blocks} blocks, {verdict}", *check.faults]))
    return 0 if check.is_good else 1


# `hpcsgd data`: make, convert, inspect, verify and fetch data sets.

ACTIONS = (
    add_synth_parser,
    add_convert_parser,
    add_inspect_parser,
    add_verify_parser,
    add_catalogue_parser,
)


def add_parser(commands: Any) -> None:
    """Add the parser of `hpcsgd data` and of its commands."""
    parser = commands.add_parser("data", help=COMMANDS["data"], example=DATA_EXAMPLE)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
