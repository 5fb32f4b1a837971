"""`hpcsgd jobs`: render, submit, status, cancel, collect, smoke, new-site, stage."""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpcsgd
from hpcsgd.cli import launch
from hpcsgd.cli.names import COMMANDS, DEVICES, TRANSPORTS
from hpcsgd.cli.parser import (
    add_comm,
    add_json,
    add_ranks,
    not_negative,
    on_all_ranks,
)
from hpcsgd.errors import ConfigError, HpcsgdError
from hpcsgd.files import write_text
from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.resources import MOST_ELEMENTS, Resources, check_known
from hpcsgd.jobs.script import leaves_comm_open, threads_of, warnings
from hpcsgd.jobs.sites import (
    Site,
    known_sites,
    load_site,
    new_site,
    own_folders,
    with_mpi,
    with_options,
)

if TYPE_CHECKING:
    from hpcsgd.comm.communicator import Communicator
    from hpcsgd.jobs.smoke import SmokeCheck
    from hpcsgd.jobs.status import JobState


# `hpcsgd jobs cancel`: cancel the waiting and running jobs of a folder.


def add_cancel_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs cancel`."""
    parser = actions.add_parser(
        "cancel",
        help="cancel the waiting and running jobs of a folder",
        description="Cancel the waiting and running jobs of one or more folders, and"
        " print their numbers.",
        example="hpcsgd jobs cancel jobs/first",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help=FOLDER_HELP)
    parser.add_argument(
        "--job",
        default="",
        metavar="ID",
        help="cancel only this job, job array or array element",
    )
    add_json(parser)
    parser.set_defaults(run=run_cancel)


def run_cancel(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Cancel jobs; print the numbers of the cancelled jobs on standard output."""
    from hpcsgd.jobs.submit import cancel

    done = [j for f in arguments.folders for j in cancel(Path(f), arguments.job)]
    if arguments.json:
        print(json.dumps({"cancelled": done}, indent=2))
    elif done:
        print("\n".join(done))
    return 0


# Tables of text.


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, in which a column is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [_line(row, widths) for row in (heads, *rows)]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
    return "  ".join(cells).rstrip()


# `hpcsgd jobs stage`: the environment of the ranks in one archive.


def add_stage_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs stage`."""
    parser = actions.add_parser(
        "stage",
        help="pack interpreter and packages into one archive for `--stage`",
        description="Pack the interpreter, hpcsgd and all packages that it needs into"
        " one archive. Jobs that are submitted with --stage copy it to the disk of each"
        " node, so that thousands of ranks do not look for their modules on the shared"
        " file system. Make it again after each change of the environment.",
        example="hpcsgd jobs stage environment.tar.gz",
    )
    parser.add_argument("archive", metavar="FILE.tar.gz", help="archive to write")
    parser.add_argument(
        "--with",
        dest="more",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="installed package to add, with all that it needs, for example one with"
        " plugins; may be given several times",
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite an archive that exists"
    )
    parser.set_defaults(run=run_stage)


def run_stage(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the archive; print its path, and on standard error what it contains."""
    from hpcsgd.jobs.stage import stage

    archive = Path(arguments.archive)
    if archive.exists() and not arguments.force:
        raise ConfigError(f"{archive} exists; name another archive, or add --force")
    staged = stage(archive, arguments.more)
    size = archive.stat().st_size / 1e6
    print(
        f"hpcsgd: {len(staged.packages)} packages and Python {staged.python},"
        f" {size:.0f} MB; use it with: hpcsgd jobs submit train --stage {archive} ...",
        file=sys.stderr,
    )
    print(archive)
    return 0


# `hpcsgd jobs collect`: the results of a job's runs in one table.


