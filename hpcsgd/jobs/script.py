"""Job scripts, from a template."""

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hpcsgd import files
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.resources import (
    JobDependency,
    Resources,
    counted,
    file_pattern,
    mebibytes_of,
    quote,
    quote_all,
    seconds_of,
)
from hpcsgd.jobs.sites import Site, wrapper_words

if TYPE_CHECKING:  # the parsers of commands start without jinja2
    from jinja2 import Environment


# The #SBATCH lines of a job.

NAMES = ("account", "partition", "qos", "constraint")


def directives(job: Job, site: Site) -> list[str]:
    """Return the options that sbatch reads from the script; none without Slurm."""
    if not site.has_slurm:
        return []
    return [
        f"--job-name={job.name}",
        *_counts(job, site),
        *_amounts(job, site),
        *_ends(job, site),
        *_order(job),
        *([f"--export={site.launcher.export}"] if site.launcher.export else []),
        f'--output="{_log(job)}"',
        *(row.value for row in site.lines.sbatch),
    ]


def signal_seconds(job: Job, site: Site) -> int:
    """Return the seconds from the signal to the time limit; 0 means no signal."""
    if not job.restarting:
        return 0
    if job.signal_seconds is None:
        return site.launcher.signal_seconds
    return job.signal_seconds


def _counts(job: Job, site: Site) -> list[str]:
    """Return the options of nodes, tasks and cores.

    With the launcher `task`, one task has all cores and starts the ranks.
    """
    resources = job.resources
    if site.launcher.kind == "task":
        cores = resources.tasks * resources.cpus
        return ["--nodes=1", "--ntasks=1", f"--cpus-per-task={cores}"]
    each = (
        [f"--ntasks-per-node={resources.tasks_per_node}"] if resources.nodes > 1 else []
    )
    return [
        f"--nodes={resources.nodes}",
        f"--ntasks={resources.tasks}",
        *each,
        f"--cpus-per-task={resources.cpus}",
    ]


def _amounts(job: Job, site: Site) -> list[str]:
    resources = job.resources
    named = {name: getattr(resources, name) for name in NAMES}
    gpus = {
        "gpus-per-node": [f"--gpus-per-node={resources.gpus}"],
        "gres": [f"--gres=gpu:{resources.gpus}"],
        "none": [],
    }[site.launcher.gpu_option]
    return [
        *(gpus if resources.gpus else []),
        *(["--exclusive"] if resources.exclusive else []),
        *([f"--mem={resources.memory}"] if resources.memory else []),
        f"--time={resources.walltime}",
        *(f"--{name}={value}" for name, value in named.items() if value),
    ]


def _ends(job: Job, site: Site) -> list[str]:
    """Return the options for the end of a job: signal, requeue and mode of the log.

    The signal goes to the ranks; with the prefix B: Slurm would send it to the script.
    """
    seconds = signal_seconds(job, site)
    return [
        *([f"--signal=USR2@{seconds}"] if seconds else []),
        "--requeue" if site.may_requeue else "--no-requeue",
        "--open-mode=append",
    ]


def _order(job: Job) -> list[str]:
    waits = ",".join(JobDependency.parse(text).dependency for text in job.after)
    return [
        *([f"--array={job.elements}"] if job.is_array else []),
        *([f"--dependency={waits}", "--kill-on-invalid-dep=yes"] if waits else []),
    ]


def _log(job: Job) -> str:
    folder = file_pattern(str(job.path / "log"))
    return f"{folder}/%A_%a.log" if job.is_array else f"{folder}/%j.log"


# The launcher of the ranks: words before and after the command.

