"""What one rank can put on an emulated network, and how it waits."""

import ctypes
import sys
import time
from time import perf_counter

import numpy as np

from hpcsgd.comm.network import Network

PR_SET_TIMERSLACK = 29


class Link:
    """What one rank can put on the network: one transfer after the other."""

    def __init__(self, network: Network, rank: int, spins: bool = False) -> None:
        self.network = network
        self.free_at = 0.0
        self.charged = 0.0  # seconds of all transfers so far
        self._rng = np.random.default_rng((network.seed, rank))
        self.wait_until = _spin_until if spins else sleep_until
        if not spins:
            _sleep_sharply()

    def book(self, seconds: float) -> float:
        """Queue a transfer of `seconds`; when it will be done."""
        if self.network.jitter:
            seconds *= 1.0 + self.network.jitter * self._rng.uniform()
        self.charged += seconds
        self.free_at = max(perf_counter(), self.free_at) + seconds
        return self.free_at

    def is_over(self, moment: float) -> bool:
        """Whether a transfer that takes until then is done."""
        return perf_counter() >= moment


def _spin_until(moment: float) -> None:
    """Spin: sharp, and it leaves the core as warm as a real wait would.

    A sleep adds some microseconds, lets ranks wake apart and caches cool, which makes
    every message dearer than the network that is emulated: a charge on whoever sends
    most. Ranks that own a core each, and whose MPI spins anyway, can do better.
    """
    while perf_counter() < moment:
        pass


def sleep_until(moment: float) -> None:
    """Sleep: it frees the core, where spinning would take it from another rank."""
    left = moment - perf_counter()
    if left > 0:
        time.sleep(left)


def _sleep_sharply() -> None:
    """Ask Linux not to add its usual 50 µs to this thread's sleeps."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # a libc without prctl: sleeps are coarser, nothing else changes
