"""Time as if every rank had a core of its own, on a machine that is busy.

The clock of a rank is the CPU time of its thread plus what it waited for an emulated
network, which is added up and not slept. A collective is over where the last rank
has posted it and the link of each was free: ranks that come late keep the others
waiting, as they do on a network. Nothing is gained by computing while others do.
"""

import threading
import time
from collections import defaultdict
from contextlib import contextmanager

import hpcsgd.comm.network_model as link
from hpcsgd.agreements.base import Overlap
from hpcsgd.comm.communicator import Transfer
from hpcsgd.comm.network_model import DelayedCommunicator


class OwnCore(threading.local):
    """Of this thread, which is a rank."""

    waited = 0.0

    def now(self):
        return time.thread_time() + self.waited

    def wait_until(self, moment):
        self.waited += max(moment - self.now(), 0.0)


CLOCK = OwnCore()
now = CLOCK.now


@contextmanager
def own_cores():
    """Emulated networks and what is hidden behind computing go by these clocks."""
    ends = defaultdict(dict)  # (group, message) -> {rank: when its link is done}
    numbers = threading.local()

    def late(self, transfer, seconds):
        counts = numbers.__dict__.setdefault("counts", defaultdict(int))
        group = id(self.inner._board)
        message = group, counts[group]
        counts[group] += 1
        ends[message][self.rank] = self.link.book(seconds)

        def over():
            return max(ends[message].values())

        def wait():
            transfer.wait()
            CLOCK.wait_until(over())

        return Transfer(wait, lambda: transfer.is_done() and now() >= over())

    before = link.perf_counter, link.sleep_until
    was_late, clock = DelayedCommunicator.postpone, Overlap.__init__.__defaults__
    link.perf_counter, link.sleep_until = now, CLOCK.wait_until
    DelayedCommunicator.postpone, Overlap.__init__.__defaults__ = late, (now,)
    try:
        yield
    finally:
        link.perf_counter, link.sleep_until = before
        DelayedCommunicator.postpone, Overlap.__init__.__defaults__ = was_late, clock
