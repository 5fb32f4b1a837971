"""Jobs that tests render: one of each template."""

from pathlib import Path

from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.resources import Resources

GOLDEN = Path(__file__).parents[1] / "golden" / "jobs"
PYTHON = "/opt/hpcsgd/bin/python"
SITES = (
    "generic-cpu",
    "generic-gpu",
    "perlmutter-cpu",
    "perlmutter-gpu",
    "frontier-cpu",
    "lumi-c",
    "alps-gh200",
    "juwels-booster",
    "leonardo-booster",
    "marenostrum5-acc",
    "workstation",
)
DATA = ("--data", "epsilon.h5")


def run(number, *more, tasks=0):
    """A step that trains."""
    out = ("--out", f"jobs/first/runs/{number}", "--resume", "auto")
    return Step(("train", "run.toml", *DATA, *more, *out), tasks)


COMMANDS = {
    "train": (
        "train",
        "run.toml",
        *DATA,
        "--out",
        "jobs/first/run",
        "--resume",
        "auto",
    ),
    "convert": ("data", "convert", "all.txt", "epsilon.h5", "--resume"),
    "command": ("evaluate", "jobs/first/run", "epsilon-test.h5"),
    "smoke": ("jobs", "smoke", "--folder", "jobs/first"),
}
STEPS = {
    "sweep": tuple(run(i, "--set", f"schedule.steps={2**i}") for i in range(3)),
    "scaling": tuple(run(f"ranks-{p}", tasks=p) for p in (1, 2, 4)),
}


def by_mpi(command):
    """The words of a command of one name, on several ranks of a site with MPI."""
    name, *rest = command
    starts = ("--comm=", "run.comm=", "--set=run.comm=")
    if any(word in ("--comm", "run.comm") or word.startswith(starts) for word in rest):
        return [name, *rest]  # it says itself what carries its messages
    return [name, "--comm", "mpi", *rest]


def example(kind, **changes):
    """A job of that template."""
    resources = Resources(tasks=4, walltime="02:00:00")
    base = {
        "template": kind,
        "name": "first",
        "resources": resources,
        "command": COMMANDS.get(kind, ()),
        "steps": STEPS.get(kind, ()),
        "out": "jobs/first",
        "folder": "/scratch/me",
    }
    return Job(**{**base, **changes})
