"""What a job asks for against what a site has: refused here, not after a queue."""

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.directives import signal_seconds
from hpcsgd.jobs.job import Job
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.syntax import mebibytes_of, seconds_of
from hpcsgd.jobs.words import counted

COARSE = 60  # seconds by which Slurm may send a signal early


def check(job: Job, site: Site) -> None:
    """Raise what is wrong, in one sentence."""
    _check_gpus(job, site)
    _check_node(job, site)
    _check_limits(job, site)
    _check_launcher(job, site)


def warnings(job: Job, site: Site) -> list[str]:
    """What works, and may not be what was meant."""
    notice = signal_seconds(job, site)
    if site.has_slurm and job.resources.seconds < 2 * (notice + COARSE):
        return [
            f"of {job.resources.walltime} little is left for work: ranks are told to"
            f" save {notice} s ahead of the end, and Slurm may do so {COARSE} s early;"
            " a longer --walltime or a shorter --signal helps"
        ] * bool(notice)
    return []


def _check_launcher(job: Job, site: Site) -> None:
    """Refuse ranks and nodes that the launcher of the site cannot bring together."""
    ranks = max(step.tasks or job.resources.tasks for step in job.all_steps)
    if site.starts_one_rank and ranks > 1:
        raise ConfigError(
            "srun --mpi=none starts ranks that MPI does not bring together, and the job"
            f" has {ranks}; name the PMI of the MPI in use (--mpi pmi2 for MPICH,"
            " pmix for Open MPI), take a site whose launcher is task, or ask for"
            " --tasks 1"
        )
    if site.launcher.kind != "srun" and job.resources.nodes > 1:
        raise ConfigError(
            f"site {site.name} starts ranks on one node alone, and"
            f" {job.resources.nodes} were asked for; ask for --nodes 1"
        )


def _check_gpus(job: Job, site: Site) -> None:
    wanted, steps = job.resources, job.all_steps
    uses = any(step.computes_on_gpus for step in steps)
    if site.node.gpu != "cuda" and (wanted.gpus or uses):
        has = "GPUs without CUDA" if site.node.gpu == "rocm" else "no GPUs"
        raise ConfigError(
            f"site {site.name} has {has}, and exchanges on GPUs need CUDA; ask for"
            " --gpus 0 and --device cpu, or another site"
        )
    if wanted.gpus > site.node.gpus > 0:
        raise ConfigError(
            f"{wanted.gpus} GPUs of each node were asked for, and a node of"
            f" {site.name} has {site.node.gpus}; ask for more nodes"
        )
    # Each element of an array is a job, and holds GPUs of its own.
    some_idle = job.is_array and not all(step.computes_on_gpus for step in steps)
    if wanted.gpus and (some_idle or not uses):
        raise ConfigError(
            f"the job holds {counted(wanted.gpus, 'GPU')} of each node and"
            f" {'some of its runs do' if uses else 'its command does'} not use them;"
            " add --device cuda to the command, or ask for --gpus 0"
        )
    shared = any(s.shares_gpus or "--share-gpus" in s.command for s in steps)
    if uses and wanted.tasks_per_node > wanted.gpus and not shared:
        raise ConfigError(
            f"{wanted.tasks_per_node} ranks on a node and {wanted.gpus} GPUs: ask for"
            " one --gpus for each rank of a node, or add --share-gpus to the command"
        )


def _check_node(job: Job, site: Site) -> None:
    wanted, node = job.resources, site.node
    cpus = wanted.tasks_per_node * wanted.cpus
    if cpus > node.cpus > 0:
        raise ConfigError(
            f"{wanted.tasks_per_node} tasks of {wanted.cpus} cores take {cpus} of a"
            f" node, and one of {site.name} has {node.cpus}; ask for more --nodes or"
            " fewer --cpus"
        )
    if node.memory and wanted.mebibytes > mebibytes_of(node.memory):
        raise ConfigError(
            f"memory = {wanted.memory} of each node, and one of {site.name} has"
            f" {node.memory}; ask for less, or for more --nodes"
        )


def _check_limits(job: Job, site: Site) -> None:
    wanted, limits = job.resources, site.limits
    if wanted.nodes > limits.nodes > 0:
        raise ConfigError(
            f"{wanted.nodes} nodes were asked for and {site.name} has {limits.nodes};"
            " ask for fewer"
        )
    longest = limits.longest(wanted.qos)
    if longest and wanted.seconds > seconds_of(longest):
        of = f"of qos {wanted.qos} " if wanted.qos in limits.qos else ""
        raise ConfigError(
            f"walltime = {wanted.walltime} is more than {longest}, the limit {of}at"
            f" {site.name}; ask for less: a job of train goes on by itself"
        )
