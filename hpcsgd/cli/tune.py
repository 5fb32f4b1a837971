"""`hpcsgd tune` and `hpcsgd precision`."""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch
from hpcsgd.cli import parser as parser_module
from hpcsgd.cli.names import COMMANDS, FORMATS
from hpcsgd.cli.parser import not_negative, on_all_ranks
from hpcsgd.cli.train import add_settings, check_data, overlaid
from hpcsgd.errors import ConfigError
from hpcsgd.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.comm.communicator import Communicator
    from hpcsgd.config import RunConfig
    from hpcsgd.runs.machine import Sum
    from hpcsgd.studies.precision import PrecisionQuestion, PrecisionReport
    from hpcsgd.tuning.tuner import TuningQuestion


# `hpcsgd tune`: measure this machine, choose settings that are not named, write them.

BEGAN = "HPCSGD_TUNE_BEGAN"  # when the first process of a tuning began
WIDTH = 120  # where standard output is no terminal
COLUMNS = ("grid", "recipe", "product", "s", "batch", "period", "predicted", "measured")


def add_tune_parser(commands: Any) -> None:
    """Add `tune` to the commands."""
    parser = commands.add_parser(
        "tune",
        help=COMMANDS["tune"],
        description="Measure the network and the kernels on your data, predict the time"
        " of every choice that is not fixed, run the best five for a moment, and write"
        " the fastest as a configuration for `hpcsgd train`. Flags and the TOML file"
        " fix settings.",
        example="hpcsgd tune --data rows.h5 --ranks 2 --seconds 10 --out tuned.toml",
    )
    parser.add_argument(
        "--batch",
        dest="batches",
        metavar="B|B,B|auto",
        help="rows of one step, per replica, or several numbers to choose from",
    )
    parser.add_argument(
        "--ranks",
        metavar="N|N,N",
        help="start this number of MPI ranks; several numbers are compared",
    )
    parser.add_argument(
        "--out",
        dest="tuned",
        metavar="FILE.toml",
        help="write the chosen configuration into this file",
    )
    parser.add_argument(
        "--seconds",
        type=not_negative,
        default=30.0,
        metavar="T",
        help="seconds that the tuning may take",
    )
    parser.add_argument(
        "--allow-replicas",
        action="store_true",
        help="also try grids of several replicas, which changes the iterates",
    )
    parser.add_argument(
        "--write-machine",
        metavar="FILE.toml",
        help="write the measured speed of this machine, for `hpcsgd study predict`",
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    add_settings(parser, without=("--plain", "--batch", "--ranks", "--out"))
    parser_module.add_json(parser)
    parser_module.add_progress(parser)
    parser.set_defaults(run=run_tune, **{"schedule.batch": None, "run.out": None})


def run_tune(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Tune on the current ranks; with --ranks under mpiexec, once for each number."""
    tuning_question = question(arguments)
    check_data(tuning_question.config)
    launch.check_readable(tuning_question.config.data.path)
    counts = parse_ranks(arguments.ranks)
    for path in (arguments.tuned, arguments.write_machine):
        _check_place(path)
    if len(counts) > 1:
        return _several(arguments, argv, counts)
    os.environ.setdefault(BEGAN, repr(time.monotonic()))
    if launch.must_relaunch(counts[0] if counts else None):
        return launch.relaunch(counts[0], argv, remedy="run tune again")
    return _tune(tuning_question, arguments)


def question(arguments: argparse.Namespace) -> "TuningQuestion":
    """Return the tuning that the arguments request.

    The tuning chooses settings that neither the file nor a flag sets.
    """
    from hpcsgd.config import RunConfig, check_read, read_toml
    from hpcsgd.precision import AUTO
    from hpcsgd.tuning.tuner import TuningQuestion, parse_batches

    tables = read_toml(arguments.config) if arguments.config else {}
    settings = overlaid(tables, arguments)
    settings.setdefault("schedule", {}).setdefault("steps", "auto")
    recipe = settings.get("precision", {}).get("recipe", AUTO)
    settings.setdefault("precision", {})["recipe"] = (
        "fp32" if recipe == AUTO else recipe
    )
    batches: tuple[int, ...] = ()
    if arguments.batches is not None:
        batches = parse_batches(arguments.batches)
        settings["schedule"]["batch"] = batches[0]
    config = RunConfig.parse(settings)
    check_read(config)
    return TuningQuestion(
        config=config,
        batches=batches or (config.schedule.batch,),
        seconds=arguments.seconds,
        any_recipe=recipe == AUTO,
        any_replicas=arguments.allow_replicas,
    )


def parse_ranks(text: str | None) -> list[int]:
    """Return the numbers of ranks of --ranks, such as 1,2,4; [] without the flag.

    >>> parse_ranks("1,2,4")
    [1, 2, 4]
    """
    if text is None:
        return []
    try:
        counts = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise ConfigError(
            f"--ranks {text}: give a whole number of at least 1, several as 1,2,4"
        )
    return counts


def _check_place(path: str | None) -> None:
    """Raise ConfigError before the tuning begins if the folder of `path` is missing."""
    if path and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"the folder of {path} does not exist; make it first")


def _tune(asked: "TuningQuestion", arguments: argparse.Namespace) -> int:
    from hpcsgd.tuning.tuner import LEAST_SECONDS, TuningResult, document, tune

    # The time of the start of the ranks counts as well.
    spent = max(time.monotonic() - float(os.environ.pop(BEGAN)), 0.0)
    budget = max(asked.seconds - spent, LEAST_SECONDS)

    def action(world: "Communicator") -> TuningResult:
        seconds = world.share_object(budget)  # ranks start one after the other
        return tune(replace(asked, seconds=seconds), world)

    def show(found: TuningResult) -> None:
        _finish(document(found), arguments)

    run = asked.config.run
    return on_all_ranks(run.comm, action, show, code=lambda _: 0, timeout=run.timeout)


def _several(arguments: argparse.Namespace, argv: list[str], counts: list[int]) -> int:
    """Run a tuning for each number of ranks in `counts`, with equal shares of the time.

    Return 0, or the exit code of the first tuning that fails.
    """
    from hpcsgd.tuning.tuner import merged

    parts = []
    with tempfile.TemporaryDirectory(prefix="hpcsgd-tune-") as folder:
        for count in counts:
            path = Path(folder) / f"{count}.json"
            part_argv = [*argv, "--ranks", str(count), "--part", str(path)]
            part_argv += ["--seconds", str(arguments.seconds / len(counts))]
            os.environ[BEGAN] = repr(time.monotonic())
            code = launch.relaunch(count, part_argv, remedy="run tune again")
            if code:
                return code
            parts.append(json.loads(path.read_text()))
    del os.environ[BEGAN]
    _finish(merged(parts), arguments)
    return 0


def _finish(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Write the requested files, then print the result.

    A part of a tuning for several numbers of ranks only writes its file (--part).
    """
    from hpcsgd.tuning.tuner import explained

    if arguments.part:
        write_text(Path(arguments.part), json.dumps(found))
        return
    if arguments.tuned:
        write_text(Path(arguments.tuned), found["toml"])
    if arguments.write_machine:
        path = Path(arguments.write_machine)
        _, rest = found["machine_toml"].split("\n", 1)  # the name is that of the file
        write_text(path, f"name = {json.dumps(path.stem)}\n{rest}")
    if arguments.json:
        print(json.dumps(found, indent=2), flush=True)
        return
    console = parser_module.new_console(WIDTH)
    console.print(table(found))
    console.print(*explained(found, arguments.tuned), sep="\n", soft_wrap=True)


def table(found: dict[str, Any]) -> "Table":
    """Return the table of the best five, with predicted and measured seconds."""
    shown = parser_module.new_table(
        "seconds of a step, the best first",
        (),
        ("ranks", *COLUMNS, "error"),
        justify="center",
    )
    for row in found["best"]:
        ahead = " ahead" if row["look_ahead"] else ""
        shown.add_row(
            str(row["ranks"]),
            row["grid"],
            row["recipe"],
            row["product"] + ahead,
            str(row["steps"]),
            str(row["batch"]),
            str(row["period"] or ""),
            f"{1e6 * row['predicted']:.1f} µs",
            f"{1e6 * row['measured']:.1f} µs",
            f"{100 * (row['predicted'] / row['measured'] - 1):+.0f} %",
        )
    return shown


# `hpcsgd precision`: the errors and the savings of number formats on the data.

PRECISION_WIDTH = 130  # where standard output is no terminal
log = logging.getLogger(__name__)


def add_precision_parser(commands: Any) -> None:
    """Add `precision` to the commands."""
    parser = commands.add_parser(
        "precision",
        help=COMMANDS["precision"],
        description="Bound and measure, on groups of your rows, the rounding errors of"
        " number formats in each of the nine fields of a recipe, train pilots with the"
        " recipes, and recommend a recipe.",
        example="hpcsgd precision --data rows.h5 --members 2 --rate 0.5",
    )
    parser.add_argument(
        "--members",
        type=int,
        metavar="C",
        help="members of a replica; without the flag those of --grid",
    )
    parser.add_argument(
        "--format",
        action="append",
        choices=[*FORMATS, "all"],
        dest="formats",
        metavar="NAME",
        help="number format to examine in each field: bf16 without the flag; with"
        f" `all` each of {', '.join(FORMATS)} but fp64; may be given several times",
    )
    parser.add_argument(
        "--groups",
        type=int,
        default=3,
        metavar="N",
        help="exchanges whose rounding errors are measured",
    )
    parser.add_argument(
        "--tolerance",
        type=not_negative,
        default=0.005,
        metavar="SHARE",
        help="largest relative loss difference to fp64 of a recommended recipe",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw bounds and errors into this file"
    )
    add_settings(parser, without=("--plain",))
    parser_module.add_json(parser)
    parser_module.add_progress(parser)
    parser.set_defaults(run=run_precision)


def run_precision(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Study the number formats on the data in this process, and print the report."""
    from hpcsgd.config import RunConfig, read_toml
    from hpcsgd.data.readers import open_reader
    from hpcsgd.studies.precision import study

    tables = read_toml(arguments.config) if arguments.config else {}
    config = RunConfig.parse(overlaid(tables, arguments))
    check_data(config)
    launch.check_readable(config.data.path)
    if arguments.ranks not in (None, 1):
        raise ConfigError(
            "--ranks is refused because hpcsgd precision works in one process; leave"
            " it out, and give --members C to examine a run on C ranks"
        )
    parser_module.require_figures(arguments.plot)
    reader = open_reader(Path(config.data.path))
    try:
        report = study(_question(config, arguments), reader, log.info)
    finally:
        reader.close()
    _show(report, arguments)
    return 0


def _question(
    config: "RunConfig", arguments: argparse.Namespace
) -> "PrecisionQuestion":
    from hpcsgd.studies.precision import PrecisionQuestion

    formats = arguments.formats or ["bf16"]
    if "all" in formats:
        formats = [name for name in FORMATS if name != "fp64"]
    members = arguments.members or config.grid.members or 1
    return PrecisionQuestion(
        config=config,
        members=members,
        formats=tuple(dict.fromkeys(formats)),
        groups=arguments.groups,
        tolerance=arguments.tolerance,
        sums=tuple(_sums_between(config, members)),
    )


def _sums_between(config: "RunConfig", members: int) -> "list[Sum]":
    """Return the times of the possible all-reduce algorithms over `members` ranks.

    They are those of the emulated network if there is one, else those of the machine
    file; [] without both.
    """
    from hpcsgd.comm.network_model import parse_network
    from hpcsgd.runs.machine import load_hardware, sums_over, tree_of_network

    if config.run.network:
        return [tree_of_network(parse_network(config.run.network), members)]
    machine = config.products.machine
    return sums_over(load_hardware(machine), members) if machine else []


def _show(found: "PrecisionReport", arguments: argparse.Namespace) -> None:
    if arguments.plot:
        from hpcsgd.studies.precision import plot_errors

        plot_errors(found.as_dict(), arguments.plot)
    if arguments.json:
        print(found.json(), flush=True)
    else:
        console = parser_module.new_console(PRECISION_WIDTH)
        for table in (fields_table(found), recipes_table(found)):
            console.print(table)
        console.print(*sentences(found), sep="\n", soft_wrap=True)
    for warning in warnings(found):
        print(f"hpcsgd: {warning}", file=sys.stderr)


def warnings(found: "PrecisionReport") -> list[str]:
    """Return a warning each if momentum or the rate is beyond what bounds cover."""
    messages = []
    if not found.covers_update:
        messages.append(
            "bounds and errors are of plain SGD, momentum is beyond the theory; the"
            " pilots have it"
        )
    if not found.is_safe:
        messages.append(
            f"the rate {found.rate:g} is above the limit of stability on these rows:"
            " errors may grow from step to step; the largest safe rate is"
            f" {found.safe_rate:.3g}"
        )
    return messages


def fields_table(found: "PrecisionReport") -> "Table":
    """Return the table of fields, a row for each field and format."""
    question = found.question
    schedule = question.config.schedule
    drawn = parser_module.new_table(
        f"one field low, the others fp64: error of w after one exchange, relative"
        f" to its update (b = {schedule.batch}, s = {schedule.steps or 'auto'},"
        f" C = {question.members}, median of {question.groups})",
        ("field", "format"),
        ("roundoff", "bound", "measured", "bytes saved", "µs saved"),
    )
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
    """Return the table of recipes, a row for each recipe."""
    drawn = parser_module.new_table(
        "whole recipes",
        ("recipe",),
        ("bound", "measured", "loss gap, pilot", "predicted", "bytes sent", "µs"),
    )
    for row in found.recipes:
        is_timed = row.cost.seconds is not None
        drawn.add_row(
            row.recipe,
            "none" if row.bound == float("inf") else f"{row.bound:.1e}",
            f"{row.measured:.1e}",
            _percent(row.gap.measured),
            _percent(row.gap.predicted),
            str(row.cost.sent),
            f"{1e6 * row.cost.total:.1f}" if is_timed else "emulated",
        )
    return drawn


def _percent(gap: float) -> str:
    return "diverged" if gap == float("inf") else f"{100 * gap:.5f} %"


def sentences(found: "PrecisionReport") -> list[str]:
    """Return the sentence that recommends a recipe, in a list."""
    best = found.recommended
    tolerance = found.question.tolerance
    sentence = f"recommended: --precision {best.recipe}"
    if best.gap.predicted > tolerance:
        return [
            f"{sentence}; no recipe is expected to stay within {100 * tolerance:g} %"
        ]
    return [
        f"{sentence}: the cheapest that runs here and whose predicted loss gap,"
        f" {_percent(best.gap.predicted)}, stays under {100 * tolerance:g} %"
    ]
