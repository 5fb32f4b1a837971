"""`hpcsgd study`: strong and weak scaling, sweeps, predictions, collecting."""

import argparse
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from hpcsgd.cli import launch
from hpcsgd.cli import parser as parser_module
from hpcsgd.cli.jobs import COUNTS, site_of
from hpcsgd.cli.names import COMMANDS, MACHINES, PLACES, POINT_TIMEOUT, RECIPES
from hpcsgd.cli.parser import (
    add_comm,
    add_ranks,
    not_negative,
    on_all_ranks,
    steps,
)
from hpcsgd.cli.train import add_settings, exit_code, overlaid
from hpcsgd.comm.launchers import is_launched
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.resources import Resources, check_known

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.comm.communicator import Communicator
    from hpcsgd.runs.result import Result
    from hpcsgd.studies.account import Account, AccountRow
    from hpcsgd.studies.plan import StudyPlan
    from hpcsgd.studies.predict import Prediction
    from hpcsgd.studies.submit import Where


# The flags of studies whose runs are jobs, and what they mean.

# Ranks and nodes are those of each job.
SLURM_OWN = ("tasks", "nodes")


def add_where(parser: Any) -> None:
    """Add what --on slurm needs to know."""
    group = parser.add_argument_group("with --on slurm")
    group.add_argument(
        "--site",
        metavar="NAME|FILE.toml",
        help="site of the jobs (`hpcsgd jobs new-site --list` shows the names); without"
        " the flag that of $HPCSGD_SITE",
    )
    group.add_argument(
        "--ranks-per-node",
        type=int,
        default=0,
        metavar="N",
        help="ranks on each node; 0 puts all ranks of a job on one node",
    )
    group.add_argument(
        "--resources",
        metavar="FILE.toml",
        help="file with the resources of every job; --ask overrides it",
    )
    group.add_argument(
        "--ask",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="resource of every job, as walltime=02:00:00 or partition=long; may be"
        " given several times",
    )


def where_of(arguments: argparse.Namespace) -> "Where":
    """The site and the resources that the flags name."""
    from hpcsgd.config import read_toml
    from hpcsgd.studies.submit import Where

    if arguments.ranks_per_node < 0:
        raise ConfigError("--ranks-per-node must be at least 0; 0 is all on one node")
    site = site_of(arguments)
    table = {k: v for k, v in site.defaults.items() if k not in SLURM_OWN}
    if arguments.resources:
        said = read_toml(arguments.resources)
        check_known(said, arguments.resources)
        table |= said
    table |= dict(_asked(text) for text in arguments.ask)
    own = sorted(set(table) & set(SLURM_OWN))
    if own:
        raise ConfigError(
            f"{own[0]} of a job is that of its runs; leave it out, and say with"
            " --ranks-per-node how ranks are spread"
        )
    resources, limit = Resources.parse(table), arguments.point_timeout
    return Where(site, resources, arguments.ranks_per_node, limit)


def _asked(text: str) -> tuple[str, Any]:
    """(name, value) of NAME=VALUE; counts are numbers."""
    name, equals, value = text.partition("=")
    if not (equals and name and value):
        raise ConfigError(
            f"--ask {text}: write NAME=VALUE, for example walltime=02:00:00"
        )
    check_known({name: value}, "--ask")
    return name, int(value) if name in COUNTS and value.isdigit() else value


# A study in words: its plan before it runs, and what it found.

TABLE_WIDTH = 170  # where standard output is no terminal
PLANNED = ("method", "ranks", "grid", "s", "global batch", "precision", "rows", "seed")
FOUND = (
    *("method", "ranks", "grid", "s", "batch", "precision", "runs", "seconds"),
    *("speed-up", "efficiency", "vs sgd", "gain", "vs 1 rank", "eff. vs 1"),
    *("calls", "words", "loss"),
)


def plan_line(plan: "StudyPlan") -> str:
    """How much a plan is."""
    settings = len(plan.settings())
    said = f"{plan.kind}: {settings} points x {plan.repeats} repeats"
    left = "".join(f"; {text}" for text in plan.left_out())
    return f"{said} = {settings * plan.repeats} runs{left}"


