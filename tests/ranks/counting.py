"""A proxy around an mpi4py communicator that counts what it is really asked to send."""

import numpy as np


class CountingComm:
    """Counts calls and words of buffer collectives, flags apart; passes all on."""

    COUNTED = ("Allreduce", "Iallreduce", "Reduce", "Allgatherv", "Bcast")

    def __init__(self, comm, counts=None, flags=None, tally=None):
        self.comm = comm
        self.counts = {"calls": 0, "words": 0} if counts is None else counts
        self.flags = {"calls": 0, "words": 0} if flags is None else flags
        self.tally = {"started": 0} if tally is None else tally

    def __getattr__(self, name):
        value = getattr(self.comm, name)
        if name == "Split":
            return lambda *a: CountingComm(
                value(*a), self.counts, self.flags, self.tally
            )
        if name == "Allreduce_init":
            return lambda *a: CountingRequest(value(*a), self, a[1])
        if name not in self.COUNTED:
            return value

        def counted(*arguments, **options):
            buffer = next(a for a in arguments if isinstance(a, np.ndarray))
            self.count(buffer)
            return value(*arguments, **options)

        return counted

    def count(self, buffer):
        """One call that sends this buffer."""
        for counts in (self.counts, self.flags):
            if counts is self.counts or buffer.dtype == np.int64:
                counts["calls"] += 1
                counts["words"] += buffer.size


class CountingRequest:
    """A persistent request; every start is one call of its words."""

    def __init__(self, request, comm, buffer):
        self.request, self.comm, self.buffer = request, comm, buffer
        self.Wait, self.Free = request.Wait, request.Free

    def Start(self):
        self.comm.count(self.buffer)
        self.comm.tally["started"] += 1
        self.request.Start()
