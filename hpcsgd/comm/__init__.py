"""What ranks can say, and who carries it."""

import os
from collections.abc import Mapping

from hpcsgd.comm.base import Communicator
from hpcsgd.errors import ConfigError, TransportError

COMMUNICATORS = ("auto", "serial", "mpi")
EXPECTED = "HPCSGD_EXPECT_RANKS"  # set by our own launcher: how many there must be
LAUNCH_SIGNS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")


def open_world(kind: str = "auto", reproducible: bool = False) -> Communicator:
    """All ranks of this program: those of a launcher, else this one alone."""
    if kind not in COMMUNICATORS:
        raise ConfigError(
            f"[run] unknown comm: {kind!r}; known: {', '.join(COMMUNICATORS)}"
        )
    if kind == "auto":
        kind = "mpi" if is_launched(os.environ) else "serial"
    world = _open(kind, reproducible)
    check_expected(world.size, os.environ.get(EXPECTED))
    return world


def is_launched(environment: Mapping[str, str]) -> bool:
    """True where a launcher's variables are seen."""
    if any(name in environment for name in LAUNCH_SIGNS):
        return True
    # Every Slurm step sets SLURM_PROCID, one of a single task too.
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    return "SLURM_PROCID" in environment and tasks not in ("", "1")


def check_expected(size: int, expected: str | None) -> None:
    """A launcher of one MPI and the library of another give n silent singletons."""
    if expected and size != int(expected):
        raise TransportError(
            f"{expected} ranks were asked for and MPI gives {size}: the mpiexec in use"
            " does not belong to the MPI that mpi4py loads; use the mpiexec beside"
            " this Python, or reinstall with: pip install --force-reinstall mpi4py mpich"
        )


def _open(kind: str, reproducible: bool) -> Communicator:
    if kind == "serial":
        from hpcsgd.comm.serial import SerialCommunicator

        return SerialCommunicator(reproducible=reproducible)
    from hpcsgd.comm.mpi import open_mpi_world

    return open_mpi_world(reproducible)