def add_collect_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs collect`."""
    parser = actions.add_parser(
        "collect",
        help="collect the results of jobs in one table",
        description="Collect the results of all runs of one or more jobs in one table.",
        example="hpcsgd jobs collect jobs/first --csv",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help=FOLDER_HELP)
    shape = parser.general.add_mutually_exclusive_group()
    add_json(parser, shape)
    shape.add_argument("--csv", action="store_true", help="print the result as CSV")
    parser.set_defaults(run=run_collect)


def run_collect(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the results of jobs, one row for each run."""
    from hpcsgd.files import finite
    from hpcsgd.jobs.status import as_csv, collect

    rows = [row for folder in arguments.folders for row in collect(Path(folder))]
    if arguments.json:
        print(json.dumps(finite({"runs": rows})["runs"], indent=2, allow_nan=False))
    elif arguments.csv:
        print(as_csv(rows), end="")
    else:
        print(collected_text(rows))
    return 0


def collected_text(rows: list[dict[str, Any]]) -> str:
    """Return the results of runs as a table of text."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(head)) for head in heads] for row in rows]
    return "\n".join(table(heads, cells)) if rows else "no runs yet"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# `hpcsgd jobs new-site`: a file for a new site.


def add_new_site_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs new-site`."""
    parser = actions.add_parser(
        "new-site",
        help="write a site file for your cluster, or list the known sites",
        description="Write a site file for your cluster: a copy of a known site with an"
        " explanation of every setting.",
        example="hpcsgd jobs new-site --list",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the new site")
    parser.add_argument(
        "--from",
        dest="source",
        default="generic-cpu",
        metavar="NAME",
        help="known site to copy; take the one that is most like your cluster",
    )
    parser.add_argument(
        "--out",
        metavar="FILE.toml",
        help="site file to write; without the flag NAME.toml, where --site NAME looks",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the known sites and write nothing"
    )
    parser.set_defaults(run=run_new_site)


def run_new_site(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the file of a new site and print its path; or list all sites."""
    if arguments.list:
        for name, path in known_sites().items():
            print(f"{name:<18} {path}")
        return 0
    if not arguments.name:
        raise ConfigError("new-site needs a NAME for the site, or --list")
    text = new_site(arguments.name, arguments.source, arguments.out or "")
    path = Path(arguments.out or own_folders()[0] / f"{arguments.name}.toml")
    if path.exists():
        raise ConfigError(
            f"{path} exists; choose another {'--out' if arguments.out else 'NAME'} for"
            " the site, or remove that file"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; name another file with --out"
        ) from error
    print(path)
    return 0


# The commands of the ranks of a job, from the words after `--`.

Words = tuple[str, ...]
DEVICE = "run.device="
RESUME = ("--resume", "auto")


@dataclass(frozen=True)
class RankResources:
    """The resources of a job that its commands use.

    Attributes
    ----------
    resources : of the job
    threads : of each rank in the compiled kernels, one for each of its cores
    """

    resources: Resources
    threads: int = 1


def steps_of(
    arguments: argparse.Namespace, resources: Resources, site: Site
) -> tuple[Step, ...]:
    """Return the launches of a job, after a test that their command lines are valid."""
    given = RankResources(resources, threads_of(resources, site))
    steps = MAKERS[arguments.template](arguments, given)
    for step in _telling(steps):
        _try(step.command)
    return steps


