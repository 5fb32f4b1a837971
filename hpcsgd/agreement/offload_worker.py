"""The thread of the host that takes steps while the device does something else."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

import numpy as np


class Worker:
    """One thread: what it is given is done in order; seconds, and those waited for."""

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0
        self._pool: ThreadPoolExecutor | None = None

    def give(self, action: Callable[[], None]) -> "Future[None]":
        """Begin it, behind what was given before."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "hpcsgd-offload")
        return self._pool.submit(self._timed, action)

    def wait(self, future: "Future[None]") -> None:
        """Until it is done; what it raised is raised here."""
        began = perf_counter()
        future.result()
        self.waited += perf_counter() - began

    def close(self) -> None:
        """No more is given."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _timed(self, action: Callable[[], None]) -> None:
        began = perf_counter()
        # Each thread has its own; guards look for what overflows.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            action()
        self.seconds += perf_counter() - began
