"""A GPU made of NumPy: late, and strict about who reads what before it is there.

Work is queued on streams and done when somebody waits: `synchronize`, `wait`,
`is_done`, or a collective of NCCL that another rank waits for (`fake_nccl`). An
array remembers that work on it was not waited for, and MPI is not given it then.

A GPU may be lost (`FakeLayer.break_at`): as with CUDA the work fails when its turn
comes, whoever waits afterwards hears of it, and nothing is done there any more.
"""

import threading
import time
from collections import defaultdict, deque

import numpy as np

from hpcsgd.backends.cuda.device import LaunchGraph
from hpcsgd.backends.cuda.driver import device_lost_error
from tests.helpers.bits import add_bits, narrow_bits, widen_bits
from tests.helpers.fake_nccl import EachTime, FakeNccl

LIMIT = 300.0  # seconds until a wait is a deadlock; kernels may compile meanwhile
STALE = 99  # what pinned memory holds before a copy has landed


class Unsynchronized(AssertionError):
    """Memory was read before the work on it was done."""


class UnderCapture(AssertionError):
    """Somebody looked at a stream whose work is being recorded and not done."""


class FakeArray:
    """Device memory: it has the looks of an array, and nothing that reads it."""

    def __init__(self, held, late):
        self.held, self.late = (
            held,
            late,
        )  # streams with work nobody awaited -> the last
        self.size, self.nbytes, self.dtype = held.size, held.nbytes, held.dtype
        self.shape, self.flags = held.shape, held.flags

    def reshape(self, *shape):
        return FakeArray(self.held.reshape(*shape), self.late)

    def copy(self):
        return FakeArray(self.held.copy(), dict(self.late))

    def __getitem__(self, key):
        return FakeArray(self.held[key], self.late)

    def __array__(self, *_, **__):
        raise TypeError("a device array was used as one of the host")


class Stream:
    """Work in order; `action()` is False while it cannot be done yet."""

    def __init__(self, node):
        self.node, self.queue = node, deque()
        # How much work there was, and what nobody has waited for, its own and others'
        # that come before it: (array's, stream) -> the last of it.
        self.given, self.unseen = 0, {}
        self.recorded = None  # what a graph is made of, while one is
        self.runs = False
        self.broken = None  # what whoever waits hears
        node.streams[id(self)] = self

    def put(self, action, *arrays):
        """`arrays` are not to be looked at until the stream was waited for."""
        if self.recorded is not None:
            self.recorded.append((action, arrays))
            return
        if isinstance(action, EachTime):
            action = action.begin()
        self.given += 1
        for array in arrays:
            array.late[self] = self.given
            self.unseen[id(array.late), self] = array.late, self.given
        with self.node.lock:
            self.queue.append(action)

    def capture(self, action):
        """A graph of what `action` puts here; nothing of it is done."""
        assert self.recorded is None, "a graph within a graph"
        self.recorded = recorded = []
        try:
            action()
        except BaseException:
            recorded.clear()  # whatever a traceback remembers
            raise
        finally:
            self.recorded = None
        return LaunchGraph(lambda: [self.put(one, *arrays) for one, arrays in recorded])

    def is_free(self):
        """Nothing but work may be asked of a stream that is recorded."""
        if self.recorded is not None:
            raise UnderCapture("a stream under capture was looked at")

    def run(self):
        """As much as can be done now; True where anything was."""
        with self.node.lock:
            if self.runs:  # another stream waits for this one, which waits for it
                return False
            self.runs, before = True, len(self.queue)
            try:
                while self._goes_on() and self.queue[0]() is not False:
                    self.queue.popleft()
            finally:
                self.runs = False
            return len(self.queue) < before

    def _goes_on(self):
        return self.queue and not self.broken

    def check(self):
        if self.broken:
            raise self.broken

    def until(self, is_done):
        """Other GPUs go on by themselves, so theirs is done too where it is needed."""
        end = time.monotonic() + LIMIT
        while not is_done():
            self.check()
            if not self.run() and not self.node.run_all():
                assert time.monotonic() < end, "the fake GPU hangs"
                time.sleep(1e-4)
        self.check()


class Event:
    """Done once the stream comes to it."""

    def __init__(self, stream):
        stream.is_free()
        self.stream, self.done = stream, False
        self.covers = dict(stream.unseen)  # what is done once it is
        self.asked = None  # when somebody first waited for it
        stream.put(self.happen)

    def happen(self):
        self.done = True

    def is_over(self):
        return self.done or (self.stream.run() and self.done)


