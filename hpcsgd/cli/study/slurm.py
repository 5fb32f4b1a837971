"""The flags of studies whose runs are jobs, and what they mean."""

import argparse
from typing import TYPE_CHECKING, Any

from hpcsgd.cli.jobs.options import COUNTS, site_of
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.resources import Resources, check_known

if TYPE_CHECKING:
    from hpcsgd.study.cluster import Where

# Ranks and nodes are those of each job.
OWN = ("tasks", "nodes")


def add_where(parser: Any) -> None:
    """Add what --on slurm needs to know."""
    group = parser.add_argument_group("of --on slurm")
    group.add_argument("--site", metavar="NAME|FILE.toml", help="default: $HPCSGD_SITE")
    group.add_argument(
        "--ranks-per-node",
        type=int,
        default=0,
        metavar="N",
        help="default: all ranks of a job on one node",
    )
    group.add_argument(
        "--resources", metavar="FILE.toml", help="the same in a file; --ask wins"
    )
    group.add_argument(
        "--ask",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of every job, as walltime=02:00:00 or partition=long",
    )


def where_of(arguments: argparse.Namespace) -> "Where":
    """The site and the resources that the flags name."""
    from hpcsgd.config import read_toml
    from hpcsgd.study.cluster import Where

    if arguments.ranks_per_node < 0:
        raise ConfigError("--ranks-per-node must be at least 0; 0 is all on one node")
    site = site_of(arguments)
    table = {k: v for k, v in site.defaults.items() if k not in OWN}
    if arguments.resources:
        said = read_toml(arguments.resources)
        check_known(said, arguments.resources)
        table |= said
    table |= dict(_asked(text) for text in arguments.ask)
    own = sorted(set(table) & set(OWN))
    if own:
        raise ConfigError(
            f"{own[0]} of a job is that of its runs; leave it out, and say with"
            " --ranks-per-node how ranks are spread"
        )
    resources, limit = Resources.parse(table), arguments.point_timeout
    return Where(site, resources, arguments.ranks_per_node, limit)


def _asked(text: str) -> tuple[str, Any]:
    """(name, value) of NAME=VALUE; counts are numbers."""
    name, equals, value = text.partition("=")
    if not (equals and name and value):
        raise ConfigError(
            f"--ask {text}: write NAME=VALUE, for example walltime=02:00:00"
        )
    check_known({name: value}, "--ask")
    return name, int(value) if name in COUNTS and value.isdigit() else value