def plan_text(plan: "StudyPlan") -> str:
    """Every point in a line, and how many runs they are."""
    drawn = _table(PLANNED, plan_line(plan))
    for point in plan.settings():
        emulated = " emulated" if point.emulated else ""
        drawn.add_row(
            point.method,
            f"{point.ranks}{emulated}",
            f"{point.grid[0]}x{point.grid[1]}",
            str(point.steps),
            str(point.batch),
            point.recipe,
            str(point.rows or plan.rows),
            str(point.seed),
        )
    return _drawn(drawn)


def plan_json(plan: "StudyPlan") -> str:
    """One document."""
    document: dict[str, Any] = {
        **plan.as_dict(),
        "points": [point.key for point in plan.runs()],
        "runs": len(plan.settings()) * plan.repeats,
        "left_out": plan.left_out(),
    }
    return json.dumps(document, indent=2)


def account_text(found: "Account") -> str:
    """A row for each setting, and below it what its columns are held to."""
    drawn = _table(FOUND, _title(found))
    for row in found.rows:
        drawn.add_row(*_cells(row))
    return _drawn(drawn) + _notes(found)


def _title(found: "Account") -> str:
    missing = f", {found.missing} not run yet" if found.missing else ""
    return f"{found.kind}: {found.runs} good runs{missing}, in {found.folder}"


def _cells(row: "AccountRow") -> tuple[str, ...]:
    mark = " emulated" if row.emulated else " *" if row.oversubscribed else ""
    wrong = "" if row.expected in (True, None) else " !"
    return (
        row.method,
        f"{row.ranks}{mark}",
        row.grid,
        _steps(row),
        str(row.batch),
        row.recipe,
        f"{row.runs}/{row.planned}",
        _number(row.seconds, ".3f"),
        _number(row.speed_up, ".2f", "x"),
        _number(row.efficiency and 100 * row.efficiency, ".0f", " %"),
        _number(row.speed_up_sgd, ".2f", "x"),
        _number(row.gain, ".2f", "x"),
        _number(row.speed_up_one_rank, ".2f", "x"),
        "-" if row.efficiency_one_rank is None else _percent(row.efficiency_one_rank),
        f"{_number(row.calls, 'd')}{wrong}",
        f"{_number(row.words, 'd')}{wrong}",
        _number(row.loss, ".6f"),
    )


def _steps(row: "AccountRow") -> str:
    """How many, and whether the run chose them."""
    chosen = "/sauto/" in row.setting and row.steps != "auto"
    return f"{row.steps} auto" if chosen else str(row.steps)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _notes(found: "Account") -> str:
    """What is not said by the columns' names."""
    lines = [
        "seconds: median; speed-up, efficiency: against the method's own fewest ranks;"
        f" vs sgd: against sgd on {found.fewest}; gain: against sgd on as many ranks;"
        " vs 1 rank, eff. vs 1: speed-up and efficiency against the fastest setting on"
        " one rank, of any method"
    ]
    if all(row.speed_up_one_rank is None for row in found.rows):
        lines.append("no setting ran on one rank with such a batch: add 1 to --ranks")
    if len(found.processors) > 1:
        machines = " and ".join(found.processors)
        lines.append(f"runs on {machines}: none is held to one on the other")
    if found.kind == "weak":
        lines.append("the work grows with the ranks, and speed-ups count it")
    if any(row.emulated for row in found.rows):
        lines.append(
            "emulated: one rank, alone on its node, that waits as --network says; what"
            " the others would do to its memory and its network is not in these times"
        )
    if any(row.oversubscribed for row in found.rows):
        lines.append("* more ranks than cores: its times mean little")
    if any(row.expected is False for row in found.rows):
        lines.append("! not the calls and words of the formula")
    if found.best is not None:
        best = found.best
        word = "most rows a second" if found.kind == "weak" else "fastest"
        lines.append(f"{word}: {best.setting}, {best.seconds:.3f} s")
    return "\n".join(lines)


