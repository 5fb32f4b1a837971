"""`--ranks N`: the same command again, under the mpiexec that belongs to the MPI."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from hpcsgd.cli.job import NOTED, OWN_CODES, Job, say_how_it_ended
from hpcsgd.comm import EXPECTED, is_launched, launched_size
from hpcsgd.comm.launched import AGENT, THREAD_SETTINGS, has_agent, launched
from hpcsgd.errors import ConfigError, DataError

MPI_RANK_NAMES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
RANK_NAMES = (*MPI_RANK_NAMES, "SLURM_PROCID")


def launcher_rank() -> int | None:
    """This process's number, if a launcher started it."""
    for name in () if has_agent(os.environ) else MPI_RANK_NAMES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    found = launched(os.environ)
    return None if found is None else found.rank


def launcher_size() -> int:
    """How many processes a launcher started; 1 without one."""
    return launched_size(os.environ) or 1 if is_launched(os.environ) else 1


def speaks() -> bool:
    """True on the one rank whose words reach the user."""
    return launcher_rank() in (None, 0)


def sees_rank_0() -> bool:
    """True where rank 0 of the same launch is alive, on this node."""
    own = _above(os.getpid())
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            is_first = any(f"{name}=0".encode() in words for name in RANK_NAMES)
            if is_first and own & _above(int(folder.name)):
                return True
    return False


def _above(pid: int) -> set[int]:
    """The parent of a process and the parent of that one, of which none is init."""
    found: list[int] = []
    for _ in range(2):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
        if pid <= 1:
            break
        found.append(pid)
    return set(found)


def check_readable(path: str) -> None:
    """Refuse what is no file, or one that this user cannot read.

    Before ranks meet: others would wait in the start of MPI for one that has left.
    """
    if not os.path.exists(path):
        raise DataError(f"{path} does not exist; check the name")
    if not os.path.isfile(path) and not os.path.isdir(path):  # a pipe is waited for
        raise DataError(f"{path} is not a regular file; write it to one first")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} cannot be read by this user; check its permissions")


def hear_again() -> None:
    """In a rank of ours: SIGUSR2 ends it until it trains, whatever mpiexec ignores."""
    ignored = signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    if EXPECTED in os.environ and ignored:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def relaunch(
    ranks: int,
    argv: list[str],
    keeps_checkpoints: bool = False,
    shrinks: bool = False,
    remedy: str = "",
) -> int:
    """Run `python -m hpcsgd argv` on `ranks` ranks of MPI; its exit code.

    A run that was to go on without a lost rank and could not asks to be requeued.
    """
    if ranks < 1:
        raise ConfigError(
            f"--ranks {ranks}: at least 1 rank is needed, for example --ranks 2"
        )
    command = [sys.executable, "-m", "hpcsgd", *argv]
    full = [*mpiexec(shrinks), "-n", str(ranks), *NOTED]
    job = Job(full, command, _environment(ranks), survives=shrinks)
    ending = job.run()
    say_how_it_ended(ending, keeps_checkpoints, remedy)
    if ending.code in OWN_CODES:
        return ending.code
    from hpcsgd.result import REQUEUE

    return REQUEUE if shrinks and keeps_checkpoints else 1


def must_relaunch(ranks: int | None) -> bool:
    """True where `ranks` were asked for and no launcher has started this process.

    Under a launcher the number becomes what the world must have.
    """
    if ranks is None or EXPECTED in os.environ:
        return False
    if is_launched(os.environ):
        os.environ[EXPECTED] = str(ranks)
        return False
    return True


def mpiexec(shrinks: bool = False) -> list[str]:
    """The launcher that belongs to the MPI that mpi4py loads."""
    path = find_mpiexec()
    if path is None:
        raise ConfigError(
            "--ranks needs an MPI and no mpiexec was found; load the MPI of the site,"
            " or install one with: pip install mpich"
        )
    return [path, *_flags(path, shrinks)]


def find_mpiexec() -> str | None:
    """The one beside this Python belongs to its MPI."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _flags(path: str, shrinks: bool) -> list[str]:
    """Open MPI refuses more ranks than cores unless told; MPICH does not care.

    It also outlives a lost rank only when told.
    """
    shown = subprocess.run(
        [path, "--version"], capture_output=True, text=True, check=False
    ).stdout
    is_open_mpi = any(name in shown for name in ("Open MPI", "OpenRTE", "PRTE", "prte"))
    if not is_open_mpi:
        return []
    survive = ["--with-ft", "ulfm"] if shrinks else []
    return ["--oversubscribe", "--bind-to", "none", *survive]


def _environment(ranks: int) -> dict[str, str]:
    environment = dict(os.environ)
    environment.pop(AGENT, None)  # that of a single process: these are not its ranks
    environment[EXPECTED] = str(ranks)
    environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    if sys.stderr.isatty():
        from hpcsgd.callbacks.progress import TERMINAL

        environment[TERMINAL] = str(shutil.get_terminal_size().columns)
    for name in THREAD_SETTINGS:
        environment.setdefault(name, "1")
    return environment
