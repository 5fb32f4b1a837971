"""Signals as wishes: the exchange is finished, the state saved, the code says why.

SIGINT once: save and end with 130; twice: at once. SIGTERM and SIGUSR2 (which Slurm
sends ahead of a time limit): save and end with the code that asks for a requeue.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from hpcsgd.callbacks.base import Callback, View, Wish
from hpcsgd.result import Status

WISHES = {
    signal.SIGINT: Wish.INTERRUPT,
    signal.SIGTERM: Wish.PREEMPT,
    signal.SIGUSR2: Wish.PREEMPT,
}
CODES = {
    Wish.INTERRUPT: Status.INTERRUPTED.exit_code,
    Wish.PREEMPT: Status.PREEMPTED.exit_code,
}


class Signals(Callback):
    """Installed for the length of a `with`; a callback of the run inside it.

    Before training there is nothing to save: a signal then ends the program at once,
    on all ranks: one that just left would wait for the others when MPI is finalised,
    and they for it. Slurm sends its notice to every rank of a step, and each of them
    leaves by itself: an MPI_Abort would make srun kill ranks that are about to leave
    and report 137, which asks for no requeue.
    """

    def __init__(
        self,
        end_all: Callable[[int], Any] = sys.exit,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self.end_all = end_all  # the `abort` of the world, where there is one
        self.leave = leave  # how a program ends that must not wait for anything
        self.wish = Wish.NONE
        self.started = False
        self._pipe = (-1, -1)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def on_start(self, view: View) -> Wish:
        """From now on a signal is a wish, and never more than that."""
        self.started = True
        return self.wish

    def on_exchange(self, view: View) -> Wish:
        """What was asked for so far."""
        return self.wish

    def on_evaluate(self, view: View) -> Wish:
        """The same: passes of a finisher are evaluations, with no exchange between."""
        return self.wish

    def __enter__(self) -> "Signals":
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        # Python's handlers wait until the main thread is back from a collective;
        # this pipe is written at once, so a second Ctrl-C works even in a deadlock.
        self._wakeup_before = signal.set_wakeup_fd(
            self._pipe[1], warn_on_full_buffer=False
        )
        threading.Thread(
            target=self._listen, args=(self._pipe[0],), daemon=True
        ).start()
        for number in WISHES:
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._pipe[1])  # the listener reads the end and closes its own side

    def _hear(self, number: int, frame: FrameType | None) -> None:
        wish = WISHES[signal.Signals(number)]
        self.wish = max(self.wish, wish)
        if not self.started:
            if wish is Wish.PREEMPT and "SLURM_STEP_ID" in os.environ:
                self.leave(CODES[wish])
            self.end_all(CODES[wish])

    def _listen(self, end: int) -> None:
        interrupts = 0
        while said := os.read(end, 64):
            interrupts += said.count(signal.SIGINT)
            if interrupts > 1:
                self.leave(CODES[Wish.INTERRUPT])
        os.close(end)
