"""A job: a template, what it asks for, and what its ranks run."""

import os
import re
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
RESTARTING = ("train", "sweep", "scaling")  # a signal ahead of the end, and a requeue
Words = tuple[str, ...]
ON_CUDA = re.compile(r"\bdevice=cuda\b")  # of a flag, --set or --setting


@dataclass(frozen=True)
class Step:
    """One launch inside a job.

    Attributes
    ----------
    command : what the ranks run, after `hpcsgd`
    tasks : how many of the job's tasks; 0 = all of them
    on_gpus, shares_gpus : what --device cuda and --share-gpus would say, where a file
        says it
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
        """Whether the command, or the file that it reads, says cuda."""
        pairs = zip(self.command, self.command[1:], strict=False)
        says = any(ON_CUDA.search(word) for word in self.command)
        return self.on_gpus or says or ("--device", "cuda") in pairs

    @property
    def folder(self) -> str:
        """The run folder, whose checkpoints tell whether it gets on; or nothing."""
        for number, word in enumerate(self.command[:-1]):
            if word == "--out":
                return self.command[number + 1]
            if word.startswith("--out="):
                return word.removeprefix("--out=")
        return ""


@dataclass(frozen=True)
class Job:
    """One job, or one array of them.

    Attributes
    ----------
    template : train, sweep, scaling, convert, command or smoke
    name : what queues call it
    resources : what it asks for
    command : what the ranks run, after `hpcsgd`
    out : folder of the job; run folders may lie inside
    steps : of `sweep`: one for each element of the array; of `scaling`: one after
        another in one allocation. They stand in the place of `command`.
    array : elements of `sweep` that run, as in "0-15%4"; empty = all
    after : jobs to wait for, as in "123:ok"
    signal_seconds : between the signal and the end; None takes what the site says
    restarts : starts in a row without a new checkpoint before it gives up
    folder : where commands run; empty = here
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
            raise ConfigError(f"a job of {self.template} needs a command, or steps")
        if self.command:
            Step(self.command)
        if self.template not in ("sweep", "scaling") and self.steps:
            raise ConfigError(
                f"a job of {self.template} has one command; several are for sweep and"
                " scaling"
            )
        for step in self.steps:
            if not 0 <= step.tasks <= self.resources.tasks:
                raise ConfigError(
                    f"a step of {step.tasks} tasks does not fit into a job of"
                    f" {self.resources.tasks}; ask for more --tasks"
                )
        [JobDependency.parse(text) for text in self.after]
        self._check_array()

    def _check_array(self) -> None:
        if self.array and self.template != "sweep":
            raise ConfigError(f"--array is for sweep alone, not for {self.template}")
        count = len(self.all_steps)
        if self.array and max(JobArray.parse(self.array).numbers) >= count:
            raise ConfigError(
                f"array = {self.array} asks for elements beyond the last,"
                f" {len(self.all_steps) - 1}; count from 0"
            )

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The steps, or the one command."""
        return self.steps or (Step(self.command),)

    @property
    def path(self) -> Path:
        """The folder of the job, from the root."""
        return Path(os.path.abspath(os.path.join(self.workplace, self.out)))

    @property
    def workplace(self) -> str:
        """Where commands run, from the root."""
        return os.path.abspath(self.folder or os.getcwd())

    @property
    def is_array(self) -> bool:
        """Whether Slurm counts elements of it."""
        return self.template == "sweep"

    @property
    def elements(self) -> str:
        """The elements of the array, as Slurm writes them."""
        return self.array or f"0-{len(self.all_steps) - 1}"

    @property
    def restarting(self) -> bool:
        """Whether it asks to be started again."""
        return self.template in RESTARTING
