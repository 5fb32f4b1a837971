"""What the ranks of a job run, from what stands behind `--`."""

import argparse
import os
import re
from collections.abc import Sequence
from itertools import product

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Step
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.syntax import MOST_ELEMENTS

Words = tuple[str, ...]


def steps_of(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """The launches of a job, each tried as a command line here and now."""
    steps = MAKERS[arguments.template](arguments, resources)
    for step in {step.command: step for step in steps[:1]}.values():
        _try(step.command)
    return steps


def _train(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    folder = os.path.join(arguments.out, "run")
    return (Step(training(arguments.words, folder, resources.gpus)),)


def training(words: Sequence[str], folder: str, gpus: int) -> Words:
    """A run that goes on by itself in `folder`, unless another was named.

    It is on GPUs where the job asks for some, unless it says otherwise.
    """
    if _says(words, "--resume"):
        raise ConfigError(
            "--resume in the command of a job: it goes on by itself in its own run"
            " folder; leave it out"
        )
    out = () if _says(words, "--out") else ("--out", folder)
    device = ("--device", "cuda") if gpus and not _says(words, "--device") else ()
    return ("train", *words, *device, *out, "--resume", "auto")


def _sweep(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """Every combination of what is varied, each with its own folder."""
    _refuse_out(arguments)
    if not arguments.vary:
        raise ConfigError("a sweep needs --vary, as in --vary schedule.steps=1,2,4,8")
    axes = [_axis(text) for text in arguments.vary]
    points = list(product(*axes))
    if len(points) > MOST_ELEMENTS:
        raise ConfigError(f"{len(points)} runs are too many for one array; vary less")
    folders = [_folder(arguments, number) for number in range(len(points))]
    return tuple(
        Step(training((*arguments.words, *_sets(point)), folder, resources.gpus))
        for point, folder in zip(points, folders, strict=True)
    )


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
    found = []
    for ranks in ranks_of(arguments.ranks):
        folder = _folder(arguments, f"ranks-{ranks}")
        found.append(Step(training(arguments.words, folder, resources.gpus), ranks))
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
    return (Step(tuple(arguments.words)),)


def _smoke(arguments: argparse.Namespace, resources: Resources) -> tuple[Step, ...]:
    """In the job's own folder, on GPUs where it asks for some."""
    folder = ("--folder", arguments.out)
    device = ("--device", "cuda") if resources.gpus else ()
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
