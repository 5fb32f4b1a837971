"""Memory segments that killed ranks left on a node, removed when no process uses them.

MPICH shares memory on a node through a file, 2 to 4 MB, which a rank that is killed
cannot remove. It names the file by what PMI calls the job. For Slurm that is
NUMBER.STEP, and so again after a requeue: a rank that finds the file waits for ever for
whoever made it, or reads addresses of the dead. `mpiexec` draws a new name each time.

`python -m hpcsgd.comm.leftovers` removes them at the end of a job's script.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

SEGMENTS = Path("/dev/shm")
NAMES = ("mpich_shm_*", "mpich_vci_*")
MARGIN = 3.0  # seconds: between making a file and mapping it a rank may be interrupted


def remove_leftovers(
    environment: Mapping[str, str],
    folder: Path = SEGMENTS,
    began: float | None = None,
) -> list[Path]:
    """Remove what this user's dead ranks left on this node, before MPI starts.

    Slurm forks all ranks of a node before any of them runs, so no rank of this step has
    made a file from before this process began (`began`, seconds since the epoch). One
    that a process maps belongs to another job, and so may one that is very new. Under
    other launchers the first rank of a node alone looks.
    """
    if "SLURM_PROCID" not in environment:
        return remove_unused(folder) if _is_first_here(environment) else []
    began = _began(folder) if began is None else began
    return _remove([path for path in _ours(folder) if _is_old(path, began)])


def remove_unused(folder: Path = SEGMENTS) -> list[Path]:
    """Remove the segments of this user that no process has open or maps.

    A rank has the file open from making it until it has mapped it: no living one is
    overlooked, on a node where all processes of this user are visible.
    """
    return _remove(_ours(folder))


def _remove(candidates: list[Path]) -> list[Path]:
    used = _used() if candidates else set()
    removed = [path for path in candidates if str(path) not in used]
    for path in removed:
        with suppress(OSError):  # another rank of this node was faster
            path.unlink()
    return removed


def _is_first_here(environment: Mapping[str, str]) -> bool:
    """Whether this is the rank of its node that looks; every one where none can say."""
    names = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK")
    said = (environment[name] for name in names if name in environment)
    return next(said, "0") == "0"


def _ours(folder: Path) -> list[Path]:
    """Return the segments of this user."""
    found = []
    for name in NAMES:
        for path in folder.glob(name):
            with suppress(OSError):
                if path.stat().st_uid == os.geteuid():
                    found.append(path)
    return found


def _is_old(path: Path, began: float) -> bool:
    """Whether it is from before this step."""
    with suppress(OSError):
        return path.stat().st_ctime < began - MARGIN
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


def _used() -> set[str]:
    """Return the segments that processes of this user have open or map."""
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        # Open files first: one that is mapped meanwhile is seen in either place.
        with suppress(OSError):
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    found.add(os.readlink(link))
        with suppress(OSError):
            lines = (process / "maps").read_text(errors="replace").splitlines()
            found |= {line.split()[-1] for line in lines if "mpich_" in line}
    return found


if __name__ == "__main__":
    remove_unused()
