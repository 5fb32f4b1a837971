"""Memory segments of an earlier start of this Slurm job, removed before MPI starts.

MPICH shares memory on a node through a file that it names by what PMI calls the job.
For Slurm that is NUMBER.STEP, and so again after a requeue: where ranks were killed the
file is still there; a rank that finds it waits for ever for whoever made it, or reads
addresses of the dead. `mpiexec` draws a new name each time and needs none of this.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

SEGMENTS = Path("/dev/shm")
NAMES = ("mpich_shm_*", "mpich_vci_*")


def remove_leftovers(
    environment: Mapping[str, str],
    folder: Path = SEGMENTS,
    began: float | None = None,
) -> list[Path]:
    """Remove what this user's dead ranks left on this node; what was removed.

    Slurm forks all ranks of a node before any of them runs, so no rank of this step has
    made a file from before this process began (`began`, seconds since the epoch). One
    that a process maps belongs to another job.
    """
    if "SLURM_PROCID" not in environment:
        return []
    began = _began(folder) if began is None else began
    found = [
        path for name in NAMES for path in folder.glob(name) if _is_old(path, began)
    ]
    mapped = _mapped() if found else set()
    removed = [path for path in found if str(path) not in mapped]
    for path in removed:
        with suppress(OSError):  # another rank of this node was faster
            path.unlink()
    return removed


def _is_old(path: Path, began: float) -> bool:
    """Whether it is ours and from before this step."""
    with suppress(OSError):
        status = path.stat()
        return status.st_uid == os.geteuid() and status.st_ctime < began
    return False


def _began(folder: Path) -> float:
    """When Slurm forked this process, by the clock that files there are dated with."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
        with TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_ctime - age
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0  # nobody can tell: nothing is removed


def _mapped() -> set[str]:
    """The files that processes of this user have in their memory."""
    found: set[str] = set()
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            found |= {line.split()[-1] for line in lines if "mpich_" in line}
    return found