# Commands that take --comm; all others run on one rank.
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
    """Return the words after `hpcsgd` in the script of a job.

    A command for one rank is unchanged. For several ranks, a command that takes --comm
    and does not set it gets `--comm mpi`, with which ranks that MPI has not connected
    fail; and any command gets `--ranks N` unless srun starts the ranks.
    """
    if any(word.partition("=")[0] == "--ranks" for word in step.command):
        raise ConfigError(
            "--ranks is refused in the command of a job, because --tasks of the job"
            " sets the number of ranks; leave --ranks out"
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
    """Return the words that name the command if it takes --comm, else ()."""
    names = (name for name in COLLECTIVE if tuple(command[: len(name)]) == name)
    return next(names, ())


def leaves_comm_open(command: Sequence[str]) -> bool:
    """Return whether a command takes --comm, and neither a flag nor --set names it."""
    gives = any(
        word.partition("=")[0] in ("--comm", "run.comm")
        or word.startswith("--set=run.comm=")
        for word in command
    )
    return bool(_collective_name(command)) and not gives


def launcher_parts(job: Job, site: Site, step: Step, python: str) -> list[str]:
    """Return the words before the command of a step, a part for each script line."""
    program = interpreter_parts(job, site, python)
    program[-1] += " -m hpcsgd"
    if not site.has_slurm:
        return program
    tasks = step.tasks or job.resources.tasks
    flags = [quote(row.value) for row in site.flags]
    words = _srun(job, site, tasks)
    return [" ".join(["srun", *map(quote, words)]), *flags, *program]


def interpreter_parts(job: Job, site: Site, python: str) -> list[str]:
    """Return the wrapper of a site, such as a container, and the interpreter in it.

    A staged environment has its own interpreter, which the script names by a variable.
    """
    if job.stage:
        return ['"$node_folder/bin/python"']
    wrappers = [quote_all(wrapper_words(row.value)) for row in site.lines.wrapper]
    return [*wrappers, quote(python)]


def _srun(job: Job, site: Site, tasks: int) -> list[str]:
    """Return the arguments of srun for `tasks` ranks.

    They repeat the cores of a task, which srun does not inherit from sbatch.
    """
    resources = job.resources
    launcher = site.launcher
    # A rank that has saved and ended must not end ranks that still save.
    common = ["--kill-on-bad-exit=0"]
    if launcher.export not in ("", "ALL"):
        # Ranks need the variables of the script, which sbatch --export would withhold.
        common.append("--export=ALL")
    if launcher.kind == "task":
        cores = resources.tasks * resources.cpus
        # With the variables of a PMI, the task would start no ranks itself.
        return ["--mpi=none", *common, "--ntasks=1", f"--cpus-per-task={cores}"]
    nodes = min(resources.nodes, -(-tasks // resources.tasks_per_node))
    counts = [f"--nodes={nodes}", f"--ntasks={tasks}"]
    mpi = [f"--mpi={launcher.mpi}"] if launcher.mpi else []
    return [*mpi, *common, *counts, f"--cpus-per-task={resources.cpus}"]


def needs_local_folder(job: Job) -> bool:
    """Return whether the script makes a folder on each node.

    A staged environment is in it, and compiled kernels where several nodes would keep
    theirs in the home of the user.
    """
    resources = job.resources
    return bool(job.stage) or (resources.gpus > 0 and resources.nodes > 1)


def _on_each_node(job: Job, site: Site) -> str:
    """Return the words before a command that runs once on each node of the job."""
    if site.launcher.kind != "srun":
        return ""  # the script runs on the only node
    nodes = job.resources.nodes
    counts = f"--nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task=1"
    return f"srun --mpi=none {counts} "


def threads_of(resources: Resources, site: Site) -> int:
    """Return how many threads the compiled kernels of a rank may use.

    They are the cores of the rank: of the hardware threads of a core, which Slurm may
    count, one.
    """
    return max(1, resources.cpus // site.node.threads_per_core)


# Requests of a job beyond the limits of a site are refused here, before it waits.

COARSE = 60  # seconds by which Slurm may send a signal early


def check(job: Job, site: Site) -> None:
    """Raise ConfigError if the site cannot run the job."""
    _check_gpus(job, site)
    _check_node(job, site)
    _check_limits(job, site)
    _check_launcher(job, site)
    _check_stage(job, site)


def warnings(job: Job, site: Site) -> list[str]:
    """Return a list of sentences on requests that are valid but probably not meant."""
    notice = signal_seconds(job, site)
    if site.has_slurm and job.resources.seconds < 2 * (notice + COARSE):
        return [
            f"of {job.resources.walltime} little is left for work: ranks are told to"
            f" save {notice} s ahead of the end, and Slurm may do so {COARSE} s early;"
            " a longer --walltime or a shorter --signal helps"
        ] * bool(notice)
    return []


def _check_stage(job: Job, site: Site) -> None:
    """Raise ConfigError where an archive would be unused."""
    if job.stage and (site.lines.wrapper or site.launcher.python):
        used = "a wrapper" if site.lines.wrapper else "[launcher] python"
        raise ConfigError(
            f"--stage brings its own interpreter, and site {site.name} has {used};"
            " leave --stage out (a container is one file already), or take a site"
            " without"
        )


def _check_launcher(job: Job, site: Site) -> None:
    """Raise ConfigError for ranks or nodes that the site's launcher cannot connect."""
    ranks = max(step.tasks or job.resources.tasks for step in job.all_steps)
    if site.starts_one_rank and ranks > 1:
        raise ConfigError(
            "srun --mpi=none starts ranks that MPI cannot connect, and the job has"
            f" {ranks} ranks; name the PMI of the MPI in use (--mpi pmi2 for MPICH,"
            ' pmix for Open MPI), take a site with [launcher] kind = "task", or ask for'
            " --tasks 1"
        )
    if site.launcher.kind != "srun" and job.resources.nodes > 1:
        raise ConfigError(
            f"site {site.name} can start ranks on one node only, and"
            f" {job.resources.nodes} nodes were requested; ask for --nodes 1"
        )


def _check_gpus(job: Job, site: Site) -> None:
    resources = job.resources
    steps = job.all_steps
    uses = any(step.computes_on_gpus for step in steps)
    if site.node.gpu != "cuda" and (resources.gpus or uses):
        has = "GPUs without CUDA" if site.node.gpu == "rocm" else "no GPUs"
        raise ConfigError(
            f"site {site.name} has {has}, and exchanges on GPUs need CUDA; ask for"
            " --gpus 0 and --device cpu, or another site"
        )
    if resources.gpus > site.node.gpus > 0:
        raise ConfigError(
            f"{resources.gpus} GPUs of each node were asked for, and a node of"
            f" {site.name} has {site.node.gpus}; ask for more nodes"
        )
    # Each element of an array is a job with its own GPUs.
    some_idle = job.is_array and not all(step.computes_on_gpus for step in steps)
    if resources.gpus and (some_idle or not uses):
        raise ConfigError(
            f"the job requests {counted(resources.gpus, 'GPU')} on each node that"
            f" {'some of its runs' if uses else 'its command'} would leave unused;"
            " add --device cuda to the command, or ask for --gpus 0"
        )
    shared = any(s.shares_gpus or "--share-gpus" in s.command for s in steps)
    if uses and resources.tasks_per_node > resources.gpus and not shared:
        raise ConfigError(
            f"each node has {resources.tasks_per_node} ranks and {resources.gpus} GPUs,"
            " and every rank needs its own GPU; ask for as many --gpus as ranks on a"
            " node, or add --share-gpus to the command"
        )


def _check_node(job: Job, site: Site) -> None:
    resources = job.resources
    node = site.node
    cpus = resources.tasks_per_node * resources.cpus
    if cpus > node.cpus > 0:
        raise ConfigError(
            f"{resources.tasks_per_node} tasks on each node, at {resources.cpus} cores"
            f" for a task, need {cpus} cores, and a node of site {site.name} has"
            f" {node.cpus}; ask for more --nodes or fewer --cpus"
        )
    if node.memory and resources.mebibytes > mebibytes_of(node.memory):
        raise ConfigError(
            f"memory = {resources.memory} was requested of each node, and a node of"
            f" site {site.name} has {node.memory}; ask for less, and for more --nodes"
            " if the run needs it"
        )


def _check_limits(job: Job, site: Site) -> None:
    resources = job.resources
    limits = site.limits
    most = limits.most_nodes(resources.partition)
    if resources.nodes > most > 0:
        raise ConfigError(
            f"{resources.nodes} nodes were requested, and site {site.name} allows at"
            f" most {most}; ask for fewer --nodes"
        )
    longest, of = limits.longest(resources)
    if longest and resources.seconds > seconds_of(longest):
        raise ConfigError(
            f"walltime = {resources.walltime} is more than {longest}, the limit {of}at"
            f" site {site.name}; ask for less: a train job that runs out of time"
            " resumes by itself where jobs are requeued"
        )


# A job and a site become a script, from the templates in slurm/.


def render(job: Job, site: Site, python: str = "") -> str:
    """Return the script of a job at a site, which `hpcsgd jobs submit` sends.

    Parameters
    ----------
    job : Job
        What to run.
    site : Site
        Where to run it.
    python : str, optional
        The interpreter that runs hpcsgd on the nodes. By default it is that of the
        site, or else this one.

    Returns
    -------
    str
        The text of an sbatch script.

    Raises
    ------
    ConfigError
        If the site cannot run the job.

    Examples
    --------
    >>> from hpcsgd.jobs.job import Job
    >>> from hpcsgd.jobs.resources import Resources
    >>> from hpcsgd.jobs.script import render
    >>> from hpcsgd.jobs.sites import load_site
    >>> resources, command = Resources(tasks=4), ("train", "run.toml")
    >>> job = Job("train", "fit", resources, command, out="jobs/fit")
    >>> script = render(job, load_site("generic-cpu"))
    >>> "#SBATCH --ntasks=4" in script
    True
    """
    from hpcsgd.runs.result import Status  # the parsers of commands need no NumPy

    check(job, site)
    if job.stage and python:
        raise ConfigError(
            "--python names an interpreter and --stage brings its own; leave one of"
            " them out"
        )
    python = python or site.launcher.python or sys.executable
    lines = directives(job, site)
    template = _environment().get_template(f"{job.template}.sbatch")
    text: str = template.render(
        job=job,
        site=site,
        directives=lines[: len(lines) - len(site.lines.sbatch)],
        out=str(job.path),
        workplace=job.workplace,
        array=job.is_array and site.has_slurm,
        restarting=job.restarting,
        finished="|".join(status.value for status in Status if not status.exit_code),
        interpreter=interpreter_parts(job, site, python),
        local=needs_local_folder(job),
        each_node=_on_each_node(job, site),
        steps=_steps(job, site, python),
        launcher=launcher_parts(job, site, job.all_steps[0], python),
    )
    return text


def _steps(job: Job, site: Site, python: str) -> list[dict[str, Any]]:
    """Return folder, command and words of each launch of a job, for the templates."""
    launches = []
    for step in job.all_steps:
        command = command_words(job, site, step)
        launcher = launcher_parts(job, site, step, python)
        words = [*launcher, quote_all(command)]
        launches.append({"folder": step.folder, "command": command, "words": words})
    return launches


@cache
def _environment() -> "Environment":
    """Return the environment of the templates, in which undefined names are errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(files.asset_path("slurm")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": quote, "quote_all": quote_all, "lines": _lines}
    return environment


def _lines(words: list[str]) -> str:
    """Return the parts of a launch as one shell command, each part on its own line."""
    return " \\\n    ".join(words)
