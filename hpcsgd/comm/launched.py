"""Which rank of how many this process is, by what its launcher left."""

from collections.abc import Mapping
from typing import NamedTuple

EXPECTED = "HPCSGD_EXPECT_RANKS"  # set by our own launcher: how many there must be
OWN_RANK = "HPCSGD_RANK"  # set by it where no MPI is to say so
# (launcher, its rank, its size), the innermost first: under `srun mpiexec` all ranks
# inherit the Slurm variables of one task.
LAUNCHERS = (
    ("hpcsgd", OWN_RANK, EXPECTED),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Where an MPI of some launcher is to be asked.
MPI_SIGNS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
SIZES = (EXPECTED, "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


class Launched(NamedTuple):
    """Rank `rank` of `size`, as launcher `by` says."""

    rank: int
    size: int
    by: str


def launched(environment: Mapping[str, str]) -> Launched | None:
    """What the innermost launcher says that names both numbers; None without one."""
    for by, *names in LAUNCHERS:
        rank, size = (environment.get(name, "") for name in names)
        if by == "torchrun" and "MASTER_ADDR" not in environment:
            continue  # common words, which may well mean something else
        if rank.isdigit() and size.isdigit() and int(rank) < int(size):
            return Launched(int(rank), int(size), by)
    return None


def has_mpi_signs(environment: Mapping[str, str]) -> bool:
    """True where a launcher of MPI ranks has left its variables."""
    return any(name in environment for name in MPI_SIGNS)


def is_launched(environment: Mapping[str, str]) -> bool:
    """True where a launcher's variables are seen."""
    if EXPECTED in environment or has_mpi_signs(environment):
        return True
    # Every Slurm step sets SLURM_PROCID, one of a single task too.
    found = launched(environment)
    return found is not None and found.size > 1


def launched_size(environment: Mapping[str, str]) -> int | None:
    """How many ranks a launcher says it started; None where none says so."""
    said = (environment.get(name, "") for name in SIZES)
    found = next((int(text) for text in said if text.isdigit()), None)
    if found is not None:
        return found
    ranks = launched(environment)
    if ranks is not None:
        return ranks.size
    text = environment.get("SLURM_STEP_NUM_TASKS", "")
    return int(text) if text.isdigit() else None
