"""`hpcsgd jobs submit`: send a job, and print its number."""

import argparse
import json
import shlex
import sys
from typing import Any

from hpcsgd.cli.jobs.options import add_templates, job_of, site_of
from hpcsgd.cli.jobs.render import warn


def add_parser(actions: Any) -> None:
    """Add `submit`."""
    parser = actions.add_parser(
        "submit", help="send a job to Slurm and print its number", allow_abbrev=False
    )
    for template in add_templates(parser, run):
        template.add_argument(
            "--dry-run",
            action="store_true",
            help="check all of it, write and send nothing",
        )
        template.add_argument(
            "--json", action="store_true", help="print one JSON document"
        )


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Standard output has the number alone, for the next --after."""
    from hpcsgd.jobs.submit import submit

    site = site_of(arguments)
    job = job_of(arguments, site)
    warn(job, site)
    sent = submit(job, site, dry_run=arguments.dry_run, python=arguments.python)
    if arguments.json:
        said = {"job": sent.job or None, "name": sent.name, "script": str(sent.script)}
        print(json.dumps({**said, "command": list(sent.command)}, indent=2))
    elif arguments.dry_run:
        print(f"hpcsgd: nothing is sent; it would be {sent.script}", file=sys.stderr)
        print(shlex.join(sent.command))
    else:
        print(f"hpcsgd: {sent.name} is job {sent.job}: {sent.script}", file=sys.stderr)
        print(sent.job, flush=True)
    return 0
