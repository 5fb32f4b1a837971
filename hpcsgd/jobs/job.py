"""A job: its template, its resources, and the commands of its ranks."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.resources import (
    JobArray,
    JobDependency,
    Resources,
    check_line,
    check_name,
    file_pattern,
)

TEMPLATES = ("train", "sweep", "scaling", "convert", "command", "smoke")
# Templates with a signal before the time limit, and a requeue after it.
RESTARTING = ("train", "sweep", "scaling")
Words = tuple[str, ...]
ON_CUDA = re.compile(r"\bdevice=cuda\b")  # of a flag, --set or --setting


@dataclass(frozen=True)
class Step:
    """One launch inside a job.

    Attributes
    ----------
    command : what the ranks run, after `hpcsgd`
    tasks : how many of the job's tasks; 0 = all of them
    on_gpus, shares_gpus : whether the settings that the command reads from a file
        request GPUs and shared GPUs, as the flags --device cuda and --share-gpus do
    """

    command: Words
    tasks: int = 0
    on_gpus: bool = False
    shares_gpus: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise ConfigError("a job needs a command, for example train run.toml")
        for word in self.command:
            check_line(word, "a word of the command")

    @property
    def computes_on_gpus(self) -> bool:
        """Return whether the command, or the file that it reads, sets device cuda."""
        pairs = zip(self.command, self.command[1:], strict=False)
        says = any(ON_CUDA.search(word) for word in self.command)
        return self.on_gpus or says or ("--device", "cuda") in pairs

    @property
    def folder(self) -> str:
        """Return the run folder, which --out in the command names; "" without one.

        Its checkpoints show the progress of the job.
        """
        return next(option_values(self.command, "--out"), "")


def option_values(command: Sequence[str], option: str) -> Iterator[str]:
    """Yield the value of `option` wherever a command has it, as two words or as one.

    The forms are `--out DIR` and `--out=DIR`.
    """
    for word, following in zip(command, (*command[1:], ""), strict=True):
        if word == option:
            yield following
        elif word.startswith(f"{option}="):
            yield word.removeprefix(f"{option}=")


@dataclass(frozen=True)
class Job:
    """One job of Slurm, or one array of them.

    Attributes
    ----------
    template : {"train", "sweep", "scaling", "convert", "command", "smoke"}
        The kind of the job.
    name : str
        Its name in the queue.
    resources : Resources
        Nodes, tasks, GPUs, memory, time.
    command : tuple of str
        What the ranks run, after `hpcsgd`.
    out : str
        Folder of the job. Run folders may be inside.
    steps : tuple of Step
        In place of `command`: one for each element of the array of a `sweep`, or one
        after another in one allocation for `scaling`.
    array : str
        Elements of a `sweep` that run, as in "0-15%4". Empty for all.
    after : tuple of str
        Jobs to wait for, as in "123:ok".
    signal_seconds : int or None
        Seconds between the signal and the end. None takes that of the site.
    restarts : int
        Starts in a row without a new checkpoint before the job gives up.
    folder : str
        Where the command runs. Empty for the working directory.
    stage : str
        Archive of `hpcsgd jobs stage`, from which the nodes run. Empty for none.

    Examples
    --------
    >>> from hpcsgd.jobs.job import Job
    >>> from hpcsgd.jobs.resources import Resources
    >>> resources, command = Resources(tasks=4), ("train", "run.toml")
    >>> job = Job("train", "fit", resources, command, out="jobs/fit")
    >>> job.restarting
    True
    """

    template: str
    name: str
    resources: Resources
    command: Words = ()
    out: str = ""
    steps: tuple[Step, ...] = ()
    array: str = ""
    after: tuple[str, ...] = ()
    signal_seconds: int | None = None
    restarts: int = 3
    folder: str = ""
    stage: str = ""

    def __post_init__(self) -> None:
        if self.template not in TEMPLATES:
            raise ConfigError(
                f"template {self.template!r} unknown; known: {', '.join(TEMPLATES)}"
            )
        check_name(self.name, "the name of a job")
        if not self.out:
            raise ConfigError("a job needs a folder for its script and log: add --out")
        file_pattern(self.out)
        check_line(self.folder, "the folder where commands run")
        check_line(self.stage, "--stage")
        if self.restarts < 1:
            raise ConfigError(f"restarts = {self.restarts} must be at least 1")
        if self.signal_seconds is not None and self.signal_seconds < 0:
            raise ConfigError(
                f"signal_seconds = {self.signal_seconds} must be at least 0;"
                " 0 sends no signal"
            )
        self._check_steps()

    def _check_steps(self) -> None:
        if bool(self.command) == bool(self.steps):
            raise ConfigError(
                f"a {self.template} job needs either command or steps, and not both"
            )
        if self.command:
            Step(self.command)
        if self.template not in ("sweep", "scaling") and self.steps:
            raise ConfigError(
                f"steps are refused in a {self.template} job; give one command, or use"
                " the template sweep or scaling"
            )
        for step in self.steps:
            if not 0 <= step.tasks <= self.resources.tasks:
                raise ConfigError(
                    f"one step of the job needs {step.tasks} tasks, and the job has"
                    f" {self.resources.tasks}; ask for more --tasks"
                )
        [JobDependency.parse(text) for text in self.after]
        self._check_array()

    def _check_array(self) -> None:
        if self.array and self.template != "sweep":
            raise ConfigError(
                f"--array is refused in a {self.template} job, because only a sweep is"
                " a job array; leave --array out"
            )
        count = len(self.all_steps)
        if self.array and max(JobArray.parse(self.array).numbers) >= count:
            raise ConfigError(
                f"array = {self.array} names runs after the last one, whose number is"
                f" {count - 1}; the first has the number 0"
            )

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """Return the steps of the job, or one step with its command."""
        return self.steps or (Step(self.command),)

    @property
    def path(self) -> Path:
        """The absolute path of the folder of the job."""
        return Path(os.path.abspath(os.path.join(self.workplace, self.out)))

    @property
    def workplace(self) -> str:
        """The absolute path of the folder in which the command runs."""
        return os.path.abspath(self.folder or os.getcwd())

    @property
    def is_array(self) -> bool:
        """Return whether the job is a sweep: an array, at a site with Slurm."""
        return self.template == "sweep"

    @property
    def elements(self) -> str:
        """The elements of the array, as Slurm writes them."""
        return self.array or f"0-{len(self.all_steps) - 1}"

    @property
    def restarting(self) -> bool:
        """Return whether the job requests a restart when its time ends."""
        return self.template in RESTARTING
