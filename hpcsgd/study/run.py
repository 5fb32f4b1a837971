"""Every point of a plan, one after the other; none takes the others down."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.study import machine
from hpcsgd.study.account import Account, account
from hpcsgd.study.checks import check
from hpcsgd.study.folder import DONE, StudyFolder
from hpcsgd.study.launch import Ended, launch
from hpcsgd.study.plan import Plan
from hpcsgd.study.points import Point
from hpcsgd.study.record import line
from hpcsgd.study.rows import first_rows

log = logging.getLogger(__name__)
TIMEOUT = 3600.0  # seconds of one run


def run(
    plan: Plan,
    out: str | Path,
    *,
    resume: bool = False,
    timeout: float = TIMEOUT,
) -> Account:
    """Run what a plan has and its folder lacks.

    Parameters
    ----------
    plan : what to run
    out : the folder of the study
    resume : go on with the study that is there
    timeout : seconds that one run may take, 0 = for ever

    Returns
    -------
    Account
    """
    check(plan)
    folder = StudyFolder(out)
    folder.open(plan, resume)
    try:
        _run_all(plan, folder, timeout)
        return account(plan, folder.lines(), str(folder.path))
    finally:
        folder.close()


def waiting(plan: Plan, lines: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    """Runs that have no good line yet."""
    done = {key for key, found in lines.items() if found["status"] in DONE}
    return [point for point in plan.runs() if point.key not in done]


def _run_all(plan: Plan, folder: StudyFolder, timeout: float) -> None:
    todo = waiting(plan, folder.lines())
    crowd = max((p.launched for p in todo), default=0)
    if crowd > machine.cores():
        log.warning(
            "up to %d ranks share %d cores: those times mean little; --emulate-members"
            " %d times one rank as one of them",
            *(crowd, machine.cores(), crowd),
        )
    began = time.monotonic()
    for number, point in enumerate(todo, 1):
        said = run_point(point, folder, timeout)
        each = (time.monotonic() - began) / number
        left = _left(each * (len(todo) - number))
        log.info("%d of %d: %s %s%s", number, len(todo), point.key, said, left)


def _left(seconds: float) -> str:
    """How long the rest takes, where that is worth a word."""
    return f"; about {seconds / 60:.0f} min left" if seconds >= 60 else ""


def run_point(point: Point, folder: StudyFolder, timeout: float) -> str:
    """Train it, write its line; what became of it."""
    met = machine.facts()
    data = data_of(point, folder)
    config = folder.configure(point, data)
    ended = launch(config, point.launched, folder.log_of(point), timeout)
    found = line(
        point,
        source_of(point),
        ended.report,
        error=ended.error,
        status="timeout" if ended.timed_out else "failed",
        machine=met,
        cpu_seconds=ended.cpu_seconds,
    )
    folder.append(found)
    return _said(found, ended)


def source_of(point: Point) -> str:
    """The data file of the study."""
    path = str(point.base.get("data", {}).get("path", ""))
    if not path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path in the file")
    return path


def data_of(point: Point, folder: StudyFolder) -> str:
    """The file that this point trains on, by its absolute name."""
    source = Path(source_of(point)).absolute()
    if not point.rows:
        return str(source)
    return str(first_rows(source, folder.path.absolute() / "data", point.rows))


def _said(found: Mapping[str, Any], ended: Ended) -> str:
    if found["status"] == "finished":
        loss = "" if found["loss"] is None else f", loss {found['loss']:.6f}"
        return f"took {found['seconds']:.3f} s{loss}"
    return f"{found['status']} after {ended.seconds:.1f} s: {found['error']}"
