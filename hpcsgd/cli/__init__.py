"""The command line: `hpcsgd COMMAND`, `python -m hpcsgd`, and both under mpiexec.

Standard output carries the result alone; everything else goes to standard error.
Exit codes: 0 good, 1 failed run, 2 wrong input.
"""

import os
import sys
from collections.abc import Sequence

LAUNCHED = (
    "HPCSGD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
)
THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    calm_blas(os.environ)
    from hpcsgd.cli.parser import run

    return run(sys.argv[1:] if argv is None else list(argv))


def calm_blas(environment: "os._Environ[str]") -> None:
    """One BLAS thread a rank, unless the user said otherwise.

    It has to happen before NumPy is imported: a pool of threads in every rank
    spins beside the other ranks' work and makes all of them slow.
    """
    of_slurm = environment.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    if of_slurm or any(name in environment for name in LAUNCHED):
        for name in THREAD_SETTINGS:
            environment.setdefault(name, "1")
