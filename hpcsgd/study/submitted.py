"""A study whose runs are jobs: begun in one call, gathered in others."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.study.account import Account, account
from hpcsgd.study.ask import make_plan
from hpcsgd.study.checks import check
from hpcsgd.study.cluster import Where, gather, send
from hpcsgd.study.folder import StudyFolder, read_plan
from hpcsgd.study.plan import Plan


@dataclass(frozen=True)
class Begun:
    """What was submitted now, and what had been before."""

    folder: str
    jobs: list[str]
    under_way: int  # runs of earlier jobs
    over: int  # runs with a line

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return dict(vars(self))


def begin(plan: Plan, out: str | Path, where: Where, *, resume: bool = False) -> Begun:
    """Submit what a plan has and its folder lacks.

    Parameters
    ----------
    plan : what to run
    out : the folder of the study, on a file system that the nodes share
    where : the site, and what jobs ask for
    resume : go on with the study that is there: submit what failed

    Returns
    -------
    Begun
    """
    plan = on_site(plan, where)
    check(plan)
    if not where.site.has_slurm:
        raise ConfigError(
            f"site {where.site.name} has no Slurm to submit to; name another --site, or"
            " run the study here with --on local"
        )
    folder = StudyFolder(out)
    folder.open(plan, resume)
    try:
        active = gather(plan, folder)
        jobs = send(plan, folder, where)
        return Begun(str(folder.path), jobs, active, len(folder.lines()))
    finally:
        folder.close()


def on_site(plan: Plan, where: Where) -> Plan:
    """Return the plan whose points compute on the GPUs that their jobs hold.

    Emulated ranks compute on processors; their jobs are to ask for no GPUs.
    """
    run = plan.base.get("run", {})
    device = where.resources.device_of(run)
    if plan.emulated or device == run.get("device", "cpu"):
        return plan
    return replace(plan, base={**plan.base, "run": {**run, "device": device}})


def collect(out: str | Path) -> tuple[Account, int]:
    """The account of the study in `out` with all that is over; runs under way."""
    document = read_plan(Path(out))
    asked = document.pop("study", {})
    plan = make_plan(asked.get("kind", ""), asked, document)
    folder = StudyFolder(out)
    folder.open(plan, resume=True)
    try:
        active = gather(plan, folder)
        return account(plan, folder.lines(), str(folder.path)), active
    finally:
        folder.close()
