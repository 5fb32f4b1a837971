"""Launching ranks from a command, and what ends them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from hpcsgd.comm.launchers import (
    AGENT,
    EXPECTED,
    THREAD_SETTINGS,
    end_with_parent,
    has_agent,
    is_launched,
    launched,
    launched_size,
    remove_unused,
)
from hpcsgd.comm.rank_ends import ENDS, RankEnd, read_ends
from hpcsgd.errors import ConfigError, DataError, did_you_mean_file

# The processes of one launch, found by a mark in their environment.
#
# Launchers put ranks into sessions of their own, and whoever outlives its parent gets
# another one: neither groups nor parents lead to all of them. Linux only; where there
# is no /proc nobody is found.

MARK = "HPCSGD_JOB"  # set by our launcher, inherited by all that it starts


class MarkedProcesses:
    """All processes, other than this one, that carry the mark."""

    def __init__(self, mark: str) -> None:
        self.variable = f"{MARK}={mark}".encode()

    def members(self) -> list[int]:
        """Those alive now."""
        return [pid for pid in _all_processes() if self._has(pid)]

    def ranks(self, command: list[str]) -> list[int]:
        """Those that run exactly `command`, without what they forked."""
        wanted = b"".join(word.encode() + b"\0" for word in command)
        found = [p for p in self.members() if _read(p, "cmdline") == wanted]
        return [pid for pid in found if _parent(pid) not in found]

    def tell(self, number: int, pids: list[int]) -> None:
        """Send a signal to those that are still what they were."""
        for pid in pids:
            if self._has(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def end(self, grace: float) -> None:
        """Returns when nobody is left; who is there after `grace` seconds is killed."""
        limit = time.monotonic() + grace
        while members := self.members():
            if time.monotonic() >= limit:
                self.tell(signal.SIGKILL, members)
            time.sleep(0.05)

    def _has(self, pid: int) -> bool:
        return self.variable in _read(pid, "environ").split(b"\0")


def _all_processes() -> Iterator[int]:
    own = os.getpid()
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) != own:
            yield int(path.name)


def _read(pid: int, name: str) -> bytes:
    """/proc/PID/name; nothing for a process that is gone, a zombie or not ours."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _parent(pid: int) -> int | None:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else None


# One mpiexec: started, handed the signals that reach us, and cleaned up after.
#
# mpiexec stands in a session of its own, so that a key pressed on the terminal reaches
# us alone, and the ranks once.

GRACE = 5.0  # seconds for processes to follow a mpiexec that has ended
FAREWELL = 10.0  # seconds for ranks to end where one of them has failed
LOOK = 0.25  # seconds between looks at ranks that have ended
# Before the command of a rank of MPI: stands above it and notes how it ends.
NOTED = [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_wrapper.py"))]
INTERRUPTED = 130
PREEMPTED = 75
OWN_CODES = (0, 1, 2, PREEMPTED, INTERRUPTED)  # a rank that ends with one has said why
# What reaches us, and what the ranks get: a terminal that closes asks for an end.
PASSED_ON = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR2: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGTERM,
}
# What ends a process that does not listen, of which launchers tell by number.
FATAL = [
    s
    for s in signal.Signals
    if s < 16 or s.name in ("SIGXCPU", "SIGXFSZ", "SIGSYS", "SIGBUS")
]
NOTICES = {"SIGTERM", "SIGUSR2"}  # wishes to save: start me again


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch ended, and what ended it."""

    code: int  # of the launcher, or of the rank that failed first
    who: str = "a rank"
    signals: tuple[str, ...] = ()  # one, or those that a launcher's code can stand for


class RankLaunch:
    """`command` on many ranks, behind `launcher`.

    With `survives` ranks go on when one of them is lost; else a rank that has failed
    leaves the others FAREWELL seconds: before MPI is up its launcher may not notice.
    """

    def __init__(
        self,
        launcher: list[str],
        command: list[str],
        environment: Mapping[str, str],
        survives: bool = False,
    ) -> None:
        mark = uuid.uuid4().hex
        self.family = MarkedProcesses(mark)
        self.command = command
        self.survives = survives
        self.interrupts = 0
        self.notices = 0
        self._full = [*launcher, *command]
        self._environment = {**environment, MARK: mark}
        self._process: Any = None
        self._early: list[int] = []

    def run(self) -> LaunchEnd:
        """Start it and wait for its end; nobody of it is left then."""
        with tempfile.TemporaryDirectory(prefix="hpcsgd-ends-") as folder:
            return self._run(Path(folder))

    def _run(self, folder: Path) -> LaunchEnd:
        with self._hearing():
            self._process = subprocess.Popen(
                self._full,
                env={**self._environment, ENDS: str(folder)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_before_mpiexec,
            )
            for number in self._early:
                self._pass_on(number)
            try:
                code = self._wait(folder)
            finally:
                self.family.end(0.0 if self.interrupts > 1 else GRACE)
                remove_unused()
        ending = ending_of(code, read_ends(folder))
        # A rank that was still starting, or no longer listening, is killed by a signal.
        by = set(ending.signals)
        if self.interrupts > 1 or (self.interrupts and "SIGINT" in by):
            return LaunchEnd(INTERRUPTED)
        return LaunchEnd(PREEMPTED) if self.notices and by & NOTICES else ending

    def _wait(self, folder: Path) -> int:
        """The launcher's exit code; it is ended where ranks outlive one that failed."""
        failed = 0.0
        while True:
            with suppress(subprocess.TimeoutExpired):
                code: int = self._process.wait(LOOK)
                return code
            if not failed and not self.survives and first_failure(read_ends(folder)):
                failed = time.monotonic()
            if failed and time.monotonic() - failed > FAREWELL:
                self._kill()
                self._process.wait()
                return 1  # what ended it is the rank, not we

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Pass signals on meanwhile; only a main thread may ask for them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self._hear) for s in PASSED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        """To the ranks themselves: launchers treat every signal in another way."""
        self.interrupts += number == signal.SIGINT
        self.notices += number != signal.SIGINT
        if self.interrupts > 1:
            self._kill()
            return
        if not self._tell_ranks(number):
            late = threading.Thread(target=self._tell_later, args=(number,))
            late.daemon = True
            late.start()

    def _tell_ranks(self, number: int) -> bool:
        """False where there are none (yet) that can be seen from here."""
        ranks = self.family.ranks(self.command)
        if ranks:
            self.family.tell(PASSED_ON[signal.Signals(number)], ranks)
        return bool(ranks)

    def _tell_later(self, number: int) -> None:
        """Ranks that are being started; a launcher drops what comes before them."""
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            if self._process.returncode is not None or self._tell_ranks(number):
                return
            time.sleep(0.05)
        # All of them on other nodes: their launcher knows them.
        self._signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _kill(self) -> None:
        """Ranks first: their launcher could start nothing new, only clean up."""
        self.family.tell(signal.SIGKILL, self.family.members())
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


