"""Submit the runs of a study as jobs of Slurm, and collect their results."""

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
from hpcsgd.jobs.script import check, threads_of
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.status import ACTIVE, JobState, states
from hpcsgd.jobs.submit import submit
from hpcsgd.runs.result import Status
from hpcsgd.studies.account import Account, account
from hpcsgd.studies.folder import SAVED, Line, StudyFolder, line, read_plan
from hpcsgd.studies.plan import StudyPlan, StudyPoint, check_plan
from hpcsgd.studies.run import ENDS, TIMEOUT, data_of, make_plan, source_of, waiting

# Under Slurm, a study has a job for each number of ranks.

log = logging.getLogger(__name__)
JOBS = "jobs"  # has a folder pN for the jobs on N ranks


@dataclass(frozen=True)
class JobOptions:
    """The site of the jobs of a study, and the resources of every job.

    Attributes
    ----------
    site : Site
        The cluster.
    resources : Resources
        Resources of every job, without its tasks and nodes.
    per_node : int
        Ranks on each node; 0 puts all ranks of a job on one node.
    timeout : float
        Seconds of one run; 0 for no limit.
    """

    site: Site
    resources: Resources
    per_node: int = 0
    timeout: float = TIMEOUT

    def resources_of(self, ranks: int) -> Resources:
        """Return the resources of a job of `ranks` ranks."""
        nodes = -(-ranks // self.per_node) if self.per_node else 1
        return self.resources.with_(tasks=ranks, nodes=nodes)


@dataclass(frozen=True)
class PointJob:
    """The newest job of a point and its state."""

    job: str  # the number of the job
    state: str
    why: str  # the reason for the state, if one is known
    log: str  # path of the log of the job

    @property
    def is_under_way(self) -> bool:
        """Return whether the job is in the queue or runs."""
        return self.state in ACTIVE

    @property
    def is_over(self) -> bool:
        """Return whether the job has ended or is lost, as far as Slurm knows."""
        return self.state not in (*ACTIVE, "unknown")


def send(plan: StudyPlan, folder: StudyFolder, options: JobOptions) -> list[str]:
    """Submit the runs without a result, unless a job of theirs waits or runs.

    Return the numbers of the new jobs.
    The runs on one number of ranks take turns in one job, so that all of them run on
    the same nodes.
    """
    sent = sent_from(folder)
    todo: dict[int, list[StudyPoint]] = {}
    for point in waiting(plan, folder.lines()):
        if point.name not in sent or not sent[point.name].is_under_way:
            todo.setdefault(point.launched, []).append(point)
    jobs = [_job(plan, folder, options, n, points) for n, points in todo.items()]
    for job in jobs:  # all are checked before the first is submitted
        _check(job, options.site)
    for points in todo.values():
        for point in points:
            folder.configure(point, data_of(point, folder))
    return [_send(job, options) for job in jobs]


def check_jobs(plan: StudyPlan, out: str | Path, options: JobOptions) -> None:
    """Raise ConfigError if the site cannot run a job of the plan; submit nothing."""
    plan = on_site(plan, options)
    check_plan(plan)
    points: dict[int, list[StudyPoint]] = {}
    for point in plan.settings():
        points.setdefault(point.launched, []).append(point)
    for ranks, own in points.items():
        job = _job(plan, StudyFolder(out), options, ranks, own)
        _check(job, options.site)


def _check(job: Job, site: Site) -> None:
    try:
        check(job, site)
    except ConfigError as error:
        raise ConfigError(
            f"the job of {job.resources.tasks} ranks is refused: {error}; in a study,"
            " write --ranks-per-node N instead of --nodes, and --ask NAME=VALUE instead"
            " of other flags of jobs"
        ) from error


def _job(
    plan: StudyPlan,
    folder: StudyFolder,
    options: JobOptions,
    ranks: int,
    points: list[StudyPoint],
) -> Job:
    """Return the job of the points on one number of ranks."""
    return Job(
        template="scaling",
        name=f"{plan.kind}-p{ranks}",
        resources=options.resources_of(ranks),
        steps=tuple(_step(folder, point, options.timeout) for point in points),
        out=str(folder.path / JOBS / f"p{ranks}"),
    )


def _send(job: Job, options: JobOptions) -> str:
    number = submit(job, options.site).job
    log.info(
        "submitted job %s with %d runs on %d ranks",
        number,
        len(job.steps),
        job.resources.tasks,
    )
    return number


def _step(folder: StudyFolder, point: StudyPoint, timeout: float) -> Step:
    path = str(folder.path.absolute())
    run = point.tables().get("run", {})
    comm = str(run.get("comm", "auto"))
    return Step(
        (
            *("study", "point", path, point.name),
            *("--point-timeout", f"{timeout:g}"),
            *(("--comm", comm) if comm != "auto" else ()),
        ),
        tasks=point.launched,
        on_gpus=run.get("device") == "cuda",
        shares_gpus=bool(run.get("share_gpus")),
    )


def sent_from(folder: StudyFolder) -> dict[str, PointJob]:
    """Return the newest job of each point, by the name of the point."""
    jobs: dict[str, PointJob] = {}
    for path in sorted((folder.path / JOBS).glob(f"*/{LOG}")):
        by_job = {state.job: state for state in states(path.parent)}
        for record in submitted(path.parent):
            for name in _names(record):
                jobs[name] = _point_job(str(record["job"]), by_job)
    return jobs


def _names(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the points of a job, in the order in which they run."""
    for step in record.get("steps", []):
        command = step.get("command", [])
        if command[:2] == ["study", "point"]:
            yield command[3]


def _point_job(job: str, by_job: Mapping[str, JobState]) -> PointJob:
    state = by_job.get(job)
    if state is None:
        return PointJob(job, "lost", "", "")
    return PointJob(job, state.state, state.why, state.log)


def gather(plan: StudyPlan, folder: StudyFolder) -> int:
    """Append a line for each run that has ended; return how many are under way."""
    lines = folder.lines()
    jobs = sent_from(folder)
    active = 0
    for point in waiting(plan, lines):
        end = read_end(folder, point)
        job = jobs.get(point.name)
        is_under_way = job is not None and job.is_under_way
        if end is not None and not (is_under_way and _was_preempted(end)):
            _append(folder, point, end)
            _end_of(folder, point).unlink(missing_ok=True)
        elif is_under_way:
            active += 1
        elif job and job.is_over and _has_no_line(job, lines.get(point.key)):
            folder.append(_lost(point, job))
    return active


def _end_of(folder: StudyFolder, point: StudyPoint) -> Path:
    return folder.path / ENDS / f"{point.name}.json"


def read_end(folder: StudyFolder, point: StudyPoint) -> dict[str, Any] | None:
    """Return the file in which a point's run has written its end, as a dict.

    Return None before the run has ended.
    """
    path = _end_of(folder, point)
    try:
        own_folder(folder.path, ENDS)
        end: dict[str, Any] = parse_json(read_entry_text(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); remove the file, then go on with"
            " --resume"
        ) from error
    return end


def _was_preempted(end: Mapping[str, Any]) -> bool:
    """Return whether a run was preempted: its job starts again and repeats it."""
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


def _has_no_line(job: PointJob, newest: Line | None) -> bool:
    """Return whether the newest line of a point is not from this job."""
    return newest is None or newest.get("job") != job.job


def _lost(point: StudyPoint, job: PointJob) -> dict[str, Any]:
    """Return the line of a run whose job has ended without a result."""
    why = f": {job.why}" if job.why else ""
    why += f"; see {job.log}" if job.log else ""
    return line(
        point,
        source_of(point),
        None,
        error=f"job {job.job} ended ({job.state}) and left no result{why}",
        status=job.state if job.state in SAVED else "failed",
        machine={"job": job.job},
    )


# One call submits the jobs of a study; later calls collect their results.


@dataclass(frozen=True)
class Submission:
    """Jobs that a call has submitted, and the runs of earlier calls."""

    folder: str
    jobs: list[str]  # numbers of the submitted jobs
    under_way: int  # runs of earlier jobs that have not ended
    over: int  # runs with a line in points.jsonl, also failed ones

    def as_dict(self) -> dict[str, Any]:
        """Return the submission as a JSON object."""
        return dict(vars(self))


def begin(
    plan: StudyPlan, out: str | Path, options: JobOptions, *, resume: bool = False
) -> Submission:
    """Submit the points of a plan that have no result in its folder yet.

    Parameters
    ----------
    plan : StudyPlan
        The points and their repeats.
    out : path-like
        The folder of the study, on a file system that the nodes share.
    options : JobOptions
        The site, and the resources of the jobs.
    resume : bool, default=False
        Whether to continue the study in the folder, and submit again what failed.

    Returns
    -------
    Submission
        The numbers of the jobs.
    """
    plan = on_site(plan, options)
    check_plan(plan)
    if not options.site.has_slurm:
        raise ConfigError(
            f"site {options.site.name} has no Slurm to submit to; name another --site,"
            " or run the study here with --on local"
        )
    folder = StudyFolder(out)
    folder.open(plan, resume)
    try:
        active = gather(plan, folder)
        jobs = send(plan, folder, options)
        return Submission(str(folder.path), jobs, active, len(folder.lines()))
    finally:
        folder.close()


def on_site(plan: StudyPlan, options: JobOptions) -> StudyPlan:
    """Return the plan with the device and the threads of its jobs.

    Unless the plan sets them, the device is cuda if the jobs have GPUs, and the threads
    are the cores of a rank. Emulated ranks compute on processors, and a job of theirs
    with GPUs is refused.
    """
    run = dict(plan.base.get("run", {}))
    threads = threads_of(options.resources, options.site)
    if threads > 1:
        run.setdefault("threads", threads)
    device = options.resources.device_of(run)
    if not plan.emulated and device != run.get("device", "cpu"):
        run["device"] = device
    if run == plan.base.get("run", {}):
        return plan
    return replace(plan, base={**plan.base, "run": run})


def collect(out: str | Path) -> tuple[Account, int]:
    """Return the account of the study in `out`, and how many runs are under way."""
    document = read_plan(Path(out))
    study = document.pop("study", {})
    plan = make_plan(study.get("kind", ""), study, document)
    folder = StudyFolder(out)
    folder.open(plan, resume=True)
    try:
        active = gather(plan, folder)
        return account(plan, folder.lines(), str(folder.path)), active
    finally:
        folder.close()
