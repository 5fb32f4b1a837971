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
    whole_or_auto,
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
    from hpcsgd.studies.submit import JobOptions


# Flags of studies whose runs are jobs of Slurm.

# Resources that a study sets for each job; --resources and --ask may not.
SET_BY_STUDY = ("tasks", "nodes")


def add_where(parser: Any) -> None:
    """Add the flags of --on slurm."""
    group = parser.add_argument_group("with --on slurm")
    group.add_argument(
        "--site",
        metavar="NAME|FILE.toml",
        help="site of the jobs (`hpcsgd jobs new-site --list` shows the names); the"
        " default is the value of $HPCSGD_SITE",
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
        " given several times; the nodes of a study are exclusive, unless this flag"
        " says exclusive=false",
    )


def job_options(arguments: argparse.Namespace) -> "JobOptions":
    """Return site, resources, ranks per node and time limit of the jobs."""
    from hpcsgd.config import read_toml
    from hpcsgd.studies.submit import JobOptions

    if arguments.ranks_per_node < 0:
        raise ConfigError(
            "--ranks-per-node must be at least 0; 0 puts all ranks on one node"
        )
    site = site_of(arguments)
    # Jobs of others on the same nodes would be part of the times of a study.
    table: dict[str, Any] = {"exclusive": True}
    table |= {k: v for k, v in site.defaults.items() if k not in SET_BY_STUDY}
    if arguments.resources:
        resources = read_toml(arguments.resources)
        check_known(resources, arguments.resources)
        table |= resources
    table |= dict(_resource(text) for text in arguments.ask)
    forbidden = sorted(set(table) & set(SET_BY_STUDY))
    if forbidden:
        raise ConfigError(
            f"{forbidden[0]} cannot be set for the jobs of a study, which derives it"
            " from the ranks of the runs; leave it out, and spread the ranks over nodes"
            " with --ranks-per-node"
        )
    return JobOptions(
        site,
        Resources.parse(table),
        per_node=arguments.ranks_per_node,
        timeout=arguments.point_timeout,
    )


