"""`sbatch` and `scancel` for jobs of this package."""

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError, TransportError
from hpcsgd.files import own_folder, reason, write_text
from hpcsgd.jobs.job import Job
from hpcsgd.jobs.queue import (
    LOG,
    SCRIPT,
    STATE,
    add_record,
    clean_environment,
    need,
    need_queue,
    run_command,
)
from hpcsgd.jobs.resources import JobDependency
from hpcsgd.jobs.script import directives, render
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.status import ACTIVE, states

# Submission of a job to Slurm, and the record of it.

BY_HAND = "local"  # the job number of a script that runs without Slurm


@dataclass(frozen=True)
class SubmittedJob:
    """A submitted job; `job` is its number in Slurm, and empty for a dry run."""

    job: str
    name: str
    script: Path
    command: tuple[str, ...]
    record: dict[str, Any] = field(default_factory=dict)


def submit(
    job: Job, site: Site, dry_run: bool = False, python: str = ""
) -> SubmittedJob:
    """Send `job` to Slurm at `site`.

    At a site without Slurm, write the script and raise ConfigError, which names the
    command that runs it.

    Parameters
    ----------
    job, site : what `render` takes
    dry_run : whether to write and submit nothing
    python : the interpreter that runs hpcsgd on the nodes; "" takes that of the site,
        or else this one

    Returns
    -------
    SubmittedJob : with Slurm's number of the job
    """
    text = render(job, site, python)
    script = job.path / SCRIPT
    command = ("sbatch", "--parsable", str(script))
    if dry_run:
        return SubmittedJob("", job.name, script, command)
    if not site.has_slurm:
        write_script(job, text)
        add_record(job.path, "submitted", job=BY_HAND, **_described(job, site, text))
        raise ConfigError(
            f"site {site.name} has no Slurm to submit to; run the script of the job by"
            f" hand: bash {script}"
        )
    need("sbatch")
    check_idle(job)
    write_script(job, text)
    number = _send(command, directives(job, site))
    record = add_record(
        job.path,
        "submitted",
        job=number,
        **_described(job, site, text),
        sbatch=list(command),
    )
    write_text(job.path / f"job-{number}.sbatch", text)
    return SubmittedJob(number, job.name, script, command, record)


def check_idle(job: Job) -> None:
    """Raise ConfigError if the folder of `job` has another job that waits or runs.

    Jobs that `job` is submitted to wait for do not count.
    """
    if not os.path.lexists(job.path / LOG):
        return
    before = {JobDependency.parse(text).job for text in job.after}
    job_states = states(job.path)
    need_queue((s.job for s in job_states if s.state == "unknown"), "submit again")
    active = [s.job for s in job_states if s.state in ACTIVE]
    busy = [j for j in active if not before & {j, j.partition("_")[0]}]
    if busy:
        raise ConfigError(
            f"job {busy[0]} has not ended and writes into {job.path}, which two jobs"
            f" cannot share; cancel it, name another --out, or add --after"
            f" {busy[0]}:any"
        )


def write_script(job: Job, text: str) -> None:
    """Make the folder of the job, and write the script into it."""
    try:
        job.path.mkdir(parents=True, exist_ok=True)
        for name in ("log", STATE):
            own_folder(job.path, name, make=True)
        write_text(job.path / SCRIPT, text)
    except OSError as error:
        raise ConfigError(
            f"cannot write into --out {job.path}: {reason(error)}; choose a folder"
            " that can be written"
        ) from error


def _send(command: tuple[str, ...], lines: list[str]) -> str:
    """Run sbatch; return Slurm's number of the job.

    `lines` are the directives of the script, which no variable may override.
    """
    answer = run_command(command, clean_environment(lines))
    if answer is None:
        raise TransportError(
            "sbatch did not start, or did not answer within a minute and may have"
            " accepted the job; look"
            " with squeue --me, and submit again if the job is not listed"
        )
    if answer.code:
        message = " ".join(answer.err.split()) or f"exit code {answer.code}"
        raise TransportError(
            f"sbatch refused the job: {message}; look at its script with hpcsgd jobs"
            " render, and correct the site file or the requested resources"
        )
    # The output is NUMBER, or NUMBER;CLUSTER with several clusters.
    match = re.search(r"(?m)^(\d+)(;.*)?$", answer.out)
    if not match:
        raise TransportError(
            f"sbatch accepted the job and printed no job number: {answer.out!r}; look"
            " for the job with squeue --me"
        )
    return match[1]


def _described(job: Job, site: Site, text: str) -> dict[str, Any]:
    """Return the facts on a job for its record: resources, steps, checksum."""
    return {
        "name": job.name,
        "template": job.template,
        "site": site.name,
        "resources": job.resources.as_dict(),
        "workplace": job.workplace,
        "steps": [
            {"command": list(s.command), "tasks": s.tasks, "run": s.folder}
            for s in job.all_steps
        ],
        **({"stage": job.stage} if job.stage else {}),
        "array": job.elements if job.is_array and site.has_slurm else "",
        "after": list(job.after),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


# Cancellation of the jobs of a folder, and the record of it.


def cancel(folder: Path, job: str = "") -> list[str]:
    """Cancel the active jobs of `folder`; return their numbers.

    With `job`, only this job, element of an array or whole array is cancelled.
    """
    need("scancel")
    job_states = states(folder)
    if job and not any(job in (s.job, s.job.partition("_")[0]) for s in job_states):
        numbers = sorted({s.job for s in job_states})
        raise ConfigError(
            f"job {job} does not belong to {folder}; name one of its jobs:"
            f" {', '.join(numbers)}"
        )
    mine = [s for s in job_states if not job or job in (s.job, s.job.partition("_")[0])]
    active = [s.job for s in mine if s.state in ACTIVE]
    need_queue((s.job for s in mine if s.state == "unknown"), "cancel again")
    if not active:
        return []
    answer = run_command(["scancel", *active])
    if answer is None or answer.code:
        message = (
            " ".join(answer.err.split()) if answer else "no answer within a minute"
        )
        raise TransportError(f"scancel could not cancel {', '.join(active)}: {message}")
    for number in active:
        add_record(folder, "cancelled", job=number)
    return active
