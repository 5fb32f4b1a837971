"""Recovery of runs: from damaged memory, lost ranks and GPUs, and signals."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from hpcsgd.backends.task import Snapshot
from hpcsgd.comm.communicator import Communicator
from hpcsgd.config import GridConfig, RunSection
from hpcsgd.errors import DeviceLost, HpcsgdError
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.runs.result import Status
from hpcsgd.solvers.callbacks import Callback, Request, View

# After a divergence: is it the rate, or did the memory of some rank go bad?

log = logging.getLogger(__name__)
ROWS_AT_ONCE = 1024


def find_damage(live: AssembledRun) -> str:
    """Return a sentence on a non-finite value of X in memory; "" if no rank has one.

    It is the first value on the first rank that has one. The data was finite when it
    was read, so such a value came later: from faulty memory, or from code that wrote
    where it should not. Streamed rows are not searched. Collective.
    """
    rank_places = live.grid.world.exchange_objects(_first_bad(live))
    places = [(rank, place) for rank, place in enumerate(rank_places) if place]
    if not places:
        return ""
    rank, (row, column) = places[0]
    sentence = (
        f"the memory of rank {rank} holds a value that is not finite at row {row},"
        f" column {column}, where the data had a finite one when it was read; check"
        " that machine's memory, then go on with --resume auto, or start again if there"
        " is no checkpoint"
    )
    if live.grid.world.rank == 0:
        log.error("%s", sentence)
    return sentence


def _first_bad(live: AssembledRun) -> tuple[int, int] | None:
    """Return row and column in the data of this rank's first non-finite value.

    Return None if there is none, or if the rows are streamed.
    """
    task = live.task
    shard = live.task.shard
    if not shard.matrix.is_in_memory:
        return None  # streamed rows in memory are others by now
    for start in range(0, shard.height, ROWS_AT_ONCE):
        numbers = np.arange(start, min(start + ROWS_AT_ONCE, shard.height))
        place = shard.matrix.gather(task.backend, numbers, None).first_not_finite()
        if place is not None:
            row, column = place
            return shard.rows.start + start + row, shard.columns.start + column
    return None


# Going on with the ranks that are left: their grid, and the state they all know.


def smaller_grid(before: GridConfig, ranks: int) -> GridConfig:
    """Return the grid of the `ranks` ranks that are left.

    It has as many replicas as before if their number divides that of the ranks, else
    the next smaller number that does.
    """
    replicas = before.replicas
    while ranks % replicas:
        replicas -= 1
    return GridConfig(replicas=replicas, members=ranks // replicas)


def last_common(world: Communicator, known: Sequence[Snapshot]) -> Snapshot | None:
    """Return the newest of the checkpoints `known` that all ranks have. Collective.

    A rank may lack the last one. Return None if there is no common checkpoint.
    """
    rank_exchanges = world.exchange_objects(
        [checkpoint.exchanges for checkpoint in known]
    )
    common = set(rank_exchanges[0]).intersection(*rank_exchanges[1:])
    if not common:
        return None
    return next(c for c in known if c.exchanges == max(common))


def device_loss_error(
    error: DeviceLost, rank: int | None, live: AssembledRun | None, run: RunSection
) -> DeviceLost:
    """Return the error that ends the run after a lost GPU.

    It names the last exchange, the newest checkpoint of the run folder, if any, and how
    to resume or start again. Making it does not use the GPU. `rank` is None if another
    rank has reported the loss.
    """
    where = "before the first exchange"
    if live is not None:
        live.finish_saving()
        where = f"after exchange {live.view.exchanges}"
    who = "" if rank is None else f" by rank {rank}"
    return DeviceLost(
        f"{error}, noticed{who} {where}; {_way_on(run)}",
        on_all_ranks=error.on_all_ranks,
    )


def _way_on(run: RunSection) -> str:
    if not run.out:
        return "nothing was saved: start again, with --out DIR to keep what is done"
    try:
        newest = CheckpointStore(Path(run.out), 1).newest()
    except (HpcsgdError, OSError):
        newest = None
    if newest is None:
        # Another rank may be writing the first one: what it saves is to be taken.
        return (
            f"no checkpoint is in {run.out} yet: start the same command again with"
            " --resume auto"
        )
    return (
        f"{newest[0]} has the state after exchange {newest[1].exchanges}: start the"
        " same command again with --resume auto"
    )


# Signals as requests: the exchange ends, the state is saved, the code states why.
#
# SIGINT once: save and end with 130; twice: at once. SIGTERM and SIGUSR2 (which Slurm
# sends ahead of a time limit): save and end with the code that asks for a requeue.

SIGNAL_REQUESTS: dict[int, Request] = {
    signal.SIGINT: Request.INTERRUPT,
    signal.SIGTERM: Request.PREEMPT,
    signal.SIGUSR2: Request.PREEMPT,
}
CODES = {
    Request.INTERRUPT: Status.INTERRUPTED.exit_code,
    Request.PREEMPT: Status.PREEMPTED.exit_code,
}


class Signals(Callback):
    """Signal handlers inside a `with` block, and a callback of the run in that block.

    Before training there is nothing to save: a signal then ends the program at once, on
    all ranks. If one rank alone left, it would wait for the others when MPI is
    finalised, and the others would wait for it. Slurm sends its notice to every rank of
    a step, and each of them leaves by itself: an MPI_Abort would make srun kill ranks
    that are about to leave and report 137, which asks for no requeue. A rank inside a
    collective leaves too: the others may have left already, and it would wait for them
    for ever.
    """

    def __init__(
        self,
        end_all: Callable[[int], Any] = sys.exit,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self.end_all = end_all  # the `abort` of the world, where there is one
        self.leave = leave  # how a program ends that must not wait for anything
        self.request = Request.NONE
        self.started = False
        self._pipe = (-1, -1)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def on_start(self, view: View) -> Request:
        """Return the gravest request so far; from here on, signals do not end the rank.

        Only a second SIGINT still ends it at once.
        """
        self.started = True
        return self.request

    def on_exchange(self, view: View) -> Request:
        """Return the gravest request of the signals so far."""
        return self.request

    def on_evaluate(self, view: View) -> Request:
        """Return the gravest request: a refinement evaluates, without exchanges."""
        return self.request

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
        for number in SIGNAL_REQUESTS:
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
        request = SIGNAL_REQUESTS[number]
        self.request = max(self.request, request)
        if not self.started and not self._leaves_alone(number):
            self.end_all(CODES[request])

    def _listen(self, end: int) -> None:
        """Act on signals that cannot wait until the main thread leaves a collective."""
        interrupts = 0
        while numbers := os.read(end, 64):
            interrupts += numbers.count(signal.SIGINT)
            if interrupts > 1:
                self.leave(CODES[Request.INTERRUPT])
            elif not self.started and any(map(self._leaves_alone, numbers)):
                self.leave(CODES[Request.PREEMPT])
        os.close(end)

    @staticmethod
    def _leaves_alone(number: int) -> bool:
        """Return whether each rank receives signal `number` and ends by itself.

        Slurm sends such a signal, a request to preempt the run, to all ranks of a step.
        """
        is_notice = SIGNAL_REQUESTS.get(number) is Request.PREEMPT
        return is_notice and "SLURM_STEP_ID" in os.environ
