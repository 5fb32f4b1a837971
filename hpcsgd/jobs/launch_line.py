"""Who starts the ranks: the words before and after the command."""

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.words import quote, quote_all


def command_words(job: Job, site: Site, step: Step) -> tuple[str, ...]:
    """What stands behind `hpcsgd`: with --ranks N where one task starts the others."""
    if any(word.partition("=")[0] == "--ranks" for word in step.command):
        raise ConfigError(
            "--ranks in the command of a job: the job's own --tasks says how many"
            " there are; leave it out"
        )
    tasks = step.tasks or job.resources.tasks
    # Not every command knows --ranks, and one rank needs none.
    if site.launcher.kind == "srun" or tasks == 1:
        return step.command
    return (*step.command, "--ranks", str(tasks))


def launcher_parts(job: Job, site: Site, step: Step, python: str) -> list[str]:
    """What stands before the command, in parts that are lines of the script."""
    program = quote_all((python, "-m", "hpcsgd"))
    if not site.has_slurm:
        return [program]
    tasks = step.tasks or job.resources.tasks
    flags = [quote(row.value) for row in site.flags]
    words = _srun(job, site, tasks)
    return [" ".join(["srun", *map(quote, words)]), *flags, program]


def _srun(job: Job, site: Site, tasks: int) -> list[str]:
    """Counts are said again: srun does not inherit the cores of a task."""
    resources, launcher = job.resources, site.launcher
    # One that saves and leaves must not end those that still save.
    common = ["--kill-on-bad-exit=0"]
    if launcher.kind == "task":
        cores = resources.tasks * resources.cpus
        # Whoever has the variables of a launcher starts no ranks of its own.
        return ["--mpi=none", *common, "--ntasks=1", f"--cpus-per-task={cores}"]
    nodes = min(resources.nodes, -(-tasks // resources.tasks_per_node))
    counts = [f"--nodes={nodes}", f"--ntasks={tasks}"]
    mpi = [f"--mpi={launcher.mpi}"] if launcher.mpi else []
    return [*mpi, *common, *counts, f"--cpus-per-task={resources.cpus}"]
