"""What strong, weak and sweep share: flags, a plan, its runs, one table."""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from hpcsgd.cli import logs
from hpcsgd.cli.names import PLACES, POINT_TIMEOUT, STUDIED
from hpcsgd.cli.numbers import not_negative
from hpcsgd.cli.study import tables
from hpcsgd.cli.study.slurm import add_where, where_of
from hpcsgd.cli.train import add_settings, overlaid
from hpcsgd.comm import is_launched
from hpcsgd.errors import ConfigError

if TYPE_CHECKING:
    from hpcsgd.study.account import Account
    from hpcsgd.study.plan import Plan

log = logging.getLogger(__name__)
# Flags of `train` that are lists here, or mean something else.
OWN = (
    *("--ranks", "--steps", "--batch", "--precision", "--seed", "--grid"),
    *("--emulate-members", "--resume", "--out"),
)
# flag, the key of [study] that it stands for, what is shown for its value, its help
LISTS = (
    ("--ranks", "ranks", "P,P,...", "numbers of MPI ranks"),
    ("--methods", "methods", "M,M,...", f"of {', '.join(STUDIED)}; default sgd,casgd"),
    ("--steps", "steps", "S,S,...", "steps per sum, s, or auto"),
    ("--batch", "batch", "B,B,...", "rows a step of all replicas together"),
    ("--grids", "grids", "RxC,...", "replicas x members of hybrid"),
    (
        "--precision",
        "precision",
        "NAME,...",
        "recipes; the first is that of the baseline",
    ),
    ("--seeds", "seeds", "N,N,...", "of the row order"),
    (
        "--emulate-members",
        "emulate_members",
        "N,N,...",
        "one rank as one of N, for times",
    ),
)


def add_study(actions: Any, kind: str, text: str) -> None:
    """Add one kind of study."""
    parser = actions.add_parser(
        kind,
        help=text,
        description=f"Train methods and settings on many ranks: {text}. Every run is a"
        " process of its own, in turns. Flags and the file say what all runs share.",
        allow_abbrev=False,
    )
    add_settings(parser, without=OWN)
    for flag, key, shown, says in LISTS:
        parser.add_argument(flag, dest=f"study.{key}", metavar=shown, help=says)
    parser.add_argument(
        "--repeats", dest="study.repeats", type=int, metavar="N", help="default 3"
    )
    if kind == "weak":
        parser.add_argument(
            "--batch-grows",
            dest="study.batch_grows",
            action="store_true",
            default=None,
            help="the global batch grows with the ranks, as the rows do",
        )
    parser.add_argument(
        "--out", dest="run.out", metavar="DIR", help="folder of the study"
    )
    parser.add_argument(
        "--on", dest="study.on", choices=PLACES, help="where; default local"
    )
    parser.add_argument(
        "--point-timeout",
        type=not_negative,
        default=POINT_TIMEOUT,
        metavar="SECONDS",
        help=f"of one run, 0 = none; default {POINT_TIMEOUT:g}",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the study in --out"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan and run nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    logs.add_volume(parser)
    add_where(parser)
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
    plan, out = what_to_run(kind, arguments)
    if arguments.dry_run:
        print(tables.plan_json(plan) if arguments.json else tables.plan_text(plan))
        return 0
    if not out:
        raise ConfigError("a study needs a folder to write to: add --out DIR")
    log.info("%s", tables.plan_line(plan))
    if plan.emulated and not plan.base.get("run", {}).get("network"):
        log.warning(
            "without a network emulated ranks wait for nobody, and their times are of"
            " arithmetic alone; add --network lan, or what the machine has"
        )
    begin = _here if plan.on == "local" else _jobs
    return begin(plan, out, arguments)


def _jobs(plan: "Plan", out: str, arguments: argparse.Namespace) -> int:
    """Submit what is missing, and say how to go on."""
    from hpcsgd.study.submitted import begin

    begun = begin(plan, out, where_of(arguments), resume=arguments.resume)
    if arguments.json:
        print(json.dumps(begun.as_dict(), indent=2))
    else:
        jobs = f"jobs {', '.join(begun.jobs)} submitted" if begun.jobs else "no new job"
        print(f"{jobs}; gather what is over with: hpcsgd study collect {out}")
    return 0


def _here(plan: "Plan", out: str, arguments: argparse.Namespace) -> int:
    """Run it on this machine."""
    from hpcsgd.result import REQUEUE
    from hpcsgd.study.run import run

    try:
        with _asked_to_end():
            found = run(
                plan, out, resume=arguments.resume, timeout=arguments.point_timeout
            )
    except (KeyboardInterrupt, _Ended) as stop:
        log.warning("stopped; the same command with --resume goes on")
        return 130 if isinstance(stop, KeyboardInterrupt) else REQUEUE
    return show(found, arguments.json)


def what_to_run(kind: str, arguments: argparse.Namespace) -> "tuple[Plan, str]":
    """The plan, and the folder: the file's tables, then --set, then the flags."""
    from hpcsgd.config import read_toml
    from hpcsgd.study.ask import make_plan

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
    print(found.json() if as_json else tables.account_text(found), flush=True)
    for bad in found.failures:
        print(f"hpcsgd: {bad['key']} {bad['status']}: {bad['error']}", file=sys.stderr)
    if found.failures:
        count, runs = len(found.failures), sum(row.planned for row in found.rows)
        print(f"hpcsgd: {count} of {runs} runs failed", file=sys.stderr)
    return 1 if found.failures else 0


class _Ended(BaseException):
    """Somebody sent SIGTERM."""


@contextmanager
def _asked_to_end() -> Iterator[None]:
    """SIGTERM ends the run that is under way, and nothing that is over is lost."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise _Ended

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