def _telling(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the first step, and each step with a word that no earlier step has.

    In a sweep the number of these steps grows with the number of values, not with the
    number of their combinations.
    """
    earlier_words: set[str] = set()
    for step in steps:
        words = set(step.command) - {step.folder}
        if not words <= earlier_words:
            earlier_words |= words
            yield step


def _train(arguments: argparse.Namespace, given: RankResources) -> tuple[Step, ...]:
    folder = os.path.join(arguments.out, "run")
    run = _run_table(arguments)
    return (Step(training(arguments.words, folder, run, given)),)


def training(
    words: Sequence[str], folder: str, run: Mapping[str, Any], given: RankResources
) -> Words:
    """Return the command of a run that resumes in `folder`.

    If `words` contain --out, it resumes in that folder instead. Device and comm of
    its table [run], `run`, become flags, because the checks of a job and its script
    read the words of the command only.
    """
    out = () if _says(words, "--out") else ("--out", folder)
    return ("train", *words, *_flags(("train", *words), run, given), *out, *RESUME)


def _flags(command: Words, run: Mapping[str, Any], given: RankResources) -> Words:
    """Return flags for device "cuda", comm and threads that `command` does not set.

    Device and comm are those of `run`; if `run` sets no device, that of the resources
    decides. Threads are the cores of a rank, unless `run` sets them.
    """
    on_gpus = given.resources.device_of(run) == "cuda" and not _says(
        command, "--device"
    )
    comm = str(run.get("comm", "auto"))
    gives_comm = comm != "auto" and leaves_comm_open(command)
    sets_threads = "threads" in run or _says(command, "--threads")
    return (
        *(("--device", "cuda") if on_gpus else ()),
        *(("--comm", comm) if gives_comm else ()),
        *(
            ()
            if sets_threads or given.threads == 1
            else ("--threads", f"{given.threads}")
        ),
    )


def _run_table(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Return the table [run] of a `train` command, from its file, --set and flags.

    --resume in the command is refused.
    """
    _refuse_resume(arguments)
    return _run_table_of(("train", *arguments.words)) or {}


def _run_table_of(command: Words) -> Mapping[str, Any] | None:
    """Return the table [run] of a command that trains; None for another command."""
    from hpcsgd.cli.parser import make_parser
    from hpcsgd.cli.train import overlaid
    from hpcsgd.config import read_toml

    read = make_parser(command[0]).parse_args(command)
    if not (hasattr(read, "config") and hasattr(read, "sets")):
        return None
    table = overlaid(read_toml(read.config) if read.config else {}, read).get("run")
    return table if isinstance(table, dict) else {}


def _sweep(arguments: argparse.Namespace, given: RankResources) -> tuple[Step, ...]:
    """Return a step for every combination of varied values, each with its folder."""
    _refuse_out(arguments)
    if not arguments.vary:
        raise ConfigError("a sweep needs --vary, as in --vary schedule.steps=1,2,4,8")
    axes = [_axis(text) for text in arguments.vary]
    points = list(product(*axes))
    if len(points) > MOST_ELEMENTS:
        raise ConfigError(
            f"--vary gives {len(points)} runs, and one job array has at most"
            f" {MOST_ELEMENTS}; give fewer values"
        )
    run = _run_table(arguments)
    steps = []
    for number, point in enumerate(points):
        varied = [
            assignment.partition("=")[2]
            for assignment in point
            if assignment.startswith(DEVICE)
        ]
        point_run = {**run, "device": varied[-1]} if varied else run
        words = (*arguments.words, *_sets(point))
        folder = _folder(arguments, number)
        steps.append(Step(training(words, folder, point_run, given)))
    return tuple(steps)


def _axis(text: str) -> list[str]:
    """Return section.key=value for each value of section.key=V1,V2,..."""
    key, equals, values = text.partition("=")
    choices = [value for value in values.split(",") if value]
    if not (equals and choices and re.fullmatch(r"\w+\.\w+", key)):
        raise ConfigError(
            f"--vary {text}: write it as section.key=V1,V2, for example"
            " schedule.steps=1,2,4"
        )
    return [f"{key}={value}" for value in choices]


def _sets(point: Sequence[str]) -> Words:
    return tuple(word for setting in point for word in ("--set", setting))


def _scaling(arguments: argparse.Namespace, given: RankResources) -> tuple[Step, ...]:
    """Return a step of the same run for each number of ranks, each with its folder."""
    _refuse_out(arguments)
    steps = []
    run = _run_table(arguments)
    for ranks in ranks_of(arguments.ranks):
        folder = _folder(arguments, f"ranks-{ranks}")
        steps.append(Step(training(arguments.words, folder, run, given), ranks))
    return tuple(steps)


def ranks_of(text: str) -> list[int]:
    """Return the numbers of ranks of a text such as 1,2,4, without repetitions."""
    if not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", text, re.ASCII):
        raise ConfigError(f"--ranks {text}: write numbers, for example 1,2,4,8")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def _convert(arguments: argparse.Namespace, given: RankResources) -> tuple[Step, ...]:
    resume = () if _says(arguments.words, "--resume") else ("--resume",)
    return (Step(("data", "convert", *arguments.words, *resume)),)


def _command(arguments: argparse.Namespace, given: RankResources) -> tuple[Step, ...]:
    """Return one step: the command of the user.

    If it trains, device and comm of its table [run] are added as flags.
    """
    words = tuple(arguments.words)
    run = _run_table_of(words) if words else None
    return (Step(words if run is None else (*words, *_flags(words, run, given))),)


def _smoke_command(
    arguments: argparse.Namespace, given: RankResources
) -> tuple[Step, ...]:
    """Return one step: the smoke test in the folder of the job.

    It runs on GPUs if the job requests some, unless its words contain --device.
    """
    folder = ("--folder", arguments.out)
    is_open = given.resources.gpus and not _says(arguments.words, "--device")
    device = ("--device", "cuda") if is_open else ()
    return (Step(("jobs", "smoke", *folder, *device, *arguments.words)),)


MAKERS = {
    "train": _train,
    "sweep": _sweep,
    "scaling": _scaling,
    "convert": _convert,
    "command": _command,
    "smoke": _smoke_command,
}


def _folder(arguments: argparse.Namespace, name: int | str) -> str:
    return os.path.join(arguments.out, "runs", str(name))


def _says(words: Sequence[str], flag: str) -> bool:
    return any(word.partition("=")[0] == flag for word in words)


def _refuse_resume(arguments: argparse.Namespace) -> None:
    if _says(arguments.words, "--resume"):
        raise ConfigError(
            "--resume is refused in the command of a job, because the job resumes by"
            " itself in its own run folder; leave --resume out"
        )


def _refuse_out(arguments: argparse.Namespace) -> None:
    if _says(arguments.words, "--out"):
        raise ConfigError(
            f"--out after -- is refused in a {arguments.template} job, because every"
            " run gets its own folder inside that of the job; leave it out"
        )


def _try(command: Words) -> None:
    """Parse a command as on the nodes, so that errors are raised before submission."""
    from hpcsgd.cli.parser import make_parser
    from hpcsgd.cli.train import check_data, configuration

    read = make_parser(command[0]).parse_args(command)
    if command[0] == "train":
        check_data(configuration(read))


# The flags of a job, and the job that they describe.

SITE = "HPCSGD_SITE"  # variable with the site if no flag names one
COUNTS = {
    "nodes": "nodes of the job",
    "tasks": "ranks of the job, over all nodes",
    "gpus": "GPUs of each node",
    "cpus": "cores of each rank, as Slurm counts them; compiled kernels use all of them"
    " (--threads), and BLAS one, because its sums depend on the number of threads",
}
TEXTS = {
    "memory": ("SIZE", "memory of each node, as 64G"),
    "walltime": ("TIME", "time limit of the job, as 02:00:00"),
    "account": ("NAME", "account that the time is charged to"),
    "partition": ("NAME", "partition of the cluster"),
    "qos": ("NAME", "quality of service of the job"),
    "constraint": ("FEATURES", "features that the nodes must have"),
}
TEMPLATES = {
    "train": (
        "one training run that saves checkpoints, requeues and resumes",
        "the arguments of `hpcsgd train`",
    ),
    "sweep": ("an array of training runs", "the arguments of `hpcsgd train`"),
    "scaling": (
        "training runs on several numbers of ranks, one after the other",
        "the arguments of `hpcsgd train`",
    ),
    "convert": (
        "a conversion into a data file",
        "the arguments of `hpcsgd data convert`",
    ),
    "command": ("any other command of hpcsgd", "the command, without the word hpcsgd"),
    "smoke": (
        "a check of MPI, GPUs, files and clocks",
        "the arguments of `hpcsgd jobs smoke`",
    ),
}


FOLDER_HELP = "folder of a job, as given to `hpcsgd jobs submit --out`"
# A command line for each template, in one line that can be pasted.
_START = "hpcsgd jobs {action} %s --site generic-cpu --tasks 2 --out jobs/first"
EXAMPLES = {
    "train": _START % "train" + " -- --data rows.h5",
    "sweep": _START % "sweep" + " --vary rate.value=0.1,0.5 -- --data rows.h5",
    "scaling": _START % "scaling" + " --ranks 1,2 -- --data rows.h5",
    "convert": _START % "convert" + " -- table.csv table.h5 --label-column y",
    "command": _START % "command" + " -- evaluate runs/first rows.h5",
    "smoke": _START % "smoke",
}


def _example(templates: Any, name: str) -> str:
    """Return the example of a template for the action (render or submit)."""
    return EXAMPLES[name].format(action=templates._prog_prefix.split()[2])


def add_templates(parser: Any, run: Any) -> list[Any]:
    """Add a parser for each template of a job, which calls `run`; return them."""
    templates = parser.add_subparsers(
        dest="template", metavar="TEMPLATE", required=True
    )
    parsers = [_template(templates, name) for name in TEMPLATES]
    for template_parser in parsers:
        template_parser.set_defaults(run=run)
    return parsers


def _template(templates: Any, name: str) -> Any:
    text, behind = TEMPLATES[name]
    parser = templates.add_parser(
        name,
        help=text,
        description=f"Template of a job: {text}.",
        example=_example(templates, name),
    )
    parser.add_argument(
        "words", nargs="*", metavar="ARG", help=f"after -- follow {behind}"
    )
    _add_place(parser)
    _add_resources(parser)
    if name == "sweep":
        parser.add_argument(
            "--vary",
            action="append",
            default=[],
            metavar="SECTION.KEY=V1,V2,...",
            help="values of a setting; given several times, every combination is a run",
        )
        parser.add_argument(
            "--array",
            default="",
            metavar="0-N%M",
            help="elements of the array to run, and how many at once",
        )
    if name == "scaling":
        parser.add_argument(
            "--ranks",
            required=True,
            metavar="1,2,4,...",
            help="number of ranks of each run",
        )
    return parser


def _add_place(parser: Any) -> None:
    """Add the flags of site, folder, name, dependencies and signal."""
    parser.add_argument(
        "--site",
        metavar="NAME|FILE.toml",
        help="site of the job (`hpcsgd jobs new-site --list` shows the names); without"
        f" the flag that of ${SITE}",
    )
    parser.add_argument(
        "--mpi",
        metavar="KIND",
        help="value of srun --mpi instead of that of the site; none is for one rank",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder of the job to write"
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="name of the job in the queue; without the flag that of DIR",
    )
    parser.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="ID[:ok|any|notok]",
        help="start after another job has ended: successfully (ok, the default), in any"
        " way (any), or with an error (notok)",
    )
    parser.add_argument(
        "--signal",
        type=int,
        metavar="SECONDS",
        help="seconds before the time limit at which the job saves a checkpoint and"
        " ends; 0 sends no such signal",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=3,
        metavar="N",
        help="starts in a row without a new checkpoint after which the job gives up",
    )
    parser.add_argument(
        "--python",
        default="",
        metavar="PATH",
        help="Python interpreter on the nodes; by default the one of the site, or else"
        " the one of this command",
    )
    parser.add_argument(
        "--stage",
        metavar="FILE.tar.gz",
        help="archive of `hpcsgd jobs stage`, which each node unpacks on its own disk:"
        " ranks then start from there, and not from the shared file system",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="any other option of sbatch, as --sbatch=--reservation=night; may be given"
        " several times",
    )
    parser.add_argument(
        "--export",
        metavar="NONE|ALL|NAMES",
        help="variables of this shell that the job inherits; without the flag those of"
        " the site, or else all",
    )
    parser.add_argument(
        "--wrapper",
        metavar="COMMAND",
        help="words before the Python interpreter, as 'apptainer exec --nv image.sif';"
        " without the flag those of the site",
    )


