"""Variables that launchers of ranks set, and shared memory that killed ranks left."""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hpcsgd.comm.communicator import Communicator

# The rank of this process and the number of ranks, by its launcher's variables.

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
# A launcher of MPI has started this process if one of these is set.
MPI_SIGNS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")
SIZES = (EXPECTED, "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


class LauncherRank(NamedTuple):
    """Rank `rank` of `size` ranks, as the variables of the launcher `by` state."""

    rank: int
    size: int
    by: str


def launched(environment: Mapping[str, str]) -> LauncherRank | None:
    """Return the rank and the number of ranks that a launcher's variables state.

    Of nested launchers, the innermost one that sets both is read. None if none does.
    """
    for by, *names in LAUNCHERS:
        if by in AROUND_AGENTS and has_agent(environment):
            continue
        rank, size = (environment.get(name, "") for name in names)
        if by == "torchrun" and "MASTER_ADDR" not in environment:
            continue  # common words, which may well mean something else
        if rank.isdigit() and size.isdigit() and int(rank) < int(size):
            return LauncherRank(int(rank), int(size), by)
    return None


def has_mpi_signs(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher of MPI ranks has set its variables for this process.

    False for ranks of torchrun, which may inherit such variables.
    """
    return not has_agent(environment) and any(name in environment for name in MPI_SIGNS)


def has_agent(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun started this process.

    Its agent may have been started by MPI, whose variables this process then inherits.
    """
    return AGENT in environment and "MASTER_ADDR" in environment


def launch_refusal(environment: Mapping[str, str], kind: str = "auto") -> str | None:
    """Return an error message if several ranks were started without MPI, else None.

    Ranks of torchrun are always refused. Those of `srun` without a PMI are refused for
    the communicator `auto` alone: an MPI that loads Slurm's library of PMI-1 needs no
    variables of a PMI, so for `mpi` the decision is left to MPI.
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
    """Return whether Slurm has set up no PMI for ranks without variables of a PMI.

    SLURM_MPI_TYPE names the plugin, where there is one; some plugins, such as
    cray_shasta, set variables of their own. Intel MPI loads the library that
    I_MPI_PMI_LIBRARY names.
    """
    plugin = environment.get("SLURM_MPI_TYPE", "none")
    return plugin == "none" and "I_MPI_PMI_LIBRARY" not in environment


def is_launched(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher of MPI, or of several ranks, started this process."""
    if EXPECTED in environment or has_mpi_signs(environment):
        return True
    # Every Slurm step sets SLURM_PROCID, one of a single task too.
    ranks = launched(environment)
    return ranks is not None and ranks.size > 1


def launched_size(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks a launcher has started; None if no variable states it."""
    names = SIZES[:1] if has_agent(environment) else SIZES
    values = (environment.get(name, "") for name in names)
    size = next((int(text) for text in values if text.isdigit()), None)
    if size is not None:
        return size
    ranks = launched(environment)
    if ranks is not None:
        return ranks.size
    text = environment.get("SLURM_STEP_NUM_TASKS", "")
    return int(text) if text.isdigit() else None


def launched_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of this rank if a launcher states it, but no number of ranks.

    Some launchers of MPI set PMIX_RANK alone. None if `launched_size` returns a number,
    or if the variable is not set.
    """
    text = environment.get("PMIX_RANK", "")
    if launched_size(environment) is None and text.isdigit():
        return int(text)
    return None


# Number of ranks on the node of this rank, by launcher.
LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def is_one_node(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher's variables state that all ranks are on one node.

    Slurm's number of nodes is read only if no launcher of MPI states the number of
    ranks on the node: under `srun mpiexec`, it is that of mpiexec alone.
    """
    ranks = launched(environment)
    if ranks is None:
        return False
    for name in LOCAL_SIZES:
        if name in environment:
            return environment[name] == str(ranks.size)
    tasks = environment.get("SLURM_STEP_NUM_TASKS")
    nodes = environment.get("SLURM_STEP_NUM_NODES")
    return tasks == str(ranks.size) and nodes == "1"


THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
PR_SET_PDEATHSIG = 1
# Loaded here: it must not be loaded between fork and exec.
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM to this child process when its parent ends.

    It is called in the child, before the program of the child starts.
    """
    if _PRCTL is not None:
        _PRCTL(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


# How ranks of MPICH wait.

SLEEP = "MPIR_CVAR_ENABLE_HEAVY_YIELD"  # read by MPICH when it starts


def sleep_where_crowded(environment: MutableMapping[str, str]) -> None:
    """Let waiting ranks of MPICH sleep, on a node with more ranks than cores.

    A variable in `environment` does this; a value that it has already stays. MPICH
    waits in a busy loop, so a waiting rank takes time from a computing rank on
    the same core. Sleeping delays messages, so ranks that have a core each keep the
    busy loop. The cores are those of the launcher, because a rank may be bound to one
    of them.
    """
    ranks = environment.get("MPI_LOCALNRANKS", "")
    if ranks.isdigit() and int(ranks) > _cores_of(os.getppid()):
        environment.setdefault(SLEEP, "1")


def _cores_of(process: int) -> int:
    try:
        return len(os.sched_getaffinity(process))
    except (AttributeError, OSError):  # not Linux, or it has ended
        return os.cpu_count() or 1


# The end of a job in which a rank fails by an uncaught exception.


def abort_on_uncaught(world: "Communicator") -> None:
    """Install an exception hook that aborts the whole job on an uncaught exception.

    Otherwise a rank that ends would leave the others waiting in a collective for ever.
    """

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        report = "".join(traceback.format_exception(kind, error, trace))
        title = f"hpcsgd: rank {world.rank} of {world.size} failed:"
        try:
            print(f"{title}\n{report}", file=sys.stderr, flush=True)
        finally:
            world.abort(1)

    sys.excepthook = hook


# Memory segments that killed ranks left on a node, removed when no process uses them.
#
# MPICH shares memory on a node through a file, 2 to 4 MB, which a rank that is killed
# cannot remove. It names the file by what PMI calls the job. For Slurm that is
# NUMBER.STEP, and so again after a requeue: a rank that finds the file waits for ever
# for its maker, or reads addresses of the dead. `mpiexec` draws a new name each
# time.
#
# `python -m hpcsgd.comm.launchers` removes them at the end of a job's script.

SEGMENTS = Path("/dev/shm")
NAMES = ("mpich_shm_*", "mpich_vci_*")
MARGIN = 3.0  # seconds: between making a file and mapping it a rank may be interrupted


def remove_leftovers(
    environment: Mapping[str, str],
    folder: Path = SEGMENTS,
    began: float | None = None,
) -> list[Path]:
    """Remove shared memory that killed ranks of this user left on this node.

    It is called before MPI starts. Under Slurm, files are removed that are older than
    this process, which began at `began` (seconds since the epoch), and that no process
    uses: Slurm starts all ranks of a node before any of them runs, so a file of this
    step is newer. Files that are only a few seconds older are left, too. Under other
    launchers, the first rank of a node removes all files that no process uses. Return
    the removed files.
    """
    if "SLURM_PROCID" not in environment:
        return remove_unused(folder) if _is_first_here(environment) else []
    began = _began(folder) if began is None else began
    return _remove([path for path in _ours(folder) if _is_old(path, began)])


def remove_unused(folder: Path = SEGMENTS) -> list[Path]:
    """Remove and return the shared memory files of this user that no process uses.

    A rank has its file open from its creation until it is mapped, so files of a running
    rank are never removed on a node where all processes of this user are visible.
    """
    return _remove(_ours(folder))


def _remove(candidates: list[Path]) -> list[Path]:
    used = segments_in_use() if candidates else set()
    removed = []
    for path in candidates:
        if str(path) not in used:
            with suppress(OSError):  # another rank of this node was faster
                path.unlink()
                removed.append(path)
    return removed


def _is_first_here(environment: Mapping[str, str]) -> bool:
    """Return whether this rank is the first of its node.

    True if no launcher states the number of the rank on the node.
    """
    names = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK")
    local_ranks = (environment[name] for name in names if name in environment)
    return next(local_ranks, "0") == "0"


def _ours(folder: Path) -> list[Path]:
    """Return the shared memory files of MPICH in `folder` that this user owns."""
    segments = []
    for name in NAMES:
        for path in folder.glob(name):
            with suppress(OSError):
                if path.stat().st_uid == os.geteuid():
                    segments.append(path)
    return segments


def _is_old(path: Path, began: float) -> bool:
    """Return whether a file is more than `MARGIN` older than the time `began`."""
    with suppress(OSError):
        return path.stat().st_ctime < began - MARGIN
    return False


def _began(folder: Path) -> float:
    """Return when Slurm forked this process, in seconds, or 0 if that is not known.

    The time is by the clock of the file system of `folder`.
    """
    from tempfile import TemporaryFile

    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
        with TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_ctime - age
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0  # not known: nothing is removed


def segments_in_use() -> set[str]:
    """Return the paths of files that this user's processes have open.

    They include files of MPICH that are only mapped.
    """
    paths: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        # Open files first: one that is mapped meanwhile is seen in either place.
        with suppress(OSError):
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    paths.add(os.readlink(link))
        with suppress(OSError):
            lines = (process / "maps").read_text(errors="replace").splitlines()
            paths |= {line.split()[-1] for line in lines if "mpich_" in line}
    return paths


# To continue after the loss of ranks, where MPI has user-level failure mitigation.
#
# The MPI module is an argument; `comm/mpi.py` imports mpi4py.

LOSSES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")


def is_loss(mpi: Any, error: BaseException) -> bool:
    """Return whether an error of MPI means that a rank is lost."""
    if not isinstance(error, mpi.Exception):
        return False
    loss_classes = {getattr(mpi, name) for name in LOSSES if hasattr(mpi, name)}
    return error.Get_error_class() in loss_classes


def shrink(mpi: Any, world: Any, groups: Iterable[Any]) -> Any:
    """Return a communicator of the ranks of `world` that are left. Collective.

    First the old world and its `groups` are revoked, which releases ranks that wait in
    them: not every rank has noticed the failure itself.
    """
    for comm in (*groups, world):
        with suppress(mpi.Exception, NotImplementedError):
            comm.Revoke()
    return world.Shrink()


def kill_process() -> None:
    """Kill this process without a call to MPI, so that other ranks see it as lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":  # at the end of a job's script
    remove_unused()
