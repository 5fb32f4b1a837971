"""What ranks can say, and who carries it."""

import logging
import os
from collections.abc import Mapping
from importlib import import_module

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.launched import (
    EXPECTED,
    OWN_RANK,
    has_agent,
    has_mpi_signs,
    is_launched,
    launched,
    launched_size,
)
from hpcsgd.errors import ConfigError, MissingPackage, TransportError

__all__ = [
    "COMMUNICATORS",
    "EXPECTED",
    "check_expected",
    "choose",
    "is_launched",
    "launched_size",
    "open_world",
]

log = logging.getLogger("hpcsgd")
# What opens each; loaded when it is chosen, because mpi4py starts MPI when imported.
COMMUNICATORS = {
    "serial": "hpcsgd.comm.serial:SerialCommunicator",
    "mpi": "hpcsgd.comm.mpi:open_mpi_world",
    "tcp": "hpcsgd.comm.tcp.world:open_tcp_world",
}
FILE = "file:"  # before a path: tcp, whose ranks meet there
STORE = "HPCSGD_STORE"


def open_world(kind: str = "auto", reproducible: bool = False) -> Communicator:
    """All ranks of this program: those of a launcher, else this one alone."""
    if kind == "auto":
        kind, _ = choose(os.environ)
        if kind == "mpi" and _may_meet(os.environ):
            return _open_either(reproducible)
    if kind.startswith(FILE):
        return _open("tcp", reproducible, said=kind)
    if kind not in COMMUNICATORS:
        known = ", ".join(["auto", *COMMUNICATORS, f"{FILE}PATH"])
        raise ConfigError(f"[run] unknown comm: {kind!r}; known: {known}")
    if kind == "serial" and os.environ.get(EXPECTED, "1") != "1":
        raise ConfigError(
            f"[run] comm = 'serial' is one rank and {os.environ[EXPECTED]} were asked"
            " for; use comm = 'auto', or --ranks 1"
        )
    world = _open(kind, reproducible)
    if kind != "serial":  # asked for by name, it may well run under a launcher
        check_expected(world.size, launched_size(os.environ))
    return world


def choose(environment: Mapping[str, str]) -> tuple[str, str]:
    """(what `auto` takes, why); MPI that then has one rank of several gives way."""
    found = launched(environment)
    several = found is not None and found.size > 1
    if several and (STORE in environment or OWN_RANK in environment):
        return "tcp", f"{STORE if STORE in environment else OWN_RANK} is set"
    asked = EXPECTED in environment and not (several and has_agent(environment))
    if has_mpi_signs(environment) or asked:
        return "mpi", "a launcher of MPI has started this process"
    if found is None or found.size == 1:
        return "serial", "no launcher has started several ranks"
    if found.by == "torchrun":
        return "tcp", f"torchrun has started {found.size} ranks"
    if environment.get("SLURM_MPI_TYPE") == "none":
        return "tcp", f"srun --mpi=none has started {found.size} ranks"
    return "mpi", f"{found.by} has started {found.size} ranks; tcp where MPI sees one"


def _may_meet(environment: Mapping[str, str]) -> bool:
    """Whether ranks that MPI does not bring together can find each other."""
    found = launched(environment)
    there = {"MASTER_ADDR", "SLURM_JOB_ID", STORE} & set(environment)
    return found is not None and found.size > 1 and bool(there)


def _open_either(reproducible: bool) -> Communicator:
    """MPI, or TCP where MPI is not there or makes each process a world of its own."""
    expected = launched_size(os.environ)
    try:
        world = _open("mpi", reproducible)
        if world.size > 1 or expected == 1:
            check_expected(world.size, expected)
            return world
        world.close()
        why = f"MPI gives 1 of {expected} ranks: it and the launcher are of two kinds"
    except MissingPackage as missing:
        why = str(missing)
    world = _open("tcp", reproducible)
    if world.rank == 0:
        log.warning("ranks speak through TCP, which is slower than MPI: %s", why)
    return world


def _open(kind: str, reproducible: bool, **more: str) -> Communicator:
    module, opener = COMMUNICATORS[kind].split(":")
    world: Communicator = getattr(import_module(module), opener)(
        reproducible=reproducible, **more
    )
    return world


def check_expected(size: int, expected: int | None) -> None:
    """A launcher of one MPI and the library of another give n silent singletons."""
    if expected is not None and size != expected:
        raise TransportError(
            f"{expected} ranks were asked for and MPI gives {size}: the mpiexec in use"
            " does not belong to the MPI that mpi4py loads; use the mpiexec beside this"
            " Python, reinstall with: pip install --force-reinstall mpi4py mpich, or do"
            " without MPI: --comm tcp"
        )
