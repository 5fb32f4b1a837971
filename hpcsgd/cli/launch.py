"""The launch of ranks from a command, and the causes of their ends."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
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
# Launchers put ranks into new sessions, and a process that outlives its parent gets
# another parent: neither process groups nor parents lead to all of them. This works on
# Linux only; without /proc no process is found.

MARK = "HPCSGD_JOB"  # set by our launcher, inherited by all that it starts


class MarkedProcesses:
    """The processes, other than this one, with a mark in their environment."""

    def __init__(self, mark: str) -> None:
        self.variable = f"{MARK}={mark}".encode()

    def members(self) -> list[int]:
        """Return the process ids of the marked processes that are alive."""
        return [pid for pid in _all_processes() if self._has(pid)]

    def ranks(self, command: list[str]) -> list[int]:
        """Return the ids of marked processes that run exactly `command`.

        A process whose parent is among them was forked by a rank, and is left out.
        """
        cmdline = b"".join(word.encode() + b"\0" for word in command)
        pids = [p for p in self.members() if _read(p, "cmdline") == cmdline]
        return [pid for pid in pids if _parent(pid) not in pids]

    def tell(self, number: int, pids: list[int]) -> None:
        """Send the signal `number` to the processes `pids` that still have the mark."""
        for pid in pids:
            if self._has(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def end(self, grace: float) -> None:
        """Wait until no marked process is left, and kill those left after `grace` s."""
        limit = time.monotonic() + grace
        while members := self.members():
            if time.monotonic() >= limit:
                self.tell(signal.SIGKILL, members)
            time.sleep(0.05)

    def _has(self, pid: int) -> bool:
        return self.variable in _read(pid, "environ").split(b"\0")


def _all_processes() -> Iterator[int]:
    own_pid = os.getpid()
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) != own_pid:
            yield int(path.name)


def _read(pid: int, name: str) -> bytes:
    """Return /proc/PID/name; b"" if the process has ended or is not readable."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _parent(pid: int) -> int | None:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else None


# One mpiexec: its start, the signals that are passed on to ranks, and the clean-up.
#
# mpiexec runs in a new session, so that a key pressed on the terminal reaches only this
# process, which sends the signal to each rank once.

GRACE = 5.0  # seconds for processes to follow a mpiexec that has ended
FAREWELL = 10.0  # seconds for ranks to end after one of them has failed
LOOK = 0.25  # seconds between two checks for ranks that have ended
# Words before the command of a rank: a parent process that records how the rank ends.
NOTED = [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_wrapper.py"))]
INTERRUPTED = 130
PREEMPTED = 75
# A rank that ends with one of these codes has printed a message.
OWN_CODES = (0, 1, 2, PREEMPTED, INTERRUPTED)
# Signal to this process -> signal to the ranks; a closed terminal ends the run.
PASSED_ON = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR2: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGTERM,
}
# Signals that end a process without a handler; launchers report their numbers.
FATAL = [
    s
    for s in signal.Signals
    if s < 16 or s.name in ("SIGXCPU", "SIGXFSZ", "SIGSYS", "SIGBUS")
]
NOTICES = {"SIGTERM", "SIGUSR2"}  # requests to save, after which the run is restarted


@dataclass(frozen=True)
class LaunchEnd:
    """The end of a launch: its exit code, and the rank and signal that caused it."""

    code: int  # of the launcher, or of the rank that failed first
    who: str = "a rank"
    signals: tuple[str, ...] = ()  # one, or those that a launcher's code can stand for


class RankLaunch:
    """A launch of the command `command` on many ranks by the command `launcher`.

    With `survives` ranks continue when one of them is lost. Otherwise, when a rank has
    failed, the others have FAREWELL seconds to end: before MPI has started, the
    launcher may not notice the failure.
    """

    def __init__(
        self,
        launcher: list[str],
        command: list[str],
        environment: Mapping[str, str],
        survives: bool = False,
    ) -> None:
        mark = os.urandom(16).hex()
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
        """Start the ranks, wait for the end of all processes; return how they ended."""
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
        # A rank without a handler, at its start or its end, is killed by a signal.
        by = set(ending.signals)
        if self.interrupts > 1 or (self.interrupts and "SIGINT" in by):
            return LaunchEnd(INTERRUPTED)
        return LaunchEnd(PREEMPTED) if self.notices and by & NOTICES else ending

    def _wait(self, folder: Path) -> int:
        """Wait for the launcher; return its exit code, or 1 if all were killed.

        Without `survives`, all processes of the launch are killed if other ranks
        outlive a failed one by FAREWELL seconds. `folder` contains the recorded ends.
        """
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
                return 1  # the cause is the rank that failed, not the kill

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Pass the signals of `PASSED_ON` on to the ranks within this context.

        Only a main thread can set handlers; in another thread nothing is passed on.
        """
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
        """Send a signal to the ranks themselves: launchers treat signals differently.

        A second SIGINT kills all processes of the launch.
        """
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
        """Send the signal for `number` to the ranks; return whether any is visible."""
        ranks = self.family.ranks(self.command)
        if ranks:
            self.family.tell(PASSED_ON[signal.Signals(number)], ranks)
        return bool(ranks)

    def _tell_later(self, number: int) -> None:
        """Send a signal to ranks that are still being started, once they are visible.

        A launcher would not pass the signal on to them. If no rank is visible after
        GRACE seconds, the launcher gets SIGINT or, for another signal, SIGTERM.
        """
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            if self._process.returncode is not None or self._tell_ranks(number):
                return
            time.sleep(0.05)
        # If all ranks are on other nodes, the signal goes to their launcher.
        self._signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _kill(self) -> None:
        """Kill the marked processes first, then the launcher."""
        self.family.tell(signal.SIGKILL, self.family.members())
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


def _before_mpiexec() -> None:
    """Ignore SIGUSR2 in the process that becomes mpiexec; let it end with its parent.

    Slurm signals every process of a task, and SIGUSR2 would end a launcher. Ranks stop
    ignoring the signal (`launch.restore_signal_handlers`).
    """
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    end_with_parent()


def first_failure(ends: list[RankEnd]) -> RankEnd | None:
    """Return the first rank end with an error, which caused the later ones.

    Return None if no rank has failed.
    """
    return next((end for end in ends if end.code), None)


def ending_of(code: int, ends: list[RankEnd]) -> LaunchEnd:
    """Return how a launch ended whose launcher ended with `code`.

    If a signal ended the launcher, or its code is 0, that is the end. Otherwise the
    first failure among `ends`, the recorded ends of ranks, is more precise than the
    code, which may combine the codes of all ranks.
    """
    first = first_failure(ends)
    if code < 0:
        return LaunchEnd(code, "the launcher", possible_signals(code))
    if code == 0 or first is None:
        return LaunchEnd(code, signals=possible_signals(code))
    names = () if first.code > 0 else (signal.Signals(-first.code).name,)
    return LaunchEnd(first.code, f"rank {first.rank}", names)


def possible_signals(code: int) -> tuple[str, ...]:
    """Return the names of signals that an exit code of mpiexec can stand for.

    A negative code is the signal that ended mpiexec. Open MPI and shells add 128 to the
    number of the signal that ended a rank. MPICH combines the bits of all ranks' codes,
    and kills the ranks that are left with SIGKILL or SIGTERM.
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
    """Print why a launch ended, and a remedy, unless a rank has printed a message.

    Without `remedy`, it is to resume if the run `keeps_checkpoints`, else to run again.
    """
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
        else "run again; training keeps what is done with --out DIR"
    )
    # The launcher may still be writing its own message.
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
    """Return the rank of this process, or None if no launcher started it."""
    for name in () if has_agent(os.environ) else MPI_RANK_NAMES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    launcher = launched(os.environ)
    return None if launcher is None else launcher.rank


