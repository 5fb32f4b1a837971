"""`hpcsgd jobs render`: the script that `submit` would send, on standard output."""

import argparse
import sys
from typing import Any

from hpcsgd.cli.jobs.options import add_templates, job_of, site_of
from hpcsgd.jobs.checks import warnings
from hpcsgd.jobs.job import Job
from hpcsgd.jobs.sites import Site


def add_parser(actions: Any) -> None:
    """Add `render`."""
    parser = actions.add_parser(
        "render", help="print the script that submit sends", allow_abbrev=False
    )
    add_templates(parser, run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print it, to the byte."""
    from hpcsgd.jobs.render import render

    site = site_of(arguments)
    job = job_of(arguments, site)
    text = render(job, site, arguments.python)
    warn(job, site)
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def warn(job: Job, site: Site) -> None:
    """Say what works and may not be meant."""
    for text in warnings(job, site):
        print(f"hpcsgd: warning: {text}", file=sys.stderr)
