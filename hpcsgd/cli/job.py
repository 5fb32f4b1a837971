"""One mpiexec: started, handed the signals that reach us, and cleaned up after.

mpiexec stands in a session of its own, so that a key pressed on the terminal reaches
us alone, and the ranks once.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from hpcsgd.cli.family import MARK, Family

PR_SET_PDEATHSIG = 1
GRACE = 5.0  # seconds for processes to follow a mpiexec that has ended
INTERRUPTED = 130
OWN_CODES = (0, 1, 2, 75, INTERRUPTED)  # a rank that ends with one has said why
# What reaches us, and what the ranks get: a terminal that closes asks for an end.
PASSED_ON = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGUSR2: signal.SIGUSR2,
    signal.SIGHUP: signal.SIGTERM,
}


class Job:
    """`command` on many ranks, behind `launcher`."""

    def __init__(
        self, launcher: list[str], command: list[str], environment: Mapping[str, str]
    ) -> None:
        mark = uuid.uuid4().hex
        self.family = Family(mark)
        self.command = command
        self.interrupts = 0
        self._full = [*launcher, *command]
        self._environment = {**environment, MARK: mark}
        self._process: Any = None
        self._early: list[int] = []

    def run(self) -> int:
        """Start it and wait for its end; nobody of it is left then."""
        with self._hearing():
            self._process = subprocess.Popen(
                self._full,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_before_mpiexec,
            )
            for number in self._early:
                self._pass_on(number)
            try:
                code: int = self._process.wait()
            finally:
                self.family.end(0.0 if self.interrupts > 1 else GRACE)
        # A rank that was still starting, or no longer listening, is killed by Ctrl-C.
        by_it = self.interrupts > 0 and killing_signal(code) == "SIGINT"
        return INTERRUPTED if by_it or self.interrupts > 1 else code

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


# Loaded here: between fork and exec there is no time for it.
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)


def _before_mpiexec() -> None:
    """In mpiexec, before it starts.

    Slurm signals every process of a task, and SIGUSR2 would end a launcher; ranks hear
    it again (`launch.hear_again`).
    """
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """In a child, before it starts: the kernel sends it SIGTERM when we are killed."""
    if _PRCTL is not None:
        _PRCTL(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def killing_signal(code: int) -> str | None:
    """The signal that an exit code of mpiexec stands for, by name.

    MPICH gives a rank's signal as the code itself, Open MPI and shells add 128; a
    negative code is the signal that ended mpiexec.
    """
    number = -code if code < 0 else code - 128 if code > 128 else code
    with suppress(ValueError):
        return signal.Signals(number).name
    return None


def say_how_it_ended(code: int, keeps_checkpoints: bool, remedy: str = "") -> None:
    """One sentence on an end of which no rank could speak, and what to do."""
    if code in OWN_CODES:
        return
    name = killing_signal(code)
    how = f"was killed by {name}" if name else "ended without a message"
    memory = ", which may mean that memory ran out" if name == "SIGKILL" else ""
    remedy = remedy or (
        "run again with --resume auto to go on from the last checkpoint"
        if keeps_checkpoints
        else "run again, with --out DIR to keep what is done"
    )
    # The launcher's own words are still on their way.
    time.sleep(0.1)
    print(
        f"hpcsgd: error: a rank {how} (mpiexec's exit code {code}){memory}; {remedy}",
        file=sys.stderr,
        flush=True,
    )
