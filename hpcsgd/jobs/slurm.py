"""Slurm's own programs: asked, and read."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcsgd.errors import ConfigError

PATIENCE = 60.0  # seconds for a busy controller


@dataclass(frozen=True)
class Answer:
    """What a program said."""

    code: int
    out: str
    err: str


def ask(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Answer | None:
    """Run it; None where it is not there, or says nothing for a minute."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Answer(done.returncode, done.stdout, done.stderr)


def need(program: str) -> None:
    """Refuse where Slurm is not installed."""
    if shutil.which(program) is None:
        raise ConfigError(
            f"there is no {program} on PATH: Slurm is not here; log in where it is,"
            " load its module, or take --site workstation"
        )


def clean_environment(directives: Sequence[str]) -> dict[str, str]:
    """The environment without what would win over the script's own lines.

    Nor has a job that is submitted from inside of another anything of that one.
    """
    said = {line.partition("=")[0].removeprefix("--") for line in directives}
    names = {f"SBATCH_{name.replace('-', '_').upper()}" for name in said} | ALWAYS
    names |= {other for name in said for other in OTHERS.get(name, ())}
    around = AROUND if "SLURM_JOB_ID" in os.environ else ()
    return {
        name: value
        for name, value in os.environ.items()
        if name not in names and (name in KEPT or not name.startswith(around))
    }


# What a job leaves in the environment of those inside; and what is the site's own.
AROUND = ("SLURM_", "SRUN_", "PMI_", "PMIX_", "OMPI_COMM_WORLD", "HPCSGD_EXPECT")
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


# With it sbatch would say no number before the job is over.
ALWAYS = {"SBATCH_WAIT"}
# Where sbatch's variable is not called as its option is, or says the contrary.
OTHERS = {
    "array": ("SBATCH_ARRAY_INX",),
    "time": ("SBATCH_TIMELIMIT",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "requeue": ("SBATCH_NO_REQUEUE",),
    "no-requeue": ("SBATCH_REQUEUE",),
}
