"""What the ranks of a job run, from what stands behind `--`."""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Step
from hpcsgd.jobs.launch_line import leaves_comm_open
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.syntax import MOST_ELEMENTS

Words = tuple[str, ...]
DEVICE = "run.device="
RESUME = ("--resume", "auto")


def steps_of(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """The launches of a job, all that they say tried as command lines here and now."""
    steps = MAKERS[arguments.template](arguments, resources)
    for step in _telling(steps):
        _try(step.command)
    return steps


def _telling(steps: Sequence[Step]) -> Iterator[Step]:
    """The first, and each that says something that none before it said.

    Of a sweep these are as many as values, not as many as combinations.
    """
    said: set[str] = set()
    for step in steps:
        words = set(step.command) - {step.folder}
        if not words <= said:
            said |= words
            yield step


def _train(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    folder, run = os.path.join(arguments.out, "run"), _run_table(arguments)
    return (Step(training(arguments.words, folder, run, resources)),)


def training(
    words: Sequence[str], folder: str, run: Mapping[str, Any], resources: Resources
) -> Words:
    """Return the words of a run that resumes in `folder`, unless they name another.

    What its table [run] says of device and comm becomes flags: those that check and
    render a job see words alone.
    """
    out = () if _says(words, "--out") else ("--out", folder)
    return ("train", *words, *_flags(("train", *words), run, resources), *out, *RESUME)


def _flags(command: Words, run: Mapping[str, Any], resources: Resources) -> Words:
    """Return the flags of device and comm, of which `command` has none."""
    on_gpus = resources.device_of(run) == "cuda" and not _says(command, "--device")
    comm = str(run.get("comm", "auto"))
    gives_comm = comm != "auto" and leaves_comm_open(command)
    return (
        *(("--device", "cuda") if on_gpus else ()),
        *(("--comm", comm) if gives_comm else ()),
    )


def _run_table(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Return the table [run] of a command of `train`: its file, --set, and flags."""
    _refuse_resume(arguments)
    return _run_table_of(("train", *arguments.words)) or {}


def _run_table_of(command: Words) -> Mapping[str, Any] | None:
    """Return the table [run] of a command that trains; None of any other."""
    from hpcsgd.cli.parser import make_parser
    from hpcsgd.cli.train import overlaid
    from hpcsgd.config import read_toml

    read = make_parser(command[0]).parse_args(command)
    if not (hasattr(read, "config") and hasattr(read, "sets")):
        return None
    table = overlaid(read_toml(read.config) if read.config else {}, read).get("run")
    return table if isinstance(table, dict) else {}


def _sweep(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """Every combination of what is varied, each with its own folder."""
    _refuse_out(arguments)
    if not arguments.vary:
        raise ConfigError("a sweep needs --vary, as in --vary schedule.steps=1,2,4,8")
    axes = [_axis(text) for text in arguments.vary]
    points = list(product(*axes))
    if len(points) > MOST_ELEMENTS:
        raise ConfigError(f"{len(points)} runs are too many for one array; vary less")
    run = _run_table(arguments)
    found = []
    for number, point in enumerate(points):
        varied = [said.partition("=")[2] for said in point if said.startswith(DEVICE)]
        own = {**run, "device": varied[-1]} if varied else run
        words, folder = (*arguments.words, *_sets(point)), _folder(arguments, number)
        found.append(Step(training(words, folder, own, resources)))
    return tuple(found)


def _axis(text: str) -> list[str]:
    """section.key=value for each value of section.key=V1,V2,..."""
    key, equals, values = text.partition("=")
    found = [value for value in values.split(",") if value]
    if not (equals and found and re.fullmatch(r"\w+\.\w+", key)):
        raise ConfigError(
            f"--vary {text}: write it as section.key=V1,V2, for example"
            " schedule.steps=1,2,4"
        )
    return [f"{key}={value}" for value in found]


def _sets(point: Sequence[str]) -> Words:
    return tuple(word for setting in point for word in ("--set", setting))


def _scaling(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """The same run on other numbers of ranks."""
    _refuse_out(arguments)
    found, run = [], _run_table(arguments)
    for ranks in ranks_of(arguments.ranks):
        folder = _folder(arguments, f"ranks-{ranks}")
        found.append(Step(training(arguments.words, folder, run, resources), ranks))
    return tuple(found)


def ranks_of(text: str) -> list[int]:
    """Numbers of ranks with commas between them."""
    if not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", text, re.ASCII):
        raise ConfigError(f"--ranks {text}: write numbers, for example 1,2,4,8")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def _convert(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    resume = () if _says(arguments.words, "--resume") else ("--resume",)
    return (Step(("data", "convert", *arguments.words, *resume)),)


def _command(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """Return the command as it stands; one that trains, with flags of its [run]."""
    words = tuple(arguments.words)
    run = _run_table_of(words) if words else None
    return (Step(words if run is None else (*words, *_flags(words, run, resources))),)


def _smoke(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """In the job's own folder, on GPUs where it asks for some."""
    folder = ("--folder", arguments.out)
    is_open = resources.gpus and not _says(arguments.words, "--device")
    device = ("--device", "cuda") if is_open else ()
    return (Step(("jobs", "smoke", *folder, *device, *arguments.words)),)


MAKERS = {
    "train": _train,
    "sweep": _sweep,
    "scaling": _scaling,
    "convert": _convert,
    "command": _command,
    "smoke": _smoke,
}


def _folder(arguments: argparse.Namespace, name: int | str) -> str:
    return os.path.join(arguments.out, "runs", str(name))


def _says(words: Sequence[str], flag: str) -> bool:
    return any(word.partition("=")[0] == flag for word in words)


def _refuse_resume(arguments: argparse.Namespace) -> None:
    if _says(arguments.words, "--resume"):
        raise ConfigError(
            "--resume in the command of a job: it goes on by itself in its own run"
            " folder; leave it out"
        )


def _refuse_out(arguments: argparse.Namespace) -> None:
    if _says(arguments.words, "--out"):
        raise ConfigError(
            f"--out behind -- of a {arguments.template}: every run has a folder of its"
            " own inside the job's; leave it out"
        )


def _try(command: Words) -> None:
    """Read it as it will be read on the nodes: a mistake is cheaper here."""
    from hpcsgd.cli.parser import make_parser
    from hpcsgd.cli.train import check_data, configuration

    read = make_parser(command[0]).parse_args(command)
    if command[0] == "train":
        check_data(configuration(read))
