"""The replicas as a codec sees them: one bucket's line to all of them."""

from collections.abc import Callable, Sequence

import numpy as np

from hpcsgd.comm.base import Communicator
from hpcsgd.comm.narrow import open_message
from hpcsgd.comm.workspace import Message
from hpcsgd.products.base import Array

PURPOSE = "agreement"


class ReplicaLine:
    """What `hpcsgd.codecs.base.Line` promises, on a communicator."""

    def __init__(self, replicas: Communicator) -> None:
        self.replicas = replicas
        self.rank, self.size = replicas.rank, replicas.size
        # Of its own: other buckets travel at the same time.
        self._messages: dict[tuple[int, str], Message] = {}

    def start_sum(self, array: Array, form: str = "") -> Callable[[], Array]:
        """Begin a sum, in `form` on the wire."""
        if not form:
            return self.replicas.start_sum(array, PURPOSE).wait
        key = array.size, form
        if key not in self._messages:
            opened = open_message(self.replicas, array.size, form, travels=True)
            self._messages[key] = opened
        message = self._messages[key]
        message.array[...] = array
        return message.start(PURPOSE).wait

    def sum(self, array: Array) -> Array:
        """Σ over replicas, in place."""
        return self.replicas.sum(array, PURPOSE)

    def start_gather(
        self, record: Array, lengths: Sequence[int] | None = None
    ) -> Callable[[], list[Array]]:
        """The records of all, which are as long as this one, or as all know."""
        counts = list(lengths or [record.size] * self.size)
        out = np.empty(sum(counts), dtype=record.dtype)
        pending = self.replicas.start_gather(record, counts, out, PURPOSE)

        def arrive() -> list[Array]:
            pending.wait()
            return np.split(out, np.cumsum(counts)[:-1])

        return arrive

    def gather_unequal(self, record: Array) -> list[Array]:
        """Their lengths first."""
        lengths = np.empty(self.size, dtype=np.int64)
        own = np.array([record.size], dtype=np.int64)
        self.replicas.gather(own, [1] * self.size, lengths, PURPOSE)
        out = np.empty(lengths.sum(), dtype=record.dtype)
        self.replicas.gather(record, lengths.tolist(), out, PURPOSE)
        return np.split(out, np.cumsum(lengths)[:-1])

    def start_exchange(self, pieces: Array) -> Callable[[], Array]:
        """Rows of one length; theirs for this one come in rank order."""
        rows, length = pieces.shape
        out = np.empty_like(pieces)
        pending = self.replicas.start_exchange(
            pieces.reshape(-1), [length] * rows, out.reshape(-1), PURPOSE
        )

        def arrive() -> Array:
            pending.wait()
            return out

        return arrive

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """array ← that of replica `root`."""
        return self.replicas.broadcast(array, root, PURPOSE)