def _resource(text: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE; a count becomes a number, true a bool."""
    name, equals, value = text.partition("=")
    if not (equals and name and value):
        raise ConfigError(
            f"--ask {text}: write NAME=VALUE, for example walltime=02:00:00"
        )
    check_known({name: value}, "--ask")
    if name == "exclusive" and value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if name in COUNTS and value.isdigit() else value


# Tables for people: the plan of a study before it runs, and its results.

TABLE_WIDTH = 170  # columns of text where standard output is no terminal
PLANNED = ("method", "ranks", "grid", "s", "global batch", "precision", "rows", "seed")
RESULTS = (
    *("method", "ranks", "grid", "s", "batch", "precision", "runs", "seconds"),
    *("speed-up", "efficiency", "vs sgd", "gain", "vs 1 rank", "eff. vs 1"),
    *("calls", "words", "loss"),
)


def plan_line(plan: "StudyPlan") -> str:
    """Return the size of a plan: its points, repeats and runs."""
    points = len(plan.settings())
    size = f"{points} points x {plan.repeats} repeats = {points * plan.repeats} runs"
    left_out = "".join(f"; {text}" for text in plan.left_out())
    return f"{plan.kind}: {size}{left_out}"


def plan_text(plan: "StudyPlan") -> str:
    """Return the table of a plan, one row for each point."""
    table = parser_module.new_table(plan_line(plan), PLANNED[:1], PLANNED[1:])
    for point in plan.settings():
        emulated = " emulated" if point.emulated else ""
        table.add_row(
            point.method,
            f"{point.ranks}{emulated}",
            f"{point.grid[0]}x{point.grid[1]}",
            str(point.steps),
            str(point.batch),
            point.recipe,
            str(point.rows or plan.rows),
            str(point.seed),
        )
    return _text_of(table)


def plan_json(plan: "StudyPlan") -> str:
    """Return a plan as one JSON document."""
    document: dict[str, Any] = {
        **plan.as_dict(),
        "points": [point.key for point in plan.runs()],
        "runs": len(plan.settings()) * plan.repeats,
        "left_out": plan.left_out(),
    }
    return json.dumps(document, indent=2)


def account_text(account: "Account") -> str:
    """Return the table of an account, and notes on its columns and marks."""
    missing = f", {account.missing} not run yet" if account.missing else ""
    title = f"{account.kind}: {account.runs} good runs{missing}, in {account.folder}"
    table = parser_module.new_table(title, RESULTS[:1], RESULTS[1:])
    for row in account.rows:
        table.add_row(*_cells(row))
    return _text_of(table) + _notes(account)


def _cells(row: "AccountRow") -> tuple[str, ...]:
    mark = " emulated" if row.emulated else " *" if row.oversubscribed else ""
    wrong = " !" if row.expected is False else ""
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
    """Return s, and the word auto if the run chose it."""
    chosen = "/sauto/" in row.setting and row.steps != "auto"
    return f"{row.steps} auto" if chosen else str(row.steps)


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _notes(account: "Account") -> str:
    """Return the notes that explain columns and marks of the table, a line each."""
    lines = [
        "seconds: median; speed-up, efficiency: against the method's own fewest ranks;"
        f" vs sgd: against sgd on {account.fewest}; gain: against sgd on as many ranks;"
        " vs 1 rank, eff. vs 1: speed-up and efficiency against the fastest setting on"
        " one rank, of any method"
    ]
    if all(row.speed_up_one_rank is None for row in account.rows):
        lines.append(
            "vs 1 rank: no setting with such a batch ran on one rank; add 1 to --ranks"
        )
    if len(account.processors) > 1:
        machines = " and ".join(account.processors)
        lines.append(f"runs on {machines}: speed-ups compare runs on one of them only")
    if account.kind == "weak":
        lines.append("the rows grow with the ranks: speed-ups compare rows per second")
    if any(row.emulated for row in account.rows):
        lines.append(
            "emulated: one rank, alone on its node, that waits as --network says; the"
            " load of the other ranks on its memory and network is not in these times"
        )
    if any(row.oversubscribed for row in account.rows):
        lines.append("* more ranks than cores: its times mean little")
    if any(row.expected is False for row in account.rows):
        lines.append("! calls and words differ from the formula")
    if account.best is not None:
        best = account.best
        word = "most rows a second" if account.kind == "weak" else "fastest"
        lines.append(f"{word}: {best.setting}, {best.seconds:.3f} s")
    return "\n".join(lines)


def _text_of(table: "Table") -> str:
    from rich.console import Console

    width = None if sys.stdout.isatty() else TABLE_WIDTH
    text = io.StringIO()
    Console(file=text, highlight=False, width=width).print(table)
    return text.getvalue()


# `hpcsgd study strong`, `weak` and `sweep` share their flags and their steps.

log = logging.getLogger(__name__)
STUDY_EXAMPLE = (
    "hpcsgd study {kind} --data rows.h5 --ranks 1,2 --rate 0.5 --repeats 1"
    " --out studies/{kind}"
)
# Flags of `train` that are lists in a study, or have another meaning.
NOT_OF_TRAIN = (
    *("--ranks", "--steps", "--batch", "--precision", "--seed", "--grid"),
    *("--emulate-members", "--resume", "--out", "--plain"),
)
# Each flag with its key of [study], the name of its value, and its help.
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
        "recipes of number formats, all of which run; gains over sgd are relative to"
        " sgd in the first of them",
    ),
    ("--seeds", "seeds", "N,N,...", "seeds of the random order of the rows"),
    (
        "--emulate-members",
        "emulate_members",
        "N,N,...",
        "time one rank that does the work of one of N members",
    ),
)


def add_study(actions: Any, kind: str, text: str) -> None:
    """Add the parser of one kind of study."""
    parser = actions.add_parser(
        kind,
        help=text,
        description=f"Train methods and settings on several numbers of ranks: {text}."
        " The runs take turns, each in a process of its own. Flags and the TOML file"
        " set what all runs share.",
        example=STUDY_EXAMPLE.format(kind=kind),
    )
    for flag, key, metavar, about in LISTS:
        parser.add_argument(flag, dest=f"study.{key}", metavar=metavar, help=about)
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
        help="run on this machine (local), or submit jobs (slurm); default local",
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
        "--dry-run",
        action="store_true",
        help="show the plan, check its jobs, and run nothing",
    )
    parser_module.add_json(parser)
    parser_module.add_volume(parser)
    add_where(parser)
    add_settings(parser, without=NOT_OF_TRAIN)
    parser.set_defaults(run=partial(run_study, kind))


def run_study(kind: str, arguments: argparse.Namespace, argv: list[str]) -> int:
    """Plan a study, and show the plan (--dry-run) or run or submit it.

    Return the exit code.
    """
    if is_launched(os.environ):
        raise ConfigError(
            "hpcsgd study starts the ranks of every run itself; start it without a"
            " launcher"
        )
    if not 0 <= arguments.point_timeout < float("inf"):
        raise ConfigError(
            "--point-timeout must be a finite number of seconds; 0 sets no limit"
        )
    plan, out = read_study_plan(kind, arguments)
    if arguments.dry_run:
        if plan.on == "slurm":
            from hpcsgd.studies.submit import check_jobs

            check_jobs(plan, out or kind, job_options(arguments))
        print(plan_json(plan) if arguments.json else plan_text(plan))
        return 0
    if not out:
        raise ConfigError("a study needs a folder to write to: add --out DIR")
    log.info("%s", plan_line(plan))
    if plan.emulated and not plan.base.get("run", {}).get("network"):
        log.warning(
            "--emulate-members without --network measures only arithmetic, because an"
            " emulated rank waits for no messages; add --network lan, or the network of"
            " the machine"
        )
    begin = _run_on_this_machine if plan.on == "local" else _submit
    return begin(plan, out, arguments)


def _submit(plan: "StudyPlan", out: str, arguments: argparse.Namespace) -> int:
    """Submit the missing runs as jobs, and print how to collect their results."""
    from hpcsgd.studies.submit import begin

    submission = begin(plan, out, job_options(arguments), resume=arguments.resume)
    if arguments.json:
        print(json.dumps(submission.as_dict(), indent=2))
    else:
        numbers = ", ".join(submission.jobs)
        jobs = f"jobs {numbers} submitted" if numbers else "no new job"
        print(f"{jobs}; collect the finished runs with: hpcsgd study collect {out}")
    return 0


def _run_on_this_machine(
    plan: "StudyPlan", out: str, arguments: argparse.Namespace
) -> int:
    """Run the missing runs on this machine, and show the account."""
    from hpcsgd.runs.result import REQUEUE
    from hpcsgd.studies.run import run

    try:
        with _sigterm_as_exception():
            account = run(
                plan, out, resume=arguments.resume, timeout=arguments.point_timeout
            )
    except (KeyboardInterrupt, _Terminated) as stop:
        log.warning(
            "the study was stopped; to continue, repeat the command with --resume"
        )
        return 130 if isinstance(stop, KeyboardInterrupt) else REQUEUE
    return show(account, arguments.json)


def read_study_plan(
    kind: str, arguments: argparse.Namespace
) -> "tuple[StudyPlan, str]":
    """Return the plan, and its folder or "".

    Flags override --set, and --set overrides the file.
    """
    from hpcsgd.config import read_toml
    from hpcsgd.studies.run import make_plan

    tables: dict[str, Any] = read_toml(arguments.config) if arguments.config else {}
    study = tables.pop("study", {})
    if not isinstance(study, dict):
        raise ConfigError(f"study = {study!r} must be a table; write [study]")
    base = overlaid(tables, arguments)
    flags = {
        name.removeprefix("study."): value
        for name, value in vars(arguments).items()
        if name.startswith("study.") and value is not None
    }
    out = str(base.get("run", {}).get("out") or "")
    return make_plan(kind, {**study, **flags}, base), out


def show(account: "Account", as_json: bool) -> int:
    """Print an account, and its failures on standard error; return the exit code.

    It is 1 if a run failed, else REQUEUE if one was preempted, else 0.
    """
    from hpcsgd.runs.result import REQUEUE

    print(account.json() if as_json else account_text(account), flush=True)
    for bad in account.failures:
        print(f"hpcsgd: {bad['key']} {bad['status']}: {bad['error']}", file=sys.stderr)
    if account.failures:
        count = len(account.failures)
        runs = sum(row.planned for row in account.rows)
        print(f"hpcsgd: {count} of {runs} runs failed", file=sys.stderr)
    for run in account.preempted:
        print(
            f"hpcsgd: {run['key']} {run['status']}: the same command with --resume runs"
            " it again",
            file=sys.stderr,
        )
    if account.failures:
        return 1
    return REQUEUE if account.preempted else 0


class _Terminated(BaseException):
    """The process has received SIGTERM."""


@contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Return a context in which SIGTERM raises `_Terminated`.

    The study can then end its current run and close its files.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# `hpcsgd study collect`: the results of a study so far.


def add_collect_parser(actions: Any) -> None:
    """Add the parser of `collect`."""
    parser = actions.add_parser(
        "collect",
        help="collect the results of a study in one table",
        description="Collect the results of all finished runs of a study, including"
        " those of jobs, and print one table.",
        example="hpcsgd study collect studies/strong",
    )
    parser.add_argument("folder", metavar="DIR", help="folder of the study")
    parser_module.add_json(parser)
    parser_module.add_volume(parser)
    parser.set_defaults(run=run_collect)


def run_collect(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Add runs that have ended to the results of the study, and show all results."""
    from hpcsgd.studies.submit import collect

    account, active = collect(arguments.folder)
    if active:
        print(f"hpcsgd: {active} runs are under way", file=sys.stderr)
    return show(account, arguments.json)


# `hpcsgd study point`: one run of a study, on the ranks that its launcher has started.


def add_point_parser(actions: Any) -> None:
    """Add the parser of `point`."""
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
    """Train one point on the current ranks, with --ranks under mpiexec."""
    from hpcsgd.runs.recovery import Signals
    from hpcsgd.studies.run import read_config, train_point

    folder = Path(arguments.folder)
    name = arguments.name
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


# `hpcsgd study predict`: the time of a step on any number of ranks, by the cost model.

WIDTH = 130  # columns of text where standard output is no terminal
COLUMNS = (
    *("ranks", "grid", "SGD", "CA-SGD", "by", "sums", "CA-SGD/SGD"),
    *("vs 1 rank", "efficiency", "limit"),
)
RUN_COLUMNS = (
    *("ranks", "start", "staged", "checkpoint", "grid", "epoch"),
    *("best grid", "best epoch", "best by"),
)


def add_predict_parser(actions: Any) -> None:
    """Add the parser of `predict`."""
    parser = actions.add_parser(
        "predict",
        help="predict the time of a step on many ranks of a machine",
        description="Predict the time of a step of plain SGD and of CA-SGD on many"
        " ranks by the cost model and a machine file. The first table shows speed-up"
        " and efficiency against one rank and what limits the step. The second table"
        " shows the times of a start without and with `hpcsgd jobs stage`, of a"
        " checkpoint and of an epoch, and the grid with the shortest epoch.",
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
        help="numbers of rows and columns, or a data file of this size",
    )
    parser.add_argument(
        "--batch", type=int, default=32, help="rows of one step of one replica"
    )
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the run")
    parser.add_argument(
        "--steps",
        type=whole_or_auto,
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
        "--density",
        type=float,
        metavar="SHARE",
        help="share of the values that sparse rows store; by default that of FILE.h5,"
        " else 1 for dense rows",
    )
    parser.add_argument(
        "--contention",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="how many times as long each message takes because other jobs use the"
        " network; the default 1 is an idle network",
    )
    parser.add_argument(
        "--skew",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="how many times as long the slowest rank computes between two exchanges as"
        " the ranks do on average; the default 1 is ranks of equal speed",
    )
    parser.add_argument(
        "--heat-map",
        action="store_true",
        help="print the epoch on every grid, relative to that on the best one",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw the prediction into this file"
    )
    parser_module.add_json(parser)
    parser.set_defaults(run=run_predict)


def run_predict(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Predict, and print a table and sentences, or with --json one document."""
    from hpcsgd.runs.machine import load_hardware
    from hpcsgd.studies.predict import PredictedRun, parse_ranks, predict

    parser_module.require_figures(arguments.plot)
    hardware = load_hardware(arguments.machine)
    rows, columns, density = _shape(arguments.data)
    run = PredictedRun(
        rows=rows,
        columns=columns,
        batch=_positive("--batch", arguments.batch),
        epochs=_positive("--epochs", arguments.epochs),
        steps=arguments.steps if isinstance(arguments.steps, int) else 0,
        recipe=arguments.precision,
        scores=_positive("--classes", arguments.classes),
        period=_positive("--period", arguments.period),
        density=density if arguments.density is None else arguments.density,
        contention=arguments.contention,
        skew=arguments.skew,
    )
    prediction = predict(hardware, run, parse_ranks(arguments.ranks))
    if arguments.plot:
        prediction.save_figure(arguments.plot)
    if arguments.json:
        print(json.dumps(prediction.as_dict(), indent=2), flush=True)
        return 0
    console = parser_module.new_console(WIDTH)
    console.print(prediction_table(prediction))
    console.print(run_table(prediction))
    if arguments.heat_map:
        console.print(heat_map_table(prediction))
    console.print(*sentences(prediction), sep="\n", soft_wrap=True)
    return 0


def _positive(flag: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{flag} {value} must be at least 1")
    return value


def _shape(text: str) -> tuple[int, int, float]:
    """Return rows, columns and density of "400000,2000" or of a data file."""
    from hpcsgd.data.readers import open_reader, stored_in

    if Path(text).is_file():
        reader = open_reader(Path(text))
        density = stored_in(reader) / (reader.rows * reader.cols)
        shape = reader.rows, reader.cols, density
        reader.close()
        return shape
    rows, comma, columns = text.partition(",")
    if not comma or not (rows.isdigit() and columns.isdigit()):
        raise ConfigError(
            f"--data {text} is neither an existing file nor ROWS,COLUMNS; write for"
            " example 400000,2000"
        )
    return int(rows), int(columns), 1.0


def prediction_table(prediction: "Prediction") -> "Table":
    """Return the table of a prediction, one row for each number of ranks."""
    asked = prediction.asked
    title = f"a step on {prediction.hardware.name}, predicted"
    for name, factor in (("contention", asked.contention), ("skew", asked.skew)):
        title += "" if factor == 1 else f", {name} {factor:g}"
    table = parser_module.new_table(title, (), COLUMNS, justify="center")
    for point in prediction.points:
        best = point.best
        share = point.terms[point.limit] / best.seconds
        table.add_row(
            str(point.ranks),
            f"{point.grid[0]}x{point.grid[1]}",
            _microseconds(point.sgd),
            _microseconds(best.seconds),
            f"{best.product}, s = {best.steps}",
            point.by,
            # On one rank CA-SGD is plain SGD: no ratio of a method to itself.
            f"{point.speed_up:.2f}x" if point.grid[1] > 1 else "-",
            f"{prediction.speed_up(point):.2f}x",
            _percent(prediction.efficiency(point)),
            f"{point.limit}, {100 * share:.0f} %",
        )
    return table


def run_table(prediction: "Prediction") -> "Table":
    """Return the table of starts, checkpoints and epochs, one row for each number."""
    title = "a run: start, checkpoint, epoch, and the grid with the shortest epoch"
    table = parser_module.new_table(title, (), RUN_COLUMNS, justify="center")
    for point in prediction.points:
        best = prediction.best_grid(point.ranks)
        method = "SGD" if best.method == "SGD" else f"CA-SGD, s = {best.best.steps}"
        table.add_row(
            str(point.ranks),
            _seconds(prediction.start(point.ranks)),
            _seconds(prediction.start(point.ranks, staged=True)),
            _seconds(point.checkpoint),
            f"{point.grid[0]}x{point.grid[1]}",
            _seconds(point.epoch),
            f"{best.grid[0]}x{best.grid[1]}",
            _seconds(best.epoch),
            method,
        )
    return table


def heat_map_table(prediction: "Prediction") -> "Table":
    """Return the table of epochs on all grids, relative to the best of their ranks."""
    from hpcsgd.studies.plots.charts import figures

    heat = prediction.heat_map()
    replicas = sorted({r for row in heat.values() for r in row})
    title = "epoch on R replicas / epoch on the best grid of as many ranks"
    names = ("ranks", *(f"R={r}" for r in replicas))
    table = parser_module.new_table(title, (), names, justify="center")
    for ranks, row in heat.items():
        cells = (figures(row[r], 2) if r in row else "" for r in replicas)
        table.add_row(str(ranks), *cells)
    return table


def sentences(prediction: "Prediction") -> Iterator[str]:
    """Yield sentences on speed-ups, on the best number of ranks and on the sources."""
    wins = prediction.wins()
    points = prediction.points
    if wins:
        best = max(points, key=lambda p: p.speed_up)
        yield (
            f"CA-SGD wins at {_ranges(wins, [p.ranks for p in points])} ranks, most at"
            f" {best.ranks}: {best.speed_up:.1f} times plain SGD on as many"
        )
    else:
        yield (
            "CA-SGD is faster on none of these numbers of ranks by 5 % or more: its"
            " Gram matrix takes about as long as the all-reduces that it saves, or"
            " longer"
        )
    yield from _scaling(prediction)
    if any(p.grid[0] > 1 for p in points):
        yield (
            "on a grid of several replicas each replica takes a batch in a step, and"
            " replicas average weights: the iterates differ from those of SGD, and the"
            " same loss takes more rows"
        )
    yield from _of_runs(prediction)
    marks = [number.mark for _, number in prediction.hardware.numbers()]
    stated = marks.count("stated")
    yield (
        f"{len(marks) - stated} figures of this machine are measured, {stated} stated"
        " (their sources are in the machine file)"
    )


def _of_runs(prediction: "Prediction") -> Iterator[str]:
    """Yield sentences on the grids of replicas and on the file system."""
    from hpcsgd.studies.predict import files_of

    if any(prediction.best_grid(p.ranks).grid != p.grid for p in prediction.points):
        yield (
            "the replicas of a grid share the rows of a step, so that an epoch has as"
            " many steps on every grid; equal epochs are not equal losses, because"
            " replicas average weights"
        )
    files = files_of(prediction.hardware)
    whose = (
        "a common shared file system is assumed"
        if prediction.hardware.files is None
        else "the file system of the machine file"
    )
    yield (
        f"{whose}: {1e3 * files['operation'].value:g} ms for a file operation,"
        f" {files['rate'].value:,.0f} a second for all ranks,"
        f" {files['bandwidth'].value / 1e9:g} GB/s for rank 0 alone"
    )


def _scaling(prediction: "Prediction") -> Iterator[str]:
    """Yield sentences on the fastest number of ranks and on the efficiency."""
    fastest = prediction.fastest()
    last = prediction.points[-1]
    one_rank = prediction.one_rank
    step = f"{_microseconds(fastest.seconds)} by {fastest.method}"
    if fastest.ranks == 1:
        yield f"a step is fastest on one rank, {step}"
    else:
        limit = (
            "" if fastest.method == "SGD" else f"; what limits it is {fastest.limit}"
        )
        yield (
            f"a step is fastest on {fastest.ranks} ranks, {step}:"
            f" {prediction.speed_up(fastest):.2f} times as fast as one rank"
            f" ({_microseconds(one_rank.seconds)} by {one_rank.method}), an"
            f" efficiency of {_percent(prediction.efficiency(fastest))}{limit}"
        )
    if fastest.ranks < last.ranks:
        yield (
            f"beyond {_number_of_ranks(fastest.ranks)} more of them no longer pay: a"
            f" step on {last.ranks} takes {_microseconds(last.seconds)}"
        )
    efficient = prediction.efficient()
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


def _seconds(seconds: float) -> str:
    """Format a time with two digits: 457 s, 4.5 s, 21 ms, 37 µs."""
    from hpcsgd.studies.plots.charts import figures

    if seconds < 1e-3:
        return f"{figures(1e6 * seconds, 2)} µs"
    if seconds < 1:
        return f"{figures(1e3 * seconds, 2)} ms"
    return f"{figures(seconds, 3 if seconds >= 100 else 2)} s"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} µs"


def _number_of_ranks(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _ranges(wins: list[int], every: list[int]) -> str:
    """Return numbers of ranks in words: [2, 4, 8, 32] of powers of two is "2 to 8, 32".

    `every` has the numbers that were predicted, in ascending order.
    """
    runs: list[list[int]] = []
    for ranks in wins:
        place = every.index(ranks)
        if runs and place and runs[-1][-1] == every[place - 1]:
            runs[-1].append(ranks)
        else:
            runs.append([ranks])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


# `hpcsgd study strong`: the same data on all numbers of ranks.


def add_strong_parser(actions: Any) -> None:
    """Add the parser of `strong`."""
    add_study(actions, "strong", "strong scaling, the same rows on any number of ranks")


# `hpcsgd study sweep`: all combinations of settings and grids on given ranks.


def add_sweep_parser(actions: Any) -> None:
    """Add the parser of `sweep`."""
    add_study(actions, "sweep", "every combination of the listed settings and grids")


# `hpcsgd study weak`: rows that grow with the ranks.


def add_weak_parser(actions: Any) -> None:
    """Add the parser of `weak`."""
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
    """Add the parser of `study` and those of its actions."""
    parser = commands.add_parser(
        "study",
        help=COMMANDS["study"],
        example=STUDY_EXAMPLE.format(kind="strong"),
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