def _add_resources(parser: Any) -> None:
    """Add the flags of the resources of a job."""
    parser.add_argument(
        "--resources",
        metavar="FILE.toml",
        help="file with the resources below, one per line; flags override it",
    )
    for name, text in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    for name, (metavar, text) in TEXTS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument(
        "--exclusive",
        action="store_const",
        const=True,
        help="request nodes that no other job uses",
    )


def site_of(arguments: argparse.Namespace) -> Site:
    """Return the site of --site, or else that of the variable HPCSGD_SITE.

    --mpi, --export and --wrapper, if given, replace its values; --sbatch adds to them.
    """
    name = arguments.site or os.environ.get(SITE)
    if not name:
        raise ConfigError(
            f"no site: add --site NAME, or set {SITE}; hpcsgd jobs new-site --list"
            " shows those that are known"
        )
    site = load_site(name)
    if not hasattr(arguments, "mpi"):  # a study has no such flags
        return site
    site = with_options(site, arguments.sbatch, arguments.export, arguments.wrapper)
    return with_mpi(site, arguments.mpi) if arguments.mpi else site


def job_of(arguments: argparse.Namespace, site: Site) -> Job:
    """Return the job that the flags describe."""
    resources = _resources(arguments, site)
    steps = steps_of(arguments, resources, site)
    is_one = len(steps) == 1 and arguments.template not in ("sweep", "scaling")
    return Job(
        template=arguments.template,
        name=arguments.name
        or _plain(os.path.basename(os.path.normpath(arguments.out))),
        resources=resources,
        command=steps[0].command if is_one else (),
        steps=() if is_one else steps,
        out=arguments.out,
        array=getattr(arguments, "array", ""),
        after=tuple(arguments.after),
        signal_seconds=arguments.signal,
        restarts=arguments.restarts,
        stage=_archive(arguments.stage),
    )


