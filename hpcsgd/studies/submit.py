"""Studies as jobs of Slurm."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import own_folder, parse_json, read_entry_text
from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.queue import LOG, submitted
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.script import check
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.status import ACTIVE, JobState, states
from hpcsgd.jobs.submit import submit
from hpcsgd.runs.result import Status
from hpcsgd.studies.account import Account, account
from hpcsgd.studies.folder import SAVED, Line, StudyFolder, line, read_plan
from hpcsgd.studies.plan import StudyPlan, StudyPoint, check_plan
from hpcsgd.studies.run import ENDS, TIMEOUT, data_of, make_plan, source_of, waiting

# A study under Slurm: a job for each number of ranks, gathered when it is over.

log = logging.getLogger(__name__)
JOBS = "jobs"  # pN in it: the folder of the jobs of N ranks


@dataclass(frozen=True)
class Where:
    """The site, and what every job asks for beside its ranks.

    `per_node` : ranks of a node; 0 = all of a job on one
    """

    site: Site
    resources: Resources
    per_node: int = 0
    timeout: float = TIMEOUT  # seconds of one run

    def resources_of(self, ranks: int) -> Resources:
        """Those of a job of so many ranks."""
        nodes = -(-ranks // self.per_node) if self.per_node else 1
        return self.resources.with_(tasks=ranks, nodes=nodes)


@dataclass(frozen=True)
class PointJob:
    """The newest job that was to run a point, and what became of it."""

    job: str
    state: str
    why: str
    log: str

    @property
    def is_under_way(self) -> bool:
        """Whether it may still run it."""
        return self.state in ACTIVE

    @property
    def is_over(self) -> bool:
        """Whether it will not run it any more, for all that is known."""
        return self.state not in (*ACTIVE, "unknown")


def send(plan: StudyPlan, folder: StudyFolder, where: Where) -> list[str]:
    """Submit what is neither over nor under way; the numbers of the jobs.

    The runs of one number of ranks take turns in one job, on the same nodes: nothing
    but the method differs between them.
    """
    known = sent_from(folder)
    todo: dict[int, list[StudyPoint]] = {}
    for point in waiting(plan, folder.lines()):
        if point.name not in known or not known[point.name].is_under_way:
            todo.setdefault(point.launched, []).append(point)
    jobs = [_job(plan, folder, where, n, points) for n, points in todo.items()]
    for job in jobs:  # none is sent where another would be refused
        _check(job, where.site)
    for points in todo.values():
        for point in points:
            folder.configure(point, data_of(point, folder))
    return [_send(job, where) for job in jobs]


def _check(job: Job, site: Site) -> None:
    try:
        check(job, site)
    except ConfigError as error:
        raise ConfigError(
            f"the job of {job.resources.tasks} ranks: {error}; a study says"
            " --ranks-per-node N for --nodes, and --ask NAME=VALUE for the others"
        ) from error


def _job(
    plan: StudyPlan,
    folder: StudyFolder,
    where: Where,
    ranks: int,
    points: list[StudyPoint],
) -> Job:
    """One job, whose script goes through the points."""
    return Job(
        template="scaling",
        name=f"{plan.kind}-p{ranks}",
        resources=where.resources_of(ranks),
        steps=tuple(_step(folder, point, where.timeout) for point in points),
        out=str(folder.path / JOBS / f"p{ranks}"),
    )


def _send(job: Job, where: Where) -> str:
    sent = submit(job, where.site)
    said = (sent.job, len(job.steps), job.resources.tasks)
    log.info("job %s: %d runs on %d ranks", *said)
    return sent.job


def _step(folder: StudyFolder, point: StudyPoint, timeout: float) -> Step:
    path = str(folder.path.absolute())
    asked = point.tables().get("run", {})
    comm = str(asked.get("comm", "auto"))
    return Step(
        (
            *("study", "point", path, point.name),
            *("--point-timeout", f"{timeout:g}"),
            *(("--comm", comm) if comm != "auto" else ()),
        ),
        tasks=point.launched,
        on_gpus=asked.get("device") == "cuda",
        shares_gpus=bool(asked.get("share_gpus")),
    )


def sent_from(folder: StudyFolder) -> dict[str, PointJob]:
    """Name of a point -> the newest job that was to run it."""
    found: dict[str, PointJob] = {}
    for place in sorted((folder.path / JOBS).glob(f"*/{LOG}")):
        by_job = {state.job: state for state in states(place.parent)}
        for record in submitted(place.parent):
            for name in _names(record):
                found[name] = _sent(str(record["job"]), by_job)
    return found


def _names(record: Mapping[str, Any]) -> Iterator[str]:
    """The points of a job, in its order."""
    for step in record.get("steps", []):
        command = step.get("command", [])
        if command[:2] == ["study", "point"]:
            yield command[3]


def _sent(job: str, by_job: Mapping[str, JobState]) -> PointJob:
    state = by_job.get(job)
    if state is None:
        return PointJob(job, "lost", "", "")
    return PointJob(job, state.state, state.why, state.log)


def gather(plan: StudyPlan, folder: StudyFolder) -> int:
    """Make a line of every run that is over since; how many are under way."""
    lines, sent, active = folder.lines(), sent_from(folder), 0
    for point in waiting(plan, lines):
        end, known = read_end(folder, point), sent.get(point.name)
        is_under_way = known is not None and known.is_under_way
        if end is not None and not (is_under_way and _was_interrupted(end)):
            _append(folder, point, end)
            _end_of(folder, point).unlink(missing_ok=True)
        elif is_under_way:
            active += 1
        elif known and known.is_over and _is_news(lines.get(point.key), known):
            folder.append(_lost(point, known))
    return active


def _end_of(folder: StudyFolder, point: StudyPoint) -> Path:
    return folder.path / ENDS / f"{point.name}.json"


def read_end(folder: StudyFolder, point: StudyPoint) -> dict[str, Any] | None:
    """What the point left, if it has ended."""
    path = _end_of(folder, point)
    try:
        own_folder(folder.path, ENDS)
        end: dict[str, Any] = parse_json(read_entry_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); remove it") from error
    return end


def _was_interrupted(end: Mapping[str, Any]) -> bool:
    """Its job is started again, and with it this run."""
    return (end.get("report") or {}).get("status") == Status.PREEMPTED.value


def _append(folder: StudyFolder, point: StudyPoint, end: Mapping[str, Any]) -> None:
    folder.append(
        line(
            point,
            source_of(point),
            end.get("report"),
            error=end.get("error", ""),
            status=end.get("status", "failed"),
            machine=end["machine"],
            cpu_seconds=end.get("cpu_seconds"),
        )
    )


def _is_news(newest: Line | None, known: PointJob) -> bool:
    """Whether no line tells of this job yet."""
    return newest is None or newest.get("job") != known.job


def _lost(point: StudyPoint, known: PointJob) -> dict[str, Any]:
    """The line of a run of which nothing is left but its job."""
    why = f": {known.why}" if known.why else ""
    why += f"; see {known.log}" if known.log else ""
    error = f"job {known.job} ended ({known.state}) and left nothing of it{why}"
    status = known.state if known.state in SAVED else "failed"
    where = {"job": known.job}
    data = source_of(point)
    return line(point, data, None, error=error, status=status, machine=where)


# A study whose runs are jobs: begun in one call, gathered in others.


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


def begin(
    plan: StudyPlan, out: str | Path, where: Where, *, resume: bool = False
) -> Begun:
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
    check_plan(plan)
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


def on_site(plan: StudyPlan, where: Where) -> StudyPlan:
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
