"""A job and a site become a script, from the templates in slurm/."""

import sys
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hpcsgd import assets
from hpcsgd.jobs.checks import check
from hpcsgd.jobs.directives import directives
from hpcsgd.jobs.job import Job
from hpcsgd.jobs.launch_line import command_words, launcher_parts
from hpcsgd.jobs.sites import Site
from hpcsgd.jobs.words import quote, quote_all


def render(job: Job, site: Site, python: str = sys.executable) -> str:
    """The script of a job at a site: what `submit` sends, to the byte.

    Parameters
    ----------
    job : what is to run
    site : where
    python : the interpreter that runs hpcsgd on the nodes
    """
    check(job, site)
    template = _environment().get_template(f"{job.template}.sbatch")
    text: str = template.render(
        job=job,
        site=site,
        directives=directives(job, site),
        out=str(job.path),
        workplace=job.workplace,
        array=job.is_array and site.has_slurm,
        restarting=job.restarting,
        python=python,
        steps=_steps(job, site, python),
        launcher=launcher_parts(job, site, job.all_steps[0], python),
    )
    return text


def _steps(job: Job, site: Site, python: str) -> list[dict[str, Any]]:
    """What templates see of each launch."""
    found = []
    for step in job.all_steps:
        command = command_words(job, site, step)
        launcher = launcher_parts(job, site, step, python)
        words = [*launcher, quote_all(command)]
        found.append({"folder": step.folder, "command": command, "words": words})
    return found


@cache
def _environment() -> Environment:
    """Nothing undefined is empty, and nothing breaks a line."""
    environment = Environment(
        loader=FileSystemLoader(assets.path("slurm")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": quote, "quote_all": quote_all, "lines": _lines}
    return environment


def _lines(words: list[str]) -> str:
    """The parts of a launch, each on its line."""
    return " \\\n    ".join(words)