def _archive(path: str | None) -> str:
    """Return the absolute path of the archive of --stage, "" without one.

    Warn if it contains another version of hpcsgd than this one.
    """
    if path is None:
        return ""
    from hpcsgd.jobs.stage import read_list

    staged = read_list(Path(path))
    if staged is not None and staged.version != hpcsgd.__version__:
        print(
            f"hpcsgd: warning: --stage {path} contains hpcsgd {staged.version}, and"
            f" this command is of hpcsgd {hpcsgd.__version__}; make the archive again"
            " if the job needs what has changed",
            file=sys.stderr,
        )
    return os.path.abspath(path)


def _resources(arguments: argparse.Namespace, site: Site) -> Resources:
    """Return the resources: flags override --resources, which overrides the site."""
    from hpcsgd.config import read_toml

    table = dict(site.defaults)
    if arguments.template == "convert":
        table.pop("gpus", None)  # a conversion uses no GPUs
    if arguments.resources:
        file_table = read_toml(arguments.resources)
        check_known(file_table, arguments.resources)
        table |= file_table
    names = (*COUNTS, *TEXTS, "exclusive")
    flags = {name: getattr(arguments, name) for name in names}
    table |= {name: value for name, value in flags.items() if value is not None}
    if arguments.template == "scaling" and arguments.tasks is None:
        table["tasks"] = max(ranks_of(arguments.ranks))
    return Resources.parse(table)