def _before_mpiexec() -> None:
    """In mpiexec, before it starts.

    Slurm signals every process of a task, and SIGUSR2 would end a launcher; ranks hear
    it again (`launch.restore_signal_handlers`).
    """
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    end_with_parent()


def first_failure(ends: list[RankEnd]) -> RankEnd | None:
    """Return the first end that is not good, which is the cause of those behind it."""
    return next((end for end in ends if end.code), None)


def ending_of(code: int, ends: list[RankEnd]) -> LaunchEnd:
    """Return what ended a launch whose launcher ended with `code`.

    The ranks' own ends say more than a launcher, which joins all codes.
    """
    first = first_failure(ends)
    if code < 0:
        return LaunchEnd(code, "the launcher", possible_signals(code))
    if code == 0 or first is None:
        return LaunchEnd(code, signals=possible_signals(code))
    names = () if first.code > 0 else (signal.Signals(-first.code).name,)
    return LaunchEnd(first.code, f"rank {first.rank}", names)


def possible_signals(code: int) -> tuple[str, ...]:
    """Return the signals of ranks that an exit code of mpiexec can stand for, by name.

    A negative code is the signal that ended mpiexec. Open MPI and shells add 128 to
    that of a rank. MPICH gives the bits of all codes together, and kills the ranks that
    are left with SIGKILL or SIGTERM.
    """
    number = -code if code < 0 else code - 128
    if number > 0:
        return tuple(s.name for s in signal.Signals if s == number)
    if code == 0:
        return ()
    added = (0, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL | signal.SIGTERM)
    return tuple(s.name for s in FATAL if any(s | more == code for more in added))


def report_launch_end(
    ending: LaunchEnd, keeps_checkpoints: bool, remedy: str = ""
) -> None:
    """Print one sentence on a launch that ended without a message, and the remedy."""
    if ending.code in OWN_CODES:
        return
    how = f"ended without a message (exit code {ending.code})"
    if ending.signals:
        how = "was killed by " + " or ".join(ending.signals)
    is_kill = ending.signals == ("SIGKILL",)
    memory = ", which may mean that memory ran out" if is_kill else ""
    remedy = remedy or (
        "run again with --resume auto to go on from the last checkpoint"
        if keeps_checkpoints
        else "run again, with --out DIR to keep what is done"
    )
    # The launcher's own words are still on their way.
    time.sleep(0.1)
    print(
        f"hpcsgd: error: {ending.who} {how}{memory}; {remedy}",
        file=sys.stderr,
        flush=True,
    )


# `--ranks N`: the same command again, under the mpiexec that belongs to the MPI.

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


def is_rank_0_of_launcher() -> bool:
    """Return True on the one rank whose messages reach the user."""
    return launcher_rank() in (None, 0)


def is_rank_0_on_node() -> bool:
    """Return True where rank 0 of the same launch is alive on this node."""
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
        hint = did_you_mean_file(path)
        raise DataError(f"{path} does not exist{hint}; check the name")
    if not os.path.isfile(path) and not os.path.isdir(path):  # a pipe is waited for
        raise DataError(f"{path} is not a regular file; write it to one first")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} cannot be read by this user; check its permissions")


def restore_signal_handlers() -> None:
    """Give SIGUSR2 its default action in a rank of our launcher, whatever mpiexec
    ignores: it ends the rank until training begins.
    """
    ignored = signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    if EXPECTED in os.environ and ignored:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


MOST_RANKS = 4096  # of one machine: a launcher would be busy for hours with a typo


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
    if ranks > MOST_RANKS:
        raise ConfigError(
            f"--ranks {ranks}: at most {MOST_RANKS} ranks are started on one machine;"
            " start more of them with srun, or mpiexec and a list of hosts"
        )
    command = [sys.executable, "-m", "hpcsgd", *argv]
    full = [*mpiexec(shrinks), "-n", str(ranks), *NOTED]
    job = RankLaunch(full, command, _environment(ranks), survives=shrinks)
    ending = job.run()
    report_launch_end(ending, keeps_checkpoints, remedy)
    if ending.code in OWN_CODES:
        return ending.code
    from hpcsgd.runs.result import REQUEUE

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
        from hpcsgd.runs.progress import TERMINAL

        environment[TERMINAL] = str(shutil.get_terminal_size().columns)
    for name in THREAD_SETTINGS:
        environment.setdefault(name, "1")
    return environment