def _table(columns: tuple[str, ...], title: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        drawn.add_column(column, justify="left" if number == 0 else "right")
    return drawn


def _drawn(table: "Table") -> str:
    from rich.console import Console

    width = None if sys.stdout.isatty() else TABLE_WIDTH
    text = io.StringIO()
    Console(file=text, highlight=False, width=width).print(table)
    return text.getvalue()


# What strong, weak and sweep share: flags, a plan, its runs, one table.

log = logging.getLogger(__name__)
STUDY_EXAMPLE = (
    "hpcsgd study {kind} --data rows.h5 --ranks 1,2 --rate 0.5 --repeats 1"
    " --out studies/{kind}"
)
# Flags of `train` that are lists here, or mean something else.
OWN = (
    *("--ranks", "--steps", "--batch", "--precision", "--seed", "--grid"),
    *("--emulate-members", "--resume", "--out", "--plain"),
)
# flag, the key of [study] that it stands for, what is shown for its value, its help
LISTS = (
    ("--ranks", "ranks", "P,P,...", "numbers of MPI ranks to run on"),
    (
        "--methods",
        "methods",
        "M,M,...",
        "methods to run (`hpcsgd info` lists the names); default sgd,casgd",
    ),
    ("--steps", "steps", "S,S,...", "SGD steps s of one exchange, or auto"),
    ("--batch", "batch", "B,B,...", "rows of one step, over all replicas"),
    ("--grids", "grids", "RxC,...", "grids (replicas x members) of the method hybrid"),
    (
        "--precision",
        "precision",
        "NAME,...",
        "recipes of number formats; the baseline has the first of them",
    ),
    ("--seeds", "seeds", "N,N,...", "seeds of the random order of the rows"),
    (
        "--emulate-members",
        "emulate_members",
        "N,N,...",
        "time one rank as one of N members",
    ),
)


def add_study(actions: Any, kind: str, text: str) -> None:
    """Add one kind of study."""
    parser = actions.add_parser(
        kind,
        help=text,
        description=f"Train methods and settings on several numbers of ranks: {text}."
        " The runs take turns, each in a process of its own. Flags and the TOML file"
        " set what all runs share.",
        example=STUDY_EXAMPLE.format(kind=kind),
    )
    for flag, key, shown, says in LISTS:
        parser.add_argument(flag, dest=f"study.{key}", metavar=shown, help=says)
    parser.add_argument(
        "--repeats",
        dest="study.repeats",
        type=int,
        metavar="N",
        help="runs of each point; default 3",
    )
    if kind == "weak":
        parser.add_argument(
            "--batch-grows",
            dest="study.batch_grows",
            action="store_true",
            default=None,
            help="let the global batch grow with the ranks, as the rows do",
        )
    parser.add_argument(
        "--out", dest="run.out", metavar="DIR", help="folder of the study to write"
    )
    parser.add_argument(
        "--on",
        dest="study.on",
        choices=PLACES,
        help="run here (local), or submit the runs as jobs (slurm); default local",
    )
    parser.add_argument(
        "--point-timeout",
        type=not_negative,
        default=POINT_TIMEOUT,
        metavar="SECONDS",
        help="time limit of one run; 0 sets none",
    )
    parser.add_argument(
        "--resume", action="store_true", help="resume the study in --out"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and run nothing"
    )
    parser_module.add_json(parser)
    parser_module.add_volume(parser)
    add_where(parser)
    add_settings(parser, without=OWN)
    parser.set_defaults(run=partial(run_study, kind))


def run_study(kind: str, arguments: argparse.Namespace, argv: list[str]) -> int:
    """Plan, run, show; 1 where a run failed."""
    if is_launched(os.environ):
        raise ConfigError(
            "hpcsgd study starts the ranks of every run itself; start it without a"
            " launcher"
        )
    if not 0 <= arguments.point_timeout < float("inf"):
        raise ConfigError("--point-timeout must be finite seconds, 0 = none")
    plan, out = read_study_plan(kind, arguments)
    if arguments.dry_run:
        print(plan_json(plan) if arguments.json else plan_text(plan))
        return 0
    if not out:
        raise ConfigError("a study needs a folder to write to: add --out DIR")
    log.info("%s", plan_line(plan))
    if plan.emulated and not plan.base.get("run", {}).get("network"):
        log.warning(
            "without a network emulated ranks wait for nobody, and their times are of"
            " arithmetic alone; add --network lan, or what the machine has"
        )
    begin = _here if plan.on == "local" else _jobs
    return begin(plan, out, arguments)


def _jobs(plan: "StudyPlan", out: str, arguments: argparse.Namespace) -> int:
    """Submit what is missing, and say how to go on."""
    from hpcsgd.studies.submit import begin

    begun = begin(plan, out, where_of(arguments), resume=arguments.resume)
    if arguments.json:
        print(json.dumps(begun.as_dict(), indent=2))
    else:
        jobs = f"jobs {', '.join(begun.jobs)} submitted" if begun.jobs else "no new job"
        print(f"{jobs}; gather what is over with: hpcsgd study collect {out}")
    return 0


def _here(plan: "StudyPlan", out: str, arguments: argparse.Namespace) -> int:
    """Run it on this machine."""
    from hpcsgd.runs.result import REQUEUE
    from hpcsgd.studies.run import run

    try:
        with _asked_to_end():
            found = run(
                plan, out, resume=arguments.resume, timeout=arguments.point_timeout
            )
    except (KeyboardInterrupt, _Terminated) as stop:
        log.warning("stopped; the same command with --resume goes on")
        return 130 if isinstance(stop, KeyboardInterrupt) else REQUEUE
    return show(found, arguments.json)


def read_study_plan(
    kind: str, arguments: argparse.Namespace
) -> "tuple[StudyPlan, str]":
    """Return plan and folder: tables of the file, then --set, then the flags."""
    from hpcsgd.config import read_toml
    from hpcsgd.studies.run import make_plan

    read: dict[str, Any] = read_toml(arguments.config) if arguments.config else {}
    asked = read.pop("study", {})
    if not isinstance(asked, dict):
        raise ConfigError(f"study = {asked!r} must be a table; write [study]")
    base = overlaid(read, arguments)
    given = {
        name.removeprefix("study."): value
        for name, value in vars(arguments).items()
        if name.startswith("study.") and value is not None
    }
    out = str(base.get("run", {}).get("out") or "")
    return make_plan(kind, {**asked, **given}, base), out


def show(found: "Account", as_json: bool) -> int:
    """Print what was found; the exit code."""
    from hpcsgd.runs.result import REQUEUE

    print(found.json() if as_json else account_text(found), flush=True)
    for bad in found.failures:
        print(f"hpcsgd: {bad['key']} {bad['status']}: {bad['error']}", file=sys.stderr)
    if found.failures:
        count, runs = len(found.failures), sum(row.planned for row in found.rows)
        print(f"hpcsgd: {count} of {runs} runs failed", file=sys.stderr)
    for run in found.preempted:
        print(
            f"hpcsgd: {run['key']} {run['status']}: the same command with --resume runs"
            " it again",
            file=sys.stderr,
        )
    if found.failures:
        return 1
    return REQUEUE if found.preempted else 0


class _Terminated(BaseException):
    """Somebody sent SIGTERM."""


@contextmanager
def _asked_to_end() -> Iterator[None]:
    """SIGTERM ends the run that is under way, and nothing that is over is lost."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# `hpcsgd study collect`: what a study has found so far.


def add_collect_parser(actions: Any) -> None:
    """Add `collect`."""
    parser = actions.add_parser(
        "collect",
        help="collect the results of a study in one table",
        description="Collect the results of all finished runs of a study, of jobs too,"
        " and print one table.",
        example="hpcsgd study collect studies/strong",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of the study")
    parser_module.add_json(parser)
    parser_module.add_volume(parser)
    parser.set_defaults(run=run_collect)


def run_collect(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write a line for each run that is over since, show them all."""
    from hpcsgd.studies.submit import collect

    found, active = collect(arguments.folder)
    if active:
        print(f"hpcsgd: {active} runs are under way", file=sys.stderr)
    return show(found, arguments.json)


# `hpcsgd study point`: one run of a study, on the ranks that are there.


def add_point_parser(actions: Any) -> None:
    """Add `point`."""
    parser = actions.add_parser(
        "point",
        help="run one point of a study, as its jobs do",
        description="Train the point points/NAME.toml of a study and write its result"
        " to ends/NAME.json, which `hpcsgd study collect` reads.",
        example="hpcsgd study point studies/strong sgd-p1-s1-b32-1x1-fp32-seed0-r1",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of the study")
    parser.add_argument(
        "name", metavar="NAME", help="name of a file in points/, without .toml"
    )
    add_ranks(parser)
    add_comm(parser, default=None)
    parser.add_argument(
        "--point-timeout",
        type=not_negative,
        default=0.0,
        metavar="SECONDS",
        help="time limit of the run; 0 sets none",
    )
    parser_module.add_volume(parser)
    parser.set_defaults(run=run_point)


def run_point(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Train here, or under mpiexec."""
    from hpcsgd.runs.recovery import Signals
    from hpcsgd.studies.run import read_config, train_point

    folder, name = Path(arguments.folder), arguments.name
    config = read_config(folder, name)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv)

    def action(world: "Communicator") -> "Result":
        with Signals(world.abort) as signals:
            limit = arguments.point_timeout
            return train_point(folder, name, world, limit, [signals])

    return on_all_ranks(
        arguments.comm or config.run.comm,
        action,
        show=lambda result: None,
        code=exit_code,
        timeout=config.run.timeout,
    )


# `hpcsgd study predict`: what a step would take on ranks that are not here.

WIDTH = 130  # where standard output is no terminal
COLUMNS = (
    *("ranks", "grid", "SGD", "CA-SGD", "by", "sums", "CA-SGD/SGD"),
    *("vs 1 rank", "efficiency", "limit"),
)


def add_predict_parser(actions: Any) -> None:
    """Add `predict` to the actions."""
    parser = actions.add_parser(
        "predict",
        help="predict the time of a step on many ranks of a machine",
        description="Predict the time of a step of plain SGD and of CA-SGD on many"
        " ranks by the cost model and a machine file. The table shows speed-up and"
        " efficiency against one rank and what limits the step.",
        example="hpcsgd study predict --machine perlmutter-a100 --data 400000,2000",
    )
    parser.add_argument(
        "--machine",
        required=True,
        metavar="NAME|FILE.toml",
        help=f"machine file, or one of {', '.join(MACHINES)}",
    )
    parser.add_argument(
        "--ranks",
        default="1..65536",
        metavar="A..B",
        help="numbers of ranks: the powers of two from A to B, or a list as 1,2,4",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="ROWS,COLUMNS|FILE.h5",
        help="size of the data, or a data file that has this size",
    )
    parser.add_argument("--batch", type=int, default=32, help="rows of one step")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the run")
    parser.add_argument(
        "--steps",
        type=steps,
        default="auto",
        metavar="S",
        help="SGD steps s of one exchange; auto takes the fastest number",
    )
    parser.add_argument(
        "--precision",
        choices=RECIPES,
        default="fp32",
        help="recipe of number formats",
    )
    parser.add_argument(
        "--classes",
        type=int,
        default=1,
        help="columns of the weights: the number of classes of softmax, else 1",
    )
    parser.add_argument(
        "--period",
        type=int,
        default=8,
        help="exchanges between two agreements of replicas",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw the prediction into this file"
    )
    parser_module.add_json(parser)
    parser.set_defaults(run=run_predict)


def run_predict(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Look nothing up but files, and print."""
    from rich.console import Console

    from hpcsgd.runs.machine import load_hardware
    from hpcsgd.studies.predict import PredictedRun, parse_ranks, predict

    if arguments.plot:
        from hpcsgd.runs.figures import require

        require()
    hardware = load_hardware(arguments.machine)
    rows, columns = _shape(arguments.data)
    asked = PredictedRun(
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
        from hpcsgd.studies.predict import plot_prediction

        plot_prediction(found.as_dict(), arguments.plot)
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
            *(_microseconds(point.sgd), _microseconds(best.seconds)),
            *(f"{best.product}, s = {best.steps}", point.by),
            # On one rank CA-SGD is plain SGD: no ratio of a method to itself.
            f"{point.speed_up:.2f}x" if point.grid[1] > 1 else "-",
            f"{found.speed_up(point):.2f}x",
            _percent(found.efficiency(point)),
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
            f" {best.ranks}: {best.speed_up:.1f} times plain SGD on as many"
        )
    else:
        yield "CA-SGD wins nowhere here: no sum takes long enough to be worth a Gram"
    yield from _scaling(found)
    if any(p.grid[0] > 1 for p in points):
        yield (
            "grids of several replicas take as many batches in a step and average"
            " weights: other iterates than SGD's, and more rows for the same loss"
        )
    marks = [number.mark for _, number in found.hardware.numbers()]
    stated = marks.count("stated")
    yield (
        f"{len(marks) - stated} figures of this machine are measured, {stated} stated"
        " (their sources are in the machine file)"
    )


def _scaling(found: "Prediction") -> Iterator[str]:
    """Where a step is fastest, where more ranks stop paying, how well they are used."""
    fastest, last = found.fastest(), found.points[-1]
    step = f"{_microseconds(fastest.seconds)} by {fastest.method}"
    if fastest.ranks == 1:
        yield f"a step is fastest on one rank, {step}"
    else:
        limit = (
            "" if fastest.method == "SGD" else f"; what limits it is {fastest.limit}"
        )
        yield (
            f"a step is fastest on {fastest.ranks} ranks, {step}:"
            f" {found.speed_up(fastest):.2f} times as fast as one rank"
            f" ({_microseconds(found.one_rank.seconds)} by {found.one_rank.method}), an"
            f" efficiency of {_percent(found.efficiency(fastest))}{limit}"
        )
    if fastest.ranks < last.ranks:
        yield (
            f"beyond {_number_of_ranks(fastest.ranks)} more of them no longer pay: a"
            f" step on {last.ranks} takes {_microseconds(last.seconds)}"
        )
    efficient = found.efficient()
    if efficient is None:
        yield "on none of these numbers of ranks is the efficiency 50 % or more"
    elif efficient.ranks < last.ranks:
        yield (
            "the efficiency is 50 % or more up to"
            f" {_number_of_ranks(efficient.ranks)}, and below that beyond"
        )


def _percent(share: float) -> str:
    """Format a share with two digits: 84 %, 0.21 %."""
    from hpcsgd.studies.plots.charts import figures

    return f"{figures(100 * share, 2)} %"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs"


def _number_of_ranks(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


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


# `hpcsgd study strong`: the same data on all numbers of ranks.


def add_strong_parser(actions: Any) -> None:
    """Add `strong`."""
    add_study(actions, "strong", "strong scaling, the same data on all ranks")


# `hpcsgd study sweep`: all settings, and all grids of hybrid, at given ranks.


def add_sweep_parser(actions: Any) -> None:
    """Add `sweep`."""
    add_study(actions, "sweep", "every combination of the listed settings and grids")


# `hpcsgd study weak`: rows that grow with the ranks.


def add_weak_parser(actions: Any) -> None:
    """Add `weak`."""
    add_study(actions, "weak", "weak scaling, rows that grow with the ranks")


# `hpcsgd study`: many runs on many ranks, each in a process of its own.

ACTIONS = (
    add_strong_parser,
    add_weak_parser,
    add_sweep_parser,
    add_predict_parser,
    add_collect_parser,
    add_point_parser,
)


def add_parser(commands: Any) -> None:
    """Add `study` and its own commands."""
    parser = commands.add_parser(
        "study",
        help=COMMANDS["study"],
        example=STUDY_EXAMPLE.format(kind="strong"),
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
