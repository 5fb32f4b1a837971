"""Who starts the ranks: the words before and after the command."""

from collections.abc import Sequence

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.words import quote, quote_all

# Commands that take --comm; all others are of one rank.
COLLECTIVE = (
    ("train",),
    ("sweep",),
    ("compare",),
    ("tune",),
    ("evaluate",),
    ("data", "convert"),
    ("study", "point"),
    ("jobs", "smoke"),
)


def command_words(job: Job, site: Site, step: Step) -> tuple[str, ...]:
    """Return what stands behind `hpcsgd` in the script of a job.

    Several ranks are told that they are of MPI (`--comm mpi`), unless the command
    names another `--comm`: an MPI that does not bring them together is then an error.
    Where one task starts the others, `--ranks N` says how many.
    """
    if any(word.partition("=")[0] == "--ranks" for word in step.command):
        raise ConfigError(
            "--ranks in the command of a job: the job's own --tasks says how many"
            " there are; leave it out"
        )
    tasks = step.tasks or job.resources.tasks
    # Not every command knows these flags, and one rank needs none.
    if tasks == 1:
        return step.command
    ranks = () if site.launcher.kind == "srun" else ("--ranks", str(tasks))
    if not leaves_comm_open(step.command):
        return (*step.command, *ranks)
    name = _collective_name(step.command)
    return (*name, "--comm", "mpi", *step.command[len(name) :], *ranks)


def _collective_name(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words that name a command which takes --comm; else none."""
    names = (name for name in COLLECTIVE if tuple(command[: len(name)]) == name)
    return next(names, ())


def leaves_comm_open(command: Sequence[str]) -> bool:
    """Whether a command takes --comm, and neither this flag nor --set gives it."""
    gives = any(
        word.partition("=")[0] in ("--comm", "run.comm")
        or word.startswith("--set=run.comm=")
        for word in command
    )
    return bool(_collective_name(command)) and not gives


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
