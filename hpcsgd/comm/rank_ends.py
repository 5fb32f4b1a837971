"""How ranks end: the limit on the time in which MPI starts, and notes of `--ranks`.

Small scripts beside the ranks use this module, too. Therefore it imports the standard
library only.
"""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

# How ranks of `--ranks` ended, by notes in a folder of the launcher.
#
# The exit code of mpiexec combines those of all ranks, and often names a wrong signal.

ENDS = "HPCSGD_ENDS"  # set by our launcher: the folder


class RankEnd(NamedTuple):
    """The end of a rank: the time, its number, and its exit code or −signal."""

    at: float
    rank: int
    code: int


def note_end(rank: int, code: int) -> None:
    """Note in the folder of our launcher, if it has one, how a rank ended.

    `code` is an exit code or −signal. Only the first note of a rank counts.
    """
    folder = os.environ.get(ENDS)
    if folder is None:
        return
    note = Path(folder, f"{rank}.{os.getpid()}")
    # It exists already, or this node does not see the folder.
    with suppress(OSError):
        note.write_text(f"{time.clock_gettime(time.CLOCK_MONOTONIC):.6f} {code}")
        os.link(note, Path(folder, str(rank)))


def read_ends(folder: Path) -> list[RankEnd]:
    """Return the ends noted so far, the first one first."""
    ends = []
    for path in folder.glob("*"):
        if path.name.isdigit():
            at, code = path.read_text().split()
            ends.append(RankEnd(float(at), int(path.name), int(code)))
    return sorted(ends)


# The limit on the time in which MPI starts, while it locks the interpreter.
#
# MPI_Init waits for all ranks, inside the import of mpi4py, with the interpreter
# locked: no thread of Python runs meanwhile and no handler of a signal. So the clock is
# a copy of the process of each rank, made before MPI starts: it opens no file, which a
# new interpreter of every rank would by the hundred. It ends with its rank, and at once
# when MPI is up. When the time is over it writes one sentence and
# kills the rank, which makes the launcher end the job; a rank that is stopped is ended
# by it, too.

TIMEOUT = 20.0  # seconds, unless a command or configuration sets another limit
START = 300.0  # seconds: imports of many ranks on a busy file system take minutes
TICK = 0.5  # seconds of a step of the clock, which counts none while it is stopped
FIRST = 1.0  # seconds by which a stopped rank is named before others report
SLOTS, SLOT = 4, 0.8  # ranks that report one at a time, and seconds of each
FORWARDING = 0.5  # seconds for a launcher to pass on what a rank printed


def start_seconds(timeout: float) -> float:
    """Return the seconds that ranks may take to start together; 0 for no limit.

    A `timeout` below TIMEOUT is the limit itself. Otherwise the limit is START or
    `timeout`, the longer of them: ranks begin at different times for good reasons.
    """
    return timeout if timeout < TIMEOUT else max(timeout, START)


@contextmanager
def start_limit(seconds: float, rank: int, size: int) -> Iterator[None]:
    """End this process if the body takes longer than `seconds`; 0 = no limit.

    There is no limit for a single rank, which waits for no other.
    """
    if seconds <= 0 or size < 2:
        yield
        return
    ending, kept = os.pipe()  # the clock reads its end when the rank has ended
    parent = os.getpid()
    clock = os.fork()
    if clock == 0:
        try:
            _become_clock(ending)
            _watch(parent, seconds, rank, size)
        finally:
            os._exit(0)
    os.close(ending)
    try:
        yield
    finally:
        os.kill(clock, signal.SIGKILL)
        os.waitpid(clock, 0)
        os.close(kept)


def _become_clock(ending: int) -> None:
    """Keep only `ending` and stderr of the files of the rank, and none of its signals.

    The launcher must not wait for this process, which has copies of its pipes.
    """
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(ending, 0)
    os.dup2(2, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped; False where the system does not show it."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _is_over(seconds: float) -> bool:
    """Wait up to `seconds`; return whether the rank has ended before they are over."""
    while seconds > 0:
        if select.select([0], [], [], min(TICK, seconds))[0]:
            return True
        seconds -= TICK
    return False


def first_turn(rank: int) -> float:
    """Return the seconds for which this rank leaves reports to the first SLOTS ranks.

    They are 0 for the first SLOTS ranks themselves.
    """
    return 0.0 if rank < SLOTS else SLOTS * SLOT


def has_turn(rank: int) -> bool:
    """Return whether a rank may report now: ranks of a node take turns by its clock.

    Ranks cannot send messages to each other here. The first report ends the job before
    the next rank would report.
    """
    place = time.monotonic() / SLOT % SLOTS - rank % SLOTS
    return 0.0 <= place < 0.25


def _is_over_before_turn(rank: int) -> bool:
    while not has_turn(rank):
        if select.select([0], [], [], 0.05)[0]:
            return True
    return False


def _watch(parent: int, seconds: float, rank: int, size: int) -> None:
    if _is_over(seconds):
        return
    remedy = (
        f"the job ends ({seconds:g} s are allowed; --timeout SECONDS changes it,"
        " 0 = wait for ever)"
    )
    who = f"rank {rank} of {size}"
    if is_stopped(parent):
        text = f"{who} is stopped by a signal and MPI cannot start without it"
    elif _is_over(FIRST + first_turn(rank)) or _is_over_before_turn(rank):
        return
    else:
        text = (
            f"{who} has waited {seconds:.0f} s for MPI to start on all ranks: another"
            " rank has ended, is stopped, or was never started"
        )
    os.write(2, f"hpcsgd: {text}; {remedy}\n".encode())
    note_end(rank, 1)  # this rank has reported the reason: no other has to
    time.sleep(FORWARDING)
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
