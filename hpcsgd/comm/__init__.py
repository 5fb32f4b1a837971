"""What ranks can say, and who carries it."""

import os
from collections.abc import Mapping
from importlib import import_module

from hpcsgd.comm.base import Communicator
from hpcsgd.errors import ConfigError, TransportError

# What opens each; loaded when it is chosen, because mpi4py starts MPI when imported.
COMMUNICATORS = {
    "serial": "hpcsgd.comm.serial:SerialCommunicator",
    "mpi": "hpcsgd.comm.mpi:open_mpi_world",
}
EXPECTED = "HPCSGD_EXPECT_RANKS"  # set by our own launcher: how many there must be
LAUNCH_SIGNS = (
    EXPECTED,
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
)
# Where a launcher says how many it started; the innermost one is asked first.
LAUNCH_SIZES = (EXPECTED, "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def open_world(kind: str = "auto", reproducible: bool = False) -> Communicator:
    """All ranks of this program: those of a launcher, else this one alone."""
    if kind == "auto":
        kind = "mpi" if is_launched(os.environ) else "serial"
    if kind not in COMMUNICATORS:
        known = ", ".join(["auto", *COMMUNICATORS])
        raise ConfigError(f"[run] unknown comm: {kind!r}; known: {known}")
    if kind == "serial" and os.environ.get(EXPECTED, "1") != "1":
        raise ConfigError(
            f"[run] comm = 'serial' is one rank and {os.environ[EXPECTED]} were asked"
            " for; use comm = 'auto', or --ranks 1"
        )
    module, opener = COMMUNICATORS[kind].split(":")
    world: Communicator = getattr(import_module(module), opener)(
        reproducible=reproducible
    )
    if kind != "serial":  # asked for by name, it may well run under a launcher
        check_expected(world.size, launched_size(os.environ))
    return world


def is_launched(environment: Mapping[str, str]) -> bool:
    """True where a launcher's variables are seen."""
    if any(name in environment for name in LAUNCH_SIGNS):
        return True
    # Every Slurm step sets SLURM_PROCID, one of a single task too.
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    return "SLURM_PROCID" in environment and tasks not in ("", "1")


def launched_size(environment: Mapping[str, str]) -> int | None:
    """How many ranks a launcher says it started; None where none says so."""
    said = (environment.get(name, "") for name in LAUNCH_SIZES)
    return next((int(text) for text in said if text.isdigit()), None)


def check_expected(size: int, expected: int | None) -> None:
    """A launcher of one MPI and the library of another give n silent singletons."""
    if expected is not None and size != expected:
        raise TransportError(
            f"{expected} ranks were asked for and MPI gives {size}: the mpiexec in use"
            " does not belong to the MPI that mpi4py loads; use the mpiexec beside this"
            " Python, or reinstall with: pip install --force-reinstall mpi4py mpich"
        )
