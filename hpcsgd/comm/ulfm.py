"""Going on after the loss of ranks, where the MPI can: user-level failure mitigation.

The MPI module is given; `comm/mpi.py` is the home of mpi4py.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

LOSSES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")


def is_loss(mpi: Any, error: BaseException) -> bool:
    """True where MPI says that a rank is gone, or that somebody else has noticed."""
    if not isinstance(error, mpi.Exception):
        return False
    known = {getattr(mpi, name) for name in LOSSES if hasattr(mpi, name)}
    return error.Get_error_class() in known


def shrink(mpi: Any, world: Any, groups: Iterable[Any]) -> Any:
    """The communicator of all that are left.

    Whoever waits in any group of the old world is freed by revoking it: not every rank
    has seen the failure itself.
    """
    for comm in (*groups, world):
        with suppress(mpi.Exception, NotImplementedError):
            comm.Revoke()
    return world.Shrink()


def vanish() -> None:
    """End this process without a word to the MPI: the others see that it is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