def _plain(name: str) -> str:
    """Return the name of a folder, in characters that Slurm allows for jobs."""
    plain_name = "".join(
        c if c.isascii() and (c.isalnum() or c in "_.+-") else "-" for c in name
    )
    return plain_name.lstrip("_.+-") or "hpcsgd"


# `hpcsgd jobs render`: the script that `submit` would send, on standard output.


def add_render_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs render`."""
    parser = actions.add_parser(
        "render",
        help="print the job script that `hpcsgd jobs submit` sends",
        description="Print the script of a job without submitting it.",
        example=EXAMPLES["train"].format(action="render"),
    )
    add_templates(parser, run_render)


def run_render(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the script of a job on standard output, and warnings on standard error."""
    from hpcsgd.jobs.script import render

    site = site_of(arguments)
    job = job_of(arguments, site)
    text = render(job, site, arguments.python)
    warn(job, site)
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def warn(job: Job, site: Site) -> None:
    """Print warnings of requests that are valid but probably not meant, on stderr."""
    for text in warnings(job, site):
        print(f"hpcsgd: warning: {text}", file=sys.stderr)


# `hpcsgd jobs smoke`: checks of MPI, bindings, GPUs, files and clocks.


def add_smoke_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs smoke`."""
    parser = actions.add_parser(
        "smoke",
        help="check MPI, bindings, GPUs, files and clocks on all ranks",
        description="Check MPI, GPUs, files and clocks on all ranks, and show the"
        " cores, the NUMA node, the GPU and the network adapter of each rank. To run"
        " the checks as a job, use `hpcsgd jobs submit smoke`.",
        example="hpcsgd jobs smoke --ranks 2",
    )
    parser.add_argument(
        "--folder",
        default=".",
        metavar="DIR",
        help="folder for the files of the checks; take one that runs will write to",
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="cpu", help="device to check"
    )
    parser.add_argument(
        "--transport",
        choices=TRANSPORTS,
        default="auto",
        help="how ranks send arrays that are on GPUs",
    )
    add_ranks(parser)
    add_comm(parser)
    parser.add_argument(
        "--expect",
        type=int,
        metavar="N",
        help="required number of ranks; any other number is an error",
    )
    parser.add_argument(
        "--timeout",
        type=not_negative,
        default=60.0,
        metavar="SECONDS",
        help="seconds that a rank waits for a rank that makes no progress",
    )
    add_json(parser)
    parser.set_defaults(run=run_smoke)


def run_smoke(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Run the checks; print the verdict on standard output, each check on stderr."""
    from hpcsgd.jobs.smoke import SmokeCheck

    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv, remedy="mend the MPI first")
    try:
        return on_all_ranks(
            arguments.comm,
            lambda world: _smoke(world, arguments),
            show=lambda checks: _show(checks, arguments.json),
            code=lambda checks: int(not all(check.good for check in checks)),
            timeout=arguments.timeout,
        )
    except HpcsgdError as error:  # without a communicator the check `ranks` fails
        if launch.is_rank_0_of_launcher():
            _show([SmokeCheck("ranks", False, str(error))], arguments.json)
        return 1


