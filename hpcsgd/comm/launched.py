"""Which rank of how many this process is, by what its launcher left."""

import ctypes
import signal
from collections.abc import Mapping
from typing import NamedTuple

EXPECTED = "HPCSGD_EXPECT_RANKS"  # set by our own launcher: how many there must be
AGENT = "TORCHELASTIC_RUN_ID"  # set by torchrun's agent for what it starts
# (launcher, its rank, its size), the innermost first: under `srun mpiexec` all ranks
# inherit the Slurm variables of one task.
LAUNCHERS = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# They may start an agent of torchrun on each node, but it never starts them.
AROUND_AGENTS = ("Open MPI", "PMI")
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
        if by in AROUND_AGENTS and has_agent(environment):
            continue
        rank, size = (environment.get(name, "") for name in names)
        if by == "torchrun" and "MASTER_ADDR" not in environment:
            continue  # common words, which may well mean something else
        if rank.isdigit() and size.isdigit() and int(rank) < int(size):
            return Launched(int(rank), int(size), by)
    return None


def has_mpi_signs(environment: Mapping[str, str]) -> bool:
    """True where a launcher of MPI ranks has left its variables to this process."""
    return not has_agent(environment) and any(name in environment for name in MPI_SIGNS)


def has_agent(environment: Mapping[str, str]) -> bool:
    """True for what torchrun starts: its agent has the MPI of a launcher around it."""
    return AGENT in environment and "MASTER_ADDR" in environment


def why_refused(environment: Mapping[str, str], kind: str = "auto") -> str | None:
    """Return the sentence on ranks that no launcher of MPI has started, else None.

    Ranks of torchrun are always such ranks. Those of `srun` without a PMI are refused
    for the communicator `auto` alone: an MPI that loads Slurm's library of PMI-1 needs
    no variables of a PMI, so `mpi` leaves the judgement to MPI.
    """
    ranks = launched(environment)
    if ranks is None or ranks.size == 1 or has_mpi_signs(environment):
        return None
    if ranks.by == "torchrun":
        launcher = "torchrun"
    elif kind == "auto" and _lacks_pmi(environment):
        launcher = "srun without a PMI"
    else:
        return None
    return (
        f"{ranks.size} ranks were started by {launcher}, and ranks communicate through"
        " MPI alone; start them with mpiexec, with srun --mpi=pmi2 (MPICH) or pmix"
        " (Open MPI), or with hpcsgd ... --ranks N"
    )


def _lacks_pmi(environment: Mapping[str, str]) -> bool:
    """Whether Slurm, with no variables of a PMI, has not left ranks a way to meet.

    Slurm names any plugin but none in SLURM_MPI_TYPE, of which some, as cray_shasta,
    have variables of their own; Intel MPI loads the library that is named to it.
    """
    plugin = environment.get("SLURM_MPI_TYPE", "none")
    return plugin == "none" and "I_MPI_PMI_LIBRARY" not in environment


def is_launched(environment: Mapping[str, str]) -> bool:
    """True where a launcher's variables are seen."""
    if EXPECTED in environment or has_mpi_signs(environment):
        return True
    # Every Slurm step sets SLURM_PROCID, one of a single task too.
    found = launched(environment)
    return found is not None and found.size > 1


def launched_size(environment: Mapping[str, str]) -> int | None:
    """How many ranks a launcher says it started; None where none says so."""
    names = SIZES[:1] if has_agent(environment) else SIZES
    said = (environment.get(name, "") for name in names)
    found = next((int(text) for text in said if text.isdigit()), None)
    if found is not None:
        return found
    ranks = launched(environment)
    if ranks is not None:
        return ranks.size
    text = environment.get("SLURM_STEP_NUM_TASKS", "")
    return int(text) if text.isdigit() else None


def launched_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of this rank where a launcher of MPI says that alone.

    Some leave PMIX_RANK and no size; who knows a size is asked by `launched_size`.
    """
    text = environment.get("PMIX_RANK", "")
    if launched_size(environment) is None and text.isdigit():
        return int(text)
    return None


THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec there is no time for it.
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)


def end_with_parent() -> None:
    """In a child, before it starts: the kernel sends it SIGTERM when we are killed."""
    if _PRCTL is not None:
        _PRCTL(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
