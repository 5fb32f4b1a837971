"""Communicators: the collectives of ranks, the transports, and how a world opens."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcsgd.comm.launchers import (
    EXPECTED,
    has_mpi_signs,
    is_launched,
    launch_refusal,
    launched,
    launched_number,
    launched_size,
)
from hpcsgd.comm.rank_ends import TIMEOUT
from hpcsgd.errors import ConfigError, TransportError

if TYPE_CHECKING:  # it needs NumPy, which the functions for launchers do without
    from hpcsgd.comm.communicator import Communicator

__all__ = [
    "COMMUNICATORS",
    "EXPECTED",
    "check_expected",
    "check_number",
    "choose",
    "is_launched",
    "launched_size",
    "open_world",
]

# Functions that open them; loaded when chosen, since importing mpi4py starts MPI.
COMMUNICATORS = {
    "serial": "hpcsgd.comm.threads:SerialCommunicator",
    "mpi": "hpcsgd.comm.mpi:open_mpi_world",
}
REMEDIES = (
    "use that MPI's own launcher (the mpiexec beside this Python, if there is one,"
    " which --ranks N takes; under Slurm srun --mpi=pmi2 for MPICH, pmix for Open MPI,"
    " cray_shasta for Cray MPICH), name the launcher's library in MPI4PY_LIBMPI, or"
    " build mpi4py for it (MPICC=mpicc pip install --no-binary mpi4py mpi4py)"
)
# Part of the name of an MPI library -> what it is called, and its value of srun --mpi.
# The first that is contained decides: Cray MPICH names MPICH, too.
FAMILIES = {
    "cray mpich": ("Cray MPICH", "cray_shasta"),
    "open mpi": ("Open MPI", "pmix"),
    "intel": ("Intel MPI", "pmi2"),
    "mpich": ("MPICH", "pmi2"),
}


def mismatch(environment: Mapping[str, str], library: str) -> str:
    """Return why a launcher and an MPI library did not connect ranks, and the remedies.

    Parameters
    ----------
    environment : variables that the launcher has set
    library : name of the MPI library that mpi4py has loaded; "" if it is not known
    """
    text = "the launcher in use does not belong to the MPI that mpi4py loads"
    known = next((f for part, f in FAMILIES.items() if part in library.lower()), None)
    if known is None:
        return f"{text}; {REMEDIES}"
    name, plugin = known
    used = environment.get("SLURM_MPI_TYPE")
    if "OMPI_COMM_WORLD_RANK" in environment:
        text += f": mpi4py loads {name}, and the mpiexec of Open MPI started the ranks"
    elif used == plugin:
        text += (
            f": mpi4py loads {name}, and srun used --mpi={used}, which fits it in"
            " principle: that library was built without support for this PMI"
        )
    elif used:
        text += (
            f": mpi4py loads {name}, which needs srun --mpi={plugin}, and srun used"
            f" --mpi={used}"
        )
    elif "PMI_RANK" in environment:
        text += f": mpi4py loads {name}, and a mpiexec like MPICH's started the ranks"
    elif "SLURM_PROCID" in environment:
        text += (
            f": mpi4py loads {name}, which needs srun --mpi={plugin}, and srun gave its"
            " ranks no PMI"
        )
    else:
        text += f": mpi4py loads {name}"
    return f"{text}; {REMEDIES}"


def loaded_library() -> str:
    """Return the name of the MPI library that mpi4py has loaded; "" without one.

    It is the first line of its version, as others may name compilers.
    """
    module = sys.modules.get("mpi4py.MPI")
    text = str(module.Get_library_version()) if module is not None else ""
    return next(iter(text.strip().splitlines()), "")


def open_world(
    kind: str = "auto", reproducible: bool = False, timeout: float = TIMEOUT
) -> "Communicator":
    """Return the communicator of all ranks of this program. Collective.

    Parameters
    ----------
    kind : {"auto", "serial", "mpi"}, default="auto"
        "auto" takes MPI if a launcher of MPI has started this process, or another
        launcher several ranks; otherwise it takes this process alone. It reads the
        environment only.
    reproducible : bool, default=False
        Whether sums give the same bits on all ranks.
    timeout : float, optional
        Limit on the seconds that ranks of MPI wait for each other at the start, if it
        is less than 20; otherwise they warn after this time, and the limit is 300 s or
        this time, the longer of them. 0 for no limit.

    Returns
    -------
    Communicator
        Close it by its method `close`.

    Raises
    ------
    ConfigError
        If `kind` is unknown, if several ranks were started without MPI, or if "serial"
        is requested where several ranks are expected.
    TransportError
        If MPI gives another number of ranks than the launcher has started, or too few
        for the number that the launcher gives this rank.

    Examples
    --------
    >>> from hpcsgd.comm import open_world
    >>> world = open_world()
    >>> world.rank, world.size
    (0, 1)
    >>> world.close()
    """
    if kind not in ("auto", *COMMUNICATORS):
        names = ", ".join(["auto", *COMMUNICATORS])
        raise ConfigError(f"[run] unknown comm: {kind!r}; known: {names}")
    refusal = None if kind == "serial" else launch_refusal(os.environ, kind)
    if refusal is not None:
        error = ConfigError(refusal)
        error.on_all_ranks = True
        raise error
    if kind == "auto":
        kind, _ = choose(os.environ)
    if kind == "serial" and os.environ.get(EXPECTED, "1") != "1":
        raise ConfigError(
            f"[run] comm = 'serial' is one rank and {os.environ[EXPECTED]} were asked"
            " for; use comm = 'auto', or --ranks 1"
        )
    limit = {"timeout": timeout} if kind == "mpi" else {}
    world = open_communicator(kind, reproducible, **limit)
    if kind != "serial":  # one that is requested by name may run under a launcher
        check_expected(world.size, launched_size(os.environ))
        check_number(world.size, launched_number(os.environ))
    return world


def choose(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return (the communicator that "auto" stands for, why), from the environment.

    The communicator is "none" if these ranks are refused; the reason says why.
    """
    refusal = launch_refusal(environment)
    if refusal is not None:
        return "none", refusal
    if has_mpi_signs(environment) or EXPECTED in environment:
        return "mpi", "a launcher of MPI has started this process"
    ranks = launched(environment)
    if ranks is None or ranks.size == 1:
        return "serial", "no launcher has started several ranks"
    return "mpi", f"{ranks.by} has started {ranks.size} ranks"


def open_communicator(kind: str, reproducible: bool, **more: Any) -> "Communicator":
    """Open the communicator registered as `kind`.

    `more` contains arguments that only this kind takes.
    """
    module, opener = COMMUNICATORS[kind].split(":")
    world: Communicator = getattr(import_module(module), opener)(
        reproducible=reproducible, **more
    )
    return world


def check_expected(size: int, expected: int | None) -> None:
    """Raise TransportError if the launcher started `expected` ranks, not `size` ranks.

    A launcher of one MPI and the library of another start n worlds of one rank each,
    without an error.
    """
    if expected is not None and size != expected:
        raise TransportError(
            f"{expected} ranks were asked for and MPI gives {size}:"
            f" {mismatch(os.environ, loaded_library())}"
        )


def check_number(size: int, number: int | None) -> None:
    """Raise TransportError if the launcher gives this rank a number of at least `size`.

    The world of the communicator has `size` ranks. `number` is None without a launcher.
    """
    if number is not None and number >= size:
        raise TransportError(
            f"the launcher started this process as rank {number} and MPI has {size}"
            f" ranks only: {mismatch(os.environ, loaded_library())}"
        )