def _smoke(world: "Communicator", arguments: argparse.Namespace) -> "list[SmokeCheck]":
    from hpcsgd.jobs.smoke import smoke

    world.is_patient = True
    world.watch(arguments.timeout)
    checks = smoke(
        world,
        Path(arguments.folder),
        arguments.device,
        arguments.transport,
        arguments.expect or arguments.ranks,
    )
    world.unwatch()
    return checks


def _show(checks: "list[SmokeCheck]", as_json: bool) -> None:
    from hpcsgd.jobs.smoke import verdict

    for check in checks:
        word = "good" if check.good else "bad"
        print(f"hpcsgd: {word:<4} {check.name:<8} {check.text}", file=sys.stderr)
        for line in check.lines:
            print(f"    {line}", file=sys.stderr)
    if as_json:
        report = {"good": all(c.good for c in checks), "verdict": verdict(checks)}
        print(json.dumps({**report, "checks": [vars(c) for c in checks]}, indent=2))
    else:
        print(verdict(checks), flush=True)


# `hpcsgd jobs status`: the states of the jobs of a folder.

HEADS = ("job", "name", "state", "code", "starts", "elapsed", "nodes", "run")


def add_status_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs status`."""
    parser = actions.add_parser(
        "status",
        help="show the state of submitted jobs",
        description="Show the state of the jobs of one or more folders. The exit code"
        " is 1 if a job has failed, is lost or ran out of time.",
        example="hpcsgd jobs status jobs/first",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help=FOLDER_HELP)
    add_json(parser)
    parser.set_defaults(run=run_status)


def run_status(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the states of jobs; return 1 if one has failed, is lost or timed out."""
    from hpcsgd.files import finite
    from hpcsgd.jobs.status import BAD, states

    job_states = [s for folder in arguments.folders for s in states(Path(folder))]
    if arguments.json:
        records = [finite(state.as_dict()) for state in job_states]
        print(json.dumps(records, indent=2, allow_nan=False))
    else:
        print(status_text(job_states))
    return int(any(state.state in BAD for state in job_states))


def status_text(found: "list[JobState]") -> str:
    """Return a table of jobs, and a sentence on each one that has a `why`."""
    lines = table(HEADS, [_row(state) for state in found])
    for state in found:
        if state.why:
            who = f"rank {state.rank}: " if state.rank is not None else ""
            lines.append(f"{state.job} {state.state}: {who}{state.why}")
            if state.log and state.execution.code:
                lines.append(f"  more in {state.log}")
    return "\n".join(lines)


def _row(state: "JobState") -> list[str]:
    execution = state.execution
    code = "" if execution.code is None else str(execution.code)
    starts = "" if state.state == "pending" else str(execution.restarts + 1)
    head = [state.job, state.name, state.state, code, starts]
    return [*head, execution.elapsed, execution.nodes, _progress(state)]


def _progress(state: "JobState") -> str:
    """Return status, epoch and loss of a job's run; of several, how many completed."""
    from hpcsgd.runs.result import Status

    if len(state.runs) > 1:
        good = [status.value for status in Status if status.is_good]
        done = sum(run.facts.get("status") in good for run in state.runs)
        return f"{done} of {len(state.runs)} completed"
    facts = state.runs[0].facts if state.runs else {}
    if not facts or facts.get("epoch") is None:
        return str(facts.get("status") or "")
    loss = facts.get("loss")
    shown = f", loss {loss:.6g}" if isinstance(loss, float) else ""
    return f"{facts['status']}, epoch {facts['epoch']:g}{shown}"


# `hpcsgd jobs submit`: submit a job, and print its number.


def add_submit_parser(actions: Any) -> None:
    """Add the parser of `hpcsgd jobs submit`."""
    parser = actions.add_parser(
        "submit",
        help="submit a job to Slurm and print its number",
        description="Write the folder of a job, submit the job to Slurm and print its"
        " number.",
        example=EXAMPLES["train"].format(action="submit"),
    )
    for template in add_templates(parser, run_submit):
        template.add_argument(
            "--dry-run",
            action="store_true",
            help="check the whole job without writing or submitting anything",
        )
        add_json(template)


def _warn_of_mpi(site: Site) -> None:
    """Warn on standard error if srun does not list the PMI of the site."""
    from hpcsgd.jobs.queue import mpi_plugins

    if site.launcher.kind != "srun" or not site.launcher.mpi:
        return
    plugins = mpi_plugins()
    if plugins and site.launcher.mpi not in plugins:
        print(
            f"hpcsgd: warning: srun --mpi={site.launcher.mpi} is not a PMI that srun"
            f" lists here ({', '.join(plugins)}); name one of these with --mpi, or as"
            " [launcher] mpi of the site file",
            file=sys.stderr,
        )


def run_submit(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Submit a job; print only its number on standard output, for the next --after.

    With --dry-run, print the command that would submit it, and submit nothing.
    """
    from hpcsgd.jobs.submit import submit

    site = site_of(arguments)
    job = job_of(arguments, site)
    warn(job, site)
    _warn_of_mpi(site)
    sent = submit(job, site, dry_run=arguments.dry_run, python=arguments.python)
    if arguments.json:
        report = {
            "job": sent.job or None,
            "name": sent.name,
            "script": str(sent.script),
        }
        print(json.dumps({**report, "command": list(sent.command)}, indent=2))
    elif arguments.dry_run:
        print(f"hpcsgd: nothing is sent; it would be {sent.script}", file=sys.stderr)
        print(shlex.join(sent.command))
    else:
        print(f"hpcsgd: {sent.name} is job {sent.job}: {sent.script}", file=sys.stderr)
        print(sent.job, flush=True)
    return 0


# `hpcsgd jobs`: scripts for Slurm, and the states of jobs.

ACTIONS = (
    add_render_parser,
    add_submit_parser,
    add_status_parser,
    add_cancel_parser,
    add_collect_parser,
    add_new_site_parser,
    add_stage_parser,
    add_smoke_parser,
)


def add_parser(commands: Any) -> None:
    """Add the parser of `hpcsgd jobs` and of its commands."""
    parser = commands.add_parser(
        "jobs",
        help=COMMANDS["jobs"],
        example=EXAMPLES["train"].format(action="submit"),
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
