"""The #SBATCH lines of a job."""

from hpcsgd.jobs.job import Job
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.syntax import After
from hpcsgd.jobs.words import file_pattern

NAMES = ("account", "partition", "qos", "constraint")


def directives(job: Job, site: Site) -> list[str]:
    """Every option that sbatch reads from the script; none without Slurm."""
    if not site.has_slurm:
        return []
    return [
        f"--job-name={job.name}",
        *_counts(job, site),
        *_amounts(job),
        *_ends(job, site),
        *_order(job),
        f'--output="{_log(job)}"',
    ]


def signal_seconds(job: Job, site: Site) -> int:
    """How long before the end the ranks are told; 0 = never."""
    if not job.restarting:
        return 0
    if job.signal_seconds is None:
        return site.launcher.signal_seconds
    return job.signal_seconds


def _counts(job: Job, site: Site) -> list[str]:
    """One task has all cores where it starts the ranks itself."""
    wanted = job.resources
    if site.launcher.kind == "task":
        cores = wanted.tasks * wanted.cpus
        return ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}"]
    each = [f"--ntasks-per-node={wanted.tasks_per_node}"] if wanted.nodes > 1 else []
    return [
        f"--nodes={wanted.nodes}",
        f"--ntasks={wanted.tasks}",
        *each,
        f"--cpus-per-task={wanted.cpus}",
    ]


def _amounts(job: Job) -> list[str]:
    wanted = job.resources
    named = {name: getattr(wanted, name) for name in NAMES}
    return [
        *([f"--gpus-per-node={wanted.gpus}"] if wanted.gpus else []),
        *([f"--mem={wanted.memory}"] if wanted.memory else []),
        f"--time={wanted.walltime}",
        *(f"--{name}={value}" for name, value in named.items() if value),
    ]


def _ends(job: Job, site: Site) -> list[str]:
    """A signal to the ranks themselves: without B: it does not go to the script."""
    seconds = signal_seconds(job, site)
    return [
        *([f"--signal=USR2@{seconds}"] if seconds else []),
        "--requeue" if site.may_requeue else "--no-requeue",
        "--open-mode=append",
    ]


def _order(job: Job) -> list[str]:
    waits = ",".join(After.parse(text).dependency for text in job.after)
    return [
        *([f"--array={job.elements}"] if job.is_array else []),
        *([f"--dependency={waits}", "--kill-on-invalid-dep=yes"] if waits else []),
    ]


def _log(job: Job) -> str:
    folder = file_pattern(str(job.path / "log"))
    return f"{folder}/%A_%a.log" if job.is_array else f"{folder}/%j.log"
