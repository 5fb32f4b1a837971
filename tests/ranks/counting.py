"""A proxy around an mpi4py communicator that counts what it is really asked to send."""

from collections import defaultdict

import numpy as np


def nothing():
    return {"calls": 0, "words": 0}


class CountingComm:
    """Counts calls and words of buffer collectives, flags apart; passes all on."""

    COUNTED = (
        *("Allreduce", "Iallreduce", "Reduce", "Bcast", "Allgather", "Allgatherv"),
        *("Iallgather", "Iallgatherv", "Ireduce_scatter"),
        *("Alltoall", "Ialltoall", "Alltoallv", "Ialltoallv", "Isend"),
    )

    def __init__(self, comm, parent=None):
        self.comm = comm
        self.counts = parent.counts if parent else nothing()
        self.flags = parent.flags if parent else nothing()
        self.shared = parent.shared if parent else nothing()  # pickles from one rank
        # Messages of 8- and 16-bit words, by the bytes of each.
        self.narrow = parent.narrow if parent else defaultdict(nothing)
        self.tally = parent.tally if parent else {"started": 0}

    def __getattr__(self, name):
        value = getattr(self.comm, name)
        if name == "Split":
            return lambda *a: CountingComm(value(*a), self)
        if name == "Allreduce_init":
            return lambda *a: CountingRequest(value(*a), self, a[1])
        if name not in self.COUNTED:
            return value

        def counted(*arguments, **options):
            sent = (a[0] if isinstance(a, list) else a for a in arguments)
            buffer = next(a for a in sent if isinstance(a, np.ndarray))
            self.count(buffer, name == "Bcast" and buffer.dtype == np.uint8)
            return value(*arguments, **options)

        return counted

    def count(self, buffer, is_shared=False):
        """One call that sends this buffer."""
        # Objects are not counted, whether one rank sends them or all ranks do.
        tables = [self.shared if is_shared else self.counts]
        if buffer.dtype == np.int64:
            tables.append(self.flags)
        elif not is_shared and buffer.itemsize <= 2:
            tables.append(self.narrow[buffer.itemsize])
        for counts in tables:
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
