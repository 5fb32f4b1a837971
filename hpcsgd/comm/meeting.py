"""All ranks of a communicator come together, and those that do not are named.

A barrier that does not block. While all come within the time nothing else is sent; a
rank that waits too long tells all others that it is here, they answer with the same
word, and whoever has not answered is missing.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcsgd.comm.start_limit import first_turn, has_turn

log = logging.getLogger("hpcsgd")
TAG = 32761  # of a word between ranks that wait; up to 2¹⁵−1 all tags exist
SPINS = 1000  # tests without sleep, for ranks that come together
NAP = 1e-3  # seconds between tests behind them
HEARING = 2.0  # seconds that an answer may take


def meet(
    mpi: Any,
    comm: Any,
    timeout: float,
    limit: float,
    end: Callable[[int], object],
    say: Callable[[str], None] | None = None,
) -> None:
    """Return when all ranks of `comm` have called this.

    Those that have not after `timeout` seconds (0 = wait for ever) are named in a
    warning, and after `limit` seconds in the sentence with which `end` is called.
    """
    arrived = comm.Ibarrier()
    if timeout <= 0:
        arrived.Wait()
        return
    words = _Words(mpi, comm)
    began, tests, warned = time.perf_counter(), 0, False
    hearing = HEARING + first_turn(comm.rank)
    while not arrived.Test():
        tests += 1
        if tests < SPINS:
            continue
        time.sleep(NAP)
        words.answer()
        waited = time.perf_counter() - began
        if waited < timeout:
            continue
        words.call()
        missing = words.missing()
        if not missing or waited < timeout + hearing or not has_turn(comm.rank):
            continue
        text = _sentence(comm, waited, missing)
        if waited >= limit + hearing:
            (say or _say)(
                f"hpcsgd: {text}; the job ends ({limit:g} s are allowed;"
                " --timeout SECONDS or run.timeout changes it, 0 = wait for ever)"
            )
            end(1)
        elif not warned:
            warned = True
            log.warning("%s; the limit is %g s", text, limit)


def _sentence(comm: Any, waited: float, missing: list[int]) -> str:
    named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    ranks = f"rank {named} has" if len(missing) == 1 else f"ranks {named} have"
    return (
        f"rank {comm.rank} of {comm.size} has waited {waited:.0f} s: {ranks} not made"
        " the same call of hpcsgd (as fit(comm=...)), which all ranks of a communicator"
        " have to make"
    )


class _Words:
    """What ranks that wait send each other: that they are here."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm
        self._present = {int(comm.rank)}
        self._told = {int(comm.rank)}
        self._word = np.zeros(1, dtype=np.uint8)
        self._sent: list[Any] = []

    def call(self) -> None:
        """Tell all others, once, that this rank is here."""
        for rank in set(range(self._comm.size)) - self._told:
            self._tell(rank)

    def answer(self) -> None:
        """Read what has arrived, and answer those that this rank has not told yet."""
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, TAG, status):
            rank = status.Get_source()
            self._comm.Recv(np.zeros(1, dtype=np.uint8), rank, TAG)
            self._present.add(rank)
            if rank not in self._told:
                self._tell(rank)

    def missing(self) -> list[int]:
        """Return the ranks that have sent no word."""
        return sorted(set(range(self._comm.size)) - self._present)

    def _tell(self, rank: int) -> None:
        self._told.add(rank)
        self._sent.append(self._comm.Isend(self._word, rank, TAG))


def _say(text: str) -> None:
    """All at once and past Python's buffers."""
    os.write(2, (text + "\n").encode())