def forget(covers):
    """Work that was waited for, but where more came after it."""
    for (_, stream), (late, last) in covers.items():
        if late.get(stream, np.inf) <= last:
            del late[stream]


class Node:
    """What the GPUs of all ranks share."""

    def __init__(self):
        self.lock = threading.RLock()
        self.streams, self.meetings = {}, defaultdict(dict)
        self.synchronized = 0
        self.calls, self.faults = [], {}  # of NCCL, see there

    def run_all(self):
        moved = [stream.run() for stream in list(self.streams.values())]
        return any(moved)


class FakeLayer:
    """Of one rank; the same interface as hpcsgd.backends.cuda.driver.DeviceLayer."""

    def __init__(self, node, place="node 0000:01"):
        self.node, self.place, self.main = node, place, Stream(node)
        self.nccl, self.kept = FakeNccl(node, self.main), []
        self.breaks = {}  # what -> how many of it are left until the GPU is lost
        self.size = 2**30  # bytes

    def array(self, values):
        """Device memory that holds a copy of them."""
        return FakeArray(np.array(values), {})

    def later(self, array, values):
        """A kernel that writes these values when its turn comes."""
        self.main.put(lambda: np.copyto(array.held, values), array)

    def break_at(self, what, number):
        """Lost by the so manieth: "launch", "replay", "fetch" or "sum"."""
        self.breaks[what] = number

    def tick(self, what):
        """One more of them: the work that is queued now may be the end of it."""
        if what not in self.breaks:
            return
        self.breaks[what] -= 1
        if self.breaks[what] == 0:
            self.main.put(self.die)

    def die(self):
        why = "cudaErrorIllegalAddress: an illegal memory access was encountered"
        self.main.broken = device_lost_error(self.place, why)
        # NCCL of the others notices.
        self.node.faults["async"] = RuntimeError("ncclRemoteError: a peer is gone")
        return False

    def memory(self):
        return self.size, 2 * self.size

    def owns(self, array):
        return isinstance(array, FakeArray)

    def empty(self, words, dtype):
        return self.array(np.full(words, STALE, dtype))

    def pinned(self, words, dtype):
        return np.full(words, STALE, dtype)

    def current_stream(self):
        return self.main

    def new_stream(self):
        return Stream(self.node)

    def synchronize(self, stream):
        stream.is_free()
        self.node.synchronized += 1
        stream.until(lambda: not stream.queue)
        forget(stream.unseen)
        stream.unseen.clear()

    def record(self, stream):
        return Event(stream)

    def stream_wait_event(self, stream, event):
        stream.put(event.is_over)
        for key, found in event.covers.items():
            known = stream.unseen.get(key, found)
            stream.unseen[key] = max(found, known, key=lambda one: one[1])

    def is_done(self, event):
        event.stream.is_free()
        self.main.check()
        if not event.is_over():
            self.node.run_all()
            event.asked = event.asked or time.monotonic()
            hangs = time.monotonic() > event.asked + LIMIT
            assert event.done or not hangs, "the fake GPU hangs"
        return event.done

    def wait(self, event):
        event.stream.is_free()
        event.stream.until(lambda: event.done)
        forget(event.covers)

    def address(self, array):
        self.kept.append(array.held)  # what NCCL was given is not made anew
        return array.held.ctypes.data

    def handle(self, stream):
        return id(stream)

    def to_host(self, array, host, stream):
        self.tick("sum")
        assert array.nbytes == host.nbytes and array.flags.c_contiguous
        stream.put(lambda: np.copyto(host, array.held.reshape(-1)), array)

    def to_device(self, host, array, stream):
        assert array.nbytes == host.nbytes and array.flags.c_contiguous
        stream.put(lambda: np.copyto(array.held.reshape(-1), host), array)

    def for_mpi(self, array):
        if array.late:
            raise Unsynchronized("read by MPI before synchronise")
        return array.held

    def narrow(self, values, bits, stream):
        stream.put(lambda: narrow_bits(np, values.held, bits.held), values, bits)

    def widen(self, bits, values, stream):
        stream.put(lambda: widen_bits(bits.held, values.held), bits, values)

    def add_bits(self, parts, ranks, total, stream):
        action = lambda: add_bits(np, parts.held, ranks, total.held)  # noqa: E731
        stream.put(action, parts, total)
