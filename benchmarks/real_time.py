"""`hpcsgd` whose trainings run ahead of all other programs of the machine.

A sum of two ranks takes tens of µs where they have their cores, and milliseconds where
other programs have them. Each call of `train` therefore runs at real-time priority
(SCHED_FIFO of Linux, for root), and all others have their turn between two calls.
Where the system does not allow that, everything runs as usual.

Memory that one training frees stays with its process for the next one: a virtual
machine takes free pages back and is slow to hand them out again, which would be in the
times of whatever product needs new pages.

    mpiexec -n 2 python -m benchmarks.real_time compare ...
"""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

# Seconds after a call: Linux stops what has a core at this priority for more than 0.95
# of a second.
PAUSE = 0.2
# Settings of glibc, in bytes: every array is on the heap, and the heap never shrinks.
RETAIN_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


def is_allowed() -> bool:
    """Return whether this process may run ahead of all others."""
    try:
        _enter()
    except (AttributeError, OSError):
        return False
    _leave()
    return True


def hpcsgd_in_real_time(ranks: int, *arguments: str) -> str:
    """Return the standard output of the command on that many MPI ranks."""
    from hpcsgd.cli.launch import mpiexec

    launcher = [*mpiexec(), "-n", str(ranks)] if ranks > 1 else []
    return subprocess.run(
        [*launcher, sys.executable, "-m", "benchmarks.real_time", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | RETAIN_MEMORY | {"HYDRA_LAUNCHER": "fork"},
    ).stdout


def main() -> int:
    """Run the command line of hpcsgd."""
    import hpcsgd.api

    if is_allowed():
        hpcsgd.api.train = _in_real_time(hpcsgd.api.train)
    from hpcsgd.cli import main as command

    return command()


def _in_real_time(train: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(train)
    def ahead_of_others(*arguments: Any, **keywords: Any) -> Any:
        _enter()
        try:
            return train(*arguments, **keywords)
        finally:
            _leave()
            time.sleep(PAUSE)

    return ahead_of_others


def _enter() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _leave() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


if __name__ == "__main__":
    sys.exit(main())
