"""Cancel the jobs of a folder, and write that down."""

from pathlib import Path

from hpcsgd.errors import ConfigError, TransportError
from hpcsgd.jobs.records import add_record
from hpcsgd.jobs.slurm import ask, need
from hpcsgd.jobs.status import ACTIVE, states


def cancel(folder: Path, job: str = "") -> list[str]:
    """Cancel what waits or runs of a folder, or one of its jobs; the cancelled."""
    need("scancel")
    found = states(folder)
    if job and not any(job in (s.job, s.job.partition("_")[0]) for s in found):
        known = sorted({s.job for s in found})
        raise ConfigError(
            f"job {job} was not submitted from {folder}; its jobs: {', '.join(known)}"
        )
    mine = [s for s in found if not job or job in (s.job, s.job.partition("_")[0])]
    active = [s.job for s in mine if s.state in ACTIVE]
    if not active:
        return []
    answer = ask(["scancel", *active])
    if answer is None or answer.code:
        said = " ".join(answer.err.split()) if answer else "no answer within a minute"
        raise TransportError(f"scancel could not cancel {', '.join(active)}: {said}")
    for one in active:
        add_record(folder, "cancelled", job=one)
    return active