def launcher_size() -> int:
    """Return the number of processes that a launcher started; 1 without a launcher."""
    return launched_size(os.environ) or 1 if is_launched(os.environ) else 1


def is_rank_0_of_launcher() -> bool:
    """Return True on rank 0, and without a launcher.

    Its messages are the ones that the user sees.
    """
    return launcher_rank() in (None, 0)


def is_rank_0_on_node() -> bool:
    """Return True where rank 0 of the same launch is alive on this node."""
    ancestors = _above(os.getpid())
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            is_first = any(f"{name}=0".encode() in words for name in RANK_NAMES)
            if is_first and ancestors & _above(int(folder.name)):
                return True
    return False


def _above(pid: int) -> set[int]:
    """Return the ids of the parent and the grandparent of a process, without init."""
    ancestors: list[int] = []
    for _ in range(2):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
        if pid <= 1:
            break
        ancestors.append(pid)
    return set(ancestors)


def check_readable(path: str) -> None:
    """Raise DataError if `path` is no file or folder that this user can read.

    It is called before MPI starts, where other ranks would wait for one that ended.
    """
    if not os.path.exists(path):
        hint = did_you_mean_file(path)
        raise DataError(f"{path} does not exist{hint}; check the name")
    if not os.path.isfile(path) and not os.path.isdir(path):  # a pipe would block
        raise DataError(
            f"{path} is not a regular file; write its content to a regular file first"
        )
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} cannot be read by this user; check its permissions")


def restore_signal_handlers() -> None:
    """Restore the default action of SIGUSR2 in a rank of our launcher.

    mpiexec ignores the signal, and ranks inherit that. With the default action the
    signal ends a rank, until training sets a handler.
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
    """Run `python -m hpcsgd argv` on `ranks` ranks of MPI; return an exit code.

    It is the code of the launch if that is one of `OWN_CODES`; otherwise it is REQUEUE
    for a run that `shrinks` (continues without lost ranks) and `keeps_checkpoints`,
    else 1.
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
    """Return True if `ranks` is set and no launcher has started this process.

    Under a launcher, `ranks` is put into the environment as the number of ranks that
    the world must have.
    """
    if ranks is None or EXPECTED in os.environ:
        return False
    if is_launched(os.environ):
        os.environ[EXPECTED] = str(ranks)
        return False
    return True


def mpiexec(shrinks: bool = False) -> list[str]:
    """Return the path of mpiexec and its flags; raise ConfigError if there is none.

    With `shrinks`, the flags let ranks survive the loss of another rank.
    """
    path = find_mpiexec()
    if path is None:
        raise ConfigError(
            "--ranks needs an MPI and no mpiexec was found; load the MPI of the site,"
            " or install one with: pip install mpich"
        )
    return [path, *_flags(path, shrinks)]


def find_mpiexec() -> str | None:
    """Return the path of mpiexec beside this Python, else on PATH, or None.

    The mpiexec beside this Python belongs to the MPI that is installed there.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _flags(path: str, shrinks: bool) -> list[str]:
    """Return the flags that mpiexec needs; MPICH needs none.

    Without flags, Open MPI refuses more ranks than cores. With `shrinks`, a flag keeps
    it from ending all ranks when one is lost.
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
    environment.pop(AGENT, None)  # the agent of a single process has no ranks
    environment[EXPECTED] = str(ranks)
    environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    environment.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    if sys.stderr.isatty():
        from hpcsgd.runs.progress import TERMINAL

        environment[TERMINAL] = str(shutil.get_terminal_size().columns)
    for name in THREAD_SETTINGS:
        environment.setdefault(name, "1")
    return environment
