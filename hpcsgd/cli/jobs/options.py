"""The flags of a job, and the job that they mean."""

import argparse
import os
import sys
from typing import Any

from hpcsgd.cli.jobs.commands import ranks_of, steps_of
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Job
from hpcsgd.jobs.resources import Resources, check_known
from hpcsgd.jobs.sites import Site, load_site, with_mpi

SITE = "HPCSGD_SITE"  # the site where none is named
COUNTS = {
    "nodes": "nodes of the job",
    "tasks": "ranks of the job, all nodes together",
    "gpus": "GPUs of each node",
    "cpus": "cores of each rank",
}
TEXTS = {
    "memory": ("SIZE", "of each node, as 64G"),
    "walltime": ("TIME", "time limit, as 02:00:00"),
    "account": ("NAME", "whom the time is charged to"),
    "partition": ("NAME", "of the cluster"),
    "qos": ("NAME", "quality of service"),
    "constraint": ("FEATURES", "that nodes must have"),
}
TEMPLATES = {
    "train": ("one run that saves, requeues and goes on", "what hpcsgd train takes"),
    "sweep": ("an array of runs", "what hpcsgd train takes"),
    "scaling": ("one run after another on 1, 2, ... ranks", "what hpcsgd train takes"),
    "convert": ("make a data file", "SRC DST.h5, and what hpcsgd data convert takes"),
    "command": ("any other command", "a command of hpcsgd, without that word"),
    "smoke": ("check MPI, GPUs, files and clocks", "what hpcsgd jobs smoke takes"),
}


def add_templates(parser: Any, run: Any) -> list[Any]:
    """A parser for each template; all of them."""
    templates = parser.add_subparsers(
        dest="template", metavar="TEMPLATE", required=True
    )
    made = [_template(templates, name) for name in TEMPLATES]
    for one in made:
        one.set_defaults(run=run)
    return made


def _template(templates: Any, name: str) -> Any:
    text, behind = TEMPLATES[name]
    parser = templates.add_parser(name, help=text, allow_abbrev=False)
    parser.add_argument("words", nargs="*", metavar="ARG", help=f"after --: {behind}")
    _add_place(parser)
    _add_resources(parser)
    if name == "sweep":
        parser.add_argument(
            "--vary",
            action="append",
            default=[],
            metavar="SECTION.KEY=V1,V2,...",
            help="a run for each value, and for each combination",
        )
        parser.add_argument(
            "--array", default="", metavar="0-N%M", help="some elements; M at once"
        )
    if name == "scaling":
        parser.add_argument(
            "--ranks", required=True, metavar="1,2,4,...", help="of each launch"
        )
    return parser


def _add_place(parser: Any) -> None:
    """Where, under which name, and when."""
    parser.add_argument("--site", metavar="NAME|FILE.toml", help=f"default: ${SITE}")
    parser.add_argument(
        "--mpi",
        metavar="KIND",
        help="of srun --mpi, in place of the site's; none: one rank alone",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the job")
    parser.add_argument(
        "--name", metavar="NAME", help="in the queue; default: that of DIR"
    )
    parser.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="ID[:ok|any|notok]",
        help="wait for a job to end so; ok where nothing is said",
    )
    parser.add_argument(
        "--signal",
        type=int,
        metavar="SECONDS",
        help="to save ahead of the end; 0 = none",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=3,
        metavar="N",
        help="starts in a row that save nothing new before it gives up; default: 3",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="on the nodes; default: this",
    )


def _add_resources(parser: Any) -> None:
    """What it asks for."""
    parser.add_argument(
        "--resources", metavar="FILE.toml", help="the same names, one a line; flags win"
    )
    for name, text in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    for name, (metavar, text) in TEXTS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help=text)


def site_of(arguments: argparse.Namespace) -> Site:
    """The site that was named, here or for all jobs."""
    name = arguments.site or os.environ.get(SITE)
    if not name:
        raise ConfigError(
            f"no site: add --site NAME, or set {SITE}; hpcsgd jobs new-site --list"
            " shows those that are known"
        )
    site = load_site(name)
    mpi = getattr(arguments, "mpi", None)  # a study has no such flag
    return with_mpi(site, mpi) if mpi else site


def job_of(arguments: argparse.Namespace, site: Site) -> Job:
    """The job that the flags mean."""
    resources = _resources(arguments, site)
    steps = steps_of(arguments, resources)
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
    )


def _resources(arguments: argparse.Namespace, site: Site) -> Resources:
    """The site's defaults, the file over them, flags over both."""
    from hpcsgd.config import read_toml

    table = dict(site.defaults)
    if arguments.template == "convert":
        table.pop("gpus", None)  # which it could not use
    if arguments.resources:
        said = read_toml(arguments.resources)
        check_known(said, arguments.resources)
        table |= said
    given = {name: getattr(arguments, name) for name in (*COUNTS, *TEXTS)}
    table |= {name: value for name, value in given.items() if value is not None}
    if arguments.template == "scaling" and arguments.tasks is None:
        table["tasks"] = max(ranks_of(arguments.ranks))
    return Resources.parse(table)


def _plain(name: str) -> str:
    """A folder's name as Slurm takes names of jobs."""
    kept = "".join(
        c if c.isascii() and (c.isalnum() or c in "_.+-") else "-" for c in name
    )
    return kept.lstrip("_.+-") or "hpcsgd"
