"""One mpiexec: started, handed the signals that reach us, and cleaned up after.

mpiexec stands in a session of its own, so that a key pressed on the terminal reaches
us alone, and the ranks once.
"""

import os
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

from hpcsgd.cli.family import MARK, Family
from hpcsgd.comm.launched import end_with_parent
from hpcsgd.comm.leftovers import remove_unused
from hpcsgd.ends import ENDS, End, read_ends

GRACE = 5.0  # seconds for processes to follow a mpiexec that has ended
FAREWELL = 10.0  # seconds for ranks to end where one of them has failed
LOOK = 0.25  # seconds between looks at ranks that have ended
# Before the command of a rank of MPI: stands above it and notes how it ends.
NOTED = [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank.py"))]
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
class Ending:
    """How a launch ended, and what ended it."""

    code: int  # of the launcher, or of the rank that failed first
    who: str = "a rank"
    signals: tuple[str, ...] = ()  # one, or those that a launcher's code can stand for


class Job:
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
        self.family = Family(mark)
        self.command = command
        self.survives = survives
        self.interrupts = 0
        self.notices = 0
        self._full = [*launcher, *command]
        self._environment = {**environment, MARK: mark}
        self._process: Any = None
        self._early: list[int] = []

    def run(self) -> Ending:
        """Start it and wait for its end; nobody of it is left then."""
        with tempfile.TemporaryDirectory(prefix="hpcsgd-ends-") as folder:
            return self._run(Path(folder))

    def _run(self, folder: Path) -> Ending:
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
            return Ending(INTERRUPTED)
        return Ending(PREEMPTED) if self.notices and by & NOTICES else ending

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
    it again (`launch.hear_again`).
    """
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    end_with_parent()


def first_failure(ends: list[End]) -> End | None:
    """Return the first end that is not good, which is the cause of those behind it."""
    return next((end for end in ends if end.code), None)


def ending_of(code: int, ends: list[End]) -> Ending:
    """Return what ended a launch whose launcher ended with `code`.

    The ranks' own ends say more than a launcher, which joins all codes.
    """
    first = first_failure(ends)
    if code < 0:
        return Ending(code, "the launcher", possible_signals(code))
    if code == 0 or first is None:
        return Ending(code, signals=possible_signals(code))
    names = () if first.code > 0 else (signal.Signals(-first.code).name,)
    return Ending(first.code, f"rank {first.rank}", names)


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


def say_how_it_ended(ending: Ending, keeps_checkpoints: bool, remedy: str = "") -> None:
    """One sentence on an end of which no rank could speak, and what to do."""
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
